"""All shards of this process: which there are, what is loaded, and the work that runs beside requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import Catalog, Topic, TopicChange
from bmq.meta.coordinator.log import ShardLogs
from bmq.meta.coordinator.placement import shard_of
from bmq.meta.coordinator.serving import Serving
from bmq.meta.coordinator.settings import CoordinatorSettings
from bmq.meta.coordinator.shard import Shard
from bmq.meta.coordinator.states import State

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"


class Shards:
    """One ``Shard`` for each partition of ``__consumer_offsets``, made when the topic is known."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        clock: Clock,
        logs: ShardLogs,
        topic: Callable[[], Awaitable[Topic]],
        catalog: Catalog,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._logs = logs
        self._topic = topic
        self._catalog = catalog
        self._loads = asyncio.Semaphore(settings.loads_max)
        self._shards: list[Shard] = []
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False
        self.is_draining = False

    async def start(self) -> None:
        """Load what exists already, in the background: offsets expire though nobody asks for them."""
        self._catalog.subscribe(self._topic_changed)
        self._spawn(self._expire())
        present = self._catalog.topics.get(OFFSETS_TOPIC)
        if present is not None:
            for shard in self._make(present):
                shard.start()

    def drain(self) -> None:
        """Clients are about to be sent away: nobody waits for a rebalance here any more."""
        self.is_draining = True
        for shard in self._shards:
            if shard.serving is not None:
                shard.serving.release(ErrorCode.NOT_COORDINATOR)

    def close(self) -> None:
        """Answer everybody who waits, write no more."""
        self._is_closed = True
        for shard in self._shards:
            shard.close()
        for task in list(self._tasks):
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def shard_of(self, group_id: str) -> int:
        present = self._catalog.topics.get(OFFSETS_TOPIC)
        return shard_of(group_id, len(self._shards) or (present.partitions if present else self._settings.shards))

    async def serving(self, group_id: str) -> Serving:
        """The group's shard, loaded.  RequestError."""
        if not self._shards or self._is_closed:
            await self._ensure()
        return await self._shards[shard_of(group_id, len(self._shards))].ready()

    async def serving_members(self, group_id: str) -> Serving:
        """As ``serving``, for requests that may be parked.  RequestError NOT_COORDINATOR while draining."""
        serving = await self.serving(group_id)
        if self.is_draining:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the process is about to end")
        return serving

    def loaded(self, group_id: str) -> Serving | None:
        """The group's shard when it is loaded now; None while it loads.  RequestError NOT_COORDINATOR,
        UNKNOWN_MEMBER_ID when it has no groups."""
        if not self._shards or self._is_closed:
            raise RequestError(ErrorCode.NOT_COORDINATOR, "no shard is open here")
        shard = self._shards[shard_of(group_id, len(self._shards))]
        if shard.is_empty:
            raise RequestError(ErrorCode.UNKNOWN_MEMBER_ID, "the shard has no groups")
        if shard.serving is None:
            shard.start()
        return shard.serving

    async def all_serving(self) -> list[Serving]:
        """Every shard that has something in it, loaded; none when there is no topic yet.  RequestError."""
        if self._is_closed:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is closed")
        found = await asyncio.gather(*(shard.look() for shard in self._shards))
        return [serving for serving in found if serving is not None]

    def groups_by_state(self) -> dict[str, int]:
        counts = dict.fromkeys((state.value for state in State), 0)
        for shard in self._shards:
            for group in shard.serving.state.groups.values() if shard.serving is not None else ():
                counts[group.state.value] += 1
        return counts

    # ---------------------------------------------------------------------------------------------- background

    async def _ensure(self) -> None:
        if self._is_closed:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is closed")
        try:
            topic = await self._topic()
        except RequestError as error:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{OFFSETS_TOPIC}: {error.message}") from error
        self._make(topic)

    def _make(self, topic: Topic) -> list[Shard]:
        if not self._shards:  # another request may have been first
            self._shards = [
                Shard(partition, self._logs, self._clock, self._settings, self._loads, self._spawn)
                for partition in range(topic.partitions)
            ]
        return self._shards

    def _topic_changed(self, change: TopicChange) -> None:
        if self._is_closed or change.before is None or change.after is not None:
            return
        if change.before.name != OFFSETS_TOPIC:
            self._spawn(self._forget_topic(change.before.name))
            return
        for shard in self._shards:  # all groups are gone with it
            shard.close()
        self._shards = []

    async def _forget_topic(self, topic: str) -> None:
        for shard in self._shards:
            if shard.serving is not None:
                await self._try(shard, shard.serving.forget_topic(topic), f"offsets of the deleted topic {topic}")

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._settings.expiry_interval_s)
            for shard in self._shards:
                if shard.serving is not None:
                    await self._try(shard, shard.serving.expire(), "expired offsets")

    async def _try(self, shard: Shard, work: Awaitable[int], what: str) -> None:
        try:
            count = await work
        except RequestError as error:  # expiry comes round again; until then they are merely still there
            logger.warning("shard %d: %s not all removed: %s", shard.partition, what, error)
            return
        if count:
            logger.info("shard %d: %d records to remove %s", shard.partition, count, what)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of the coordinator failed", exc_info=error)
