"""Traces between processes: which contexts a request's header carries, and what is read from one."""

from __future__ import annotations

import uuid

import pytest

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.core.tracing import ENTRIES_MAX, TRACE_TAG, SampledRecords, parse_entries
from bmq.core.wire.primitives import CUT_SHORT, tags

TOPIC, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def context(number: int) -> bytes:
    return number.to_bytes(24, "big") + b"\1"


def parsed(header: bytes) -> dict[PartitionKey, bytes]:
    return parse_entries(memoryview(header), 0)


def test_the_header_carries_the_contexts_of_traced_batches_alone() -> None:
    sampled = SampledRecords()
    batches = [memoryview(bytes([number])) for number in range(3)]
    sampled.add(batches[0], context(10))
    sampled.add(batches[2], context(12))
    header = sampled.header([(TOPIC, [(0, batches[0]), (1, batches[1])]), (OTHER, [(7, batches[2])])])
    assert parsed(header) == {PartitionKey(TOPIC, 0): context(10), PartitionKey(OTHER, 7): context(12)}


def test_a_batch_of_the_same_bytes_is_another_batch() -> None:
    sampled = SampledRecords()
    traced, same = memoryview(b"records"), memoryview(b"records")
    sampled.add(traced, context(1))
    assert sampled.header([(TOPIC, [(0, same)])]) == b""


def test_a_batch_is_forgotten_when_it_is_removed() -> None:
    sampled = SampledRecords()
    assert sampled.header([(TOPIC, [(0, memoryview(b"x"))])]) == b""
    batch = memoryview(b"records")
    sampled.add(batch, context(1))
    assert len(sampled) == 1
    sampled.remove(batch)
    sampled.remove(batch)
    assert (len(sampled), sampled.header([(TOPIC, [(0, batch)])])) == (0, b"")


def test_contexts_of_one_request_are_bounded() -> None:
    sampled = SampledRecords()
    batches = [memoryview(bytes(1)) for _ in range(ENTRIES_MAX + 5)]
    for number, each in enumerate(batches):
        sampled.add(each, context(number))
    found = parsed(sampled.header([(TOPIC, list(enumerate(batches)))]))
    assert sorted(key.partition for key in found) == list(range(ENTRIES_MAX))


def test_of_two_batches_of_a_partition_the_last_ones_context_is_read() -> None:
    sampled = SampledRecords()
    first, last = memoryview(b"a"), memoryview(b"b")
    sampled.add(first, context(1))
    sampled.add(last, context(2))
    header = sampled.header([(TOPIC, [(0, first), (0, last)])])
    assert parsed(header) == {PartitionKey(TOPIC, 0): context(2)}


def test_tags_that_are_not_whole_entries_are_skipped() -> None:
    """A later version may have another layout: the request is served without its trace."""
    entry = TOPIC.bytes + (5).to_bytes(4, "big") + context(3)
    assert parsed(tags([(TRACE_TAG, entry)])) == {PartitionKey(TOPIC, 5): context(3)}
    assert parsed(tags([(TRACE_TAG, entry + b"?")])) == {}
    assert parsed(tags([(TRACE_TAG + 1, entry)])) == {}
    assert parsed(tags([])) == {}


@pytest.mark.parametrize("header", [b"", b"\x01", tags([(TRACE_TAG, bytes(45))])[:-1]])
def test_a_header_that_is_cut_short_is_an_error(header: bytes) -> None:
    with pytest.raises((FormatError, *CUT_SHORT)):
        parsed(header)
