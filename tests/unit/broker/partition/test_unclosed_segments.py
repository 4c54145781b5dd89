"""The conditions under which a record may say that no journal need be read."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from bmq.broker.partition.unclosed_segments import UnclosedSegments
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta.ownership import SegmentEntry
from bmq.storage.checkpoint import Checkpoint

NAME = SegmentName(0, 1, 0)
ENTRY = SegmentEntry(name=NAME, spare="/spare", holder="me", file_id=1)
LAST = Checkpoint(key=PartitionKey(UUID(int=7), 0), segment=NAME, position=100, end_offset=9, log_start=3)


def test_a_log_is_settled_when_its_last_index_says_all() -> None:
    left = UnclosedSegments()
    assert not left.is_settled(None, 0)
    left.leave(ENTRY)
    assert not left.is_settled(LAST, 3), "it has no index yet"
    left.closed(ENTRY.closed(100, 9))
    assert left.is_settled(LAST, 3)
    assert not left.is_settled(LAST, 4), "only a journal tells the log start"
    assert not left.is_settled(replace(LAST, segment=SegmentName(9, 1, 1)), 3), "of another segment"


def test_an_index_that_another_wrote_settles_nothing() -> None:
    left = UnclosedSegments()
    left.found([ENTRY], NAME, 100, 9)
    assert not left.is_settled(LAST, 3)


def entry(base: int, n: int) -> SegmentEntry:
    return SegmentEntry(name=SegmentName(base, 1, n), spare="/spare", holder="me", file_id=n)


def test_a_record_need_not_name_closed_segments_but_the_newest() -> None:
    left = UnclosedSegments()
    first, second, third, opened = entry(0, 0), entry(10, 1), entry(20, 2), entry(30, 3)
    listed = (first, second, third, opened)
    assert left.still_needed(listed) == listed
    for one in (first, second, third):
        left.leave(one)
    left.closed(second.closed(100, 20))
    assert left.still_needed(listed) == (first, second.closed(100, 20), third, opened), "the first is being closed"
    left.closed(third.closed(100, 30))
    assert left.still_needed(listed) == (first, third.closed(100, 30), opened)
    left.closed(first.closed(100, 10))
    assert left.still_needed(listed) == (third.closed(100, 30), opened)
    assert left.still_needed(listed) == left.listed(opened)


def test_a_record_names_a_recovered_segment_until_it_has_its_index() -> None:
    left = UnclosedSegments()
    first, last, opened = entry(0, 0), entry(10, 1), entry(20, 2)
    listed = (first, last)
    left.found(listed, last.name, 100, 20)
    for one in listed:
        left.lacks_index(one.closed(100, one.name.base + 10))
    named = (first.closed(100, 10), last.closed(100, 20), opened)
    assert left.listed(opened) == named
    assert left.still_needed(named) == named
    assert not left.is_settled(replace(LAST, segment=last.name), 3)
    left.leave(opened)
    left.closed(opened.closed(100, 30))
    assert left.listed() == (*named[:2], opened.closed(100, 30)), "however many are closed behind it"
    left.indexed(first.name)
    assert left.listed() == (named[1], opened.closed(100, 30))
    left.indexed(last.name)
    assert left.listed() == (opened.closed(100, 30),)


def test_the_newest_recovered_segment_stays_named_once_it_has_its_index() -> None:
    left = UnclosedSegments()
    left.found([ENTRY], NAME, 100, 9)
    left.lacks_index(ENTRY.closed(100, 9))
    left.indexed(NAME)
    assert left.listed() == (ENTRY.closed(100, 9),)


def test_a_segment_that_only_a_checkpoint_names_is_not_added_to_a_stored_record() -> None:
    left = UnclosedSegments()
    left.found([], NAME, 100, 9)
    assert [each.name for each in left.listed()] == [NAME]
    assert left.still_needed(()) == ()
