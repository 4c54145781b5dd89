"""Scan of a root, to rebuild its metadata store: topics, journals, partitions.

Nothing is written.  Listings are read page by page.  Kept in memory are the topics' facts, a few numbers from the
journals about each partition, and the folders that are being read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from bmq.broker.cleanup.index_reads import read_segment_idx
from bmq.broker.repair.rebuilt_record import SILENCE, PartitionFolder, Spoken, is_whole, record
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.logging.fields import fields
from bmq.core.model import PartitionKey
from bmq.meta.ownership import PartitionRecord
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cluster_files import StoredTopic, read_topic
from bmq.storage.filesystem import FileSystem
from bmq.storage.journal import read_journals
from bmq.storage.layout import PartitionPath

_log = logging.getLogger(__name__)

PARALLEL = 32
"""Folders read at once. A folder needs one to three calls of the NameNode, and the NameNode serves some thousands per
second."""
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTopic:
    """A topic that storage shows."""

    stored: StoredTopic
    partitions: int
    """May be more than the topic's file says: partitions were added, and the file was not written yet."""
    with_folder: frozenset[int]
    """The partitions that ever had a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPartition:
    """A partition of such a topic, with the record that its next owner starts from."""

    path: PartitionPath
    key: PartitionKey
    record: PartitionRecord


class TopicFolder(NamedTuple):
    """The contents of the folder of one topic's name.

    ``orphans``: the ids of folders that no topic's file names.  Their topic was deleted and its files are not all
    deleted yet, or it was created and its file could not be written.
    """

    name: str
    topic: FoundTopic | None
    orphans: list[uuid.UUID]


async def read_topics(fs: FileSystem, adopted: Mapping[str, StoredTopic]) -> AsyncGenerator[TopicFolder, None]:
    """Yield the contents of each topic's folder.  Raises StorageError, FormatError.

    ``adopted``: by name, the facts of topics whose file may be missing; their id is taken from the only folder.
    """
    names = (layout.base_name(status.path) async for status in fs.list(layout.TOPICS) if status.is_dir)
    async with contextlib.aclosing(in_order(names, lambda name: _read_topic(fs, name, adopted.get(name)))) as found:
        async for each in found:
            yield each


async def _read_topic(fs: FileSystem, name: str, adopted: StoredTopic | None) -> TopicFolder:
    if not layout.is_topic_name(name):
        return TopicFolder(name, None, [])
    stored = await read_topic(fs, name)
    names = [layout.base_name(status.path) async for status in fs.list(layout.topic_folder(name)) if status.is_dir]
    ids = [topic_id for topic_id in map(_parse_id, names) if topic_id is not None]
    if stored is None and adopted is not None and len(ids) == 1:
        stored = replace(adopted, topic_id=ids[0])
    if stored is None:
        return TopicFolder(name, None, ids)
    orphans = [topic_id for topic_id in ids if topic_id != stored.topic_id]
    folder = f"{layout.topic_folder(name)}/{stored.topic_id}"
    numbers = [layout.base_name(status.path) async for status in fs.list(folder) if status.is_dir]
    there = frozenset(int(number) for number in numbers if number.isascii() and number.isdecimal())
    partitions = max(stored.partitions, max(there, default=-1) + 1)
    return TopicFolder(name, FoundTopic(stored=stored, partitions=partitions, with_folder=there), orphans)


def _parse_id(name: str) -> uuid.UUID | None:
    try:
        topic_id = uuid.UUID(name)
    except ValueError:
        return None
    return topic_id if str(topic_id) == name else None


async def read_all_journals(fs: FileSystem, on_read: Callable[[int], None] = no_op) -> dict[PartitionKey, Spoken]:
    """Return the facts of all journals about each partition.  Raises StorageError, FormatError.

    Reads one broker's journals at a time, since a journal is read whole.  ``on_read`` is called with the number of
    brokers whose journals were read.
    """
    spoken: dict[PartitionKey, Spoken] = {}
    last, count = "", 0
    async for status in fs.list(layout.JOURNALS):
        parsed = layout.parse_journal(layout.base_name(status.path))
        if parsed is None or parsed[0] == last:
            continue
        last = parsed[0]
        for key, checkpoint in (await read_journals(fs, last)).items():
            spoken.setdefault(key, Spoken()).add(last, checkpoint)
        count += 1
        on_read(count)
    return spoken


async def read_partitions(
    fs: FileSystem, topics: Iterable[FoundTopic], spoken: dict[PartitionKey, Spoken], rebuild_count: int
) -> AsyncGenerator[FoundPartition, None]:
    """Yield every partition of these topics, in order, with the record that its next owner starts from.

    ``rebuild_count``: that of the new store.  Raises StorageError, and FormatError if a partition's epoch would not fit
    into a segment's name.
    """

    async def read(place: tuple[FoundTopic, int]) -> FoundPartition:
        topic, number = place
        path = PartitionPath(topic.stored.name, str(topic.stored.topic_id), number)
        key = PartitionKey(topic.stored.topic_id, number)
        folder = await read_folder(fs, path) if number in topic.with_folder else PartitionFolder()
        newest = await newest_index(fs, path, folder)
        made = record(path, folder, spoken.get(key, SILENCE), newest, rebuild_count)
        return FoundPartition(path=path, key=key, record=made)

    places = ((topic, number) for topic in topics for number in range(topic.partitions))
    async with contextlib.aclosing(in_order(_iterated(places), read)) as found:
        async for each in found:
            yield each


async def read_folder(fs: FileSystem, path: PartitionPath) -> PartitionFolder:
    """Return the contents of a partition's folder; empty if there is no folder.  Raises StorageError."""
    folder = PartitionFolder()
    async for status in fs.list(path.folder):
        name = layout.base_name(status.path)
        spare, segment = layout.parse_spare(name), layout.parse_segment(name)
        if spare is not None:
            folder.spare(spare[0], spare[2])
        elif segment is not None:
            folder.segment(*segment, status.length, status.file_id)
    return folder


async def newest_index(fs: FileSystem, path: PartitionPath, folder: PartitionFolder) -> Checkpoint | None:
    """Return the index of the newest segment whose index is sound and covers all of it; None if there is none.

    An index that storage has lost is not sound.  Raises StorageError, as in an outage.
    """
    for name in folder.closed():
        checkpoint = await read_segment_idx(fs, path, name, _log_damaged)
        if is_whole(checkpoint, name, folder.files[name]):
            return checkpoint
    return None


def _log_damaged(path: str, error: Exception) -> None:
    _log.warning("an index cannot be used, its segment will be scanned", extra=fields(path=path, error=error))


async def in_order(items: AsyncIterable[T], work: Callable[[T], Awaitable[R]]) -> AsyncGenerator[R, None]:
    """Run ``work`` on every item, ``PARALLEL`` at once, and yield the results in the order of the items."""
    running: deque[asyncio.Future[R]] = deque()
    try:
        async for item in items:
            running.append(asyncio.ensure_future(work(item)))
            if len(running) == PARALLEL:
                yield await running.popleft()
        while running:
            yield await running.popleft()
    finally:
        await cancel_and_wait(*running)


async def _iterated(items: Iterable[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
