"""Life of a kind's coordinator: its shards in this process start, drain and end together."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from bmq.coordinator.shard.load_failure import LoadFailure
from bmq.coordinator.shard.manager import Shards
from bmq.core.errors import ErrorCode
from bmq.core.records.control import TransactionMarker
from bmq.meta.shard_kinds import ShardId, ShardKind

K = TypeVar("K", bound=Shards[Any])


async def _no_parts() -> None:
    """Close nothing: the shards use no parts of their own."""


class KindCoordinator(Generic[K]):
    """The coordinator of one kind in this process.  A subclass serves the kind's requests over ``shards``."""

    kind: ClassVar[ShardKind]

    def __init__(self, shards: K, close_parts: Callable[[], Awaitable[None]] = _no_parts) -> None:
        """``close_parts`` closes what the shards use, once they have ended."""
        self.shards = shards
        self._close_parts = close_parts

    async def start(self) -> None:
        """Begin to load shards, and return at once.  Requests wait for their shard for ``load_timeout_s``."""
        await self.shards.start()

    def drain(self) -> None:
        """Respond to parked requests and park no more.  Other requests are served until ``close``."""
        self.shards.drain()

    def doubt(self) -> None:
        """Have each shard prove its ownership before it responds from memory: this process stood still."""
        self.shards.doubt()

    async def close(self) -> None:
        """Close all shards.  Parked requests get NOT_COORDINATOR; writes in flight may still become durable.

        All steps are done even if a step fails.  May be called after a ``start`` that failed.
        """
        async with contextlib.AsyncExitStack() as steps:  # from the last to the first
            steps.push_async_callback(self._close_parts)
            steps.push_async_callback(self.shards.wait_closed)
            steps.callback(self.shards.close)

    def abandon(self) -> None:
        """Close all shards without waiting, as a process that dies does.  For simulations."""
        self.shards.close()

    async def end_transaction(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        """End a transaction in the shard of a partition, and return the result of the marker.

        Here it is NOT_COORDINATOR.  Only a kind whose shards transactions write to has another result.
        """
        return ErrorCode.NOT_COORDINATOR

    def shards_not_loaded(self) -> dict[ShardId, str]:
        """Return why shards of this process are not served, by shard.  For operators."""
        return self.shards.not_loaded()

    def shards_not_loaded_by_reason(self) -> Mapping[LoadFailure, int]:
        """Count the shards that are not loaded by kind of reason, kinds without any included.  For metrics."""
        return self.shards.not_loaded_by_reason()
