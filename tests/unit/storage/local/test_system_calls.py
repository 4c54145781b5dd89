"""Renames and removals for which the kernel has no single call."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bmq.storage.filesystem import (
    AlreadyExists,
    NoSuchFile,
    StorageError,
    write_once,
)
from bmq.storage.local import system_calls
from bmq.storage.local.filesystem import LocalFileSystem
from tests.unit.storage.local.roots import opened, put

pytestmark = pytest.mark.loops("asyncio")


async def test_a_rename_overwrites_nothing_though_the_kernel_cannot_refuse_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class OldLibrary:
        pass

    monkeypatch.setattr(system_calls, "_libc", OldLibrary())

    async with opened(tmp_path) as fs:
        await put(fs, "/d/one", b"1")
        await put(fs, "/d/two", b"2")
        await put(fs, "/e/f", b"")
        with pytest.raises(AlreadyExists):
            await fs.rename("/d/one", "/d/two")
        with pytest.raises(AlreadyExists):
            await fs.rename("/d", "/e")
        with pytest.raises(NoSuchFile):
            await fs.rename("/d/none", "/d/three")
        await fs.rename("/d/one", "/d/three")
        await fs.rename("/d", "/g")
        assert [status.path async for status in fs.list("/g")] == ["/g/three", "/g/two"]
        assert os.stat(tmp_path / "g" / "three").st_nlink == 1


async def test_a_folder_is_removed_while_others_write_into_it_and_remove_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delete as HDFS does, in one step: files that are written meanwhile go, too, and those that another process has
    removed are not an error."""
    rmdir, unlink = os.rmdir, os.unlink
    late = ["one", "two"]
    removed: list[str] = []

    def rmdir_after_a_write(path: str, *args: Any, **options: Any) -> None:
        if late:
            (tmp_path / "root" / "d" / late.pop()).touch()
        rmdir(path, *args, **options)

    def unlink_after_another(path: str, *args: Any, **options: Any) -> None:
        if not removed:
            removed.append(path)
            unlink(path, *args, **options)
        unlink(path, *args, **options)

    fs = LocalFileSystem(tmp_path / "root", "deleter")
    await write_once(fs, "/d/e/f", b"x")
    monkeypatch.setattr(os, "rmdir", rmdir_after_a_write)
    monkeypatch.setattr(os, "unlink", unlink_after_another)
    assert await fs.delete("/d", recursive=True)
    assert [child.path async for child in fs.list("/")] == []
    assert not late
    assert removed
    await fs.close()


async def test_a_folder_that_is_written_all_the_time_is_not_removed_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rmdir, names = os.rmdir, iter(range(1_000_000))

    def rmdir_after_a_write(path: str, *args: Any, **options: Any) -> None:
        (tmp_path / "root" / "d" / str(next(names))).touch()
        rmdir(path, *args, **options)

    fs = LocalFileSystem(tmp_path / "root", "deleter")
    await write_once(fs, "/d/f", b"x")
    monkeypatch.setattr(os, "rmdir", rmdir_after_a_write)
    with pytest.raises(StorageError, match="not empty"):
        await fs.delete("/d", recursive=True)
    await fs.close()
