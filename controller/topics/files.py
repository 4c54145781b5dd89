"""The topics' files on storage, ``topic-<revision>.json``, for readers of segments without a metadata store.

A file is written after the commit that it describes, and before the response.  A file that a crash or an outage leaves
unwritten is *owed*. The next start finds it by comparing the highest revision on storage with the record, and tries
until it is written.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator
from operator import attrgetter

from bmq.core.aio.steps import run_in_steps
from bmq.core.aio.subscribers import wait_for
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.errors import RequestError
from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.logging.fields import fields
from bmq.meta.catalog import Catalog, Topic
from bmq.storage.cluster_files import StoredTopics

_log = logging.getLogger(__name__)

PARALLEL = 8
"""Topics checked at once, of those that may be owed."""
NEWEST = 1_000
"""Topics changed last, which are checked first after a start, in some seconds."""
TOPICS_PER_STEP = 4_000
"""Topics compared in one turn of the event loop, to find the newest."""
PACE_S = 0.01
"""Pause between two checks of the others: 100,000 topics take half an hour, one listing at a time."""
RETRY_S = 5.0
"""Pause after a file could not be written."""


class Publisher:
    """Writer of the topics' files.

    ``publish`` each change of a topic; owed files are written between ``start`` and ``close``.
    """

    def __init__(
        self, files: StoredTopics, catalog: Catalog, access_of: Callable[[Topic], Access] = lambda topic: NO_ACCESS
    ) -> None:
        """``access_of`` returns the rights that a topic's file is to have."""
        self._access_of = access_of
        self._files = files
        self._catalog = catalog
        self._owed: dict[str, None] = {}  # an ordered set of names
        self._unchecked: deque[str] = deque()  # since the start, and not likely owed
        self._news = asyncio.Event()
        self._tasks = OwnedTasks()

    def __repr__(self) -> str:
        return f"Publisher(owed={len(self._owed)})"

    async def publish(self, topic: Topic) -> None:
        """Write the topic's file.  If storage fails it is owed: the change is committed, and must not be refused."""
        try:
            await self._write(topic)
        except RequestError as error:
            _log.warning(
                "a topic is changed, and its file cannot be written to storage yet",
                extra=fields(topic=topic.name, error=error.message),
            )
            self._owe(topic.name)

    @contextlib.contextmanager
    def owing(self, name: str) -> Iterator[None]:
        """Return a context for a commit and its ``publish``, which owes the file if they are cancelled or fail.

        The commit may have been done although the client did not wait for its end, or its outcome stays unknown.
        """
        try:
            yield
        except (asyncio.CancelledError, RequestError):
            self._owe(name)
            raise

    def start(self) -> None:
        """Check all topics' files in the background.

        The latest changed topics are checked at once, since a former leader may owe their files. All others follow at a
        pace that is negligible for storage.
        """
        self._tasks.start(self._run(), "writer of topics' files")

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    def _owe(self, name: str) -> None:
        self._owed[name] = None
        self._news.set()

    def _find_newest(self) -> Generator[None, None, None]:
        """Owe the newest topics' files and queue all others, some thousand topics in a step."""
        topics = list(self._catalog.topics.values())
        newest: list[Topic] = []
        for start in range(0, len(topics), TOPICS_PER_STEP):
            some = topics[start : start + TOPICS_PER_STEP]
            newest = heapq.nlargest(NEWEST, newest + some, key=attrgetter("revision"))
            yield
        self._owed.update(dict.fromkeys(topic.name for topic in newest))
        if len(topics) > len(newest):
            self._unchecked.extend(topic.name for topic in topics)

    async def _run(self) -> None:
        await run_in_steps(self._find_newest())
        while True:
            self._news.clear()
            failed: list[str] = []
            async with asyncio.TaskGroup() as tasks:
                for _ in range(PARALLEL):
                    tasks.create_task(self._work(failed))
            while self._unchecked and not failed and not self._news.is_set():
                await self._check(self._unchecked.popleft(), failed)
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
            await self._check(name, failed)

    async def _check(self, name: str, failed: list[str]) -> None:
        topic = self._catalog.topics.get(name)
        try:
            if topic is not None and await self._files.highest(name) < topic.revision:
                await self._write(topic)
        except RequestError as error:
            _log.info("a topic's file cannot be written to storage yet", extra=fields(topic=name, error=error.message))
            failed.append(name)

    async def _write(self, topic: Topic) -> None:
        await self._files.write(
            topic.name, topic.revision, topic.topic_id, topic.partitions, topic.configs, topic.replication_factor,
            self._access_of(topic),
        )  # fmt: skip
