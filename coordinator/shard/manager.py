"""All shards of this process, and the background work for them.

The cluster view assigns shards to processes:

================================================  ==========================================
the view                                          this process
================================================  ==========================================
assigns a shard to it                             loads the shard in the background
assigns a shard of it to another                  closes the shard in the same turn
assigns it again, under another ownership number  closes the shard and loads it again
================================================  ==========================================

Requests for a group whose shard is elsewhere get NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Set
from typing import Any

from bmq.coordinator.group.group_bounds import GroupBounds
from bmq.coordinator.group.states import GroupState
from bmq.coordinator.offsets.committed import Offsets
from bmq.coordinator.settings import CoordinatorSettings
from bmq.coordinator.shard.active import ActiveShard
from bmq.coordinator.shard.load_failure import LoadFailure
from bmq.coordinator.shard.log import ShardLogs
from bmq.coordinator.shard.response_queue import ResponseQueue
from bmq.coordinator.shard.shard import Shard
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.aio.turns import map_in_turns
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import OFFSETS_TOPIC, Catalog, Topic, TopicChange
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.group_placement import shard_of
from bmq.meta.security.client_quotas import Bounds


class Shards:
    """One ``Shard`` for each partition of ``__consumer_offsets`` of this process, made when the topic is known."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        clock: Clock,
        logs: ShardLogs,
        topic: Callable[[], Awaitable[Topic]],
        catalog: Catalog,
        view: ClusterView,
        bounds: Bounds,
    ) -> None:
        self.bounds = GroupBounds(bounds, self._owned_by)
        self._settings = settings
        self._clock = clock
        self._logs = logs
        self._topic = topic
        self._catalog = catalog
        self._loads = asyncio.Semaphore(settings.loads_max)
        self._budget = ByteBudget(settings.membership_bytes_max)
        self._answers = ResponseQueue()
        self._view = view
        self._count = 0  # partitions of the topic; 0 until the topic is known
        self._shards: dict[int, Shard] = {}
        self._unsubscribe: Callable[[], None] = no_op
        self._tasks = OwnedTasks()
        self._is_closed = False
        self.is_draining = False

    async def start(self) -> None:
        """Begin to load the shards that exist, in the background: their offsets must expire even without requests."""
        self._catalog.subscribe(self._topic_changed)
        self._unsubscribe = self._view.subscribe(self._view_changed)
        self._spawn(self._expire())
        present = self._catalog.topics.get(OFFSETS_TOPIC)
        if present is not None:
            self._make(present)
            for shard in self._shards.values():
                shard.start()

    def drain(self) -> None:
        """Respond to parked requests and park no more: the process shuts down, and its clients must find another."""
        self.is_draining = True
        for shard in self._shards.values():
            if shard.serving is not None:
                shard.serving.release(ErrorCode.NOT_COORDINATOR)

    def close(self) -> None:
        """Respond to parked requests, write no more, and cancel background work."""
        self._is_closed = True
        self._unsubscribe()
        for shard in self._shards.values():
            shard.close()
        self._tasks.cancel()

    async def wait_closed(self) -> None:
        """Wait until the background work has ended."""
        await self._tasks.finish()

    def shard_of(self, group_id: str) -> int:
        """Return the number of the group's shard, also before the topic exists."""
        present = self._catalog.topics.get(OFFSETS_TOPIC)
        return shard_of(group_id, self._count or (present.partitions if present else self._settings.shards))

    async def serving(self, group_id: str) -> ActiveShard:
        """Return the group's shard once it is loaded; create the topic if it is missing.

        Raises RequestError: COORDINATOR_NOT_AVAILABLE if there is no topic, else as ``Shard.ready``.
        """
        if not self._count or self._is_closed:
            await self._ensure()
        return await self._mine(shard_of(group_id, self._count)).ready()

    async def serving_each(self, group_ids: Sequence[str]) -> list[ActiveShard | RequestError]:
        """Return the shard of each group once it may respond from memory, or the error why it may not.

        Each shard is waited for once, and all at the same time.
        """
        try:
            if not self._count or self._is_closed:
                await self._ensure()
        except RequestError as error:
            return [error] * len(group_ids)
        count = self._count
        numbers = await map_in_turns(lambda group_id: shard_of(group_id, count), group_ids)
        found: dict[int, ActiveShard | RequestError] = {}

        async def find(number: int) -> None:
            try:
                found[number] = await self._mine(number).fresh()
            except RequestError as error:
                found[number] = error

        await asyncio.gather(*map(find, dict.fromkeys(numbers)))
        return [found[number] for number in numbers]

    async def serving_members(self, group_id: str) -> ActiveShard:
        """Return the group's shard as ``serving`` does, for requests that may be parked.

        Raises RequestError as ``serving`` and ``Freshness.renew`` do, and NOT_COORDINATOR while draining.
        """
        serving = await self.serving(group_id)
        await serving.freshness.renew()
        if self.is_draining:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the process is shutting down")
        return serving

    def loaded(self, group_id: str) -> ActiveShard | None:
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

    async def all_serving(self, only: Set[int] | None = None) -> dict[int, ActiveShard | RequestError | None]:
        """Return shards by number: the loaded shard, the error why it is not served, or None if it is empty.

        ``only`` names the shards.  If it is None, all shards of this process are returned: none if there is no topic.
        """
        wanted = sorted(self._shards) if only is None else sorted(only)
        return dict(zip(wanted, await asyncio.gather(*map(self._serving_or_why, wanted)), strict=True))

    async def _serving_or_why(self, number: int) -> ActiveShard | RequestError | None:
        try:
            if self._is_closed:
                raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is closed")
            return await self._mine(number).fresh_unless_empty()
        except RequestError as error:
            return RequestError(error.code, error.message)  # without the traceback, which holds this frame

    def groups_by_state(self) -> dict[str, int]:
        """Count the loaded groups by Kafka's name of their state, states without any included."""
        counts = dict.fromkeys((state.value for state in GroupState), 0)
        for shard in self._shards.values():
            for group in shard.serving.state.groups.values() if shard.serving is not None else ():
                counts[group.state.value] += 1
        return counts

    def not_loaded(self) -> dict[int, str]:
        """Return the shards that have been loading for longer than requests wait, each with the reason."""
        return {number: why for number, shard in self._shards.items() if (why := shard.failure) is not None}

    def not_loaded_by_reason(self) -> Counter[LoadFailure]:
        """Count the shards of ``not_loaded`` by kind of reason, kinds without any included."""
        counts = Counter(dict.fromkeys(LoadFailure, 0))
        counts.update(kind for shard in self._shards.values() if (kind := shard.failure_reason) is not None)
        return counts

    def offsets(self) -> list[Offsets]:
        """Return the committed offsets of each shard that is loaded."""
        return [shard.serving.state.offsets for shard in self._shards.values() if shard.serving is not None]

    def _owned_by(self, principal: str) -> int:
        """Return how many groups of the loaded shards count for a principal."""
        loaded = (shard.serving for shard in self._shards.values())
        return sum(serving.state.owned_by(principal) for serving in loaded if serving is not None)

    # ---------------------------------------------------------------------------------------------- background

    async def _ensure(self) -> None:
        if self._is_closed:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is closed")
        try:
            topic = await self._topic()
        except RequestError as error:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}: {error.message}") from error
        self._make(topic)

    def _mine(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is None or shard.is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, f"shard {number} is not served by this process")
        return shard

    def _make(self, topic: Topic) -> None:
        if self._count:
            return  # another request was first
        self._count = topic.partitions
        for number in range(topic.partitions):
            self._follow(number)

    def _follow(self, number: int) -> Shard | None:
        """Open or close the shard as the view says; return it if it was opened."""
        ownership = self._ownership(number)
        present = self._shards.get(number)
        if present is not None:
            if present.ownership == ownership:
                return None
            present.close()
            del self._shards[number]
        if ownership is None:
            return None
        shard = self._shards[number] = Shard(
            number,
            ownership,
            self._logs,
            self._clock,
            self._settings,
            self._catalog,
            self._loads,
            self._budget,
            self._answers,
            self._spawn,
            self.bounds,
        )
        return shard

    def _ownership(self, number: int) -> int | None:
        """Return the number of this process's ownership of the shard; None if the process does not own it."""
        owner = self._view.shard(number)
        return owner.number if owner is not None and owner.incarnation == self._view.own else None

    def _view_changed(self, change: ViewChange) -> None:
        """Open and close shards.  Those that were opened are loaded at once, since their groups' members wait."""
        for number in sorted(change.shards):
            if number < self._count:
                shard = self._follow(number)
                if shard is not None:
                    shard.start()

    def _topic_changed(self, change: TopicChange) -> None:
        if self._is_closed:
            return
        before, after = change.before, change.after
        if before is not None and after is None and before.name != OFFSETS_TOPIC:
            for shard in self._shards.values():
                shard.forget_topic(before)
        elif before is not None and after is None:  # all groups are gone with it
            for shard in self._shards.values():
                shard.close()
            self._shards, self._count = {}, 0
        elif after is not None and after.name == OFFSETS_TOPIC:
            self._make(after)  # another process had the topic created

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._settings.expiry_interval_s)
            for shard in list(self._shards.values()):
                await shard.expire()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, "of the coordinator")
