"""The walks of a leader that give topics' files their owner, group and mode, some partitions at a time.

Where nothing is asked for there is no record, and all that it costs is a look at the catalog's version a second.  A
step gives ``FOLDERS_PER_STEP`` partitions the rights that they lack, then writes the record.  After a crash the next
leader goes on behind the last record; to give the same rights twice changes nothing.  Entries that lack nothing cost
their listing only.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from bmq.controller.kv_commit import Guard, deposed, is_deposed
from bmq.controller.topics.access import (
    PASS_S,
    AccessDefaults,
    Walk,
    access_key,
    access_prefix,
    decode_walk,
    encode_walk,
    next_walk,
)
from bmq.core.aio.backoff import Backoff
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.errors import FormatError, RequestError
from bmq.core.file_access import Access
from bmq.core.logging.fields import fields
from bmq.meta.catalog import Catalog
from bmq.meta.kv import Delete, KeyValue, KvError, Put
from bmq.meta.settled_commit import commit_settled
from bmq.storage.access_files import AccessFiles

_log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Time between two looks whether the catalog has changed, or a walk is due."""
AGAIN_S = Backoff(10.0, 600.0)
"""Pause before a walk that storage refused is tried again."""
FOLDERS_PER_STEP = 20
"""Partitions of a step: some hundred files, so that walks of other topics go on as well."""
TOPICS_PER_STEP = 4_000
"""Topics compared in one turn of the event loop."""
PAUSE_S = 0.1
"""Pause between two steps: 200 partitions a second at most, so that a NameNode has other things to do."""


class _Failed(NamedTuple):
    again_at: float
    times: int


class AccessWalks:
    """The walks over all topics' files, between ``start`` and ``close``."""

    def __init__(
        self,
        kv: KeyValue,
        cluster: str,
        catalog: Catalog,
        config: NodeConfig,
        files: AccessFiles,
        clock: Clock,
        *,
        guard: Guard,
        shared: Access,
    ) -> None:
        """``guard``: see ``Guard``.  ``shared``: the access of what all topics share."""
        self._kv = kv
        self._cluster = cluster
        self._catalog = catalog
        self._config = config
        self._files = files
        self._clock = clock
        self._guard = guard
        self._shared = shared
        self._walks: dict[uuid.UUID, Walk] = {}  # of topics that ask for something
        self._due: dict[uuid.UUID, float] = {}  # the walks that are not done, with the time of the next step
        self._failed: dict[uuid.UUID | None, _Failed] = {}  # None: what is shared
        self._seen = -1
        self._shared_at = 0.0 if shared.is_given else float("inf")
        self._tasks = OwnedTasks()

    def __repr__(self) -> str:
        return f"AccessWalks(topics={len(self._walks)}, under way={len(self._due)}, failing={self.failing})"

    @property
    def under_way(self) -> int:
        """Number of topics of which some files may not have their owner, group or mode yet."""
        return len(self._due)

    @property
    def failing(self) -> int:
        """Number of topics that storage refused, with the shared files counted as one topic."""
        return len(self._failed)

    async def start(self) -> None:
        """Begin."""
        self._tasks.start(self._run(), "walks over topics' files")

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def _run(self) -> None:
        is_read = False
        while True:
            try:
                if not is_read:
                    await self._read()
                    is_read = True
                pause_s = await self._round()
            except (KvError, RequestError) as error:
                _log.warning("could not go on giving topics' files their owner and mode", extra=fields(error=error))
                pause_s = LOOK_S
            await asyncio.sleep(pause_s)

    async def _read(self) -> None:
        """Read what earlier leaders have done.  A record that cannot be read counts as none: its walk begins again."""
        async for entry in self._kv.list(access_prefix(self._cluster)):
            try:
                self._walks[uuid.UUID(entry.key.rpartition("/")[2])] = decode_walk(entry)
            except (FormatError, ValueError) as error:
                _log.warning("a walk over a topic's files begins again", extra=fields(key=entry.key, error=error))

    async def _round(self) -> float:
        """Take a step of every due walk, and return the seconds to wait before the next round."""
        if self._catalog.version != self._seen:
            await self._compare()
        now = self._clock.monotonic()
        if now >= self._shared_at:
            await self._give_shared(now)
        due = [topic_id for topic_id, at in self._due.items() if at <= now]
        for topic_id in due:
            await self._step(topic_id)
            await asyncio.sleep(PAUSE_S)
        return 0.0 if due else LOOK_S

    async def _compare(self) -> None:
        """Find the topics whose walk begins, or whose record is not needed any more."""
        version = self._catalog.version
        defaults = AccessDefaults.of(self._catalog, self._config)
        topics = list(self._catalog.topics.values())
        for start in range(0, len(topics), TOPICS_PER_STEP):
            for topic in topics[start : start + TOPICS_PER_STEP]:
                await self._compare_one(topic.topic_id, defaults.access(topic))
            await asyncio.sleep(0)
        for topic_id in [each for each in self._walks if self._catalog.by_id(each) is None]:
            await self._forget(topic_id)
        self._seen = version

    async def _compare_one(self, topic_id: uuid.UUID, wanted: Access) -> None:
        known = self._walks.get(topic_id)
        walk = next_walk(wanted, known)
        if walk is None:
            if known is not None:
                await self._forget(topic_id)
        elif walk != known:
            self._walks[topic_id] = walk
            self._due[topic_id] = 0.0
            self._failed.pop(topic_id, None)
        elif not walk.is_done:
            self._due.setdefault(topic_id, 0.0)

    async def _forget(self, topic_id: uuid.UUID) -> None:
        await self._commit([Delete(access_key(self._cluster, topic_id))])
        self._walks.pop(topic_id, None)
        self._due.pop(topic_id, None)
        self._failed.pop(topic_id, None)

    async def _give_shared(self, now: float) -> None:
        try:
            await self._files.give_shared(self._shared)
        except RequestError as error:
            self._shared_at = now + self._put_off(None, "the files that all topics share", error)
            return
        self._failed.pop(None, None)
        self._shared_at = float("inf")

    async def _step(self, topic_id: uuid.UUID) -> None:
        topic, walk = self._catalog.by_id(topic_id), self._walks[topic_id]
        if topic is None:
            return  # the next comparison forgets it
        try:
            done = await self._files.give_some(topic.name, topic_id, walk.access, walk.after, FOLDERS_PER_STEP)
        except RequestError as error:
            self._due[topic_id] = self._clock.monotonic() + self._put_off(topic_id, topic.name, error)
            return
        self._failed.pop(topic_id, None)
        walk = walk.went_on(done.after, has_left=done.has_left)
        at = 0.0
        if not done.after:
            walk = walk.passed()
            at = self._clock.monotonic() + PASS_S
        await self._commit([Put(access_key(self._cluster, topic_id), encode_walk(walk))])
        self._walks[topic_id] = walk
        self._due[topic_id] = at
        if walk.is_done:
            del self._due[topic_id]
            _log.info("a topic's files have their owner, group and mode", extra=fields(topic=topic.name))

    def _put_off(self, key: uuid.UUID | None, what: str, error: RequestError) -> float:
        before = self._failed.get(key)
        times = 1 if before is None else before.times + 1
        pause_s = AGAIN_S.pause(times)
        self._failed[key] = _Failed(self._clock.monotonic() + pause_s, times)
        _log.warning(
            "storage refuses the owner, group or mode of a topic's files, trying again in %d s: readers may have too"
            " few rights or too many",
            pause_s,
            extra=fields(topic=what, error=error.message),
        )
        return pause_s

    async def _commit(self, writes: Sequence[Put | Delete]) -> None:
        """Write records, if this process still leads.  Raises KvError, and RequestError NOT_CONTROLLER."""
        guard = self._guard()
        settled = await commit_settled(self._kv, guard, writes)
        if is_deposed(guard, settled.commit):
            raise deposed()
