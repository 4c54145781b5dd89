"""Replay is the live function: a replay up to any batch gives the state that was live when the batch was written."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence, Set
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.coordinator.group.messages import Now
from bmq.coordinator.group.states import GroupRules
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.records import GroupRecord, Offset, OffsetRecord, StoredGroup, encode
from bmq.coordinator.shard.log_records import BatchProducer, KeyValue
from bmq.coordinator.shard.replay import Replay
from bmq.coordinator.shard.writer import Writer
from bmq.core.aio.steps import finish_steps
from bmq.core.clock import LoopClock
from bmq.core.records.batch import Batch
from bmq.core.records.control import EndMarker, Marker, end_record
from tests.harness.cleaned import cleaned_batch
from tests.harness.loop import run
from tests.harness.waiting import until
from tests.unit.coordinator.fakes import MemoryLog, MemoryPartition
from tests.unit.coordinator.shard.kv_kind import KvState, marker

Operation = tuple[list[KeyValue], BatchProducer | None]
"""Records that are written together, and the producer of their batch."""

_keys = st.sampled_from([b"a", b"b", b"c"])
_values = st.none() | st.binary(min_size=1, max_size=3)
_producers = st.integers(1, 3)
_plain = st.tuples(_keys, _values).map(lambda record: ([record], None))
_in_transaction = st.tuples(_producers, st.lists(st.tuples(_keys, _values), min_size=1, max_size=4)).map(
    lambda drawn: (drawn[1], BatchProducer(drawn[0], 0))
)
_idempotent = st.tuples(_producers, st.tuples(_keys, _values)).map(
    lambda drawn: ([drawn[1]], BatchProducer(drawn[0], 0, is_transactional=False))
)
_end = st.tuples(_producers, st.booleans()).map(
    lambda drawn: ([marker(is_commit=drawn[1])], BatchProducer(drawn[0], 0, is_control=True))
)
_operations = st.lists(st.one_of(_plain, _in_transaction, _idempotent, _end), max_size=40)


def _offset(group: str, partition: int, offset: int | None) -> Operation:
    value = Offset(offset, -1, "", 1) if offset is not None else None
    return [encode(OffsetRecord(group, "orders", partition, value))], None


_commits = st.lists(
    st.builds(_offset, st.sampled_from("gh"), st.integers(0, 2), st.none() | st.integers(0, 9)), max_size=40
)


async def write(make: Callable[[], Any], operations: Sequence[Operation]) -> tuple[MemoryPartition, list[object]]:
    """Write the operations, several in a turn, and apply their records to a live state.

    Returns the log and the state's facts before each operation and after the last.
    """
    partition, state = MemoryPartition(), make()
    writer = Writer(
        MemoryLog(partition, lambda: None), LoopClock(), flushed=lambda sent_s: None, failed=lambda error: None
    )
    facts: list[object] = [state.facts()]
    done: list[object] = []
    for number, (records, producer) in enumerate(operations):
        writer.write(records, "", done.append, producer)
        for key, value in records:
            steps = state.replay(key, value, producer)
            if steps is not None:
                finish_steps(steps)
        facts.append(state.facts())
        if number % 3 == 2:
            await asyncio.sleep(0.0005)
    await until(lambda: len(done) == len(operations))
    assert set(done) <= {None}
    return partition, facts


async def check(make: Callable[[], Any], operations: Sequence[Operation], read_bytes: int) -> None:
    partition, facts = await write(make, operations)
    ends = list(accumulate(len(records) for records, _ in operations))  # record offsets at which operations end
    cuts = [0, *(Batch(memoryview(data)).next_offset for _, data in partition.batches)]
    for cut in cuts:
        state, log = make(), MemoryPartition()
        log.batches, log.next_offset = [each for each in partition.batches if each[0] < cut], cut
        await Replay(MemoryLog(log, lambda: None), state, read_bytes).read(cut)
        assert state.facts() == facts[ends.index(cut) + 1 if cut else 0]
    for cut in cuts:  # a load reads twice: up to the end, and then up to its barrier
        state = make()
        replay = Replay(MemoryLog(partition, lambda: None), state, read_bytes)
        await replay.read(cut)
        await replay.read(partition.next_offset)
        assert state.facts() == facts[-1]


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(_operations, st.sampled_from([1, 300, 1 << 20]))
def test_a_replay_of_every_record_up_to_any_batch_is_the_live_state(
    operations: list[Operation], read_bytes: int
) -> None:
    run(check(KvState, operations, read_bytes))


def _control(producer_id: int, is_commit: bool) -> Operation:
    record = end_record(EndMarker(Marker.COMMIT if is_commit else Marker.ABORT, 1))
    assert record.key is not None
    return [(record.key, record.value)], BatchProducer(producer_id, 0, is_control=True)


_pending = st.builds(
    lambda commits, producer_id: ([each for records, _ in commits for each in records], BatchProducer(producer_id, 0)),
    st.lists(st.builds(_offset, st.sampled_from("gh"), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=3),
    _producers,
)
_plain_commit = st.builds(_offset, st.sampled_from("gh"), st.integers(0, 2), st.none() | st.integers(0, 9))
_mixed_commits = st.lists(
    st.one_of(_plain_commit, _pending, st.builds(_control, _producers, st.booleans())), max_size=40
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(_mixed_commits, st.sampled_from([1, 300, 1 << 20]))
def test_a_replay_of_transactions_up_to_any_batch_is_the_live_state(
    operations: list[Operation], read_bytes: int
) -> None:
    run(check(lambda: GroupsState(GroupRules()), operations, read_bytes))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(_commits, st.sampled_from([1, 300, 1 << 20]))
def test_a_replay_by_key_up_to_any_batch_is_the_live_state(operations: list[Operation], read_bytes: int) -> None:
    run(check(lambda: GroupsState(GroupRules()), operations, read_bytes))


_group = st.builds(
    lambda group, generation: (
        [encode(GroupRecord(group, None if generation is None else StoredGroup("consumer", generation, None, None)))],
        None,
    ),
    st.sampled_from("gh"),
    st.none() | st.integers(0, 9),
)
_of_later_versions = st.builds(
    lambda version, group, value: ([(struct.pack(">h", version) + group, value)], None),
    st.integers(3, 8),
    st.sampled_from([b"g", b"h"]),
    st.none() | st.binary(min_size=1, max_size=3),
)
"""Records of Kafka's consumer groups: a group may have been one, and a classic group before and after."""


async def check_compacted(operations: Sequence[Operation], wanted: Set[int], read_bytes: int) -> None:
    """Remove the records at the offsets ``wanted`` that have a later record of their key, and replay the log."""
    partition, facts = await write(lambda: GroupsState(GroupRules()), operations)
    keys = [key for records, _ in operations for key, _ in records]
    last = {key: offset for offset, key in enumerate(keys)}
    kept = {offset for offset, key in enumerate(keys) if last[key] == offset or offset not in wanted}
    compacted = MemoryPartition()
    compacted.batches = [(base, cleaned_batch(data, kept)) for base, data in partition.batches]
    compacted.next_offset = partition.next_offset
    state = GroupsState(GroupRules())
    await Replay(MemoryLog(compacted, lambda: None), state, read_bytes).read(compacted.next_offset)
    assert state.facts() == facts[-1]
    list(state.go_live(lambda: Now(0, 0)))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.one_of(_plain_commit, _group, _of_later_versions), max_size=40),
    st.sets(st.integers(0, 39)),
    st.sampled_from([1, 300, 1 << 20]),
)
def test_kafka_19862_a_replay_needs_no_record_that_a_later_one_replaces(
    operations: list[Operation], wanted: set[int], read_bytes: int
) -> None:
    """Kafka's loads check records against other keys: they end where compaction took the records in between away."""
    run(check_compacted(operations, wanted, read_bytes))


async def test_a_replay_by_key_decodes_each_key_once_between_two_batches_that_name_a_producer() -> None:
    decoded: list[bytes] = []

    class Counted(KvState):
        def replay(self, key: bytes, value: bytes | None, producer: BatchProducer | None) -> None:
            decoded.append(key)
            super().replay(key, value, producer)

    operations: list[Operation] = [([(b"a", b"%d" % number)], None) for number in range(5)]
    operations.append(([(b"a", b"t")], BatchProducer(1, 0)))
    operations += [([(b"b", b"%d" % number)], None) for number in range(5)]
    end = marker(is_commit=True)
    operations.append(([end], BatchProducer(1, 0, is_control=True)))
    operations += [([(b"b", value)], None) for value in (b"x", None, b"y")]
    partition, _ = await write(lambda: KvState(is_by_key=True), operations)
    state = Counted(is_by_key=True)
    replay = Replay(MemoryLog(partition, lambda: None), state, 1 << 20)
    await replay.read(partition.next_offset)
    assert state.values == {b"a": b"t", b"b": b"y"}
    assert decoded == [b"a", b"a", b"b", end[0], b"b", b"b"], "that a key was deleted is told too"


async def test_live_bytes_of_a_replay_of_every_record_are_those_of_the_last_values() -> None:
    operations: list[Operation] = [([(b"a", b"x" * 50)], None), ([(b"b", b"y")], None), ([(b"a", b"z")], None)]
    partition, _ = await write(KvState, operations)
    replay = Replay(MemoryLog(partition, lambda: None), KvState(), 1 << 20)
    await replay.read(partition.next_offset)
    assert replay.live_bytes == 4
