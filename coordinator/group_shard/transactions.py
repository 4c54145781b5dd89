"""Transactions' offsets in a loaded shard of groups: pending commits, and the ends of transactions.

A commit waits until the transaction's coordinator knows of the shard (rule 12), and for a marker of its producer that
is under way.  Its offsets are pending (``pending``) until the next marker is durable and applied.  A large end is
applied in steps; meanwhile its producer's next commit and next marker wait.

A base class of ``ActiveGroups``, not a member of it: a member would hold the shard in turn.  In such a circle the
garbage collector would free a lost shard's groups at once; ``coordinator.shard.shard`` frees them in turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial

from bmq.coordinator.group_shard.offsets import ActiveOffsets
from bmq.coordinator.group_shard.parts import GroupParts
from bmq.coordinator.group_shard.pending import PendingTransaction
from bmq.coordinator.group_shard.refused_markers import RefusedMarkers
from bmq.coordinator.group_shard.state import GroupsState
from bmq.coordinator.group_shard.verification import CommitTransaction
from bmq.coordinator.group_shard.verified_commits import VerifiedCommits
from bmq.coordinator.records import CoordinatorRecord
from bmq.coordinator.shard.active import Loaded
from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.log_records import BatchProducer, KeyValue
from bmq.coordinator.shard.writer import REFUSED_PRODUCER
from bmq.core.aio.steps import Steps
from bmq.core.aio.turns import ELEMENTS_A_TURN, room_in_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import EndMarker, TransactionMarker, end_record

MARKER_ELEMENTS = 4
"""Work with a marker's batch, in elements of a turn (``core.aio.turns``)."""


class OffsetTransactions(ActiveOffsets):
    """The part of ``ActiveGroups`` that commits offsets in transactions, and ends the transactions."""

    def __init__(
        self, context: ShardContext, loaded: Loaded[GroupsState], parts: GroupParts, refused: RefusedMarkers
    ) -> None:
        """``refused``: markers that the log has refused, also before this load."""
        super().__init__(context, loaded)
        self._parts = parts
        self._verified = VerifiedCommits(parts.verifier, context.id.number, loaded.state.pending)
        self._refused = refused
        self._ending: dict[int, asyncio.Future[None]] = {}  # markers being written or applied, by producer id

    def close(self, error: ErrorCode) -> None:
        super().close(error)
        self._verified.close()

    def open_transactions(self) -> Iterable[PendingTransaction]:
        return self.state.pending.open.values()

    async def _ready_to_commit(self, transaction: CommitTransaction, offsets: int, deadline: float) -> None:
        """Wait until so many offsets of ``transaction`` may be written in this turn of the event loop.

        Raises RequestError as ``_ready_for`` and ``VerifiedCommits.wait``.
        """
        ready = partial(self._ready_for, transaction.producer, deadline)
        await self._verified.wait(transaction, offsets, ready, deadline)

    async def _ready_for(self, producer: BatchProducer, deadline: float) -> None:
        """Wait for room, and for a marker of ``producer`` under way: what follows is of its next transaction.

        Raises RequestError as ``room`` does, NOT_COORDINATOR if the shard is lost, and INVALID_PRODUCER_EPOCH for a
        fenced producer.
        """
        await self.room(deadline)
        while (ending := self._ending.get(producer.producer_id)) is not None:
            await self._in_time(asyncio.wait((ending,)), deadline)
            await self.room(deadline)
        if self._is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the shard was lost during the commit")
        self.state.pending.check(producer.producer_id, producer.producer_epoch)

    def _append_pending(
        self,
        records: Sequence[CoordinatorRecord],
        encoded: Sequence[KeyValue],
        group_id: str,
        producer: BatchProducer,
    ) -> asyncio.Future[None]:
        """Append offsets of a producer's transaction as a batch of their own."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if error is None:
                self.state.pending.began_at(producer.producer_id, operation.first_batch)
            _complete(future, error)

        operation = self.writer.write(encoded, group_id, done, producer)
        for record in records:
            self.state.apply(record, producer)
        return future

    async def end_transaction(self, marker: TransactionMarker) -> ErrorCode:
        """End a producer's transaction: write its control record, and return the code for its coordinator.

        The offsets are committed or dropped once the record is durable, in the order of the log.  Raises RequestError
        if the log has no room, or the record is not durable in time.
        """
        deadline = self._deadline()
        has_waited = False
        while True:
            await room_in_turn(MARKER_ELEMENTS)  # a request has a thousand markers, which come at once
            await self.room(deadline)
            ending = self._ending.get(marker.producer_id)
            if ending is None:
                break
            await self._in_time(asyncio.wait((ending,)), deadline)
            has_waited = True
        verdict = self.state.pending.verdict(marker)
        if verdict is None:
            if has_waited and self.state.pending.changes_nothing(marker):
                verdict = ErrorCode.NONE  # it repeats the marker before: repetitions must not pile up on slow storage
            else:
                verdict = self._refused.code_of(marker, self._context.clock.monotonic())
                if verdict is ErrorCode.INVALID_PRODUCER_EPOCH and not self.state.pending.has_open(marker.producer_id):
                    verdict = ErrorCode.NONE  # the log has a later epoch that the shard does not know
        if verdict is ErrorCode.NONE:
            await self._prove_again(deadline)
        if verdict is not None:
            return verdict
        end = EndMarker(marker.marker, marker.coordinator_epoch)
        producer = BatchProducer(marker.producer_id, marker.producer_epoch, is_control=True)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if error is None:
                count = self.state.pending.count_of_producer(marker.producer_id)
                self._parts.ends.run(min(count + 1, ELEMENTS_A_TURN), self._end(producer, end, future))
            else:
                if error.code in REFUSED_PRODUCER:
                    self._refused.refused(marker, error.code, self._context.clock.monotonic())
                del self._ending[marker.producer_id]
                _complete(future, error)

        record = end_record(end)
        assert record.key is not None
        self.writer.write([(record.key, record.value)], "", done, producer)
        self._ending[marker.producer_id] = future
        self._verified.ended(marker.producer_id)
        future.add_done_callback(_retrieve)  # nobody may be left to wait for it
        await self._in_time(asyncio.shield(future), deadline)
        return ErrorCode.NONE

    async def _prove_again(self, deadline: float) -> None:
        """Return once the log has confirmed the ownership, for the response that a marker is in the log.

        A former owner of the shard lacks the producer's later transactions.  Without the proof, the last marker would
        count as the marker of a transaction whose offsets are pending at the present owner.
        """
        await self._in_time(self.freshness.prove_again(), deadline)
        if self._is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the shard was lost during the request")

    def _end(self, producer: BatchProducer, end: EndMarker, future: asyncio.Future[None]) -> Steps[None]:
        """Apply a marker that is durable.  Further records of the producer wait meanwhile."""
        error: RequestError | None = RequestError(ErrorCode.NOT_COORDINATOR, "the shard was lost during the end")
        try:
            for _ in self.state.end_transaction(producer, end, self._context.clock.monotonic()):
                yield
                if self._is_closed:
                    return
            error = None
        finally:
            del self._ending[producer.producer_id]
            _complete(future, error)


def _complete(future: asyncio.Future[None], error: RequestError | None) -> None:
    """Complete a write's future, unless its request has been cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _retrieve(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
