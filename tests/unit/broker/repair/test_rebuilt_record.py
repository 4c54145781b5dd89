"""A record rebuilt from what storage shows of a partition: segments listed as open, their holder, log start and
epoch."""

from __future__ import annotations

import uuid

import pytest

from bmq.broker.repair.rebuilt_record import (
    EPOCH_MARGIN,
    NAMES_MAX,
    OPEN_MAX,
    PartitionFolder,
    Spoken,
    is_whole,
    record,
)
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.ownership import PartitionRecord, decode, encode
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.layout import EPOCH_MAX, PartitionPath

KEY = PartitionKey(uuid.UUID(int=7), 3)
PATH = PartitionPath("orders", str(KEY.topic_id), 3)
NOTHING = Spoken()


def name(base: int, epoch: int = 1, n: int = 0) -> SegmentName:
    return SegmentName(base, epoch, n)


def checkpoint(
    segment: SegmentName, position: int = 100, *, log_start: int = 0, end: int = 0, is_closed: bool = True
) -> Checkpoint:
    end = end or segment.base + 10
    return Checkpoint(
        key=KEY, segment=segment, position=position, end_offset=end, log_start=log_start, is_closed=is_closed
    )


def folder(*files: tuple[SegmentName, bool]) -> PartitionFolder:
    """Return a folder of segments of 100 bytes, with an index or without."""
    made = PartitionFolder()
    for at, (segment, has_idx) in enumerate(files):
        if has_idx:
            made.segment(segment, "idx", 60, 1000 + at)
        made.segment(segment, "log", 100, 500 + at)
    return made


def listed(made: PartitionRecord) -> list[tuple[int, bool]]:
    return [(entry.name.base, entry.is_closed) for entry in made.segments]


def test_a_partition_without_files_still_gets_an_epoch_of_this_life() -> None:
    made = record(PATH, PartitionFolder(), NOTHING, None, 2)
    assert made == PartitionRecord(epoch=2 * EPOCH_MARGIN)


def test_the_newest_index_and_all_that_came_later() -> None:
    """A segment registered before the newest index need not be listed, whether or not it has an index itself."""
    files = folder((name(0), True), (name(10, 1, 1), False), (name(20, 2), True), (name(30, 2, 1), False))
    made = record(PATH, files, NOTHING, checkpoint(name(20, 2)), 1)
    assert listed(made) == [(20, True), (30, False)]
    assert (made.segments[0].length, made.segments[0].end_offset, made.segments[0].file_id) == (100, 30, 502)
    assert made.segments[1].file_id == 503
    assert made.segments[1].spare == PATH.log(name(30, 2, 1)), "a path, for whoever fences it"
    assert made.epoch == 2 + EPOCH_MARGIN
    assert made.owner == ""


def test_registration_counts_and_not_the_base() -> None:
    """A failed-over segment without an index, of the same base as a later one that has one, is not wanted."""
    files = folder((name(10, 1, 1), False), (name(10, 1, 2), True), (name(20, 1, 3), False))
    assert files.closed() == [name(10, 1, 2)]
    made = record(PATH, files, NOTHING, checkpoint(name(10, 1, 2)), 1)
    assert listed(made) == [(10, True), (20, False)]


def test_an_index_says_closed_when_it_covers_its_file() -> None:
    files = folder((name(0), True))
    file = files.files[name(0)]
    assert is_whole(checkpoint(name(0)), name(0), file)
    assert not is_whole(checkpoint(name(0), 99), name(0), file), "bytes behind it: a failed write's, or joined ones"
    assert not is_whole(checkpoint(name(5)), name(0), file), "another's"
    assert not is_whole(None, name(0), file), "damaged"


def test_a_segment_whose_index_cannot_be_used_is_listed_as_open() -> None:
    files = folder((name(0), True), (name(10, 1, 1), True))
    assert listed(record(PATH, files, NOTHING, checkpoint(name(0)), 1)) == [(0, True), (10, False)]
    assert listed(record(PATH, files, NOTHING, None, 1)) == [(0, False), (10, False)]


def test_an_index_without_its_segment_tells_the_epoch_only() -> None:
    files = folder((name(0), True))
    files.segment(name(10, 9), "idx", 60, 1)
    assert files.closed() == [name(0)]
    assert listed(record(PATH, files, NOTHING, checkpoint(name(0)), 1)) == [(0, True)]
    assert record(PATH, files, NOTHING, None, 1).epoch == 9 + EPOCH_MARGIN


def test_who_holds_an_open_segment() -> None:
    """The holder is named by a spare of the epoch, or by the checkpoint of a segment that was still written; else it is
    unknown."""
    files = folder((name(0, 1), False), (name(10, 2), False), (name(20, 3), False))
    files.spare(2, "by-spare")
    spoken = Spoken()
    spoken.add("by-journal", checkpoint(name(20, 3), is_closed=False))
    spoken.add("successor", checkpoint(name(20, 3), end=40))
    made = record(PATH, files, spoken, None, 1)
    assert [entry.holder for entry in made.segments] == ["", "by-spare", "by-journal"]


def test_spares_and_checkpoints_raise_the_epoch() -> None:
    files = folder((name(0, 3), True))
    files.spare(8, "b")
    spoken = Spoken()
    spoken.add("b", checkpoint(name(0, 3)))
    assert record(PATH, files, spoken, checkpoint(name(0, 3)), 1).epoch == 8 + EPOCH_MARGIN
    files.spare(EPOCH_MAX - 1, "b")
    with pytest.raises(FormatError, match="does not fit"):
        record(PATH, files, spoken, None, 1)


def test_journals_that_matter() -> None:
    """The latest checkpoint and the largest log start, however many brokers spoke of it."""
    spoken = Spoken()
    for number in range(20):
        spoken.add(f"b{number}", checkpoint(name(number, number + 1)))
    spoken.add("deleter", checkpoint(name(0), log_start=4))
    assert set(spoken.journals) == {"b19", "deleter"}
    spoken.add("both", checkpoint(name(90, 90), log_start=80))
    assert spoken.journals == ("both",)


def test_a_segment_that_was_written_and_is_not_there_is_listed() -> None:
    """Takeover then finds it missing, and takes the partition OFFLINE."""
    spoken = Spoken()
    spoken.add("b", checkpoint(name(10, 2), is_closed=False))
    files = folder((name(0), True))
    assert listed(record(PATH, files, spoken, checkpoint(name(0)), 1)) == [(0, True), (10, False)]
    files.segment(name(20, 3), "idx", 1, 1)
    files.segment(name(20, 3), "log", 100, 1)
    assert listed(record(PATH, files, spoken, checkpoint(name(20, 3)), 1)) == [(20, True)], "joined, or deleted: old"


CLEANED = SegmentName(0, 1, 1, 4)
"""Cleaned from the segments 0 and 10."""


def test_a_cleaned_newest_segment_wins_over_its_sources() -> None:
    files = folder((name(0), True), (CLEANED, True), (name(10, 1, 1), True))
    assert files.closed()[0] == CLEANED
    made = record(PATH, files, NOTHING, checkpoint(CLEANED, end=20), 1)
    assert [(entry.name, entry.end_offset) for entry in made.segments] == [(CLEANED, 20)]
    assert made.last == (1, 1), "a cleaning is not a registration"
    assert decode(encode(made)) == made


def test_a_cleaned_segment_without_an_index_is_not_read_while_its_last_source_has_one() -> None:
    """The swap was half made: all sources are left, and the last one's index has all producers."""
    files = folder((name(0), True), (CLEANED, False), (name(10, 1, 1), True), (name(20, 2), False))
    assert listed(record(PATH, files, NOTHING, checkpoint(name(10, 1, 1)), 1)) == [(10, True), (20, False)]


@pytest.mark.parametrize("is_spoken", [False, True])
def test_a_cleaned_segment_whose_index_cannot_be_used_is_read_once_its_sources_are_gone(is_spoken: bool) -> None:
    """A journal may name the last source, which was the newest segment: its file is not missing."""
    spoken = Spoken()
    if is_spoken:
        spoken.add("b", checkpoint(name(10, 1, 1)))
    files = folder((name(0, 1), True), (SegmentName(0, 1, 1, 4), True))
    made = record(PATH, files, spoken, checkpoint(name(0)), 1)
    assert [(entry.name, entry.is_closed) for entry in made.segments] == [(name(0), True), (CLEANED, False)]
    assert decode(encode(made)) == made


@pytest.mark.slow
def test_a_long_folder_is_not_kept() -> None:
    """However long the log: the last indexes, and what follows them."""
    files = PartitionFolder()
    for number in range(20 * NAMES_MAX):
        segment = name(number * 10, 1, number)
        files.segment(segment, "idx", 60, 1)
        files.segment(segment, "log", 100, 1)
        assert len(files.files) <= NAMES_MAX
    last = name((20 * NAMES_MAX - 1) * 10, 1, 20 * NAMES_MAX - 1)
    assert files.closed()[0] == last
    assert listed(record(PATH, files, NOTHING, checkpoint(last), 1)) == [(last.base, True)]


@pytest.mark.parametrize("count", [OPEN_MAX, OPEN_MAX + 1, NAMES_MAX, 5 * NAMES_MAX])
def test_a_record_stays_small(count: int) -> None:
    """The newest segments remain if too many are unindexed, and no segment that seems to have a gap behind it."""
    files = folder((name(0, 1), True))
    for number in range(count):
        files.segment(name(10 + number, 2, number), "log", 100, 1)
    made = record(PATH, files, NOTHING, checkpoint(name(0, 1)) if name(0, 1) in files.files else None, 1)
    assert made.segments[-1].name == name(9 + count, 2, count - 1)
    assert made.segments[0].is_closed == (count == OPEN_MAX)
    assert len(made.segments) == OPEN_MAX + (count == OPEN_MAX)
    assert len(encode(made)) < 100_000
