"""Loaded shard of any kind: writes, and waits until records are durable.

State changes when a record is handed to the writer, and responses are sent when it is flushed, as in Kafka's
``CoordinatorRuntime``.  If the log fails, the object is not used any more, and its shard is loaded again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from bmq.coordinator.shard.context import ShardContext
from bmq.coordinator.shard.freshness import Freshness
from bmq.coordinator.shard.log_records import BatchProducer, KeyValue
from bmq.coordinator.shard.state import ShardState
from bmq.coordinator.shard.writer import ShardWrite, Writer
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, RequestError

S = TypeVar("S", bound=ShardState)
T = TypeVar("T")


class OpenTransaction(Protocol):
    """A transaction with records in the shard's log whose end is not there yet."""

    @property
    def first_offset(self) -> int:
        """The base offset of the transaction's first batch; -1 until the batch is durable."""


class Loaded(NamedTuple, Generic[S]):
    """The results of a load: the replayed state, the writer behind the barrier, and the proof of the ownership."""

    state: S
    writer: Writer
    freshness: Freshness


class ActiveShard(Generic[S]):
    """The loaded state of a shard, under a single ownership of its log.  A kind's subclass decides what is written."""

    def __init__(self, context: ShardContext, loaded: Loaded[S]) -> None:
        self.state, self.writer, self.freshness = loaded
        self._context = context
        self._is_closed = False

    def open_transactions(self) -> Iterable[OpenTransaction]:
        """Return the transactions whose records a snapshot must not drop.  None by default."""
        return ()

    async def go_live(self) -> None:
        """Make the replayed state live, in turns of the event loop.  Nothing is to be done by default."""

    def begin(self) -> None:
        """Start timers, and perform what the replayed state asks for.  Called once, when the shard is served."""

    def close(self, error: ErrorCode) -> None:
        """Respond to all requests that wait with ``error``, and stop timers.  Idempotent.

        The caller must end the writer.
        """
        self._is_closed = True
        self.freshness.close()

    @property
    def is_closed(self) -> bool:
        """True once the shard is lost: the state is as of that moment."""
        return self._is_closed

    async def durable(self, deadline: float | None = None) -> None:
        """Wait until all that was written before is durable, at most until ``deadline`` (the event loop's clock).

        Raises RequestError: COORDINATOR_NOT_AVAILABLE if that takes too long, NOT_COORDINATOR if the log fails.
        """
        await self._in_time(self._written((), ""), deadline)

    async def rewrite(self, records: Sequence[KeyValue]) -> int:
        """Append records that repeat the present state, for a snapshot.

        Returns the base offset of the batch that has the first of them.  Raises RequestError if the log fails.
        """
        future, operation = self._write_and_wait(records, "")
        await future
        return operation.first_batch

    async def room(self, deadline: float | None = None) -> None:
        """Wait until there is room for a request's records.

        Raises RequestError: NOT_COORDINATOR if the log has failed, COORDINATOR_NOT_AVAILABLE if it takes too long.
        """
        if self.writer.is_blocked:
            await self._in_time(self.writer.room(), deadline)

    def _written(
        self, records: Sequence[KeyValue], subject: str, producer: BatchProducer | None = None
    ) -> asyncio.Future[None]:
        """Hand records to the writer; the future is done once they are durable.  Raises RequestError as ``write``."""
        return self._write_and_wait(records, subject, producer)[0]

    def _write_and_wait(
        self, records: Sequence[KeyValue], subject: str, producer: BatchProducer | None = None
    ) -> tuple[asyncio.Future[None], ShardWrite]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: RequestError | None) -> None:
            if future.done():
                return  # the request was cancelled; the records are written all the same
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        return future, self.writer.write(records, subject, done, producer)

    async def _breathe(self, turns: Turns, elements: int) -> None:
        """Let other work run now and then, and wait for room in the log.  Raises RequestError if the log has failed."""
        if turns.is_over(elements):
            await next_turn()
        await self.writer.room()

    def _deadline(self) -> float:
        """Return the deadline of a request that begins now, in seconds of the event loop's clock."""
        return asyncio.get_running_loop().time() + self._context.settings.commit_timeout_s

    async def _in_time(self, awaitable: Awaitable[T], deadline: float | None = None) -> T:
        try:
            async with asyncio.timeout_at(self._deadline() if deadline is None else deadline):
                return await awaitable
        except TimeoutError:
            message = f"a write to the shard's log is not durable after {self._context.settings.commit_timeout_s} s"
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message) from None
