"""Which partitions a read means, and what storage says of them.

Storage alone is asked, no broker and no metadata store: ``topic-<revision>.json`` names a topic's id and the number of
its partitions; the journals, one or two files a broker, hold the newest checkpoint of each; their folders' names are
their segments (``spark.planning.log_view``).  Journals are read *before* folders are listed: whatever a checkpoint
covers had its name before the checkpoint was written.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

from bmq.core.model import PartitionKey
from bmq.spark.options import ByOffset, ByTimestamp, OffsetLimit, OptionError, ReadOptions, Subscription
from bmq.spark.planning.log_view import LogView, in_windows
from bmq.spark.planning.slices import Slice
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cluster_files import StoredTopic, read_topic
from bmq.storage.filesystem import FileSystem, NoSuchFile
from bmq.storage.journal import read_journals
from bmq.storage.layout import PartitionPath

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})
"""Left out of a pattern, as Kafka's consumer leaves them out; they may be named."""
PARTITIONS_AT_ONCE = 8
JOURNALS_AT_ONCE = 4


class NoSuchTopic(LookupError):
    """Storage holds no topic of that name."""


# ---------------------------------------------------------------------------------------------------------- topics


async def find_topics(fs: FileSystem, options: ReadOptions) -> list[StoredTopic]:
    """The topics subscribed to, by name.  NoSuchTopic, OptionError."""
    if options.subscription is Subscription.PATTERN:
        pattern = re.compile(options.pattern)
        names = [layout.base_name(status.path) async for status in fs.list(layout.TOPICS) if status.is_dir]
        wanted = sorted(name for name in names if pattern.fullmatch(name) and name not in INTERNAL_TOPICS)
        found = await in_windows(wanted, lambda name: read_topic(fs, name), PARTITIONS_AT_ONCE)
        return [topic for topic in found if topic is not None]
    topics = []
    for name in sorted(options.topics):
        if not layout.is_topic_name(name):
            raise OptionError(f"{name!r} is not a topic name")
        topic = await read_topic(fs, name)
        if topic is None:
            is_root = await _exists(fs, layout.CLUSTER) or await _exists(fs, layout.TOPICS)
            hint = "" if is_root else ", and no other: is it the right root?"
            raise NoSuchTopic(f"there is no topic {name} in {fs.url}{hint}")
        if options.topic_id not in (None, topic.topic_id):
            raise NoSuchTopic(
                f"topic {name} in {fs.url} has the id {topic.topic_id}, not {options.topic_id}: it was deleted and"
                " created again"
            )
        topics.append(topic)
    return topics


async def _exists(fs: FileSystem, path: str) -> bool:
    try:
        await fs.status(path)
    except NoSuchFile:
        return False
    return True


def paths_of(topic: StoredTopic, options: ReadOptions) -> tuple[list[PartitionPath], str]:
    """Return the partitions of ``topic`` that ``options`` select, in order, and a text about those that do not exist.

    The text is empty if all of them do.
    """
    wanted = sorted(options.assigned[topic.name]) if options.assigned else range(topic.partitions)
    there = [PartitionPath(topic.name, str(topic.topic_id), number) for number in wanted if number < topic.partitions]
    if len(there) == len(wanted):
        return there, ""
    return there, f"topic {topic.name} has {topic.partitions} partitions, and no partition {wanted[len(there)]}"


def is_compacted(topic: StoredTopic) -> bool:
    """Return whether compaction may remove records of ``topic``, and so leave holes between its offsets."""
    return "compact" in topic.configs.get("cleanup.policy", "")


async def newest_checkpoints(fs: FileSystem, wanted: set[PartitionKey]) -> dict[PartitionKey, Checkpoint]:
    """The newest of each partition over all brokers' journals, living or dead."""
    names = [layout.base_name(status.path) async for status in fs.list(layout.JOURNALS)]
    incarnations = sorted({parsed[0] for name in names if (parsed := layout.parse_journal(name)) is not None})
    newest: dict[PartitionKey, Checkpoint] = {}
    for found in await in_windows(incarnations, lambda each: read_journals(fs, each, wanted), JOURNALS_AT_ONCE):
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
    compacted = {topic.name for topic in topics if is_compacted(topic)}
    require_all(options.starting, paths, "startingOffsets")
    require_all(options.ending, paths, "endingOffsets")
    checkpoints = await newest_checkpoints(fs, {_key(path) for path in paths})
    return await in_windows(
        paths,
        lambda path: LogView.open(
            fs,
            path,
            checkpoints.get(_key(path)),
            committed=options.committed,
            to_visible_end=options.to_visible_end,
            has_holes=path.topic in compacted,
        ),
        PARTITIONS_AT_ONCE,
    )


async def relocate(fs: FileSystem, piece: Slice) -> tuple[list[Slice], list[str]]:
    """Where the offsets of a slice lie whose file is gone: joined with its neighbour, or deleted (rule 10).

    The slices, and what is missing.  Which transactions were aborted is known from planning: no journal is read here,
    and the one of the open segment may be all that tells.
    """
    path = PartitionPath(piece.topic, piece.topic_id, piece.partition)
    view = await LogView.open(fs, path, None, committed=False, to_visible_end=False, has_holes=piece.has_holes)
    found = await view.slices(view.reaching(piece), committed=False)
    return [each.leaving_out(piece.aborted) for each in found], view.losses


def _key(path: PartitionPath) -> PartitionKey:
    return PartitionKey(uuid.UUID(path.topic_id), path.partition)


def require_all(limit: OffsetLimit, paths: Sequence[PartitionPath], name: str) -> None:
    """JSON must name exactly the partitions that there are, as Spark's Kafka source demands."""
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
