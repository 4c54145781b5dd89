"""All shards of groups in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bmq.coordinator.group.states import GroupState
from bmq.coordinator.group_shard.active import ActiveGroups
from bmq.coordinator.group_shard.commit_verifier import CommitVerifier
from bmq.coordinator.group_shard.parts import GroupParts
from bmq.coordinator.group_shard.shard import GroupShard
from bmq.coordinator.offsets.committed import Offsets
from bmq.coordinator.shard.context import CoordinatorContext, ShardContext
from bmq.coordinator.shard.key_bounds import KeyBounds
from bmq.coordinator.shard.manager import Shards
from bmq.coordinator.shard.owned_keys import OwnedKeys
from bmq.coordinator.shard.response_queue import ResponseQueue
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.turns import StepQueue
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import TransactionMarker
from bmq.core.transaction_answers import Verifier
from bmq.meta.catalog import Topic
from bmq.meta.group_placement import shard_of
from bmq.meta.security.client_quotas import MAX_GROUPS
from bmq.meta.shard_kinds import GROUPS


class GroupShards(Shards[ActiveGroups]):
    """The shards of ``__consumer_offsets`` in this process, and the bounds of their groups."""

    def __init__(self, context: CoordinatorContext, topic: Callable[[], Awaitable[Topic]], verify: Verifier) -> None:
        """``topic``: as in ``Shards``.  ``verify`` asks transactions' coordinators about commits."""
        settings = context.settings
        super().__init__(
            GROUPS, context, topic, partitions=settings.shards, expiry_interval_s=settings.expiry_interval_s
        )
        self.parts = GroupParts(
            bounds=KeyBounds(
                context.bounds,
                OwnedKeys(self._loaded, self._coming, settings.load_timeout_s),
                MAX_GROUPS,
                key="group",
                remedy="delete groups of the user",
            ),
            verifier=CommitVerifier(verify, context.catalog),
            budget=ByteBudget(settings.membership_bytes_max),
            answers=ResponseQueue(),
            ends=StepQueue(),
        )

    def drain(self) -> None:
        """Respond to parked requests and park no more: the process shuts down, and its clients must find another."""
        self.is_draining = True
        for serving in self._loaded():
            serving.release(ErrorCode.NOT_COORDINATOR)

    async def serving_members(self, group_id: str) -> ActiveGroups:
        """Return the group's shard as ``serving`` does, for requests that may be parked.

        Raises RequestError as ``serving`` and ``Freshness.renew`` do, and NOT_COORDINATOR while draining.
        """
        serving = await self.serving(group_id)
        await serving.freshness.renew()
        if self.is_draining:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the process is shutting down")
        return serving

    def loaded(self, group_id: str) -> ActiveGroups | None:
        """Return the group's shard if it is loaded now; None while it loads.

        Raises RequestError: NOT_COORDINATOR if the shard is not this process's, UNKNOWN_MEMBER_ID if it has no groups.
        """
        if not self._count or self._is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "this process serves no shard")
        shard = self._mine(shard_of(group_id, self._count))
        if shard.is_empty:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, "the shard has no groups")
        if shard.serving is None:
            shard.start()
        return shard.serving

    async def end_transaction(self, partition: int, marker: TransactionMarker) -> ErrorCode:
        """End a producer's transaction in a partition of ``__consumer_offsets``, and return once that is durable.

        Returns NONE if the partition has the marker.  INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED: the
        log has a later epoch of the producer or of its coordinator.  After any other code, the caller must try again.
        """
        try:
            if not self._count or self._is_closed:
                await self._ensure()
            serving = await self._mine(partition).ready()
            return await serving.end_transaction(marker)
        except RequestError as error:
            return error.code

    def groups_by_state(self) -> dict[str, int]:
        """Count the loaded groups by Kafka's name of their state, states without any included."""
        counts = dict.fromkeys((state.value for state in GroupState), 0)
        for serving in self._loaded():
            for group in serving.state.groups.values():
                counts[group.state.value] += 1
        return counts

    def oldest_pending_s(self) -> float:
        """Return the age of the oldest transaction with pending offsets, in seconds; 0 without pending offsets."""
        began = [each.began_ms for serving in self._loaded() for each in serving.open_transactions()]
        return max(0, self._context.clock.now_ms() - min(began)) / 1000 if began else 0.0

    def offsets(self) -> list[Offsets]:
        """Return the committed offsets of the loaded shards, for the lag of their groups.

        A shard in doubt is left out, as another process may own it since this process stood still.  The call starts
        the proof of its ownership.
        """
        return [serving.state.offsets for serving in self._loaded() if serving.freshness.ask()]

    def _new_shard(self, context: ShardContext) -> GroupShard:
        return GroupShard(context, self.parts)
