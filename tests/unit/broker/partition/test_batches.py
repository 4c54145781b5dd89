"""Accepted batches on their way to storage: in order, once, and back to the front when a segment is given up."""

from __future__ import annotations

import pytest

from bmq.broker.partition.batches import Batches
from bmq.broker.partition.checkpointer import OpenSegment
from bmq.broker.pending import Pending
from bmq.core.records.batch import Batch
from tests.unit.broker.partition.machines import SPARE, batch

SIZE = batch().size


def pending(base_offset: int, copies: int = 1) -> Pending:
    produced: Batch = batch()
    produced.assign(base_offset, 1)
    return Pending(produced, None, copies)


def queued(count: int) -> Batches:
    batches = Batches()
    for number in range(count):
        batches.add(pending(number))
    return batches


def segment(copies: int = 1) -> OpenSegment:
    return OpenSegment(SPARE, 1 << 20, 4096, 0, copies)


def offsets(found: list[Pending] | tuple[Pending, ...]) -> list[int]:
    return [each.batch.base_offset for each in found]


def test_a_flush_takes_what_its_bytes_allow_and_one_batch_at_least() -> None:
    batches, file = queued(5), segment()
    assert offsets(batches.send(file, 2 * SIZE + 1, 1 << 20, 7)[0]) == [0, 1]
    assert offsets(batches.send(file, 1, 1 << 20, 8)[0]) == [2]
    assert [(each.start_position, each.end_position, each.sent_ms) for each in batches.inflight] == [
        (0, SIZE, 7), (SIZE, 2 * SIZE, 7), (2 * SIZE, 3 * SIZE, 8),
    ]  # fmt: skip
    assert (file.position, file.flushes, file.last_write_ms) == (3 * SIZE, 2, 8)
    assert batches.buffered_bytes == 5 * SIZE, "what is in flight counts"


def test_a_segment_is_full_where_the_next_batch_has_no_room_but_takes_its_first_one_whatever_its_size() -> None:
    batches, file = queued(3), segment()
    assert batches.send(file, 1 << 20, SIZE - 1, 0)[1]
    assert file.position == SIZE
    taken, is_full = batches.send(file, 1 << 20, 2 * SIZE - 1, 0)
    assert (taken, is_full, file.flushes) == ([], True, 1)
    taken, is_full = batches.send(file, 1 << 20, 3 * SIZE, 0)
    assert (offsets(taken), is_full) == ([1, 2], False)


def test_a_batch_that_needs_more_copies_than_the_segment_has_is_not_taken() -> None:
    batches = queued(1)
    batches.add(pending(1, copies=2))
    taken, is_full = batches.send(segment(copies=1), 1 << 20, 1 << 20, 0)
    assert (offsets(taken), is_full) == ([0], True)
    assert batches.send(segment(copies=2), 1 << 20, 1 << 20, 0)[1] is False


def test_a_flush_ends_the_batches_that_end_at_or_before_its_position() -> None:
    batches = queued(3)
    batches.send(segment(), 1 << 20, 1 << 20, 0)
    assert batches.flushed(SIZE - 1) == []
    assert offsets(batches.flushed(2 * SIZE)) == [0, 1]
    assert (batches.buffered_bytes, batches.is_idle) == (SIZE, False)
    assert offsets(batches.flushed(1 << 20)) == [2]
    assert (batches.buffered_bytes, batches.is_idle) == (0, True)


def test_batches_that_are_put_back_are_first_in_their_order_and_may_be_in_the_log() -> None:
    batches, file = queued(4), segment()
    batches.send(file, 2 * SIZE, 1 << 20, 0)
    batches.put_back()
    assert offsets(tuple(batches.unsent)) == [0, 1, 2, 3]
    assert [each.sent_ms for each in batches.unsent] == [-1] * 4
    sent, unsent = batches.split_unsent()
    assert (offsets(sent), offsets(unsent)) == ([0, 1], [2, 3])
    batches.drop_last(2)
    assert (offsets(tuple(batches.unsent)), batches.buffered_bytes) == ([0, 1], 2 * SIZE)


def test_when_all_are_dropped_those_in_flight_may_be_in_the_log() -> None:
    batches = queued(3)
    batches.send(segment(), SIZE, 1 << 20, 0)
    sent, unsent = batches.drop()
    assert (offsets(sent), offsets(unsent)) == ([0], [1, 2])
    assert (batches.is_idle, batches.buffered_bytes) == (True, 0)


def test_a_batch_is_found_while_it_waits_or_is_in_flight() -> None:
    batches = queued(2)
    batches.send(segment(), SIZE, 1 << 20, 0)
    assert [batches.find(offset).batch.base_offset for offset in (0, 1)] == [0, 1]
    with pytest.raises(AssertionError, match="offset 2"):
        batches.find(2)
