"""Locations of closed files that are kept (storage/hdfs/closed_files.py): for how long, of which files, and how
many."""

from __future__ import annotations

import pytest

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.closed_files import ClosedFiles
from bmq.storage.hdfs.settings import HdfsSettings

SETTINGS = HdfsSettings(readers_max=3)
LARGE = SETTINGS.reader_file_min_bytes


def located(length: int = LARGE, *, is_open: bool = False) -> pb.LocatedBlocks:
    return pb.LocatedBlocks(file_length=length, under_construction=is_open, last_block_complete=not is_open)


@pytest.mark.parametrize(
    ("length", "is_open", "expected"), [(LARGE, False, True), (LARGE - 1, False, False), (10 * LARGE, True, False)]
)
def test_small_and_open_files_are_asked_for_each_time(length: int, is_open: bool, expected: bool) -> None:
    assert ClosedFiles(SETTINGS).is_worth_it(located(length, is_open=is_open)) is expected


def test_locations_are_trusted_for_a_while() -> None:
    files, known = ClosedFiles(SETTINGS), located()
    files.remember("/f", known, 100.0)
    assert files.get("/f", LARGE, 100.0 + SETTINGS.reader_ttl_s) is known
    assert files.get("/f", LARGE, 100.1 + SETTINGS.reader_ttl_s) is None
    assert files.get("/f", LARGE, 100.0) is None, "what was dropped stays dropped"


def test_bytes_behind_the_known_end_are_asked_for() -> None:
    """The file may have been replaced by a longer one, or joined with others."""
    files = ClosedFiles(SETTINGS)
    files.remember("/f", located(), 0.0)
    assert files.get("/f", LARGE + 1, 0.0) is None


def test_the_least_recently_used_are_dropped() -> None:
    files = ClosedFiles(SETTINGS)
    for name in "abc":
        files.remember(f"/{name}", located(), 0.0)
    assert files.get("/a", 1, 0.0)
    files.remember("/d", located(), 0.0)
    assert [name for name in "abcd" if files.get(f"/{name}", 1, 0.0)] == ["a", "c", "d"]


def test_a_folder_is_forgotten_with_what_is_in_it() -> None:
    files = ClosedFiles(SETTINGS)
    for path in ("/t/a", "/t/b/c", "/tt"):
        files.remember(path, located(), 0.0)
    files.forget_all_under("/t")
    assert [path for path in ("/t/a", "/t/b/c", "/tt") if files.get(path, 1, 0.0)] == ["/tt"]
    files.forget("/tt")
    assert files.get("/tt", 1, 0.0) is None
