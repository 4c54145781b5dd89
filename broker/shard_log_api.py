"""ShardOpen, ShardAppend and ShardConfirm: a coordinator's log, at the broker that owns its partition.

The partition is of a coordinators' topic (``meta.shard_kinds``).  ``broker.shard_log_fence`` decides which coordinator
may append; the holder of a log is the connection that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.internal_api import OPENING_WAIT_S
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.shard_log_fence import ShardFence
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer, Client
from bmq.core.rpc.messages.broker import (
    ShardAppendRequest,
    ShardAppendResponse,
    ShardConfirmRequest,
    ShardConfirmResponse,
    ShardOpenRequest,
    ShardOpenResponse,
)
from bmq.core.rpc.server import InternalCall, InternalEndpoint
from bmq.meta.cluster.member import COORDINATOR

CheckOwnership = Callable[[PartitionKey, int, str], Awaitable[None]]
"""Called with key, shard ownership and the caller's incarnation.  Raises RequestError if the metadata store says that
this coordinator may not open the log."""


class ShardLogApi:
    """Handlers of requests to coordinators' logs.  ``fence.closed`` must be called when a partition leaves WRITE."""

    def __init__(self, assigned: AssignedPartitions, fence: ShardFence, check: CheckOwnership | None = None) -> None:
        self._assigned = assigned
        self._fence = fence
        self._check = check

    def register(self, endpoint: InternalEndpoint) -> None:
        """Register the handlers, for coordinators only, with the process's internal endpoint."""
        endpoint.register(ShardOpenRequest, self.open, role=COORDINATOR)
        endpoint.register(ShardAppendRequest, self.append, role=COORDINATOR)
        endpoint.register(ShardConfirmRequest, self.confirm, role=COORDINATOR)

    async def open(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Make the calling connection the log's holder, and return the log's epoch and ends.

        Raises RequestError if the caller is stale, or the partition is not open here within ``OPENING_WAIT_S``.
        """
        asked = ShardOpenRequest.decode(body)
        key = PartitionKey(asked.topic_id, asked.partition)
        if self._check is not None:
            await self._check(key, asked.ownership, call.caller)
        owner = self._assigned.get(key) or await self._assigned.wait(key, OPENING_WAIT_S)
        self._fence.open(key, owner.epoch, asked.ownership, call.client)
        return ShardOpenResponse(
            ErrorCode.NONE, "", owner.epoch, owner.log_start, owner.high_watermark, owner.max_message_bytes
        ).encode()

    def append(self, body: memoryview, call: InternalCall) -> Awaitable[list[Buffer]]:
        """Append a batch, and return its base offset and the log's ends once it is flushed.

        In the order of the requests: nothing is awaited before the batch has its offset.  Raises RequestError if the
        caller is not the holder, or the batch is refused; then the log must be opened again.
        """
        asked = ShardAppendRequest.decode(body)
        key = PartitionKey(asked.topic_id, asked.partition)
        owner = self._assigned.get(key)
        if owner is None or owner.epoch != asked.epoch:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not open here under epoch {asked.epoch}")
        self._fence.check(key, asked.epoch, asked.ownership, call.client)
        try:
            flushed = owner.append_internal(memoryview(asked.records))
        except RequestError:
            self._fence.failed(key, call.client)
            raise
        return self._when_flushed(owner, call.client, flushed)

    async def confirm(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return an empty response if the caller is still the log's holder.

        Raises RequestError if it is not, or the broker cannot prove that it still owns the partition.
        """
        asked = ShardConfirmRequest.decode(body)
        key = PartitionKey(asked.topic_id, asked.partition)
        owner = self._assigned.get(key)
        if owner is None or owner.epoch != asked.epoch:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not open here under epoch {asked.epoch}")
        await owner.confirm_ownership()
        self._fence.check(key, asked.epoch, asked.ownership, call.client)
        return ShardConfirmResponse().encode()

    async def _when_flushed(self, owner: PartitionOwner, client: Client, flushed: asyncio.Future[int]) -> list[Buffer]:
        try:
            base_offset = await flushed
        except RequestError:
            self._fence.failed(owner.key, client)
            raise
        return ShardAppendResponse(ErrorCode.NONE, "", base_offset, owner.log_start, owner.high_watermark).encode()
