"""Removal of deleted topics: their records and files are removed later, and tried again until they are.

The commit that deletes a topic writes ``deleted/<topic id>``.  Owners give the partitions up when their view shows it.
``file.delete.delay.ms`` later, so that readers can end, these are removed in this order:

1. the partition records: an owner that has not seen the deletion cannot register a segment any more (rule 3);
2. the folder of the topic's id, some partitions at a time; an id is never used again, so no other topic is affected;
3. the ``deleted/`` key.

Each step may be repeated, by several processes at once; after a crash the next start begins with the first step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from bmq.controller.kv_commit import Guard, deposed, is_deposed
from bmq.core.aio.backoff import Backoff
from bmq.core.aio.tasks import OwnedTasks
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.meta.kv import Compare, Delete, Entry, KeyValue, KvError
from bmq.meta.ownership import partitions_prefix
from bmq.meta.settled_commit import Settled, commit_settled
from bmq.meta.topic_rules import check_name
from bmq.storage.cluster_files import StoredTopics

_log = logging.getLogger(__name__)

FORMAT = 1
CHECK_S = 10.0
"""Time between two listings of deleted topics: the usual delay is a minute, and no client waits for the end."""
AGAIN_S = Backoff(CHECK_S, 600.0)
"""Pause before a topic that cannot be removed is tried again."""
RECORDS_PER_COMMIT = 100
FOLDERS_PER_STEP = 20
"""Partitions whose folders one call removes: some hundred files, so that other work is not held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """The record under ``deleted/``.  ``revision``: of the topic when it was deleted; ``deleted_at_ms``: wall time."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    revision: int
    deleted_at_ms: int
    delay_ms: int

    def wait_ms(self, now_ms: int) -> int:
        """Return the milliseconds that are left of the delay; never more than the delay, even if clocks jump."""
        return max(0, min(self.deleted_at_ms + self.delay_ms - now_ms, self.delay_ms))


def deleted_prefix(cluster: str) -> str:
    """Return the prefix of the keys of deleted topics."""
    return f"/{cluster}/deleted/"


def deleted_key(cluster: str, topic_id: uuid.UUID) -> str:
    """Return the key of a deleted topic."""
    return f"{deleted_prefix(cluster)}{topic_id}"


def encode_deleted(topic: DeletedTopic) -> bytes:
    """Return the record as JSON."""
    fields = asdict(topic)
    del fields["topic_id"]  # the key holds it
    return json.dumps({"format": FORMAT, **fields}, separators=(",", ":")).encode()


def decode_deleted(entry: Entry) -> DeletedTopic:
    """Return the record of a deleted topic.  Raises FormatError if it is not one, or of a later format."""
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
        raise FormatError(f"{entry.key} is not a deleted topic: {entry.value[:80]!r} ({error})") from error


class _Failed(NamedTuple):
    """A topic that could not be removed."""

    again_at: float
    times: int


class TopicCleaner:
    """Removes the records and files of deleted topics, between ``start`` and ``close``."""

    def __init__(self, kv: KeyValue, cluster: str, files: StoredTopics, clock: Clock, *, guard: Guard) -> None:
        """``guard``: returns comparisons that every commit contains as well (see ``Guard``)."""
        self._kv = kv
        self._cluster = cluster
        self._files = files
        self._clock = clock
        self._guard = guard
        self._failed: dict[str, _Failed] = {}  # by key
        self.waiting = 0
        """Deleted topics that were not removed yet at the end of the last round."""
        self._tasks = OwnedTasks()

    @property
    def failing(self) -> int:
        """Number of the waiting topics whose removal has failed."""
        return len(self._failed)

    async def start(self) -> None:
        """Begin to remove deleted topics."""
        self._tasks.start(self._run(), "removal of deleted topics")

    async def close(self) -> None:
        """Stop."""
        await self._tasks.close()

    async def _run(self) -> None:
        while True:
            wait_s = await self.clean()
            await asyncio.sleep(min(wait_s, CHECK_S))

    async def clean(self) -> float:
        """Remove the topics that are due.  Returns the seconds until the next is due, ``CHECK_S`` if none is known.

        A topic that cannot be removed does not hold up others, and is tried again after longer and longer pauses.
        KvError and NOT_CONTROLLER end the round; they are logged.
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
            _log.warning("could not remove deleted topics, trying again later", extra=fields(error=error))
            return wait_s
        self._failed = listed  # without those whose keys are deleted
        self.waiting = waiting + len(listed)
        return wait_s

    async def _try(self, entry: Entry) -> int:
        """Remove the topic of one record if it is due.  Returns the milliseconds that are left of its delay."""
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
        times = 1 if before is None else before.times + 1
        pause_s = AGAIN_S.pause(times)
        self._failed[entry.key] = _Failed(self._clock.monotonic() + pause_s, times)
        _log.warning(
            "cannot remove the files and records of a deleted topic, trying again in %d s",
            pause_s,
            extra=fields(key=entry.key, error=why),
        )

    async def _remove(self, topic: DeletedTopic, entry: Entry) -> None:
        await self._files.withdraw(topic.name, topic.revision)
        if not await self._remove_records(topic):
            return  # an owner still writes them: the next round tries again
        while not await self._files.remove_some(topic.name, topic.topic_id, FOLDERS_PER_STEP):
            pass
        await self._delete([entry])
        _log.info("removed the files of deleted topic %s", topic.topic_id, extra=fields(topic=topic.name))

    async def _remove_records(self, topic: DeletedTopic) -> bool:
        """Delete the topic's partition records.  Returns False if one has changed since it was read."""
        entries = [entry async for entry in self._kv.list(f"{partitions_prefix(self._cluster)}{topic.topic_id}/")]
        for start in range(0, len(entries), RECORDS_PER_COMMIT):
            some = entries[start : start + RECORDS_PER_COMMIT]
            settled = await self._delete(some)
            gone = all(settled.commit.current.get(entry.key) is None for entry in some)
            if not settled.commit.succeeded and not gone:
                return False
        return True

    async def _delete(self, entries: Sequence[Entry]) -> Settled:
        """Delete the entries, if none has changed.  Raises RequestError NOT_CONTROLLER if another process leads."""
        guard = self._guard()
        compares = [Compare(entry.key, entry.revision) for entry in entries]
        settled = await commit_settled(self._kv, [*guard, *compares], [Delete(entry.key) for entry in entries])
        if is_deposed(guard, settled.commit):
            raise deposed()
        return settled
