"""Deleted topics: what remains of them is removed later, by whoever looks, as often as it takes.

The commit that deletes a topic writes ``deleted/<topic id>``.  Owners give the partitions up when their view shows it.
``file.delete.delay.ms`` later, so that readers can end, go in this order

1. the partition records: an owner that did not hear of the deletion can register no segment any more (rule 3);
2. the folder of the topic's id, some partitions at a time; an id is never used again, so nobody else can be hit;
3. the ``deleted/`` key.

Each step may be repeated, by several at once; a crash between them is the next start's beginning.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

from bmq.controller.kv_commit import Guard, Settled, commit_settled, deposed, is_deposed, unguarded
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.kv import Compare, Delete, Entry, KeyValue, KvError
from bmq.meta.ownership import partitions_prefix
from bmq.meta.topic_rules import check_name

_log = logging.getLogger(__name__)

FORMAT = 1
CHECK_S = 10.0
"""How often somebody looks for deleted topics: the delay is a minute, nobody waits for the end."""
CHECK_MAX_S = 600.0
"""A topic that cannot be removed is tried again after 10 s, then twice as long each time, up to this."""
RECORDS_PER_COMMIT = 100
FOLDERS_PER_STEP = 20
"""Partitions whose folders go in one call: some hundred files, so that other work is not held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """The record under ``deleted/``.  ``revision`` is that of the topic when it was deleted."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    revision: int
    deleted_at_ms: int
    delay_ms: int

    def wait_ms(self, now_ms: int) -> int:
        """How long still to wait; never longer than the delay, though clocks may jump."""
        return max(0, min(self.deleted_at_ms + self.delay_ms - now_ms, self.delay_ms))


class DeletedFiles(Protocol):
    """What storage must do.  RequestError KAFKA_STORAGE_ERROR when it cannot now; every call may be repeated."""

    async def withdraw(self, name: str, revision: int) -> None:
        """Remove the ``topic-<revision>.json`` up to ``revision``."""

    async def remove_some(self, name: str, topic_id: uuid.UUID, limit: int) -> bool:
        """Remove up to ``limit`` partitions' folders; True when nothing of this topic id is left."""


def deleted_prefix(cluster: str) -> str:
    return f"/{cluster}/deleted/"


def deleted_key(cluster: str, topic_id: uuid.UUID) -> str:
    return f"{deleted_prefix(cluster)}{topic_id}"


def encode_deleted(topic: DeletedTopic) -> bytes:
    fields = asdict(topic)
    del fields["topic_id"]  # it is the key
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def decode_deleted(entry: Entry) -> DeletedTopic:
    """FormatError when it is no such record, or one of a later format."""
    try:
        raw = json.loads(entry.value)
        if raw.pop("format") != FORMAT:
            raise FormatError(f"{entry.key} is of another format: this version reads {FORMAT}")
        topic = DeletedTopic(topic_id=uuid.UUID(entry.key.rsplit("/", 1)[-1]), **raw)
        check_name(topic.name)
        numbers = (topic.partitions, topic.revision, topic.deleted_at_ms, topic.delay_ms)
        if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"{numbers} are not all whole numbers")
        return topic
    except (RequestError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{entry.key} is no deleted topic: {entry.value[:80]!r} ({error})") from error


class _Failed(NamedTuple):
    """A topic that could not be removed."""

    again_at: float
    pause_s: float


class TopicCleaner:
    """Between ``start`` and ``close`` it removes what deleted topics left."""

    def __init__(
        self, kv: KeyValue, cluster: str, files: DeletedFiles, clock: Clock, *, guard: Guard = unguarded
    ) -> None:
        """``guard``: what every removal compares as well."""
        self._kv = kv
        self._cluster = cluster
        self._files = files
        self._clock = clock
        self._guard = guard
        self._failed: dict[str, _Failed] = {}  # by key
        self.waiting = 0
        """Deleted topics that were still to be removed at the last look."""
        self._running: asyncio.Task[None] | None = None

    @property
    def failing(self) -> int:
        """Those of them that could not be removed when their time had come."""
        return len(self._failed)

    async def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="deleted topics")

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
            if not self._running.cancelled():
                self._running.result()

    async def _run(self) -> None:
        while True:
            wait_s = await self.clean()
            await asyncio.sleep(min(wait_s, CHECK_S))

    async def clean(self) -> float:
        """Remove what is due; the seconds until more will be, ``CHECK_S`` when nothing is known to wait.

        A topic that cannot be removed holds up no other, and is tried again later each time.  KvError, and what
        another leader is told, end the round.
        """
        wait_s = CHECK_S
        listed: dict[str, _Failed] = {}
        waiting = 0
        try:
            async for entry in self._kv.list(deleted_prefix(self._cluster)):
                failed = self._failed.get(entry.key)
                if failed is not None:
                    listed[entry.key] = failed
                    if self._clock.monotonic() < failed.again_at:
                        continue
                wait_ms = await self._try(entry)
                if wait_ms:
                    waiting += 1
                    wait_s = min(wait_s, wait_ms / 1000)
                if entry.key in self._failed:
                    listed[entry.key] = self._failed[entry.key]
                else:
                    listed.pop(entry.key, None)
        except (KvError, RequestError) as error:
            _log.warning("removing deleted topics goes on later", extra=fields(error=error))
            return wait_s
        self._failed = listed  # those of keys that are gone are forgotten
        self.waiting = waiting + len(listed)
        return wait_s

    async def _try(self, entry: Entry) -> int:
        """Remove what one record stands for; the milliseconds that it is to wait still."""
        try:
            topic = decode_deleted(entry)
            wait_ms = topic.wait_ms(self._clock.now_ms())
            if not wait_ms:
                await self._remove(topic, entry)
        except FormatError as error:
            self._put_off(entry, f"{error}; a later version may have written it: upgrade, or delete the key")
            return 0
        except RequestError as error:
            if error.code is ErrorCode.NOT_CONTROLLER:
                raise
            self._put_off(entry, error.message)
            return 0
        self._failed.pop(entry.key, None)
        return wait_ms

    def _put_off(self, entry: Entry, why: str) -> None:
        before = self._failed.get(entry.key)
        pause_s = CHECK_S if before is None else min(2 * before.pause_s, CHECK_MAX_S)
        self._failed[entry.key] = _Failed(self._clock.monotonic() + pause_s, pause_s)
        _log.warning(
            "cannot remove what is left of a deleted topic, trying again in %d s",
            pause_s,
            extra=fields(key=entry.key, error=why),
        )

    async def _remove(self, topic: DeletedTopic, entry: Entry) -> None:
        await self._files.withdraw(topic.name, topic.revision)
        if not await self._remove_records(topic):
            return  # somebody writes them still: the next look tries again
        while not await self._files.remove_some(topic.name, topic.topic_id, FOLDERS_PER_STEP):
            pass
        await self._delete([entry])
        _log.info("removed what was left of topic %s", topic.topic_id, extra=fields(topic=topic.name))

    async def _remove_records(self, topic: DeletedTopic) -> bool:
        """False when a record has changed since it was read."""
        entries = [entry async for entry in self._kv.list(f"{partitions_prefix(self._cluster)}{topic.topic_id}/")]
        for start in range(0, len(entries), RECORDS_PER_COMMIT):
            some = entries[start : start + RECORDS_PER_COMMIT]
            settled = await self._delete(some)
            gone = all(settled.commit.current.get(entry.key) is None for entry in some)
            if not settled.commit.succeeded and not gone:
                return False
        return True

    async def _delete(self, entries: Sequence[Entry]) -> Settled:
        """Those that are as they were read.  RequestError when this process may not any more."""
        guard = self._guard()
        compares = [Compare(entry.key, entry.revision) for entry in entries]
        settled = await commit_settled(self._kv, [*guard, *compares], [Delete(entry.key) for entry in entries])
        if is_deposed(guard, settled.commit):
            raise deposed()
        return settled
