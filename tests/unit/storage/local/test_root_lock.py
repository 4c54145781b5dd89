"""The lock of a local root: which processes may hold it together, and what a refused one is told."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bmq.storage.filesystem import NotAllowed, RootLock, StorageError, Unsupported
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.local.root_lock import LOCK, RootInUse, lock_root
from bmq.storage.open import open_filesystem

pytestmark = pytest.mark.loops("asyncio")
SHARED, EXCLUSIVE = RootLock.SHARED, RootLock.EXCLUSIVE


@pytest.mark.parametrize(
    ("first", "second", "is_refused"),
    [
        (EXCLUSIVE, EXCLUSIVE, True),
        (EXCLUSIVE, SHARED, True),
        (SHARED, EXCLUSIVE, True),
        (SHARED, SHARED, False),
        (EXCLUSIVE, RootLock.NONE, False),
    ],
)
async def test_which_locks_go_together(tmp_path: Path, first: RootLock, second: RootLock, is_refused: bool) -> None:
    holder = LocalFileSystem(tmp_path, "a", lock=first)
    if is_refused:
        with pytest.raises(RootInUse, match=f"in use by pid {os.getpid()} on .*--root.*bmq cluster rebuild"):
            LocalFileSystem(tmp_path, "b", lock=second)
    else:
        await LocalFileSystem(tmp_path, "b", lock=second).close()
    await holder.close()
    await LocalFileSystem(tmp_path, "b", lock=EXCLUSIVE).close()


@pytest.mark.slow
def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom bmq.storage.filesystem import RootLock\n"
        "from bmq.storage.local.root_lock import lock_root\n"
        f"lock_root({str(tmp_path)!r}, RootLock.EXCLUSIVE)\nprint('locked', flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(RootInUse, match=f"pid {holder.pid} "):
            lock_root(str(tmp_path), SHARED)
        holder.kill()
    os.close(lock_root(str(tmp_path), EXCLUSIVE))


async def test_a_root_by_another_name_is_the_same_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "root")
    fs = await open_filesystem(f"file://{tmp_path}/root", holder="a", lock=EXCLUSIVE)
    with pytest.raises(RootInUse):
        await open_filesystem(f"file://{tmp_path}/link", holder="b", lock=EXCLUSIVE)
    await fs.close()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(Unsupported, match=r"does not support locks \(flock: .*NFS"):
        lock_root(str(tmp_path), EXCLUSIVE)


def test_the_lock_file_has_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    urls = ["--meta", "etcd://bmq:hunter2@etcd1:2379", "--meta=etcd://bmq:hunter2@etcd2:2379", "etcd:/bmq:hunter2@e"]
    monkeypatch.setattr(sys, "argv", ["bmq", "serve", *urls])
    os.close(lock_root(str(tmp_path), RootLock.EXCLUSIVE))
    text = (tmp_path / LOCK).read_text()
    assert "hunter2" not in text
    assert "etcd://***@etcd1:2379 --meta=etcd://***@etcd2:2379" in text


def test_the_lock_file_belongs_to_the_owner_of_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repair that the superuser runs makes the file: the user of `bmq serve` must be able to open it later."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda fd, uid, gid: given.append((uid, gid)))
    owner = tmp_path.stat()
    for _ in range(2):
        os.close(lock_root(str(tmp_path), EXCLUSIVE))
    assert given == [(owner.st_uid, owner.st_gid)], "an existing file keeps its owner"


def test_an_owner_that_the_kernel_refuses_does_not_end_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, uid: int, gid: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    os.close(lock_root(str(tmp_path), EXCLUSIVE))


def test_a_lock_file_of_another_user_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str, *given: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("bmq.storage.local.root_lock.os.open", refuse)
    with pytest.raises(NotAllowed, match=r"\.lock: Permission denied: .*one user.*chown"):
        lock_root(str(tmp_path), EXCLUSIVE)


def test_a_lock_file_that_cannot_be_opened_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(StorageError, match=LOCK):
        lock_root(str(tmp_path), EXCLUSIVE)


def test_a_lock_file_that_is_a_link_is_named_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / LOCK).symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match=r"\.lock is a symbolic link, which is not followed.*Remove it"):
        lock_root(str(tmp_path), EXCLUSIVE)
    assert not (tmp_path / "other").exists()
