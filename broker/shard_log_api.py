"""ShardOpen and ShardAppend: a coordinator's log, at the broker that owns its partition of ``__consumer_offsets``.

Who may append is ``broker.shard_log_fence``'s to say; the holder of a log is the connection that opened it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.internal_api import OPENING_WAIT_S, Registry
from bmq.broker.partition.owner import PartitionOwner
from bmq.broker.shard_log_fence import ShardFence
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer, Client
from bmq.core.rpc.messages import (
    InternalKey,
    ShardAppendRequest,
    ShardAppendResponse,
    ShardConfirmRequest,
    ShardConfirmResponse,
    ShardOpenRequest,
    ShardOpenResponse,
)
from bmq.core.rpc.server import InternalCall
from bmq.meta.cluster.member import COORDINATOR

CheckOwnership = Callable[[PartitionKey, int, str], Awaitable[None]]
"""Raises RequestError if a shard's log may not be opened under this ownership by this incarnation."""


class ShardLogApi:
    """One broker's.  ``fence.closed`` is to be told when a partition leaves WRITE."""

    def __init__(self, assigned: AssignedPartitions, fence: ShardFence, check: CheckOwnership | None = None) -> None:
        """``check`` refuses what contradicts the store."""
        self._assigned = assigned
        self._fence = fence
        self._check = check

    def register(self, endpoint: Registry) -> None:
        endpoint.register(InternalKey.SHARD_OPEN, self.open, role=COORDINATOR)
        endpoint.register(InternalKey.SHARD_APPEND, self.append, role=COORDINATOR)
        endpoint.register(InternalKey.SHARD_CONFIRM, self.confirm, role=COORDINATOR)

    async def open(self, body: memoryview, call: InternalCall) -> list[Buffer]:
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
        """In the order of the requests: nothing is awaited before the batch has its offset."""
        asked = ShardAppendRequest.decode(body)
        key = PartitionKey(asked.topic_id, asked.partition)
        owner = self._assigned.get(key)
        if owner is None or owner.epoch != asked.epoch:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not open here under epoch {asked.epoch}")
        self._fence.check(key, asked.epoch, asked.ownership, call.client)
        try:
            landed = owner.append_internal(memoryview(asked.records))
        except RequestError:
            self._fence.failed(key, call.client)
            raise
        return self._land(owner, call.client, landed)

    def confirm(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        asked = ShardConfirmRequest.decode(body)
        key = PartitionKey(asked.topic_id, asked.partition)
        owner = self._assigned.get(key)
        if owner is None or owner.epoch != asked.epoch:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} is not open here under epoch {asked.epoch}")
        self._fence.check(key, asked.epoch, asked.ownership, call.client)
        return ShardConfirmResponse().encode()

    async def _land(self, owner: PartitionOwner, client: Client, landed: asyncio.Future[int]) -> list[Buffer]:
        try:
            base_offset = await landed
        except RequestError:
            self._fence.failed(owner.key, client)
            raise
        return ShardAppendResponse(ErrorCode.NONE, "", base_offset, owner.log_start, owner.high_watermark).encode()
