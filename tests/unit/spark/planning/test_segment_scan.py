"""The scan of a segment's headers, and the facts that are taken from an index: entries, ends and transactions."""

from __future__ import annotations

from array import array
from dataclasses import replace

import pytest

from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch
from bmq.spark.planning.segment_scan import Scan, facts_of, place_for_timestamp, shortened
from bmq.spark.planning.slices import IndexedSegment, Segment
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, ProducerState
from tests.unit.spark.storing import TOPIC_ID, batch, marker, transactional

NAME = SegmentName(10, 1, 0)
SEGMENT = Segment(name=NAME, end=40, length=9_000, has_idx=True)
ENTRIES = array("q", [20, 1_000, 55, 30, 2_000, 77])
"""Offsets 20 and 30 at 1,000 and 2,000 bytes; timestamps reach 55 and 77 before them."""
FACTS = IndexedSegment(
    segment=SEGMENT, entries=ENTRIES, position=3_000, max_timestamp=90, known_position=3_000, known_offset=40
)


def scanned(*batches: bytes, facts: IndexedSegment | None = None) -> Scan:
    """Scan batches that follow each other, from where `facts` end."""
    begun = IndexedSegment(segment=SEGMENT, known_offset=NAME.base) if facts is None else facts
    scan, position = Scan(begun), begun.known_position
    for data in batches:
        scan.pass_batch(Batch(memoryview(data)), position)
        position += len(data)
    return scan


def test_a_scan_finds_the_end_and_the_largest_timestamp() -> None:
    data = [batch(10, b"a", b"b", timestamp=500), batch(12, b"c", timestamp=100)]
    found = scanned(*data).result()
    assert (found.position, found.known_offset, found.max_timestamp) == (sum(map(len, data)), 13, 501)
    assert (found.first_open_txn, found.aborted, found.segment.end) == (-1, (), 40)


def test_a_scan_continues_what_an_index_covers() -> None:
    data = batch(40, b"a", timestamp=5)
    facts = replace(FACTS, open_txns=((7, 33),), aborted=(AbortedTransaction(8, 11, 12, 13),))
    found = scanned(data, facts=facts).result()
    assert (found.position, found.known_offset, found.max_timestamp) == (3_000 + len(data), 41, 90)
    assert (found.first_open_txn, found.open_txns, found.aborted) == (33, ((7, 33),), facts.aborted)
    assert FACTS.entries == ENTRIES, "the index that may be kept in a cache does not change"


def test_an_abort_names_the_first_and_last_offset_and_where_the_log_is_stable() -> None:
    found = scanned(
        transactional(10, b"a", pid=7), transactional(11, b"b", pid=8), transactional(12, b"c", pid=7),
        marker(13, pid=7, is_abort=True),
    ).result()  # fmt: skip
    assert found.aborted == (AbortedTransaction(7, 10, 13, 11),)
    assert (found.first_open_txn, found.open_txns) == (11, ((8, 11),))


def test_a_commit_and_a_marker_without_a_transaction_abort_nothing() -> None:
    found = scanned(
        transactional(10, b"a", pid=7), marker(11, pid=7, is_abort=False), marker(12, pid=9, is_abort=True)
    ).result()
    assert (found.aborted, found.open_txns) == ((), ())


def test_an_open_end_is_after_the_last_whole_batch() -> None:
    found = scanned(batch(10, b"a")).result(is_open_ended=True)
    assert (found.segment.end, found.known_offset) == (11, 11)


def test_a_damaged_segment_is_read_to_the_end_of_its_file() -> None:
    """The read that follows then finds the damage, and reports it."""
    found = scanned(batch(10, b"a")).result(is_damaged=True)
    assert (found.position, found.known_position, found.known_offset) == (9_000, 9_000, 40)


@pytest.mark.parametrize(("end_offset", "position"), [(40, 3_000), (39, None)])
def test_an_index_gives_the_end_in_bytes_only_if_it_covers_the_segment(end_offset: int, position: int | None) -> None:
    producers = (ProducerState(7, 1, 0, 5, 33, ()), ProducerState(8, 1, 0, 5, -1, ()))
    index = Checkpoint(
        key=PartitionKey(TOPIC_ID, 0), segment=NAME, position=3_000, end_offset=end_offset, log_start=0,
        index=ENTRIES, max_timestamp=90, producers=producers,
    )  # fmt: skip
    found = facts_of(SEGMENT, index)
    assert (found.position, found.known_position, found.known_offset) == (position, 3_000, end_offset)
    assert (found.entries, found.max_timestamp, found.open_txns) == (ENTRIES, 90, ((7, 33),))


@pytest.mark.parametrize(
    ("length", "entries", "timestamp", "place"),
    [
        (999, [], None, (10, 0)),
        (1_000, ENTRIES[:3], 55, (20, 1_000)),
        (1_999, ENTRIES[:3], 55, (20, 1_000)),
        (9_999, ENTRIES, 77, (30, 2_000)),
    ],
)
def test_facts_are_shortened_to_the_last_entry_within_the_bytes(
    length: int, entries: list[int], timestamp: int | None, place: tuple[int, int]
) -> None:
    found = shortened(FACTS, length)
    assert list(found.entries) == list(entries)
    assert (found.position, found.max_timestamp, (found.known_offset, found.known_position)) == (None, timestamp, place)


@pytest.mark.parametrize(
    ("timestamp", "start", "place"),
    [
        (55, 0, (10, 0)),
        (56, 0, (20, 1_000)),
        (78, 0, (30, 2_000)),
        (56, 35, (30, 2_000)),
        (0, 25, (20, 1_000)),
    ],
)
def test_a_search_by_time_begins_at_the_entry_before_it_or_at_the_start(
    timestamp: int, start: int, place: tuple[int, int]
) -> None:
    assert place_for_timestamp(FACTS, timestamp, start) == place
