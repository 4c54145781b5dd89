"""A file of a local root: its fence, its lock, short writes, and the system's errors."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bmq.core.logging.fields import fields_of
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
from tests.unit.storage.local.roots import noted_calls


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
        folder = str(tmp_path / str(n))  # none of them exists
        folders.make_room(folder)
        folders.changed(folder)
        assert len(folders._changed) <= 3
    folders.sync(str(tmp_path / "f"))
    assert not folders._changed


def refuse_folder(monkeypatch: pytest.MonkeyPatch, real: Path, call: str, code: int) -> None:
    """Let ``os.open`` or ``os.fsync`` of this folder fail."""
    function, refused = getattr(os, call), os.stat(real)

    def failing(what: Any, *rest: Any, **options: Any) -> Any:
        if os.path.exists(what) and os.path.samestat(os.stat(what), refused):
            raise OSError(code, os.strerror(code))
        return function(what, *rest, **options)

    monkeypatch.setattr(os, call, failing)


@pytest.mark.parametrize(("call", "code"), [("open", errno.EACCES), ("fsync", errno.EIO)])
def test_a_folder_that_cannot_be_synced_fails_only_the_files_below_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, code: int
) -> None:
    """Another topic's folder is synced, and the refused folder stays changed until a sync succeeds."""
    bad, good = tmp_path / "bad", tmp_path / "good"
    folders = local_file.Folders()
    for folder in (bad, good):
        folder.mkdir()
    with monkeypatch.context() as patch:
        refuse_folder(patch, bad, call, code)
        calls = noted_calls(patch, "fsync")
        for _ in range(2):
            folders.changed(str(bad), str(good))
            folders.sync(str(good / "f"))
            folders.sync(str(tmp_path / "bad-too"))
            with pytest.raises(OSError, match=re.escape(os.strerror(code))):
                folders.sync(str(bad / "0" / "f"))
        assert calls.count(("fsync", good.stat().st_ino)) == 2, "a folder is synced once for a change"
    assert [fields_of(record)["path"] for record in caplog.records] == [str(bad)], "one warning"
    calls = noted_calls(monkeypatch, "fsync")
    folders.sync(str(good / "f"))
    folders.sync(str(bad / "0" / "f"))
    assert calls == [("fsync", bad.stat().st_ino)]


def test_room_for_a_changed_folder_is_made_before_the_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note of a change that was carried out syncs nothing, so that it cannot fail."""
    monkeypatch.setattr(local_file, "FOLDERS_MAX", 3)
    names = [tmp_path / str(n) for n in range(5)]
    for name in names:
        name.mkdir()
    calls = noted_calls(monkeypatch, "fsync")
    folders = local_file.Folders()
    folders.changed(*(str(name) for name in names))
    assert calls == []
    folders.make_room(str(names[0]))
    assert calls == [], "the folder has its room"
    folders.make_room(str(tmp_path))
    assert calls == [("fsync", name.stat().st_ino) for name in names]


def test_without_room_no_other_folder_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_file, "FOLDERS_MAX", 1)
    (tmp_path / "bad").mkdir()
    folders = local_file.Folders()
    folders.changed(str(tmp_path / "bad"))
    with monkeypatch.context() as patch:
        refuse_folder(patch, tmp_path / "bad", "fsync", errno.EIO)
        folders.make_room(str(tmp_path / "bad"))
        with pytest.raises(StorageUnavailable, match=f"{re.escape(str(tmp_path))}/bad"):
            folders.make_room(str(tmp_path / "good"))
    folders.make_room(str(tmp_path / "good"))


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
    other = local_file.OpenFile("/f", (os.open(tmp_path / "f", os.O_WRONLY),), str(tmp_path / "f"))
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
