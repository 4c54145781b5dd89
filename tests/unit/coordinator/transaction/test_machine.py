"""One transactional id: every state with every event and every producer that may send it, as Kafka 4.3 answers."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from typing import Any

import pytest

from bmq.coordinator.transaction import events as ev
from bmq.coordinator.transaction.machine import (
    EPOCH_MAX,
    EVENTS,
    PRODUCER_EPOCH_MAX,
    TABLE,
    Transaction,
)
from bmq.coordinator.transaction.records import StoredTransaction, TopicPartitions
from bmq.coordinator.transaction.states import TransactionState as S
from bmq.core.errors import ErrorCode as E
from bmq.core.transitions import Cell
from tests.harness.seeds import seeds

ID, NEXT, OTHER, EPOCH = 70, 80, 99, 4
NOW, STARTED, TIMEOUT = 100_000, 95_000, 60_000
PARTS = (TopicPartitions("t", uuid.UUID(int=1), (0, 1)),)
MORE = (TopicPartitions("t", uuid.UUID(int=1), (2,)),)
OPEN = (S.ONGOING, S.PREPARE_COMMIT, S.PREPARE_ABORT)
CHANGING = (ev.InitProducerId, ev.AddPartitions, ev.Commit, ev.Abort, ev.CommitV2, ev.AbortV2)


def stored(state: S, **changes: Any) -> StoredTransaction | None:
    """Return a transactional id in a state: a producer ``ID`` with epoch ``EPOCH``."""
    if state is S.DEAD:
        return None
    value = StoredTransaction(
        ID, EPOCH, TIMEOUT, state, PARTS if state in OPEN else (), updated_ms=STARTED,
        started_ms=-1 if state is S.EMPTY else STARTED, previous_id=ID,
    )  # fmt: skip
    return value._replace(**changes)


def of(event: type[Any], producer_id: int = ID, epoch: int = EPOCH, **more: Any) -> Any:
    """Return an event of a producer; for InitProducerId, of one that goes on."""
    if event is ev.InitProducerId:
        more = {"timeout_ms": TIMEOUT, **more}
    elif event is ev.AddPartitions:
        more = {"partitions": MORE, **more}
    return event(producer_id=producer_id, epoch=epoch, **more)


def outcome(value: StoredTransaction | None, event: Any, now_ms: int = NOW) -> tuple[str, E | None]:
    """Return the name of the state that is stored, "" if nothing is, and the error of the response."""
    effects = Transaction(value).handle(event, now_ms)
    made = [each.value for each in effects if isinstance(each, ev.Store)]
    errors = [each.error for each in effects if isinstance(each, ev.Respond)]
    assert len(made) <= 1
    assert len(errors) <= 1
    assert not any(isinstance(each, ev.NeedProducerId) for each in effects)
    if made:
        assert isinstance(effects[0], ev.Store), "it is written before anything else is done"
    sends = any(isinstance(each, ev.SendMarkers) for each in effects)
    assert sends == bool(made and made[0] is not None and made[0].state.is_prepare)
    name = "" if not made else "DEAD" if made[0] is None else made[0].state.name
    return name, errors[0] if errors else None


RETRY, FENCED, UNKNOWN, WRONG = (
    E.CONCURRENT_TRANSACTIONS, E.PRODUCER_FENCED, E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_TXN_STATE,
)  # fmt: skip
BY_PRESENT_PRODUCER: dict[type[Any], dict[S, tuple[str, E | None]]] = {
    ev.InitProducerId: {
        S.DEAD: ("EMPTY", E.NONE), S.EMPTY: ("EMPTY", E.NONE), S.ONGOING: ("PREPARE_ABORT", RETRY),
        S.PREPARE_COMMIT: ("", RETRY), S.PREPARE_ABORT: ("", RETRY),
        S.COMPLETE_COMMIT: ("EMPTY", E.NONE), S.COMPLETE_ABORT: ("EMPTY", E.NONE),
    },
    ev.AddPartitions: {
        S.DEAD: ("", UNKNOWN), S.EMPTY: ("ONGOING", E.NONE), S.ONGOING: ("ONGOING", E.NONE),
        S.PREPARE_COMMIT: ("", RETRY), S.PREPARE_ABORT: ("", RETRY),
        S.COMPLETE_COMMIT: ("ONGOING", E.NONE), S.COMPLETE_ABORT: ("ONGOING", E.NONE),
    },
    ev.Verify: {
        S.DEAD: ("", UNKNOWN), S.EMPTY: ("", E.NONE), S.ONGOING: ("", E.NONE),
        S.PREPARE_COMMIT: ("", RETRY), S.PREPARE_ABORT: ("", RETRY),
        S.COMPLETE_COMMIT: ("", E.NONE), S.COMPLETE_ABORT: ("", E.NONE),
    },
    ev.Commit: {
        S.DEAD: ("", UNKNOWN), S.EMPTY: ("", WRONG), S.ONGOING: ("PREPARE_COMMIT", E.NONE),
        S.PREPARE_COMMIT: ("", RETRY), S.PREPARE_ABORT: ("", RETRY),
        S.COMPLETE_COMMIT: ("", E.NONE), S.COMPLETE_ABORT: ("", WRONG),
    },
    ev.Abort: {
        S.DEAD: ("", UNKNOWN), S.EMPTY: ("", WRONG), S.ONGOING: ("PREPARE_ABORT", E.NONE),
        S.PREPARE_COMMIT: ("", RETRY), S.PREPARE_ABORT: ("", RETRY),
        S.COMPLETE_COMMIT: ("", WRONG), S.COMPLETE_ABORT: ("", E.NONE),
    },
    ev.CommitV2: {
        S.DEAD: ("", UNKNOWN), S.EMPTY: ("", WRONG), S.ONGOING: ("PREPARE_COMMIT", E.NONE),
        S.PREPARE_COMMIT: ("", RETRY), S.PREPARE_ABORT: ("", RETRY),
        S.COMPLETE_COMMIT: ("", WRONG), S.COMPLETE_ABORT: ("", WRONG),
    },
    ev.AbortV2: {
        S.DEAD: ("", UNKNOWN), S.EMPTY: ("PREPARE_ABORT", E.NONE), S.ONGOING: ("PREPARE_ABORT", E.NONE),
        S.PREPARE_COMMIT: ("", RETRY), S.PREPARE_ABORT: ("", RETRY),
        S.COMPLETE_COMMIT: ("PREPARE_ABORT", E.NONE), S.COMPLETE_ABORT: ("PREPARE_ABORT", E.NONE),
    },
}  # fmt: skip


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("event", BY_PRESENT_PRODUCER)
def test_each_request_of_the_present_producer_in_each_state(event: type[Any], state: S) -> None:
    asked = of(event, fresh_id=NEXT if state is S.DEAD else -1)
    assert outcome(stored(state), asked) == BY_PRESENT_PRODUCER[event][state]


@pytest.mark.parametrize("state", [state for state in S if state is not S.DEAD])
@pytest.mark.parametrize("event", BY_PRESENT_PRODUCER)
@pytest.mark.parametrize("epoch", [EPOCH - 2, EPOCH + 1])
def test_each_request_with_another_epoch_is_fenced_or_asks_again(event: type[Any], state: S, epoch: int) -> None:
    waits = state.is_prepare and event not in (ev.Verify, ev.Commit, ev.Abort)
    expected = ("", RETRY) if waits else ("", FENCED)
    assert outcome(stored(state), of(event, epoch=epoch)) == expected


@pytest.mark.parametrize("state", [state for state in S if state is not S.DEAD])
@pytest.mark.parametrize("event", BY_PRESENT_PRODUCER)
def test_each_request_of_another_producer_id(event: type[Any], state: S) -> None:
    waits = state.is_prepare and event not in (ev.Verify, ev.Commit, ev.Abort)
    expected = ("", RETRY) if waits else ("", FENCED if event is ev.InitProducerId else UNKNOWN)
    assert outcome(stored(state), of(event, OTHER)) == expected


@pytest.mark.parametrize(
    ("event", "state", "expected"),
    [
        (ev.CommitV2, S.COMPLETE_COMMIT, ("", E.NONE)),
        (ev.CommitV2, S.COMPLETE_ABORT, ("", FENCED)),
        (ev.AbortV2, S.COMPLETE_ABORT, ("", E.NONE)),
        (ev.AbortV2, S.COMPLETE_COMMIT, ("", WRONG)),
        (ev.CommitV2, S.EMPTY, ("", FENCED)),
        (ev.AbortV2, S.EMPTY, ("", FENCED)),
        (ev.CommitV2, S.ONGOING, ("", FENCED)),
        (ev.AbortV2, S.ONGOING, ("", FENCED)),
        (ev.Commit, S.COMPLETE_COMMIT, ("", FENCED)),
        (ev.Abort, S.COMPLETE_ABORT, ("", FENCED)),
    ],
)
def test_an_end_of_the_epoch_before_is_the_last_one_repeated(
    event: type[Any], state: S, expected: tuple[str, E]
) -> None:
    assert outcome(stored(state, client_version=2), of(event, epoch=EPOCH - 1)) == expected


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("state", [S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
@pytest.mark.parametrize("event", [ev.CommitV2, ev.AbortV2])
def test_an_end_of_the_epoch_before_is_fenced_if_the_last_end_bumped_no_epoch(
    event: type[Any], state: S, version: int
) -> None:
    assert outcome(stored(state, client_version=version), of(event, epoch=EPOCH - 1)) == ("", FENCED)


def test_a_fenced_producer_of_version_2_does_not_learn_the_epoch_of_a_successor_of_version_1() -> None:
    value = stored(S.COMPLETE_COMMIT, client_version=2)
    for event in (
        ev.InitProducerId(producer_id=-1, epoch=-1, timeout_ms=TIMEOUT),
        of(ev.AddPartitions, epoch=EPOCH + 1, client_version=1),
        of(ev.Abort, epoch=EPOCH + 1),
        ev.MarkersWritten(),
    ):
        value = next(each.value for each in Transaction(value).handle(event, NOW) if isinstance(each, ev.Store))
    assert value is not None
    assert (value.state, value.epoch) == (S.COMPLETE_ABORT, EPOCH + 1)
    assert outcome(value, of(ev.AbortV2)) == ("", FENCED)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("is_over", [False, True])
def test_an_open_transaction_alone_times_out(state: S, is_over: bool) -> None:
    now = STARTED + TIMEOUT + is_over
    expected = ("PREPARE_ABORT", None) if state is S.ONGOING and is_over else ("", None)
    assert outcome(stored(state), ev.Overdue(), now) == expected


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("is_over", [False, True])
def test_an_id_without_a_transaction_alone_expires(state: S, is_over: bool) -> None:
    now = STARTED + 1_000 + is_over
    can_expire = state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
    expected = ("DEAD", None) if can_expire and is_over else ("", None)
    assert outcome(stored(state), ev.Unused(retention_ms=1_000), now) == expected


@pytest.mark.parametrize("state", S)
def test_markers_complete_what_is_prepared(state: S) -> None:
    after = {S.PREPARE_COMMIT: "COMPLETE_COMMIT", S.PREPARE_ABORT: "COMPLETE_ABORT"}
    if state in after:
        assert outcome(stored(state), ev.MarkersWritten()) == (after[state], None)
    else:
        assert TABLE[state, ev.MarkersWritten] is Cell.NEVER


def test_the_table_has_every_pair() -> None:
    assert set(TABLE) == {(state, event) for state in S for event in EVENTS}


# ------------------------------------------------------------------------------------------------- epochs and ids


def after(value: StoredTransaction | None, event: Any, now_ms: int = NOW) -> StoredTransaction:
    """Return what is stored after an event."""
    effects = Transaction(value).handle(event, now_ms)
    (made,) = [each.value for each in effects if isinstance(each, ev.Store)]
    assert made is not None
    return made


def response(value: StoredTransaction | None, event: Any, now_ms: int = NOW) -> ev.Respond:
    (found,) = [each for each in Transaction(value).handle(event, now_ms) if isinstance(each, ev.Respond)]
    return found


def test_a_new_id_needs_a_producer_id_first() -> None:
    event = ev.InitProducerId(timeout_ms=TIMEOUT)
    assert Transaction(None).handle(event, NOW) == [ev.NeedProducerId()]
    made = after(None, replace(event, fresh_id=NEXT))
    assert made == StoredTransaction(NEXT, 0, TIMEOUT, S.EMPTY, updated_ms=NOW)


def test_an_end_by_version_2_bumps_the_epoch_once_and_version_0_does_not() -> None:
    value = stored(S.ONGOING)
    for event, state in ((ev.CommitV2, S.PREPARE_COMMIT), (ev.AbortV2, S.PREPARE_ABORT)):
        made = after(value, of(event))
        assert (made.state, made.epoch, made.last_epoch, made.client_version) == (state, EPOCH + 1, EPOCH, 2)
        assert made.partitions == PARTS
        assert made.started_ms == STARTED
        assert response(value, of(event)) == ev.Respond(E.NONE, ID, EPOCH + 1)
        done = after(made, ev.MarkersWritten())
        assert (done.epoch, done.last_epoch, done.partitions, done.client_version) == (EPOCH + 1, EPOCH, (), 2)
    for old in (ev.Commit, ev.Abort):
        made = after(value, of(old))
        assert (made.epoch, made.client_version) == (EPOCH, 0)
        assert after(made, ev.MarkersWritten()).epoch == EPOCH


def test_an_abort_by_time_out_bumps_once() -> None:
    late = STARTED + TIMEOUT + 1
    old = after(stored(S.ONGOING, last_epoch=EPOCH - 1), ev.Overdue(), late)
    assert (old.epoch, old.last_epoch, old.client_version) == (EPOCH + 1, -1, 0)
    assert after(old, ev.MarkersWritten(), late).epoch == EPOCH + 1
    new = after(stored(S.ONGOING, client_version=2), ev.Overdue(), late)
    assert (new.epoch, new.last_epoch, new.client_version) == (EPOCH + 1, EPOCH, 2)
    done = after(new, ev.MarkersWritten(), late)
    assert done.epoch == EPOCH + 1
    assert response(done, of(ev.AbortV2)) == ev.Respond(E.NONE, ID, EPOCH + 1), "its producer goes on"
    assert response(done, of(ev.CommitV2)).error is FENCED, "the commit came too late"


@pytest.mark.parametrize("version", [0, 2])
def test_an_abort_by_init_producer_id_bumps_once_and_the_next_one_bumps_again(version: int) -> None:
    event = ev.InitProducerId(timeout_ms=1)
    made = after(stored(S.ONGOING, client_version=version), event)
    assert (made.epoch, made.timeout_ms) == (EPOCH + 1, TIMEOUT)
    done = after(made, ev.MarkersWritten())
    again = after(done, event)
    assert (again.epoch, again.last_epoch, again.timeout_ms, again.started_ms) == (EPOCH + 2, -1, 1, -1)
    assert response(again, of(ev.AbortV2)).error is FENCED
    assert response(again, of(ev.InitProducerId)).error is FENCED


@pytest.mark.parametrize("version", [0, 2])
def test_a_producer_that_is_fenced_cannot_abort_the_transaction_of_its_successor(version: int) -> None:
    """InitProducerId of the epoch before, late or of a fenced producer, while a transaction is open."""
    for last_epoch in (-1, EPOCH - 1):
        value = stored(S.ONGOING, client_version=version, last_epoch=last_epoch)
        assert outcome(value, of(ev.InitProducerId, epoch=EPOCH - 1)) == ("", FENCED)
    first = stored(S.ONGOING, epoch=0, client_version=version, previous_id=OTHER, last_epoch=PRODUCER_EPOCH_MAX)
    assert outcome(first, of(ev.InitProducerId, OTHER, PRODUCER_EPOCH_MAX)) == ("", FENCED), "of the id before"


def test_a_repeated_init_producer_id_gets_the_same_epoch_for_ever() -> None:
    event = of(ev.InitProducerId)
    value = after(stored(S.EMPTY), event)
    assert (value.epoch, value.last_epoch) == (EPOCH + 1, EPOCH)
    for _ in range(3):
        assert response(value, event) == ev.Respond(E.NONE, ID, EPOCH + 1)
        value = after(value, event)
    fresh = after(value, ev.InitProducerId(timeout_ms=1))
    assert response(fresh, event).error is FENCED, "another producer was initialized since"


def test_epochs_run_out_at_an_end_of_version_2() -> None:
    value = stored(S.ONGOING, epoch=PRODUCER_EPOCH_MAX)
    for event in (of(ev.CommitV2, epoch=PRODUCER_EPOCH_MAX), of(ev.AbortV2, epoch=PRODUCER_EPOCH_MAX)):
        assert Transaction(value).handle(event, NOW) == [ev.NeedProducerId()]
        with_id = replace(event, fresh_id=NEXT)
        made = after(value, with_id)
        assert (made.producer_id, made.epoch, made.next_id) == (ID, EPOCH_MAX, NEXT), "the markers' id and epoch"
        assert response(value, with_id) == ev.Respond(E.NONE, NEXT, 0)
        assert response(made, of(ev.AddPartitions, NEXT, 0)).error is RETRY, "it has not begun to be fenced"
        done = after(made, ev.MarkersWritten())
        assert (done.producer_id, done.epoch, done.next_id, done.previous_id) == (NEXT, 0, -1, ID)
        assert done.last_epoch == PRODUCER_EPOCH_MAX
        assert response(done, event) == ev.Respond(E.NONE, NEXT, 0), "repeated"
        assert response(done, of(ev.AddPartitions, NEXT, 0)).error is E.NONE


@pytest.mark.parametrize("event", [ev.Overdue(), ev.InitProducerId(timeout_ms=1)])
def test_epochs_run_out_by_fencing(event: Any) -> None:
    late = STARTED + TIMEOUT + 1
    value = stored(S.ONGOING, epoch=PRODUCER_EPOCH_MAX, client_version=2)
    assert Transaction(value).handle(event, late) == [ev.NeedProducerId()]
    made = after(value, replace(event, fresh_id=NEXT), late)
    assert (made.producer_id, made.epoch, made.next_id) == (ID, EPOCH_MAX, NEXT)
    done = after(made, ev.MarkersWritten())
    assert (done.producer_id, done.epoch) == (NEXT, 0)
    assert response(done, of(ev.CommitV2, epoch=PRODUCER_EPOCH_MAX)).error is FENCED, "the commit came too late"
    old = after(stored(S.ONGOING, epoch=PRODUCER_EPOCH_MAX), event, late)
    assert (old.epoch, old.next_id) == (EPOCH_MAX, -1)
    done = after(old, ev.MarkersWritten())
    again = ev.InitProducerId(timeout_ms=1)
    assert Transaction(done).handle(again, NOW) == [ev.NeedProducerId()]
    fresh = after(done, replace(again, fresh_id=NEXT))
    assert (fresh.producer_id, fresh.epoch, fresh.previous_id, fresh.last_epoch) == (NEXT, 0, ID, -1)


def test_epochs_run_out_at_an_init_producer_id_that_is_repeated() -> None:
    event = of(ev.InitProducerId, epoch=PRODUCER_EPOCH_MAX)
    value = after(stored(S.EMPTY, epoch=PRODUCER_EPOCH_MAX), replace(event, fresh_id=NEXT))
    for _ in range(3):
        assert (value.producer_id, value.epoch, value.previous_id) == (NEXT, 0, ID)
        assert response(value, event) == ev.Respond(E.NONE, NEXT, 0)
        value = after(value, event)
    assert response(value, of(ev.InitProducerId, epoch=PRODUCER_EPOCH_MAX - 1)).error is FENCED


def test_the_largest_epoch_is_never_passed() -> None:
    value = stored(S.ONGOING, epoch=EPOCH_MAX, client_version=2)
    made = after(value, ev.Overdue(fresh_id=NEXT), STARTED + TIMEOUT + 1)
    assert (made.epoch, made.next_id) == (EPOCH_MAX, NEXT)


# ---------------------------------------------------------------------------------------------------- partitions


def test_the_first_partition_begins_the_transaction_and_its_time() -> None:
    for state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        made = after(stored(state), of(ev.AddPartitions, client_version=2))
        assert (made.partitions, made.started_ms, made.updated_ms, made.client_version) == (MORE, NOW, NOW, 2)
    made = after(stored(S.ONGOING), of(ev.AddPartitions))
    assert made.started_ms == STARTED
    assert made.partitions == (TopicPartitions("t", uuid.UUID(int=1), (0, 1, 2)),)


def test_partitions_that_are_there_are_not_written_again() -> None:
    assert outcome(stored(S.ONGOING), of(ev.AddPartitions, partitions=PARTS)) == ("", E.NONE)


def test_a_transaction_of_version_2_remains_one_whatever_else_is_added() -> None:
    """AddOffsetsToTxn counts as version 0.  The client of version 2 must not be fenced by an abort in its stead."""
    open_v2 = stored(S.ONGOING, client_version=2)
    made = after(open_v2, of(ev.AddPartitions, client_version=0))
    assert (made.client_version, made.partitions[0].partitions) == (2, (0, 1, 2))
    aborted = after(made, ev.Overdue(), STARTED + TIMEOUT + 1)
    assert (aborted.epoch, aborted.last_epoch, aborted.client_version) == (EPOCH + 1, EPOCH, 2)
    assert outcome(open_v2, of(ev.AddPartitions, partitions=PARTS, client_version=0)) == ("", E.NONE)


def test_a_request_of_version_2_makes_an_open_transaction_one_of_version_2() -> None:
    """TxnOffsetCommit 5 may add the partition that AddOffsetsToTxn has added before."""
    made = after(stored(S.ONGOING), of(ev.AddPartitions, partitions=PARTS, client_version=2))
    assert (made.client_version, made.partitions, made.started_ms) == (2, PARTS, STARTED)
    assert after(stored(S.COMPLETE_COMMIT, client_version=2), of(ev.AddPartitions)).client_version == 0


# ------------------------------------------------------------------------------------------------------- histories


@pytest.mark.parametrize("seed", seeds(50, 2_000))
def test_no_history_gives_a_producer_epoch_to_two_producers(seed: int) -> None:
    """Random requests: an epoch that a fresh producer got is higher than all before, or of a new producer id."""
    chance = random.Random(seed)
    value: StoredTransaction | None = None
    fresh, now = 1_000, NOW
    given: set[tuple[int, int]] = set()
    for _ in range(60):
        now += chance.choice((1, 1_000, TIMEOUT))
        known = value or StoredTransaction(ID, EPOCH, 1, S.EMPTY)
        epoch = known.epoch - chance.choice((0, 0, 0, 1, 2))
        kind = chance.choice((*CHANGING, ev.Overdue, ev.MarkersWritten, None))
        event: Any
        if kind is None:
            event = ev.InitProducerId(timeout_ms=TIMEOUT)
        elif kind is ev.Overdue:
            event = ev.Overdue()
        elif kind is ev.MarkersWritten:
            if value is None or not value.state.is_prepare:
                continue
            event = ev.MarkersWritten()
        else:
            event = of(kind, known.producer_id, max(epoch, 0))
        effects = Transaction(value).handle(event, now)
        if effects == [ev.NeedProducerId()]:
            fresh += 1
            effects = Transaction(value).handle(replace(event, fresh_id=fresh), now)
        for effect in effects:
            if isinstance(effect, ev.Store):
                before, value = value, effect.value
                assert value is not None
                if before is not None:
                    assert value.producer_id != before.producer_id or before.epoch <= value.epoch <= before.epoch + 1
                    if before.state.is_prepare:
                        assert value.state.name.removeprefix("COMPLETE") == before.state.name.removeprefix("PREPARE")
                    if chance.random() < 0.05:
                        value = value._replace(epoch=max(value.epoch, PRODUCER_EPOCH_MAX - 1))
            elif isinstance(effect, ev.Respond) and effect.error is E.NONE and kind is None:
                assert (effect.producer_id, effect.epoch) not in given
            if isinstance(effect, ev.Respond) and effect.producer_id >= 0:
                given.add((effect.producer_id, effect.epoch))
