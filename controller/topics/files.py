"""Topics as storage knows them: ``topic-<revision>.json``, for those who read segments without a metadata store.

Written after the commit that it tells of, before the answer.  What a crash or an outage leaves unwritten is owed: it
is found at the next start, by comparing the highest revision on storage with the record, and tried until it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import uuid
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from operator import attrgetter
from typing import Protocol

from bmq.core.aio.steps import run_in_steps
from bmq.core.aio.subscribers import wait_for
from bmq.core.errors import RequestError
from bmq.core.logging.fields import fields
from bmq.meta.catalog import Catalog, Topic

_log = logging.getLogger(__name__)

PARALLEL = 8
"""Topics looked at together, of those that may be owed."""
NEWEST = 1_000
"""Topics changed last, which a start looks at first; they take some seconds."""
TOPICS_PER_STEP = 4_000
PACE_S = 0.01
"""Between two of the others: 100,000 topics are looked through in half an hour, with a listing at a time."""
RETRY_S = 5.0


class TopicFiles(Protocol):
    """What storage must do.  RequestError KAFKA_STORAGE_ERROR when it cannot now; every call may be repeated."""

    async def write(
        self,
        name: str,
        revision: int,
        topic_id: uuid.UUID,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int,
    ) -> None:
        """Make it the topic's newest file; older ones are then removed.  It may be there already."""

    async def highest(self, name: str) -> int:
        """The highest revision on storage, 0 when there is none of this life of the store."""

    async def withdraw(self, name: str, revision: int) -> None:
        """Remove the files up to ``revision``: the topic that they tell of is deleted."""


class Publisher:
    """``publish`` for whoever changed a topic; between ``start`` and ``close`` what is owed is made good."""

    def __init__(self, files: TopicFiles, catalog: Catalog) -> None:
        self._files = files
        self._catalog = catalog
        self._owed: dict[str, None] = {}  # an ordered set of names
        self._unseen: deque[str] = deque()  # not looked at since the start, and not likely owed
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Publisher(owed={len(self._owed)})"

    async def publish(self, topic: Topic) -> None:
        """The change is committed already: a storage that fails now is no reason to deny it."""
        try:
            await self._write(topic)
        except RequestError as error:
            _log.warning(
                "a topic is changed, and cannot be written to storage yet",
                extra=fields(topic=topic.name, error=error.message),
            )
            self._owe(topic.name)

    @contextlib.contextmanager
    def owing(self, name: str) -> Iterator[None]:
        """Around a commit and its ``publish``: when the client does not wait for the end, or the outcome stays
        unknown, it may have been done all the same, and storage is then told by ``_run``."""
        try:
            yield
        except (asyncio.CancelledError, RequestError):
            self._owe(name)
            raise

    def start(self) -> None:
        """Look through all topics, in the background: at once those that were changed last, since a leader that ended
        may owe them, and all others at a pace that storage does not notice."""
        self._running = asyncio.create_task(self._run(), name="topic files")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.result()

    def _owe(self, name: str) -> None:
        self._owed[name] = None
        self._news.set()

    def _look_through(self) -> Generator[None, None, None]:
        """Find the newest, some thousand topics at a time."""
        topics = list(self._catalog.topics.values())
        newest: list[Topic] = []
        for start in range(0, len(topics), TOPICS_PER_STEP):
            some = topics[start : start + TOPICS_PER_STEP]
            newest = heapq.nlargest(NEWEST, newest + some, key=attrgetter("revision"))
            yield
        self._owed.update(dict.fromkeys(topic.name for topic in newest))
        if len(topics) > len(newest):
            self._unseen.extend(topic.name for topic in topics)

    async def _run(self) -> None:
        await run_in_steps(self._look_through())
        while True:
            self._news.clear()
            failed: list[str] = []
            async with asyncio.TaskGroup() as tasks:
                for _ in range(PARALLEL):
                    tasks.create_task(self._work(failed))
            while self._unseen and not failed and not self._news.is_set():
                await self._look_at(self._unseen.popleft(), failed)
                await wait_for(self._news, PACE_S)
            if failed:
                await asyncio.sleep(RETRY_S)
                for name in failed:
                    self._owe(name)
            await self._news.wait()

    async def _work(self, failed: list[str]) -> None:
        while self._owed:
            name = next(iter(self._owed))
            del self._owed[name]
            await self._look_at(name, failed)

    async def _look_at(self, name: str, failed: list[str]) -> None:
        topic = self._catalog.topics.get(name)
        try:
            if topic is not None and await self._files.highest(name) < topic.revision:
                await self._write(topic)
        except RequestError as error:
            _log.info("a topic cannot be written to storage yet", extra=fields(topic=name, error=error.message))
            failed.append(name)

    async def _write(self, topic: Topic) -> None:
        await self._files.write(
            topic.name, topic.revision, topic.topic_id, topic.partitions, topic.configs, topic.replication_factor
        )
