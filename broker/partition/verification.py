"""Verification of transactions at the log (KIP-890): the batches that wait, and the coordinator's answers. Pure.

A partition takes the first batch of a transaction only once the transaction's coordinator knows of the partition
(rule 12). Otherwise no marker would come, and the transaction would stay open for ever. Produce up to version 11 asks
whether the partition is in the transaction; from version 12 on the question adds the partition.

| the producer here                      | the batch                  | then                               |
| -------------------------------------- | -------------------------- | ---------------------------------- |
| a batch of it waits                    | any                        | it waits behind                    |
| any                                    | plain                      | the log checks it                  |
| its transaction is open, same epoch    | transactional              | the log takes it                   |
| has a later epoch                      | transactional              | the log refuses it                 |
| any                                    | repeats a kept batch       | the log finds the first (rule 9)   |
| unknown, or no batch of it is kept     | version 12, sequence not 0 | OUT_OF_ORDER_SEQUENCE_NUMBER       |
| any other                              | transactional              | it waits: the coordinator is asked |

| the answer                             | then                                                            |
| -------------------------------------- | --------------------------------------------------------------- |
| any, and since the question the        | it is void: ask again at once                                   |
| producer's state changed, by a marker  |                                                                 |
| the coordinator was not reached        | NOT_ENOUGH_REPLICAS, as in Kafka                                |
| of an earlier ownership of the shard   | ask again after a pause                                         |
| than the producer's last marker        |                                                                 |
| the partition is in the transaction    | the batches go to the log                                       |
| any other error                        | the batches are refused with it                                 |

While batches wait, none of the producer's passes that follows the lowest sequence among them (Kafka's
``VerificationStateEntry``). Times are seconds of one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import MAX_SEQUENCE, Batch
from bmq.core.transaction_answers import NOT_REACHED, ClientTerms, Confirmation, error_for_client
from bmq.core.wire.produce import Transaction
from bmq.endpoint.partitions import AppendCallback
from bmq.storage.checkpoint import ProducerState
from bmq.storage.transactions import NOTHING_OPEN

ABORTABLE_SINCE = 11
"""First version of Produce whose clients know TRANSACTION_ABORTABLE."""
ADDS_SINCE = 12
"""First version of Produce that adds its partitions to the transaction (KIP-890, part 2)."""
WAIT_S = 5.0
"""Seconds for which a batch waits for the coordinator: well below the client's request.timeout.ms (30 s)."""
_TERMS = ClientTerms(ABORTABLE_SINCE, ADDS_SINCE, NOT_REACHED, ErrorCode.NOT_ENOUGH_REPLICAS)


class Verdict(Enum):
    """The way of a new batch, and of the waiting batches at an answer."""

    TAKE = "to the log, which checks them as any"
    WAIT = "wait for the coordinator's answer"
    ASK_AGAIN = "wait: the answer does not count"
    ASK_LATER = "wait: the answer is from an earlier ownership of the coordinator's shard"
    REFUSE = "are refused"


def verdict_on(state: ProducerState | None, batch: Batch, version: int) -> Verdict:
    """Return whether a batch of a producer of which nothing waits goes to the log or waits, by the module's table.

    ``state`` is the producer's here, None if it is unknown; ``version`` is the client's version of Produce. Raises
    RequestError OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    if not batch.is_transactional:
        return Verdict.TAKE
    if state is not None:
        if batch.producer_epoch < state.epoch:
            return Verdict.TAKE
        if state.epoch == batch.producer_epoch and (state.txn_start != NOTHING_OPEN or _is_kept(state, batch)):
            return Verdict.TAKE
    if version >= ADDS_SINCE and batch.base_sequence != 0 and (state is None or not state.batches):
        raise RequestError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {batch.producer_id} sent sequence {batch.base_sequence}, its first here must be 0",
        )
    return Verdict.WAIT


def _is_kept(state: ProducerState, batch: Batch) -> bool:
    return any(
        kept.base_sequence == batch.base_sequence and kept.last_delta == batch.last_offset_delta
        for kept in state.batches
    )


def verdict_by(asked: ProducerState | None, state: ProducerState | None, confirmed: Confirmation) -> Verdict:
    """Return what follows from an answer, by the module's table; ``asked`` is the producer's state at the question."""
    if asked is not state:  # states are immutable: each accepted batch and marker brings another
        return Verdict.ASK_AGAIN
    if confirmed.code in NOT_REACHED:
        return Verdict.REFUSE
    if state is not None and confirmed.ownership < state.coordinator_epoch:
        return Verdict.ASK_LATER
    return Verdict.TAKE if confirmed.code is ErrorCode.NONE else Verdict.REFUSE


def error_in_produce(code: ErrorCode, version: int) -> RequestError:
    """Return a coordinator's error as Produce of the client's version has it.

    Source: Kafka's ``ReplicaManager.handleProduceAppend``.
    """
    return error_for_client(code, version, _TERMS, "the partition")


class Unverified:
    """A batch that waits."""

    __slots__ = ("acks_all", "batch", "callback", "transaction", "until")

    def __init__(
        self, batch: Batch, callback: AppendCallback, transaction: Transaction | None, *, acks_all: bool, until: float
    ) -> None:
        self.batch = batch
        self.callback = callback
        self.transaction = transaction
        self.acks_all = acks_all
        self.until = until


class Question(NamedTuple):
    """A question to the coordinator: whether this partition is in a producer's transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_add: bool
    until: float
    state: ProducerState | None


class Line:
    """One producer's waiting batches, in the order of their arrival. The question is about the first batch."""

    __slots__ = ("question", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Unverified] = deque()
        self.question: Question | None = None

    def ask(self, state: ProducerState | None) -> Question:
        """Return the question of the first batch, asked at the producer's ``state``."""
        first = self.waiting[0]
        assert first.transaction is not None
        batch, version = first.batch, first.transaction.version
        self.question = Question(
            first.transaction.transactional_id, batch.producer_id, batch.producer_epoch, version >= ADDS_SINCE,
            first.until, state,
        )  # fmt: skip
        return self.question

    def take_off(self) -> list[Unverified]:
        """Take off and return the waiting batches of the question's transaction, up to the first of another."""
        question, taken = self.question, []
        assert question is not None
        while self.waiting and _is_of(self.waiting[0], question):
            taken.append(self.waiting.popleft())
        return taken


def _is_of(one: Unverified, question: Question) -> bool:
    transaction = one.transaction
    return (
        transaction is not None
        and one.batch.producer_epoch == question.producer_epoch
        and transaction.transactional_id == question.transactional_id
        and (transaction.version >= ADDS_SINCE) == question.is_add
    )


def lowest(waiting: Sequence[Unverified]) -> int:
    """Return the position of the batch with the lowest sequence: no batch before it may pass."""
    found = 0
    for at, one in enumerate(waiting):
        if is_before(one.batch, waiting[found].batch):
            found = at
    return found


def out_of_order(batch: Batch, first: Batch) -> RequestError:
    """Return the error of a batch that came before ``first``, whose sequence is lower."""
    return RequestError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id} sent sequence {batch.base_sequence} before sequence {first.base_sequence}",
    )


def is_before(batch: Batch, later: Batch) -> bool:
    """Return whether ``batch`` has an earlier sequence. Sequences wrap at 2^31: the shorter distance decides."""
    distance: int = (later.base_sequence - batch.base_sequence) & MAX_SEQUENCE
    return 0 < distance < 1 << 30
