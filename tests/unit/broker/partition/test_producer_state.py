"""Idempotent producers (broker/partition/producer_state.py): Kafka's table of results, and flushed batches apart from
others."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.broker.partition.producer_state import BATCHES_KEPT, ProducerTable
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import MAX_SEQUENCE, Batch, Record, build_batch
from bmq.storage.checkpoint import ProducerBatch, ProducerState
from tests.harness.loop_stops import is_short, without_collector

pytestmark = pytest.mark.slow

R = TypeVar("R")
PID = 4000
NOW_MS = 5_000_000


def batch(
    sequence: int,
    count: int = 1,
    *,
    pid: int = PID,
    epoch: int = 0,
    base: int = 0,
    timestamp: int = 1000,
) -> Batch:
    return Batch(
        memoryview(
            build_batch(
                [Record()] * count,
                base_offset=base,
                base_timestamp=timestamp,
                producer_id=pid,
                producer_epoch=epoch,
                base_sequence=sequence,
            )
        )
    )


class Log:
    """A table and the offsets that a partition would give; ``send`` returns what a produce's response would say."""

    def __init__(self, states: tuple[ProducerState, ...] = ()) -> None:
        self.table = ProducerTable(states)
        self.next_offset = 0
        self.unflushed: list[ProducerState] = []

    def send(self, sequence: int, count: int = 1, *, pid: int = PID, epoch: int = 0) -> str | int:
        """Return the offset, "first <offset>" for a duplicate, or the error's name."""
        sent = batch(sequence, count, pid=pid, epoch=epoch, base=self.next_offset)
        duplicate = self.table.find_duplicate(sent)
        if duplicate is not None:
            return f"first {duplicate.base_offset}"
        try:
            self.table.check(sent)
        except RequestError as error:
            return error.code.name
        state = self.table.append(sent, NOW_MS)
        assert state is not None
        self.unflushed.append(state)
        self.next_offset += count
        return self.next_offset - count

    def flush(self, count: int | None = None) -> None:
        taken, self.unflushed = self.unflushed[:count], self.unflushed[len(self.unflushed[:count]) :]
        for state in taken:
            self.table.flushed(state)


# -------------------------------------------------------------------------------------------- Kafka's table of answers

GAP, FENCED = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER.name, ErrorCode.INVALID_PRODUCER_EPOCH.name
TEN = [(n * 2, 2) for n in range(10)]  # sequences 0..19 in batches of two

TABLE: list[tuple[str, list[tuple[int, int]], int, tuple[int, int, int], str | int]] = [
    # what it shows, batches before (sequence, count), their epoch, then (sequence, count, epoch), answer
    ("an unknown producer begins at 0", [], 0, (0, 1, 0), 0),
    ("... or anywhere: its state may have expired", [], 0, (77, 3, 5), 0),
    ("the next in order", [(0, 3)], 0, (3, 1, 0), 3),
    ("the last again", [(0, 3), (3, 2)], 0, (3, 2, 0), "first 3"),
    ("the fifth from the end again", TEN, 0, (10, 2, 0), "first 10"),
    ("the sixth from the end is forgotten", TEN, 0, (8, 2, 0), GAP),
    ("a gap", [(0, 3)], 0, (4, 1, 0), GAP),
    ("from the middle of a kept batch", [(0, 4)], 0, (2, 2, 0), GAP),
    ("a kept beginning with another end", [(0, 4)], 0, (0, 3, 0), GAP),
    ("two kept batches sent as one", [(0, 2), (2, 2)], 0, (0, 4, 0), GAP),
    ("a new epoch begins at 0", [(0, 3)], 0, (0, 1, 1), 3),
    ("a new epoch that does not", [(0, 3)], 0, (3, 1, 1), GAP),
    ("a new epoch may skip some", [(0, 3)], 0, (0, 1, 9), 3),
    ("an old epoch is fenced, in order or not", [(0, 3)], 4, (3, 1, 3), FENCED),
    ("... also what it had written itself", [(0, 3)], 4, (0, 3, 3), FENCED),
    ("sequences wrap to 0", [(MAX_SEQUENCE - 1, 2)], 0, (0, 1, 0), 2),
    ("... in the middle of a batch", [(MAX_SEQUENCE - 1, 4)], 0, (2, 1, 0), 4),
    ("... and do not skip 0", [(MAX_SEQUENCE, 1)], 0, (1, 1, 0), GAP),
    ("a batch across the wrap again", [(MAX_SEQUENCE - 1, 4), (2, 1)], 0, (MAX_SEQUENCE - 1, 4, 0), "first 0"),
]


@pytest.mark.parametrize(
    ("before", "before_epoch", "sent", "answer"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
@pytest.mark.parametrize("flushed", ["nothing flushed", "half flushed", "all flushed", "after a restart"])
def test_a_produce_gets_kafkas_answer_in_each_case_of_the_table(
    before: list[tuple[int, int]], before_epoch: int, sent: tuple[int, int, int], answer: str | int, flushed: str
) -> None:
    """The same whether what came before is flushed, on its way, or was read back by the next owner."""
    log = Log()
    for sequence, count in before:
        assert isinstance(log.send(sequence, count, epoch=before_epoch), int)
    log.flush({"nothing flushed": 0, "half flushed": len(before) // 2}.get(flushed))
    if flushed == "after a restart":
        restarted = Log(log.table.snapshot())
        restarted.next_offset = log.next_offset
        log = restarted
    sequence, count, epoch = sent
    assert log.send(sequence, count, epoch=epoch) == answer


def test_a_refused_batch_does_not_change_the_state() -> None:
    log = Log()
    assert [log.send(0), log.send(5), log.send(0, epoch=2), log.send(1), log.send(1, epoch=2)] == [
        0,
        GAP,
        1,
        FENCED,
        2,
    ]


def test_after_an_epoch_bump_the_old_epochs_batches_are_not_duplicates() -> None:
    """The list of kept batches begins again: sequence 0 of the new epoch is not sequence 0 of the old."""
    log = Log()
    assert [log.send(0, 3), log.send(0, 3, epoch=1), log.send(0, 3, epoch=1)] == [0, 3, "first 3"]


def test_producers_do_not_share_sequences() -> None:
    log = Log()
    assert [log.send(0, pid=1), log.send(0, pid=2), log.send(1, pid=1), log.send(5, pid=2)] == [0, 1, 2, GAP]


def test_a_batch_without_a_producer_id_belongs_to_no_producer() -> None:
    table = ProducerTable()
    plain = batch(-1, pid=-1, epoch=-1)
    assert table.find_duplicate(plain) is None
    table.check(plain)
    assert table.append(plain, NOW_MS) is None
    table.replay(plain, NOW_MS)
    assert (table.snapshot(), table.take_changes(), len(table)) == ((), (), 0)


# ------------------------------------------------------------------------------------------- appended, and flushed


def test_a_snapshot_holds_only_what_is_flushed() -> None:
    """A checkpoint may not contain a batch that could still be lost (rule 9)."""
    log = Log()
    for n in range(4):
        log.send(n)
    assert log.table.snapshot() == ()
    log.flush(2)
    (state,) = log.table.snapshot()
    assert [kept.base_sequence for kept in state.batches] == [0, 1]
    assert len(log.table) == 1
    log.flush()
    (state,) = log.table.snapshot()
    assert [kept.base_sequence for kept in state.batches] == [0, 1, 2, 3]


def test_the_next_batch_is_checked_against_what_is_appended() -> None:
    """Flush an earlier batch in between: the newest state stays the one that counts."""
    log = Log()
    assert [log.send(0), log.send(1)] == [0, 1]
    log.flush(1)
    assert [log.send(1), log.send(2), log.send(0)] == ["first 1", 2, "first 0"]
    latest = log.table.latest(PID)
    assert latest is not None
    assert latest.batches[-1].base_sequence == 2


def test_a_snapshot_has_each_producers_epoch_and_last_batches() -> None:
    log = Log()
    log.send(3, 2, epoch=6)
    log.flush()
    assert log.table.snapshot() == (ProducerState(PID, 6, -1, NOW_MS, -1, (ProducerBatch(3, 0, 1, 1000),)),)


def test_no_more_than_five_batches_are_kept() -> None:
    log = Log()
    for n in range(20):
        log.send(n)
        latest = log.table.latest(PID)
        assert latest is not None
        assert [kept.base_sequence for kept in latest.batches] == list(range(max(0, n + 1 - BATCHES_KEPT), n + 1))


def test_each_changed_producer_is_taken_once() -> None:
    """Deltas between full checkpoints: flushed states changed since the last call, the latest of each."""
    log = Log()
    log.send(0, pid=2)
    log.send(0, pid=1)
    assert log.table.take_changes() == ()
    log.flush()
    assert [state.producer_id for state in log.table.take_changes()] == [2, 1]
    assert log.table.take_changes() == ()
    log.send(1, pid=2)
    log.send(2, pid=2)
    log.flush()
    (change,) = log.table.take_changes()
    assert (change.producer_id, len(change.batches)) == (2, 3)


@given(st.integers(0, 1 << 32))
def test_changes_applied_to_a_snapshot_are_the_next_snapshot(seed: int) -> None:
    """So a full checkpoint and the deltas behind it hold what a full one would."""
    rng, log = random.Random(seed), Log()
    sequences: dict[int, int] = {}
    known: dict[int, ProducerState] = {}
    for _ in range(30):
        pid = rng.randint(1, 4)
        count = rng.randint(1, 3)
        log.send(sequences.get(pid, 0), count, pid=pid)
        sequences[pid] = sequences.get(pid, 0) + count
        if rng.random() < 0.4:
            log.flush(rng.randint(0, 5))
        if rng.random() < 0.3:
            known.update((state.producer_id, state) for state in log.table.take_changes())
            assert known == {state.producer_id: state for state in log.table.snapshot()}


@given(st.integers(0, 1 << 32))
def test_replay_equals_append_and_flush(seed: int) -> None:
    """Replay what an owner has written: the next owner's table equals the last owner's."""
    rng, written, replayed = random.Random(seed), ProducerTable(), ProducerTable()
    position: dict[int, tuple[int, int]] = {}
    offset = 0
    for _ in range(30):
        pid = rng.choice([1, 2, -7])
        epoch, sequence = position.get(pid, (0, rng.choice([0, MAX_SEQUENCE - 3])))
        if rng.random() < 0.1:
            epoch, sequence = epoch + 1, 0
        sent = batch(sequence, rng.randint(1, 3), pid=pid, epoch=epoch, base=offset, timestamp=rng.randint(0, 99))
        written.check(sent)
        heard_ms = rng.randint(0, 99)
        state = written.append(sent, heard_ms)
        assert state is not None
        written.flushed(state)
        replayed.replay(sent, heard_ms)
        position[pid] = (epoch, (sequence + sent.count) & MAX_SEQUENCE)
        offset = sent.next_offset
    assert replayed.snapshot() == written.snapshot()
    assert replayed.take_changes() == written.take_changes()


# ------------------------------------------------------------------------------------------------------------ expiry


def expiring() -> ProducerTable:
    table = ProducerTable()
    for pid, heard_ms in ((1, 100), (2, 200), (-5, 100)):
        table.replay(batch(0, pid=pid), heard_ms)
    return table


def test_old_producers_expire() -> None:
    """Producers expire ``producer.id.expiration.ms`` after their last batch; then they may begin at any sequence."""
    table = expiring()
    assert table.expire(100) == 0
    assert table.expire(101) == 1
    assert [state.producer_id for state in table.snapshot()] == [2, -5]
    assert [state.producer_id for state in table.take_changes()] == [2, -5]
    assert table.find_duplicate(batch(0, pid=1)) is None
    table.check(batch(500, pid=1))


def test_producers_expire_in_the_order_of_their_last_batches() -> None:
    """States of a checkpoint expire in that order, too, whatever their order there; those behind a clock that was set
    back, only later."""
    states = [ProducerState(pid, 0, -1, heard_ms, -1, ()) for pid, heard_ms in ((1, 300), (2, 100), (3, 200))]
    table = ProducerTable(states)
    assert [state.producer_id for state in table.snapshot()] == [2, 3, 1]
    table.replay(batch(0, pid=2), 400)
    table.replay(batch(0, pid=4), 50)
    assert table.expire(201) == 1
    assert table.expire(400) == 1
    assert [state.producer_id for state in table.snapshot()] == [2, 4]
    assert table.expire(401) == 2


def test_each_step_with_100000_producers_fits_in_a_turn_of_the_loop() -> None:
    """A hundred thousand in one partition: what the partition does with its table is one turn of the loop."""
    states = [
        ProducerState(pid, 0, -1, pid, -1, tuple(ProducerBatch(n, 5 * pid + n, 0, 1000) for n in range(5)))
        for pid in range(100_000)
    ]

    def in_time(step: Callable[[], R]) -> R:
        began = time.thread_time()
        result = step()
        assert is_short(time.thread_time() - began)
        return result

    with without_collector():
        table = in_time(lambda: ProducerTable(states))
        assert in_time(lambda: table.expire(50)) == 50
        for state in states[50:]:
            table.flushed(state)
        assert len(in_time(table.take_changes)) == 100_000 - 50
        assert len(in_time(table.snapshot)) == 100_000 - 50
        assert in_time(lambda: table.expire(1 << 60)) == 100_000 - 50


def test_a_producer_of_old_records_does_not_expire_while_it_writes() -> None:
    """A backfill: expiry counts from the time of arrival, not from the records' timestamps."""
    table = ProducerTable()
    state = table.append(batch(0, timestamp=5), 1_000_000)
    assert state is not None
    table.flushed(state)
    assert table.expire(999_999) == 0


def test_internal_producers_never_expire() -> None:
    """Their epoch is the fence of a stale coordinator."""
    table = expiring()
    assert table.expire(1 << 60) == 2
    assert [state.producer_id for state in table.snapshot()] == [-5]
    with pytest.raises(RequestError) as caught:
        table.check(batch(0, pid=-5, epoch=-1))
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_with_unflushed_batches_does_not_expire() -> None:
    """Else its next batch would be accepted anywhere while an earlier one is still being flushed."""
    log = Log()
    log.send(0)
    log.flush()
    log.send(1)
    assert log.table.expire(1 << 60) == 0
    log.flush()
    assert log.table.expire(1 << 60) == 1


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    table = ProducerTable([ProducerState(9, 0, -1, 5, 40, ()), ProducerState(10, 0, -1, 5, -1, ())])
    assert table.expire(1000) == 1
    assert [state.producer_id for state in table.snapshot()] == [9]
