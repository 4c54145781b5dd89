"""Discovery of the partitions that a read selects, and of their ends, from storage alone.

No broker and no metadata store is used.  ``topic-<revision>.json`` holds a topic's id and the number of its partitions.
The journals, one or two files a broker, hold the newest checkpoints of the partitions.  The names in a partition's
folder are its segments (``spark.planning.log_view``).  Journals are read *before* folders are listed: whatever a
checkpoint covers had its name before the checkpoint was written.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from bmq.core.model import PartitionKey
from bmq.spark.options import ByOffset, ByTimestamp, OffsetLimit, OptionError, ReadOptions, Subscription
from bmq.spark.planning.log_view import LogView, in_windows
from bmq.spark.planning.permissions import reading, shared_not_readable
from bmq.spark.planning.slices import Slice
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cluster_files import StoredTopic, read_cluster, read_topic
from bmq.storage.filesystem import FileSystem, NoSuchFile, NotAllowed
from bmq.storage.journal import read_journals
from bmq.storage.layout import PartitionPath

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics that a pattern leaves out, as Kafka's consumer does; they may be named."""
PARTITIONS_AT_ONCE = 8
JOURNALS_AT_ONCE = 4


class NoSuchTopic(LookupError):
    """Storage holds no topic of that name, or none of that id."""


# ---------------------------------------------------------------------------------------------------------- topics


async def find_topics(fs: FileSystem, options: ReadOptions) -> list[StoredTopic]:
    """Return the topics subscribed to, by name.

    Raises NoSuchTopic if a named one does not exist, OptionError if a name is not a topic name.  Raises
    UnsupportedLevel if this version lacks a level of the root's features.
    """
    found = await _find_topics(fs, options)
    await check_levels(fs)
    return found


async def _find_topics(fs: FileSystem, options: ReadOptions) -> list[StoredTopic]:
    if options.subscription is Subscription.PATTERN:
        pattern = re.compile(options.pattern)
        try:
            names = [layout.base_name(status.path) async for status in fs.list(layout.TOPICS) if status.is_dir]
        except NotAllowed as error:
            raise await shared_not_readable(fs, "the list of topics, which a pattern needs,", error) from error
        wanted = sorted(name for name in names if pattern.fullmatch(name) and name not in INTERNAL_TOPICS)
        found = await in_windows(wanted, lambda name: reading(fs, name, read_topic(fs, name)), PARTITIONS_AT_ONCE)
        return [topic for topic in found if topic is not None]
    topics = []
    for name in sorted(options.topics):
        if not layout.is_topic_name(name):
            raise OptionError(f"{name!r} is not a topic name")
        topic = await reading(fs, name, read_topic(fs, name))
        if topic is None:
            is_root = await _exists(fs, layout.CLUSTER) or await _exists(fs, layout.TOPICS)
            hint = "" if is_root else ", nor any other: is it the right root?"
            raise NoSuchTopic(f"there is no topic {name} in {fs.url}{hint}")
        if options.topic_id not in (None, topic.topic_id):
            raise NoSuchTopic(
                f"topic {name} in {fs.url} has the id {topic.topic_id}, not {options.topic_id}: it was deleted and"
                " created again"
            )
        topics.append(topic)
    return topics


async def check_levels(fs: FileSystem) -> None:
    """Raise UnsupportedLevel if records of the root may be of a level that this version would misread."""
    try:
        await read_cluster(fs)
    except NotAllowed as error:
        raise await shared_not_readable(fs, "the levels of the cluster's features", error) from error


async def _exists(fs: FileSystem, path: str) -> bool:
    try:
        await fs.status(path)
    except NoSuchFile:
        return False
    return True


def paths_of(topic: StoredTopic, options: ReadOptions) -> tuple[list[PartitionPath], str]:
    """Return the partitions of ``topic`` that ``options`` select, in order, and a text about missing partitions.

    The text is empty if all of them do.
    """
    wanted = sorted(options.assigned[topic.name]) if options.assigned else range(topic.partitions)
    there = [PartitionPath(topic.name, str(topic.topic_id), number) for number in wanted if number < topic.partitions]
    if len(there) == len(wanted):
        return there, ""
    return there, f"topic {topic.name} has {topic.partitions} partitions, and no partition {wanted[len(there)]}"


async def newest_checkpoints(fs: FileSystem, wanted: set[PartitionKey]) -> dict[PartitionKey, Checkpoint]:
    """Return the newest checkpoint of each partition over the journals of all brokers, live or dead.

    A partition without a checkpoint is not in the result.
    """
    newest: dict[PartitionKey, Checkpoint] = {}
    try:
        names = [layout.base_name(status.path) async for status in fs.list(layout.JOURNALS)]
        incarnations = sorted({parsed[0] for name in names if (parsed := layout.parse_journal(name)) is not None})
        journals = await in_windows(incarnations, lambda each: read_journals(fs, each, wanted), JOURNALS_AT_ONCE)
    except NotAllowed as error:
        raise await shared_not_readable(fs, "the journals", error) from error
    for found in journals:
        for key, checkpoint in found.items():
            if key not in newest or newest[key].order < checkpoint.order:
                newest[key] = checkpoint
    return newest


async def find_logs(fs: FileSystem, options: ReadOptions) -> list[LogView]:
    """Return the partitions that ``options`` select, in order, each with its ends.  Raises NoSuchTopic, OptionError."""
    paths: list[PartitionPath] = []
    topics = await find_topics(fs, options)
    for topic in topics:
        found, missing = paths_of(topic, options)
        if missing:
            raise NoSuchTopic(missing)
        paths += found
    require_all(options.starting, paths, "startingOffsets")
    require_all(options.ending, paths, "endingOffsets")
    checkpoints = await newest_checkpoints(fs, {_key(path) for path in paths})
    return await in_windows(
        paths,
        lambda path: reading(
            fs,
            path.topic,
            LogView.open(
                fs,
                path,
                checkpoints.get(_key(path)),
                read_committed=options.committed,
                to_visible_end=options.to_visible_end,
            ),
        ),
        PARTITIONS_AT_ONCE,
    )


async def relocate(fs: FileSystem, piece: Slice) -> tuple[list[Slice], list[str]]:
    """Find the offsets of a slice whose file is gone: it was merged with its neighbour, or deleted (rule 10).

    Returns their slices and a text for each loss.  The aborted transactions are those found in planning: no journal is
    read here, and for an open segment its journal may be the only source.
    """
    path = PartitionPath(piece.topic, piece.topic_id, piece.partition)
    view = await LogView.open(fs, path, None, read_committed=False, to_visible_end=False)
    found = await view.slices(view.reaching(piece), read_committed=False)
    return [each.leaving_out(piece.aborted) for each in found], view.losses


def _key(path: PartitionPath) -> PartitionKey:
    return PartitionKey(uuid.UUID(path.topic_id), path.partition)


def require_all(limit: OffsetLimit, paths: Sequence[PartitionPath], name: str) -> None:
    """Raise OptionError unless ``limit`` names exactly the partitions in ``paths``, as Spark's Kafka source demands."""
    given = (
        limit.offsets if isinstance(limit, ByOffset) else limit.timestamps if isinstance(limit, ByTimestamp) else None
    )
    if given is None:
        return
    named = {(topic, partition) for topic, partitions in given.items() for partition in partitions}
    there = {(path.topic, path.partition) for path in paths}
    if named != there:
        missing = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(there - named)) or "none"
        surplus = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(named - there)) or "none"
        raise OptionError(
            f"{name} must name every partition that is read, and no other (-2 is earliest, -1 latest): missing"
            f" are {missing}; not there are {surplus}"
        )
