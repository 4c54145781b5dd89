"""Stored transactional ids: a replay up to any batch is the state that was live then; memory; time of a load."""

from __future__ import annotations

import asyncio
import random
import sys
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from bmq.coordinator.shard.replay import Replay
from bmq.coordinator.shard.writer import Writer
from bmq.coordinator.transaction import events as ev
from bmq.coordinator.transaction.machine import Transaction
from bmq.coordinator.transaction.records import (
    StoredTransaction,
    TransactionRecord,
    UnknownTransaction,
    decode,
    encode,
)
from bmq.coordinator.transaction.states import TransactionState
from bmq.coordinator.transaction_shard.state import TransactionsState
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.clock import LoopClock
from bmq.core.records.batch import Batch, Record, build_batch
from tests.harness.waiting import until
from tests.unit.coordinator.fakes import MemoryLog, MemoryPartition
from tests.unit.coordinator.transaction.test_machine import CHANGING, of


def history(chance: random.Random) -> list[TransactionRecord | UnknownTransaction]:
    """Return the records of a random history of three transactional ids, as a shard writes them."""
    values: dict[str, StoredTransaction | None] = {}
    records: list[TransactionRecord | UnknownTransaction] = []
    fresh = 0
    for _ in range(80):
        tid = chance.choice(("a", "b", "c"))
        value = values.get(tid)
        known = value or StoredTransaction(1, 0, 1, TransactionState.EMPTY)
        kind = chance.choice((*CHANGING, ev.MarkersWritten, ev.MarkersWritten, ev.Unused, ev.Overdue, None))
        event: Any
        if kind is ev.MarkersWritten:
            if not known.state.is_prepare:
                continue
            event = ev.MarkersWritten()
        elif kind is ev.Unused:
            event = ev.Unused(retention_ms=1)
        elif kind is ev.Overdue:
            event = ev.Overdue()
        elif kind is None:
            records.append(UnknownTransaction(b"\0\1x", chance.choice((None, b"value"))))
            continue
        else:
            event = of(kind, known.producer_id, known.epoch)
        effects = Transaction(value).handle(event, len(records) * 1_000)
        if effects == [ev.NeedProducerId()]:
            fresh += 1
            effects = Transaction(value).handle(replace(event, fresh_id=fresh), len(records) * 1_000)
        for effect in effects:
            if isinstance(effect, ev.Store):
                values[tid] = effect.value
                records.append(TransactionRecord(tid, effect.value))
    return records


@pytest.mark.parametrize("seed", range(20))
async def test_rule_14_a_replay_up_to_any_batch_is_the_state_that_was_live_then(seed: int) -> None:
    chance = random.Random(seed)
    partition, state = MemoryPartition(), TransactionsState()
    log = MemoryLog(partition, lambda: None)
    writer = Writer(log, LoopClock(), flushed=lambda sent_s: None, failed=lambda error: None)
    facts: list[dict[object, object]] = [state.facts()]
    done: list[object] = []
    for number, record in enumerate(history(chance)):
        state.apply(record)
        writer.write([encode(record)], "", done.append)
        facts.append(state.facts())
        if number % chance.randrange(1, 4) == 0:
            await asyncio.sleep(0.0005)
    await until(lambda: len(done) == len(facts) - 1)
    for count in range(1, len(partition.batches) + 1):
        cut = MemoryPartition()
        cut.batches = partition.batches[:count]
        end = Batch(memoryview(bytearray(cut.batches[-1][1]))).next_offset
        replayed = TransactionsState()
        await Replay(MemoryLog(cut, lambda: None), replayed, 1_000).read(end)
        assert replayed.facts() == facts[end]
        assert replayed.open_ids == {
            key
            for key, value in facts[end].items()
            if isinstance(value, StoredTransaction) and value.state is TransactionState.ONGOING
        }
    assert dict(decode_all(state)) == state.facts()
    states = Counter(value.state for value in state.values.values())
    assert {each: count for each, count in state.by_state.items() if count} == states


def decode_all(state: TransactionsState) -> list[tuple[object, object]]:
    """Return the facts that a snapshot of the state has."""
    found: list[tuple[object, object]] = []
    for key, value in state.live_records():
        record = decode(key, value)
        found.append((record[0], record.value))
    return found


def test_a_snapshot_has_every_live_key() -> None:
    state = TransactionsState()
    for record in history(random.Random(7)):
        state.apply(record)
    assert dict(decode_all(state)) == state.facts()


def idle(number: int) -> tuple[bytes, bytes | None]:
    value = StoredTransaction(
        1 << 40 | number, 300, 60_000, TransactionState.COMPLETE_COMMIT, (), 1_700_000_000_000 + number,
        1_700_000_000_000 + number, 1 << 40 | number, last_epoch=299, client_version=2,
    )  # fmt: skip
    return encode(TransactionRecord(f"application-with-a-usual-name-{number}", value))


@pytest.mark.slow
def test_an_idle_transactional_id_takes_less_than_a_kilobyte() -> None:
    records = [idle(number) for number in range(2_000)]
    state = TransactionsState()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for key, value in records:
            state.replay(key, value, None)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / len(records) < 1_000, f"{used / len(records):.0f} bytes an id on {sys.platform}"


@pytest.mark.slow
async def test_many_ids_are_loaded_in_turns_of_the_loop() -> None:
    """A hundred thousand ids take three seconds so; here are 20,000."""
    partition, size, count = MemoryPartition(), 1_000, 20_000
    for first in range(0, count, size):
        made = [Record(key=key, value=value) for key, value in map(idle, range(first, first + size))]
        partition.store(build_batch(made, base_timestamp=1))
    state, turns = TransactionsState(), 0
    loading = asyncio.ensure_future(
        Replay(MemoryLog(partition, lambda: None), state, 1 << 20).read(partition.next_offset)
    )
    while not loading.done():
        turns += 1
        await asyncio.sleep(0)
    await loading
    assert len(state.values) == count
    assert turns >= 2 * count // ELEMENTS_A_TURN, "each record is noted, and its last value applied"
