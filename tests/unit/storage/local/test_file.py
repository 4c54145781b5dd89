"""A file of a local root: its fence, its lock, short writes, and the system's errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bmq.storage.filesystem import (
    CorruptData,
    LeaseLost,
    NotAllowed,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
    Unsupported,
)
from bmq.storage.local import file as local_file


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def three_bytes(fd: int, buffers: Sequence[memoryview]) -> int:
        return os.write(fd, b"".join(buffers)[:3])

    monkeypatch.setattr(os, "writev", three_bytes)
    parts = [b"a", b"bcdef", b"gh", b"i", b"jklmnopqrstu"]
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT)
    local_file.write_all(fd, [memoryview(part) for part in parts])
    os.close(fd)
    assert (tmp_path / "f").read_bytes() == b"".join(parts)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, OutOfSpace),
        (errno.EACCES, NotAllowed),
        (errno.EROFS, Unsupported),
        (errno.EMFILE, StorageUnavailable),
        (errno.EIO, CorruptData),
        (errno.EXDEV, StorageError),
    ],
)
def test_the_systems_errors_are_translated(code: int, error: type[StorageError]) -> None:
    assert type(local_file.translate(OSError(code, os.strerror(code)), "/f")) is error


def test_changed_folders_are_bounded_and_deleted_ones_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_file, "FOLDERS_MAX", 3)
    folders = local_file.Folders()
    for n in range(10):
        folders.changed(str(tmp_path / str(n)))  # none of them exists
        assert len(folders._changed) <= 3
    folders.sync()
    assert not folders._changed


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """Return the descriptor of a new file that is open for writing."""
    fd = os.open(tmp_path / "f", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    yield fd
    os.close(fd)


def test_a_fenced_file_is_not_open_until_the_fence_is_lowered(file: int) -> None:
    assert local_file.is_open(os.fstat(file))
    local_file.check_fence(file, "/f")
    local_file.raise_fence(file)
    assert not local_file.is_open(os.fstat(file))
    with pytest.raises(LeaseLost, match="/f was fenced"):
        local_file.check_fence(file, "/f")
    local_file.lower_fence(file)
    local_file.check_fence(file, "/f")
    assert os.fstat(file).st_mode & 0o777 == 0o644


def test_a_folder_is_not_an_open_file(tmp_path: Path) -> None:
    assert not local_file.is_open(tmp_path.stat())


def test_a_file_without_a_name_left_was_deleted(file: int, tmp_path: Path) -> None:
    os.rename(tmp_path / "f", tmp_path / "g")
    local_file.check_fence(file, "/f")
    (tmp_path / "g").unlink()
    with pytest.raises(LeaseLost, match="/f was deleted"):
        local_file.check_fence(file, "/f")


def test_a_lock_that_another_descriptor_holds_is_not_waited_for(file: int, tmp_path: Path) -> None:
    other = local_file.OpenFile("/f", (os.open(tmp_path / "f", os.O_WRONLY),))
    local_file.take_lock(other.fds[0], "/f")
    with pytest.raises(LeaseLost, match="/f has a writer"):
        local_file.take_lock(file, "/f")
    other.close()
    other.close()
    local_file.take_lock(file, "/f")


def test_a_fence_returns_the_length_though_a_stopped_writer_keeps_its_lock(file: int, tmp_path: Path) -> None:
    local_file.take_lock(file, "/f")
    os.write(file, b"12345")
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    assert local_file.fence_open(fd) == 5
    os.close(fd)
    assert not local_file.is_open(os.fstat(file))
