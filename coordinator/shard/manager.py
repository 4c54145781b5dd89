"""All shards of one kind in this process, and the background work for them.

The cluster view assigns shards to processes:

================================================  ==========================================
the view                                          this process
================================================  ==========================================
assigns a shard to it                             loads the shard in the background
assigns a shard of it to another                  closes the shard in the same turn
assigns it again, under another ownership number  closes the shard and loads it again
================================================  ==========================================

Requests for a key whose shard is elsewhere get NOT_COORDINATOR.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence, Set
from typing import Any, Generic, TypeVar

from bmq.coordinator.shard.active import ActiveShard
from bmq.coordinator.shard.context import CoordinatorContext, ShardContext
from bmq.coordinator.shard.load_failure import LoadFailure
from bmq.coordinator.shard.shard import Shard
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import Topic, TopicChange
from bmq.meta.cluster.view import ViewChange
from bmq.meta.group_placement import shard_of, shards_of
from bmq.meta.shard_kinds import ShardId, ShardKind, present_shards

A = TypeVar("A", bound=ActiveShard[Any])


class Shards(ABC, Generic[A]):
    """The ``Shard`` of each partition of the kind's topic in this process, made when the topic is known."""

    def __init__(
        self,
        kind: ShardKind,
        context: CoordinatorContext,
        topic: Callable[[], Awaitable[Topic]],
        *,
        partitions: int,
        expiry_interval_s: float,
    ) -> None:
        """``topic`` returns the kind's topic, and creates it with so many ``partitions`` if it is missing."""
        self._kind = kind
        self._context = context
        self._topic = topic
        self._partitions = partitions
        self._expiry_interval_s = expiry_interval_s
        self._loads = asyncio.Semaphore(context.settings.loads_max)
        self._count = 0  # partitions of the topic; 0 until the topic is known
        self._shards: dict[int, Shard[Any, A]] = {}
        self._unsubscribe: Callable[[], None] = no_op
        self._tasks = OwnedTasks()
        self._is_closed = False
        self.is_draining = False

    @abstractmethod
    def _new_shard(self, context: ShardContext) -> Shard[Any, A]:
        """Return a new shard of this process."""

    async def start(self) -> None:
        """Begin to load the shards that exist, in the background: their keys must expire even without requests."""
        self._context.catalog.subscribe(self._topic_changed)
        self._unsubscribe = self._context.view.subscribe(self._view_changed)
        self._spawn(self._expire())
        present = self._context.catalog.topics.get(self._kind.topic)
        if present is not None:
            self._make(present)
            for shard in self._shards.values():
                shard.start()

    def drain(self) -> None:
        """Let no request wait from here on: the process shuts down, and its clients must find another."""
        self.is_draining = True

    def doubt(self) -> None:
        """Have each shard prove its ownership before it responds from memory: this process stood still."""
        for shard in self._shards.values():
            shard.doubt()

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

    def shard_of(self, key: str) -> ShardId:
        """Return the key's shard, also before the topic exists."""
        count = self._count or present_shards(self._kind, self._context.catalog) or self._partitions
        return ShardId(self._kind, shard_of(key, count))

    async def serving(self, key: str) -> A:
        """Return the key's shard once it is loaded; create the topic if it is missing.

        Raises RequestError: COORDINATOR_NOT_AVAILABLE if there is no topic, else as ``Shard.ready``.
        """
        if not self._count or self._is_closed:
            await self._ensure()
        return await self._mine(shard_of(key, self._count)).ready()

    async def serving_each(self, keys: Sequence[str]) -> list[A | RequestError]:
        """Return the shard of each key once it may respond from memory, or the error why it may not.

        Each shard is waited for once, and all at the same time.
        """
        try:
            if not self._count or self._is_closed:
                await self._ensure()
        except RequestError as error:
            return [error] * len(keys)
        numbers = await shards_of(keys, self._count)
        found: dict[int, A | RequestError] = {}

        async def find(number: int) -> None:
            try:
                found[number] = await self._mine(number).fresh()
            except RequestError as error:
                found[number] = error

        await asyncio.gather(*map(find, dict.fromkeys(numbers)))
        return [found[number] for number in numbers]

    async def all_serving(self, only: Set[int] | None = None) -> dict[int, A | RequestError | None]:
        """Return shards by number: the loaded shard, the error why it is not served, or None if it is empty.

        ``only`` names the shards.  If it is None, all shards of this process are returned: none if there is no topic.
        """
        wanted = sorted(self._shards) if only is None else sorted(only)
        return dict(zip(wanted, await asyncio.gather(*map(self._serving_or_why, wanted)), strict=True))

    async def _serving_or_why(self, number: int) -> A | RequestError | None:
        try:
            self._check_open()
            return await self._mine(number).fresh_unless_empty()
        except RequestError as error:
            return RequestError(error.code, error.message)  # without the traceback, which holds this frame

    def not_loaded(self) -> dict[ShardId, str]:
        """Return the shards that have been loading for longer than requests wait, each with the reason."""
        return {shard.id: why for shard in self._shards.values() if (why := shard.failure) is not None}

    def not_loaded_by_reason(self) -> Counter[LoadFailure]:
        """Count the shards of ``not_loaded`` by kind of reason, kinds without any included."""
        counts = Counter(dict.fromkeys(LoadFailure, 0))
        counts.update(kind for shard in self._shards.values() if (kind := shard.failure_reason) is not None)
        return counts

    # ---------------------------------------------------------------------------------------------- background

    def _loaded(self) -> Iterator[A]:
        """Yield the loaded shards."""
        return (shard.serving for shard in self._shards.values() if shard.serving is not None)

    def _coming(self) -> list[Shard[Any, A]]:
        """Return the shards whose keys are not known yet, and will be soon."""
        return [shard for shard in self._shards.values() if shard.is_coming]

    def _check_open(self) -> None:
        if self._is_closed:
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator is closed")

    async def _ensure(self) -> None:
        self._check_open()
        try:
            topic = await self._topic()
        except RequestError as error:
            message = f"{self._kind.topic}: {error.message}"
            raise RequestError(ErrorCode.COORDINATOR_NOT_AVAILABLE, message) from error
        self._check_open()  # nobody would close shards that are made now
        self._make(topic)

    def _mine(self, number: int) -> Shard[Any, A]:
        shard = self._shards.get(number)
        if shard is None or shard.is_closed:
            message = f"{ShardId(self._kind, number)} is not served by this process"
            raise RequestError(ErrorCode.NOT_COORDINATOR, message)
        return shard

    def _make(self, topic: Topic) -> None:
        if self._count:
            return  # another request was first
        self._count = topic.partitions
        for number in range(topic.partitions):
            self._follow(number)

    def _follow(self, number: int) -> Shard[Any, A] | None:
        """Open or close the shard as the view says; return it if it was opened."""
        ownership = self._ownership(number)
        present = self._shards.get(number)
        if present is not None:
            if present.context.ownership == ownership:
                return None
            present.close()
            del self._shards[number]
        if ownership is None:
            return None
        shard = self._shards[number] = self._new_shard(self._context_of(number, ownership))
        return shard

    def _context_of(self, number: int, ownership: int) -> ShardContext:
        context = self._context
        return ShardContext(
            id=ShardId(self._kind, number), ownership=ownership, settings=context.settings, clock=context.clock,
            logs=context.logs, catalog=context.catalog, loads=self._loads, spawn=self._spawn,
        )  # fmt: skip

    def _ownership(self, number: int) -> int | None:
        """Return the number of this process's ownership of the shard; None if the process does not own it."""
        owner = self._context.view.shard(ShardId(self._kind, number))
        return owner.number if owner is not None and owner.incarnation == self._context.view.own else None

    def _view_changed(self, change: ViewChange) -> None:
        """Open and close shards.  Opened shards are loaded at once, since clients wait."""
        for number in sorted(shard.number for shard in change.shards if shard.kind is self._kind):
            if number < self._count:
                shard = self._follow(number)
                if shard is not None:
                    shard.start()

    def _topic_changed(self, change: TopicChange) -> None:
        if self._is_closed:
            return
        before, after = change.before, change.after
        if before is not None and after is None and before.name != self._kind.topic:
            for shard in self._shards.values():
                shard.topic_deleted(before)
        elif before is not None and after is None:  # all that the shards have is gone with it
            for shard in self._shards.values():
                shard.close()
            self._shards, self._count = {}, 0
        elif after is not None and after.name == self._kind.topic:
            self._make(after)  # another process had the topic created
            if before is None:  # perhaps long ago: the view of the cluster may be ahead of the catalog
                for shard in self._shards.values():
                    shard.start()

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._expiry_interval_s)
            for shard in list(self._shards.values()):
                await shard.expire()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work, "of the coordinator")
