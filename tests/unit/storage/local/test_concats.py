"""Concats of one local root by several processes, each of which may stand still, or be killed, at any system call."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bmq.storage import filesystem
from bmq.storage.filesystem import LeaseLost, NoSuchFile
from bmq.storage.local import filesystem as local_filesystem
from bmq.storage.local.filesystem import LocalFileSystem
from tests.unit.storage.local.roots import noted_calls, opened
from tests.unit.storage.local.stepped_calls import SteppedCall, stop_at_system_calls

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

PARTS = {"T": b"tttt", "S1": b"11", "S2": b"222", "S3": b"3"}
"""A log's files: T is the target, the others may be appended to it in this order."""


def put_parts(root: Path) -> None:
    for name, data in PARTS.items():
        (root / name).write_bytes(data)
        (root / name).chmod(0o444)


def concat(root: Path, target: str, sources: Sequence[str]) -> SteppedCall:
    """Return the concat of a process of its own, which has looked at the target now."""
    fs, length = LocalFileSystem(root, "process"), os.path.getsize(root / target)
    return SteppedCall(lambda: fs._concat(f"/{target}", [f"/{name}" for name in sources], length))


def log_of(root: Path) -> bytes:
    """Return the log's bytes as a reader finds them: a file is read up to the beginning of the next file."""
    sizes = {name: len(data) for name, data in PARTS.items()}
    begins = {name: sum(list(sizes.values())[:at]) for at, name in enumerate(sizes)}
    left = [name for name in PARTS if (root / name).exists()]
    ends = [begins[name] for name in left[1:]] + [sum(sizes.values())]
    return b"".join((root / name).read_bytes()[: end - begins[name]] for name, end in zip(left, ends, strict=True))


def delete_joined(root: Path, target: str, sources: Sequence[str]) -> SteppedCall:
    """Return the settlement of a process of its own."""
    fs, length = LocalFileSystem(root, "process"), os.path.getsize(root / target)
    return SteppedCall(lambda: fs._delete_joined(f"/{target}", [f"/{name}" for name in sources], length))


ALL = b"".join(PARTS.values())


def test_a_concat_that_locks_a_file_which_was_replaced_meanwhile_takes_no_record_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the old file keeps no other call away: the merge behind it would be undone."""
    put_parts(tmp_path)
    stop_at_system_calls(monkeypatch)
    late = concat(tmp_path, "T", ["S1", "S2"])
    late.run_to("flock", "T")
    killed = concat(tmp_path, "T", ["S1", "S2"])
    killed.run_to("unlink", "S1")
    killed.kill()
    late.run_to("open", ".concat")
    for name in ("S1", "S2"):
        (tmp_path / name).unlink()
    following = concat(tmp_path, "T", ["S3"])
    following.finish()
    late.finish()
    assert log_of(tmp_path) == ALL
    assert isinstance(late.error, LeaseLost)
    assert following.error is None


def test_a_concat_that_locks_a_source_which_was_replaced_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source has grown: its new bytes would be deleted with it."""
    put_parts(tmp_path)
    stop_at_system_calls(monkeypatch)
    late = concat(tmp_path, "T", ["S1"])
    late.run_to("flock", "S1")
    other = concat(tmp_path, "S1", ["S2"])
    other.finish()
    assert other.error is None
    late.finish()
    assert log_of(tmp_path) == ALL
    assert isinstance(late.error, LeaseLost)


def test_a_concat_that_locks_a_source_which_was_deleted_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_parts(tmp_path)
    stop_at_system_calls(monkeypatch)
    late = concat(tmp_path, "T", ["S1"])
    late.run_to("flock", "S1")
    (tmp_path / "S1").unlink()
    late.finish()
    assert isinstance(late.error, LeaseLost)
    assert (tmp_path / "T").read_bytes() == PARTS["T"]


def test_each_concat_has_a_temporary_file_of_its_own_and_deletes_those_of_earlier_crashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_parts(tmp_path)
    other = tmp_path / ".T.log.0123456789abcdef.concat"
    other.write_bytes(b"of another target")
    stop_at_system_calls(monkeypatch)
    names: list[str] = []
    for _ in range(2):
        killed = concat(tmp_path, "T", ["S1", "S2"])
        killed.run_to("replace", "T")
        killed.kill()
        (left,) = [name for name in os.listdir(tmp_path) if name.endswith(".concat") and name != other.name]
        names.append(left)
    assert names[0] != names[1]
    last = concat(tmp_path, "T", ["S1", "S2"])
    last.finish()
    assert sorted(os.listdir(tmp_path)) == [other.name, "S3", "T"]
    assert log_of(tmp_path) == ALL


@pytest.mark.parametrize("sources", [["S1", "S2"], ["S1", "S2", "S3"]], ids=len)
def test_a_late_concat_appends_no_byte_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str]
) -> None:
    """The call before it was killed with sources left.  A third source would begin behind bytes that are doubled."""
    put_parts(tmp_path)
    stop_at_system_calls(monkeypatch)
    late = concat(tmp_path, "T", sources)
    killed = concat(tmp_path, "T", ["S1", "S2"])
    killed.run_to("unlink", "S1")
    killed.kill()
    late.finish()
    assert str(late.error) == "/T is 9 bytes long, not 4"
    assert isinstance(late.error, LeaseLost)
    assert (tmp_path / "T").read_bytes() == b"".join(PARTS[name] for name in ("T", "S1", "S2"))
    assert log_of(tmp_path) == ALL


def test_a_concat_does_not_put_a_deleted_target_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention deletes files without their locks, during the copy of many bytes, say."""
    put_parts(tmp_path)
    stop_at_system_calls(monkeypatch)
    late = concat(tmp_path, "T", ["S1", "S2"])
    late.run_to("open", ".concat")
    late.step()
    (tmp_path / "T").unlink()
    late.finish()
    assert isinstance(late.error, LeaseLost)
    assert sorted(os.listdir(tmp_path)) == ["S1", "S2", "S3"]


def test_a_concat_whose_copy_gets_no_owner_leaves_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(fd: int, status: os.stat_result, path: str) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    put_parts(tmp_path)
    stop_at_system_calls(monkeypatch)
    monkeypatch.setattr(local_filesystem, "give_like", refused)
    call = concat(tmp_path, "T", ["S1", "S2"])
    call.finish()
    assert isinstance(call.error, PermissionError)
    assert sorted(os.listdir(tmp_path)) == sorted(PARTS)


# ------------------------------------------------------------------------------------------------ joined sources


def put_joined(root: Path) -> None:
    """Leave the files of a concat that ended behind the change of its target."""
    put_parts(root)
    (root / "T").unlink()
    (root / "T").write_bytes(PARTS["T"] + PARTS["S1"] + PARTS["S2"])
    (root / "T").chmod(0o444)


@pytest.mark.parametrize("held", ["T", "S2"])
def test_joined_sources_stay_while_a_concat_holds_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    put_joined(tmp_path)
    stop_at_system_calls(monkeypatch)
    running = concat(tmp_path, held, ["S3"])
    running.run_to("replace", held)
    settling = delete_joined(tmp_path, "T", ["S1", "S2"])
    settling.finish()
    assert isinstance(settling.error, LeaseLost)
    assert sorted(name for name in os.listdir(tmp_path) if name[0] != ".") == ["S1", "S2", "S3", "T"]
    running.kill()
    settling = delete_joined(tmp_path, "T", ["S1", "S2"])
    settling.finish()
    assert settling.error is None
    assert log_of(tmp_path) == ALL


def test_joined_sources_stay_beside_a_target_that_is_another_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator has restored the target from before the merge: the sources have the only copy of their bytes."""
    put_joined(tmp_path)
    stop_at_system_calls(monkeypatch)
    settling = delete_joined(tmp_path, "T", ["S1", "S2"])
    (tmp_path / "T").unlink()
    (tmp_path / "T").write_bytes(PARTS["T"])
    settling.finish()
    assert isinstance(settling.error, LeaseLost)
    assert log_of(tmp_path) == ALL


@pytest.mark.parametrize("at", [("unlink", "S1"), ("unlink", "S2")], ids=repr)
def test_no_concat_takes_a_file_whose_joined_sources_are_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[str, str]
) -> None:
    put_joined(tmp_path)
    stop_at_system_calls(monkeypatch)
    settling = delete_joined(tmp_path, "T", ["S1", "S2"])
    settling.run_to(*at)
    for target, source in (("T", "S3"), ("S2", "S3")):
        late = concat(tmp_path, target, [source])
        late.finish()
        assert isinstance(late.error, LeaseLost)
    settling.kill()
    assert log_of(tmp_path) == ALL


async def test_joined_sources_are_deleted_once_the_target_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_joined(tmp_path)
    target, folder, *sources = (os.stat(tmp_path / name).st_ino for name in ("T", ".", "S1", "S2"))
    async with opened(tmp_path) as fs:
        calls = noted_calls(monkeypatch, "fdatasync", "fsync", "unlink")
        await filesystem.delete_joined(fs, "/T", ["/S1", "/S2"], 9)
        expected = [("fdatasync", target), ("fsync", folder), *(("unlink", source) for source in sources)]
        assert calls == expected
        with pytest.raises(NoSuchFile):
            await filesystem.delete_joined(fs, "/T", ["/S2", "/S3"], 9)
        assert sorted(os.listdir(tmp_path)) == ["S3", "T"]
