"""Locations of files that are kept (storage/hdfs/known_files.py): for how long, of which files, and how many."""

from __future__ import annotations

import pytest

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.known_files import KnownFile, KnownFiles
from bmq.storage.hdfs.settings import HdfsSettings

SETTINGS = HdfsSettings(readers_max=3)
LARGE = SETTINGS.reader_file_min_bytes


def located(length: int = LARGE, *, is_open: bool = False) -> pb.LocatedBlocks:
    return pb.LocatedBlocks(file_length=length, under_construction=is_open, last_block_complete=not is_open)


@pytest.mark.parametrize(
    ("length", "is_open", "expected"), [(LARGE, False, True), (LARGE - 1, False, False), (10 * LARGE, True, False)]
)
def test_small_files_are_asked_for_each_time(length: int, is_open: bool, expected: bool) -> None:
    assert KnownFiles(SETTINGS).is_worth_it(located(length, is_open=is_open)) is expected


def test_locations_are_trusted_for_a_while() -> None:
    files, known = KnownFiles(SETTINGS), KnownFile(located())
    files.remember("/f", known, 100.0)
    assert files.get("/f", LARGE, 100.0 + SETTINGS.reader_ttl_s) is known
    assert files.get("/f", LARGE, 100.1 + SETTINGS.reader_ttl_s) is None
    assert files.get("/f", LARGE, 100.0) is None, "what was dropped stays dropped"


def test_bytes_behind_the_known_end_are_asked_for() -> None:
    """The file may have been replaced by a longer one, or joined with others."""
    files = KnownFiles(SETTINGS)
    files.remember("/f", KnownFile(located()), 0.0)
    assert files.get("/f", LARGE + 1, 0.0) is None


def test_the_least_recently_used_are_dropped() -> None:
    files = KnownFiles(SETTINGS)
    for name in "abc":
        files.remember(f"/{name}", KnownFile(located()), 0.0)
    assert files.get("/a", 1, 0.0)
    files.remember("/d", KnownFile(located()), 0.0)
    assert [name for name in "abcd" if files.get(f"/{name}", 1, 0.0)] == ["a", "c", "d"]


def test_a_folder_is_forgotten_with_what_is_in_it() -> None:
    files = KnownFiles(SETTINGS)
    for path in ("/t/a", "/t/b/c", "/tt"):
        files.remember(path, KnownFile(located()), 0.0)
    files.forget_all_under("/t")
    assert [path for path in ("/t/a", "/t/b/c", "/tt") if files.get(path, 1, 0.0)] == ["/tt"]
    files.forget("/tt")
    assert files.get("/tt", 1, 0.0) is None


def being_written(shown: int, *, offset: int = 0) -> KnownFile:
    block = pb.LocatedBlock(
        block=pb.Block(pool="pool", id=1, generation=1, length=0),
        offset=offset,
        corrupt=False,
        token=pb.Token(identifier=b"", password=b"", kind="", service=""),
    )
    locations = pb.LocatedBlocks(
        file_length=offset, under_construction=True, last_block_complete=False, last_block=block
    )
    return KnownFile(locations, {"node": shown})


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (being_written(LARGE), True),
        (being_written(LARGE - 1), False),
        (being_written(LARGE, offset=LARGE), False),
        (KnownFile(located(is_open=True), {"node": LARGE}), False),
        (KnownFile(located()), False),
    ],
    ids=["large", "small", "of two blocks", "without a block", "closed"],
)
def test_an_open_file_of_one_block_is_kept_once_a_datanode_shows_much(file: KnownFile, expected: bool) -> None:
    assert KnownFiles(SETTINGS).is_open_worth_it(file) is expected


def test_an_open_file_is_known_past_what_was_shown() -> None:
    """A datanode is asked then what it shows now: the file has grown."""
    files, known = KnownFiles(SETTINGS), being_written(LARGE)
    files.remember("/f", known, 0.0)
    assert files.get("/f", 2 * LARGE, SETTINGS.reader_ttl_s) is known
    assert files.get("/f", 1, SETTINGS.reader_ttl_s + 0.1) is None
