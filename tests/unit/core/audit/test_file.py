"""The file of audit lines: its mode, its rotation, and a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from bmq.core.audit.file import AuditFile
from bmq.core.audit.log import NotWritten


def test_a_file_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    before = os.umask(0)
    try:
        AuditFile(str(path)).append([b"{}\n"])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600


def test_lines_are_appended_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"before\n")
    one, other = AuditFile(str(path)), AuditFile(str(path))
    one.append([b"a\n", b"b\n"])
    other.append([b"c\n"])
    one.append([b"d\n"])
    assert path.read_bytes() == b"before\na\nb\nc\nd\n"


@pytest.mark.parametrize("how", ["renamed", "removed", "replaced", "truncated"])
def test_a_rotated_file_is_made_again(tmp_path: Path, how: str) -> None:
    path, old = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.1"
    file = AuditFile(str(path))
    file.append([b"a\n"])
    if how == "removed":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, 0)
    else:
        path.rename(old)
    if how == "replaced":
        path.touch()
    file.append([b"b\n"])
    assert path.read_bytes() == b"b\n"
    assert not old.exists() or old.read_bytes() == b"a\n"


def test_a_folder_that_is_gone_is_said_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = AuditFile(str(folder / "audit.jsonl"))
    file.append([b"a\n"])
    (folder / "audit.jsonl").unlink()
    folder.rmdir()
    with pytest.raises(NotWritten, match="No such file") as raised:
        file.append([b"b\n"])
    assert raised.value.written == 0
    folder.mkdir()
    file.append([b"b\n"])
    assert (folder / "audit.jsonl").read_bytes() == b"b\n"


@pytest.mark.parametrize(("room", "written"), [(0, 0), (3, 0), (5, 1), (7, 1), (12, 2)])
def test_a_full_disk_leaves_whole_lines_and_a_torn_one_that_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, written: int
) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path))
    write, left = os.write, [room]

    def full(fd: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(fd, data[: left[0]])
        left[0] -= done
        return done

    lines = [b"one1\n", b"two2\n", b"six6\n"]
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(NotWritten, match="No space") as raised:
        file.append(lines)
    assert raised.value.written == written
    with pytest.raises(NotWritten) as again:
        file.append(lines[written:])
    assert again.value.written == 0
    monkeypatch.setattr(os, "write", write)
    file.append(lines[written:])
    found = path.read_bytes().splitlines(keepends=True)
    assert [line for line in found if line in lines] == lines
    assert len(found) <= len(lines) + 1, "one torn line at most"


def test_a_path_that_cannot_be_a_file_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        AuditFile(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device"):
        AuditFile(str(tmp_path / "fifo"))


@pytest.mark.loops("asyncio")
async def test_writing_and_closing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = AuditFile(str(path))
    await file.write([b"a\n"])
    await file.close()
    await file.close()
    assert path.read_bytes() == b"a\n"
