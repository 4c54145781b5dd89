"""The page cache is asked what it holds of files, and forgets those of one folder."""

from __future__ import annotations

from pathlib import Path

from bench.page_cache import PAGE, drop, resident_bytes


def test_what_was_just_written_is_held(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10 * PAGE + 1))
    assert resident_bytes(path) == 10 * PAGE + 1


def test_an_empty_file_and_an_empty_folder_hold_nothing(tmp_path: Path) -> None:
    assert drop(tmp_path) == 0.0
    (tmp_path / "empty").touch()
    assert resident_bytes(tmp_path / "empty") == 0
    assert drop(tmp_path) == 0.0


def test_the_share_that_is_left_is_what_is_still_held(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "a folder"
    folder.mkdir(parents=True)
    for name in "ab":
        (folder / name).write_bytes(bytes(100 * PAGE))
    share = drop(tmp_path)
    held = sum(resident_bytes(folder / name) for name in "ab")
    assert share == held / (200 * PAGE)
    assert (folder / "a").read_bytes() == bytes(100 * PAGE)
    assert resident_bytes(folder / "a") == 100 * PAGE
