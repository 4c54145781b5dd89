"""The table of verification: every combination of a producer's state, a batch and an answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from bmq.broker.partition.producer_state import NO_EPOCH, ProducerTable
from bmq.broker.partition.verification import (
    LOWEST_KEPT,
    Line,
    LowestSequences,
    Unverified,
    Verdict,
    error_in_produce,
    lowest,
    verdict_by,
    verdict_on,
)
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.transaction_answers import Confirmation
from bmq.core.wire.produce import Transaction
from bmq.storage.checkpoint import ProducerBatch, ProducerState
from tests.unit.broker.partition.transactional import PID, data
from tests.unit.endpoint.serving import AppendFuture

OPEN, NONE_OPEN = 10, -1
KEPT = (ProducerBatch(4, 10, 0, 1000),)
OUT_OF_ORDER = "OUT_OF_ORDER_SEQUENCE_NUMBER"


def state(epoch: int = 1, *, txn_start: int = NONE_OPEN, batches: tuple[ProducerBatch, ...] = KEPT) -> ProducerState:
    return ProducerState(PID, epoch, 5, 0, txn_start, batches)


def fate(known: ProducerState | None, version: int, sequence: int, epoch: int, *, is_transactional: bool = True) -> str:
    try:
        return verdict_on(known, data(sequence, epoch=epoch, is_transactional=is_transactional), version).name
    except RequestError as error:
        return error.code.name


@pytest.mark.parametrize(("version", "sequence", "epoch"), list(product((3, 10, 11, 12, 13), (0, 4, 5), (0, 1, 2))))
def test_rule_12_a_batchs_way_by_the_producers_state(version: int, sequence: int, epoch: int) -> None:
    first = "WAIT" if version < 12 or sequence == 0 else OUT_OF_ORDER
    assert fate(None, version, sequence, epoch) == first
    assert fate(state(0, batches=()), version, sequence, epoch) == first
    for txn_start in (OPEN, NONE_OPEN):
        known = state(1, txn_start=txn_start)
        is_repeated = epoch == 1 and sequence == 4
        is_open = epoch == 1 and txn_start == OPEN
        takes = epoch == 0 or is_repeated or is_open
        assert fate(known, version, sequence, epoch) == ("TAKE" if takes else "WAIT")
        assert fate(known, version, sequence, epoch, is_transactional=False) == "TAKE"
    assert fate(None, version, sequence, epoch, is_transactional=False) == "TAKE"


NOT_REACHED = ["NETWORK_EXCEPTION", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"]
REFUSALS = ["INVALID_TXN_STATE", "TRANSACTION_ABORTABLE", "CONCURRENT_TRANSACTIONS", "PRODUCER_FENCED",
            "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"]  # fmt: skip


@pytest.mark.parametrize("name", ["NONE", *NOT_REACHED, *REFUSALS])
def test_rule_12_an_answer_of_an_earlier_ownership_or_before_a_marker_does_not_count(name: str) -> None:
    code, known = ErrorCode[name], state()
    after_marker = replace(known, coordinator_epoch=6)
    in_time = "TAKE" if name == "NONE" else "REFUSE"
    assert verdict_by(None, None, Confirmation(code, 0)).name == in_time
    assert verdict_by(None, known, Confirmation(code, 9)) is Verdict.ASK_AGAIN
    assert verdict_by(known, None, Confirmation(code, 9)) is Verdict.ASK_AGAIN
    assert verdict_by(known, after_marker, Confirmation(code, 9)) is Verdict.ASK_AGAIN
    for ownership in (4, 5, 6):
        is_old = ownership < 5 and name not in NOT_REACHED
        assert verdict_by(known, known, Confirmation(code, ownership)).name == ("ASK_LATER" if is_old else in_time)


@pytest.mark.parametrize("version", range(3, 14))
def test_a_coordinators_error_is_translated_as_in_kafka(version: int) -> None:
    expected = dict.fromkeys([*NOT_REACHED, "REQUEST_TIMED_OUT", "UNSUPPORTED_VERSION"], "NOT_ENOUGH_REPLICAS")
    expected["CONCURRENT_TRANSACTIONS"] = "CONCURRENT_TRANSACTIONS" if version >= 12 else "NOT_ENOUGH_REPLICAS"
    expected["TRANSACTION_ABORTABLE"] = "TRANSACTION_ABORTABLE" if version >= 11 else "INVALID_TXN_STATE"
    expected["PRODUCER_FENCED"] = expected["INVALID_PRODUCER_EPOCH"] = "INVALID_PRODUCER_EPOCH"
    expected["CLUSTER_AUTHORIZATION_FAILED"] = expected["INVALID_TXN_STATE"] = "INVALID_TXN_STATE"
    expected["INVALID_PRODUCER_ID_MAPPING"] = "INVALID_PRODUCER_ID_MAPPING"
    assert {name: error_in_produce(ErrorCode[name], version).code.name for name in expected} == expected


def waiting(sequence: int, *, epoch: int = 0, version: int = 12, name: str | None = "t") -> Unverified:
    transaction = None if name is None else Transaction(name, version)
    batch = data(sequence, epoch=epoch, is_transactional=name is not None)
    return Unverified(batch, AppendFuture(), transaction, acks_all=True, until=3.0)


async def test_an_answer_is_for_the_batches_of_the_questions_transaction() -> None:
    line = Line()
    line.waiting.extend([waiting(0), waiting(1, version=13), waiting(0, epoch=1), waiting(2)])
    question = line.ask(None)
    assert question[:5] == ("t", PID, 0, True, 3.0)
    assert [one.batch.base_sequence for one in line.take_off()] == [0, 1]
    assert line.ask(None).producer_epoch == 1
    for other in (waiting(1, name="u"), waiting(1, name=None), waiting(1, version=11)):
        line.waiting.clear()
        line.waiting.extend([waiting(0), other])
        line.ask(None)
        assert len(line.take_off()) == 1


@pytest.mark.parametrize(
    ("sequences", "position"),
    [([0], 0), ([0, 1, 2], 0), ([5, 0, 6], 1), ([2, 1, 0], 2), ([0x7FFFFFFF, 0, 1], 0), ([], 0)],
)
async def test_the_lowest_sequence_is_found_across_its_wrap(sequences: list[int], position: int) -> None:
    assert lowest([waiting(sequence) for sequence in sequences]) == position


EXPIRES_S = 100.0


def noted(
    lowest: LowestSequences,
    sequence: int,
    *,
    known: ProducerTable | None = None,
    epoch: int = 0,
    pid: int = PID,
    now: float = 0.0,
) -> None:
    producers = ProducerTable() if known is None else known
    lowest.note(producers, data(sequence, epoch=epoch, pid=pid), now, EXPIRES_S)


def is_blocked(
    lowest: LowestSequences,
    sequence: int,
    *,
    known: ProducerState | None = None,
    epoch: int = 0,
    pid: int = PID,
    now: float = 0.0,
) -> bool:
    try:
        lowest.check(known, data(sequence, epoch=epoch, pid=pid), now)
    except RequestError as error:
        return error.code.name == OUT_OF_ORDER
    return False


def test_rule_12_the_log_does_not_begin_behind_the_lowest_sequence_that_has_waited() -> None:
    lowest = LowestSequences()
    assert not is_blocked(lowest, 9)
    for sequence in (5, 3, 4):
        noted(lowest, sequence)
    assert [is_blocked(lowest, sequence) for sequence in (2, 3, 4, 5)] == [False, False, True, True]
    assert not is_blocked(lowest, 5, pid=PID + 1)
    assert not is_blocked(lowest, 5, known=state(0, batches=())), "a marker came: the log wants sequence 0"
    assert not is_blocked(lowest, 5, known=state(0)), "data came: the log wants the next sequence"
    assert is_blocked(lowest, 5), "the log dropped the data again"
    assert is_blocked(lowest, 5, known=state(NO_EPOCH, txn_start=OPEN, batches=()))
    noted(lowest, 0x7FFFFFFF)
    assert is_blocked(lowest, 0), "sequences wrap"


def test_a_later_epoch_has_a_lowest_sequence_of_its_own() -> None:
    lowest = LowestSequences()
    noted(lowest, 3, epoch=1)
    noted(lowest, 1, epoch=0)
    assert is_blocked(lowest, 4, epoch=1)
    assert not is_blocked(lowest, 4, epoch=0), "the coordinator refuses the epoch"
    noted(lowest, 7, epoch=2)
    assert not is_blocked(lowest, 4, epoch=1)
    assert [is_blocked(lowest, sequence, epoch=2) for sequence in (7, 8)] == [False, True]


def test_lowest_sequences_are_forgotten_with_time_with_data_and_at_their_bound() -> None:
    lowest = LowestSequences()
    noted(lowest, 3)
    assert is_blocked(lowest, 4, now=EXPIRES_S - 1)
    assert not is_blocked(lowest, 4, now=EXPIRES_S)
    noted(lowest, 6, now=EXPIRES_S)
    assert [is_blocked(lowest, sequence, now=EXPIRES_S) for sequence in (6, 7)] == [False, True]
    noted(lowest, 7, known=ProducerTable([state(0)]))
    assert len(lowest) == 0
    for number in range(LOWEST_KEPT):
        noted(lowest, 3, pid=PID + number)
    noted(lowest, 3)
    noted(lowest, 3, pid=PID - 1)
    assert len(lowest) == LOWEST_KEPT
    assert [is_blocked(lowest, 4, pid=pid) for pid in (PID - 1, PID, PID + 1, PID + 2)] == [True, True, False, True]
    lowest.clear()
    assert not is_blocked(lowest, 4)


def test_lowest_sequences_of_producers_that_go_are_forgotten() -> None:
    """Producers with one transaction each: the log has flushed it, or the producer never came back."""
    lowest, known = LowestSequences(), ProducerTable()
    most = 0
    for number in range(10 * LOWEST_KEPT):
        noted(lowest, 0, known=known, pid=PID + number)
        known.flushed(replace(state(0), producer_id=PID + number))
        most = max(most, len(lowest))
    assert most < 100
    lowest = LowestSequences()
    for number in range(LOWEST_KEPT):
        noted(lowest, 3, pid=PID + number)
    for _ in range(2 * LOWEST_KEPT):
        noted(lowest, 3, pid=PID, now=EXPIRES_S)
    assert len(lowest) == 1


def test_the_lowest_sequence_of_a_batch_in_the_buffer_is_kept() -> None:
    lowest, known = LowestSequences(), ProducerTable()
    noted(lowest, 3, known=known)
    known.append(data(3), 0)
    for number in range(1, 1 + LOWEST_KEPT // 2):
        noted(lowest, 0, known=known, pid=PID + number)
    known.take_back([])
    assert is_blocked(lowest, 4), "the log dropped the batch"
