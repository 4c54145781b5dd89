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
| unknown, and a batch of it has waited  | follows that batch         | OUT_OF_ORDER_SEQUENCE_NUMBER       |
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

While batches wait, no batch of the producer passes the lowest sequence among them. The log may know no
sequence of the producer. Then the lowest sequence stays when its batch is refused (Kafka's ``VerificationStateEntry``).
The client sends the batch again, and a log that had begun behind the batch would refuse it for ever.

| event                                       | the producer's lowest sequence                              |
| ------------------------------------------- | ----------------------------------------------------------- |
| a batch waits: a lower sequence, same epoch | is the batch's                                              |
| a batch waits: a later epoch                | is the batch's                                              |
| the log takes a batch, or a marker          | does not count: the log compares                            |
| the log drops a batch that it took          | counts again                                                |
| the log has flushed a batch, or a marker    | is forgotten, soon                                          |
| no batch waits for producer.id.expiration   | is forgotten                                                |
| more than ``LOWEST_KEPT`` producers         | is forgotten, of the producer that has not waited longest   |
| the partition leaves this broker            | is forgotten, as in Kafka                                   |

Times are seconds of one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from bmq.broker.partition.producer_state import NO_EPOCH, ProducerTable
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
LOWEST_KEPT = 1_000
"""Most producers of a partition whose lowest sequence is kept: about a quarter of a megabyte."""
_SWEPT_AFTER = 32
"""Least notes between two sweeps of what is kept."""
_TERMS = ClientTerms(ABORTABLE_SINCE, ADDS_SINCE, NOT_REACHED, ErrorCode.NOT_ENOUGH_REPLICAS)


class Verdict(Enum):
    """The way of a new batch, and of the waiting batches at an answer."""

    TAKE = "to the log, which checks them as any"
    WAIT = "wait for the coordinator's answer"
    ASK_AGAIN = "wait: the answer does not count"
    ASK_LATER = "wait: the answer is from an earlier ownership of the coordinator's shard"
    REFUSE = "are refused"


class LowestSequence(NamedTuple):
    """The lowest sequence that has waited with a producer's epoch, and the end of its validity."""

    epoch: int
    sequence: int
    until: float


class LowestSequences:
    """The lowest sequences that have waited, by producer, of producers whose sequence the log did not know."""

    __slots__ = ("_by_producer", "_notes_left")

    def __init__(self) -> None:
        self._by_producer: dict[int, LowestSequence] = {}  # in the order of the last waits
        self._notes_left = _SWEPT_AFTER

    def __len__(self) -> int:
        return len(self._by_producer)

    def note(self, producers: ProducerTable, batch: Batch, now: float, expires_s: float) -> None:
        """Note a waiting batch. Forget its producer instead if the log knows a sequence."""
        producer_id, epoch, sequence = batch.producer_id, batch.producer_epoch, batch.base_sequence
        self._notes_left -= 1
        if self._notes_left < 0:
            self._sweep(producers, now)
        found = self._by_producer.pop(producer_id, None)
        if _is_sequence_known(producers.latest(producer_id)):
            return
        if found is not None and now < found.until and found.epoch >= epoch:
            is_lower = found.epoch == epoch and is_before(sequence, found.sequence)
            epoch, sequence = found.epoch, sequence if is_lower else found.sequence
        self._by_producer[producer_id] = LowestSequence(epoch, sequence, now + expires_s)
        if len(self._by_producer) > LOWEST_KEPT:
            del self._by_producer[next(iter(self._by_producer))]

    def check(self, state: ProducerState | None, batch: Batch, now: float) -> None:
        """Raise RequestError OUT_OF_ORDER_SEQUENCE_NUMBER if the log would begin behind a sequence that has waited."""
        found = self._by_producer.get(batch.producer_id)
        if found is None or found.epoch != batch.producer_epoch or found.until <= now or _is_sequence_known(state):
            return
        if is_before(found.sequence, batch.base_sequence):
            raise out_of_order(batch, found.sequence)

    def clear(self) -> None:
        """Forget all: the partition leaves this broker."""
        self._by_producer.clear()

    def _sweep(self, producers: ProducerTable, now: float) -> None:
        """Forget what is over, or flushed. As many notes come before the next sweep as it has entries at most."""
        self._by_producer = {
            pid: one
            for pid, one in self._by_producer.items()
            if now < one.until and not (producers.is_flushed(pid) and _is_sequence_known(producers.latest(pid)))
        }
        self._notes_left = max(_SWEPT_AFTER, len(self._by_producer))


def _is_sequence_known(state: ProducerState | None) -> bool:
    return state is not None and state.epoch != NO_EPOCH


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
        if is_before(one.batch.base_sequence, waiting[found].batch.base_sequence):
            found = at
    return found


def out_of_order(batch: Batch, lowest: int) -> RequestError:
    """Return the error of a batch that came before the lower sequence ``lowest``."""
    return RequestError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {batch.producer_id} sent sequence {batch.base_sequence} before sequence {lowest}",
    )


def is_before(sequence: int, later: int) -> bool:
    """Return whether ``sequence`` is before ``later``. Sequences wrap at 2^31: the shorter distance decides."""
    distance: int = (later - sequence) & MAX_SEQUENCE
    return 0 < distance < 1 << 30
