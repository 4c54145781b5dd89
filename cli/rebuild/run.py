"""``bmq cluster rebuild``, carried out: read storage, fill the store, print what was found.

The reads and their meaning are in ``broker.repair.scan`` and ``broker.repair.rebuilt_record``, the order of writes in
``cli.rebuild.store``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bmq.broker.repair.scan import (
    FoundPartition,
    FoundTopic,
    TopicFolder,
    read_all_journals,
    read_partitions,
    read_topics,
)
from bmq.cli.exit_status import EXIT_REFUSED, EXIT_USAGE
from bmq.cli.output import fail, print_json, print_table, printable
from bmq.cli.progress import Progress
from bmq.cli.rebuild.store import NotLost, Rebuilding, check_lost
from bmq.cli.store_command import settings
from bmq.cli.usage import UsageError
from bmq.controller.topics import internal_topics
from bmq.core.config import ConfigError, NodeConfig
from bmq.core.errors import FormatError
from bmq.core.http_call import RequestRefused
from bmq.core.urls import without_userinfo
from bmq.meta.catalog import Topic
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.open import open_keyvalue
from bmq.meta.producer_ids import REBUILD_COUNT_MAX
from bmq.meta.root import RootRecord
from bmq.storage import layout
from bmq.storage.cluster_files import ClusterFile, StoredTopic, raise_rebuild_count, read_cluster
from bmq.storage.filesystem import FileSystem, RootLock, StorageError, Unsupported
from bmq.storage.open import open_filesystem
from bmq.storage.root_id import make_root_id
from bmq.storage.store_counts import newest_store_counts

_NO_ID = uuid.UUID(int=0)
_TITLES = ("TOPIC", "PARTITION", "EPOCH", "FROM", "OPEN", "HOLDERS", "JOURNALS")


@dataclass(slots=True)
class Outcome:
    """The result: what was found, and written unless it was a dry run."""

    cluster: ClusterFile
    topics: int = 0
    partitions: int = 0
    open_segments: int = 0
    notes: list[str] = field(default_factory=list)
    """Notes for the operator, a line each."""


OnPartition = Callable[[FoundPartition], None]


async def rebuild(
    fs: FileSystem,
    kv: KeyValue,
    config: NodeConfig,
    *,
    adopt: Mapping[str, int] | None = None,
    is_dry: bool = False,
    on_partition: OnPartition | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Read ``fs`` and fill ``kv``.  ``on_partition`` is called with every partition.

    ``adopt``: topics that are wanted although no file names them, with the least number of their partitions.
    Raises NotLost or RequestRefused if the store or the root cannot be used, StorageError, KvError or FormatError if
    one of them fails: run it again when that is mended.
    """
    found = await read_cluster(fs)
    if found is None:
        raise RequestRefused(
            f"{fs.url} has no cluster.json: no cluster was ever served from there. Is it the right --root?"
        )
    for count in await newest_store_counts(fs):
        if count.rebuild_count > found.rebuild_count:  # this cluster.json is from a backup
            found = replace(found, rebuild_count=count.rebuild_count)
    if found.rebuild_count >= REBUILD_COUNT_MAX:
        raise RequestRefused(f"{fs.url} has had {found.rebuild_count} rebuilt stores, the largest number that there is")
    was_begun = await check_lost(kv, config.cluster)
    risen = replace(found, rebuild_count=found.rebuild_count + 1) if is_dry else await raise_rebuild_count(fs, found)
    outcome = Outcome(risen)
    if was_begun:
        outcome.notes.append("an earlier rebuild did not end: this one starts over")
    store: Rebuilding | None = None
    if not is_dry:
        url = without_userinfo(fs.url)
        root = RootRecord(root_id=await make_root_id(fs), url=url, has_levels=found.has_levels)
        store = Rebuilding(kv, config.cluster, risen, root)
        await store.begin()
    progress = progress or Progress("rebuild")
    progress.begin("rebuild: reading topics", unit="topics")
    copies = await _default_replication(fs, config)
    topics = await _find_topics(fs, _adoptable(config, adopt or {}, copies), outcome, progress)
    progress.begin("rebuild: reading journals", unit="brokers")
    spoken = await read_all_journals(fs, progress.show)
    total = sum(topic.partitions for topic in topics)
    progress.begin("rebuild: reading partitions", total=total, unit="partitions")
    async with contextlib.aclosing(read_partitions(fs, topics, spoken, risen.rebuild_count)) as partitions:
        async for partition in partitions:
            outcome.partitions += 1
            outcome.open_segments += sum(not entry.is_closed for entry in partition.record.segments)
            if on_partition is not None:
                on_partition(partition)
            if store is not None:
                await store.put_partition(partition)
            progress.show(outcome.partitions)
    if store is not None:
        progress.begin("rebuild: writing topics", total=len(topics), unit="topics")
        for number, topic in enumerate(topics, 1):
            await store.put_topic(_topic(topic, copies))
            progress.show(number)
        await store.finish()
    return outcome


def _adoptable(config: NodeConfig, wanted: Mapping[str, int], copies: int) -> dict[str, StoredTopic]:
    """Return the topics whose file may be missing, with what is known of them; ``copies`` of each are kept.

    The list has the topics that the operator names, and the internal topics: they can never have been deleted.
    """
    internal = {
        name: StoredTopic(
            name=name,
            topic_id=_NO_ID,
            partitions=topic.partitions(config),
            configs=topic.configs(config, copies),
            revision=0,
        )
        for name, topic in internal_topics.BY_NAME.items()
    }
    named = {
        name: StoredTopic(name=name, topic_id=_NO_ID, partitions=count, configs={}, revision=0)
        for name, count in wanted.items()
    }
    return {**named, **internal}


async def _find_topics(
    fs: FileSystem, adoptable: Mapping[str, StoredTopic], outcome: Outcome, progress: Progress
) -> list[FoundTopic]:
    topics: list[FoundTopic] = []
    async with contextlib.aclosing(read_topics(fs, adoptable)) as all_found:
        async for found in all_found:
            outcome.notes += _notes(found)
            if found.topic is not None:
                topics.append(found.topic)
            progress.show(len(topics))
    outcome.topics = len(topics)
    return topics


def _notes(found: TopicFolder) -> list[str]:
    notes: list[str] = []
    topic, name = found.topic, found.name
    if topic is not None and topic.stored.revision == 0:
        notes.append(f"topic {name}: its file is missing; it gets {topic.partitions} partitions and default configs")
    elif topic is not None and topic.partitions > topic.stored.partitions:
        in_file = topic.stored.partitions
        notes.append(f"topic {name}: its file has {in_file} partitions, storage has {topic.partitions}: it gets these")
    can_adopt = topic is None and len(found.orphans) == 1
    advice = f"; if it is wanted, run this with --adopt {name}=PARTITIONS" if can_adopt else ""
    notes += [
        f"{layout.topic_folder(name)}/{orphan}: no topic's file names this id: a topic that was deleted, or made while"
        f" storage could not be written. It is left out, and its files stay{advice}"
        for orphan in found.orphans
    ]
    return notes


def _topic(found: FoundTopic, copies: int) -> Topic:
    stored = found.stored
    return Topic(
        name=stored.name,
        topic_id=stored.topic_id,
        partitions=found.partitions,
        replication_factor=stored.replication_factor or copies,
        configs=stored.configs,
    )


async def _default_replication(fs: FileSystem, config: NodeConfig) -> int:
    """Return the replication factor of topics whose file does not hold it: that of a new topic."""
    try:
        return 1 if await fs.replicas_max() == 1 else config.default_replication_factor
    except Unsupported:
        return config.default_replication_factor


# ----------------------------------------------------------------------------------------------------- command line


def perform(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status; errors go to standard error in one line."""
    try:
        return asyncio.run(_run(arguments))
    except (RequestRefused, NotLost) as error:
        return _fail(error, EXIT_REFUSED)
    except (UsageError, ConfigError, StorageError, KvError, FormatError, ValueError) as error:
        return _fail(error, EXIT_USAGE)


def _fail(error: Exception, status: int) -> int:
    sys.stdout.flush()
    return fail(str(error) or type(error).__name__, status=status)


async def _run(arguments: argparse.Namespace) -> int:
    config = settings(arguments, root="where the segments lie", meta="the store to be rebuilt")
    rows: list[Sequence[object]] = []
    on_partition = (_print if arguments.json else lambda found: rows.append(_row(found))) if arguments.dry_run else None
    kv = await open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password)
    try:
        fs = await open_filesystem(
            config.root,
            holder=f"bmq-rebuild-{uuid.uuid4().hex}",
            hadoop_conf_dir=config.hadoop_conf_dir,
            hdfs_login=config.hdfs_login,
            lock=RootLock.NONE if arguments.dry_run else RootLock.EXCLUSIVE,  # servers may run on another store
        )
        try:
            with Progress("rebuild") as progress:
                outcome = await rebuild(
                    fs,
                    kv,
                    config,
                    adopt=dict(arguments.adopt),
                    is_dry=arguments.dry_run,
                    on_partition=_clearing(progress, on_partition),
                    progress=progress,
                )
        finally:
            await fs.close()
    finally:
        await kv.close()
    if rows:
        print_table(_TITLES, rows)
    _print_outcome(outcome, arguments)
    return 0


def _clearing(progress: Progress, on_partition: OnPartition | None) -> OnPartition | None:
    """Return a function that clears the progress line from the terminal before it calls ``on_partition``."""
    if on_partition is None:
        return None

    def clear_and_call(found: FoundPartition) -> None:
        progress.clear()
        on_partition(found)

    return clear_and_call


def _row(found: FoundPartition) -> Sequence[object]:
    record = found.record
    opened = [entry for entry in record.segments if not entry.is_closed]
    closed = [entry for entry in record.segments if entry.is_closed]
    holders = dict.fromkeys(entry.holder or "?" for entry in opened)
    return (
        found.path.topic,
        found.path.partition,
        record.epoch,
        closed[0].end_offset if closed else opened[0].name.base if opened else None,
        len(opened),
        ",".join(holders) or None,
        ",".join(record.journals) or None,
    )


def _print(found: FoundPartition) -> None:
    record = found.record
    print_json(
        {
            "topic": found.path.topic,
            "topic_id": found.path.topic_id,
            "partition": found.path.partition,
            "epoch": record.epoch,
            "journals": record.journals,
            "segments": [
                {
                    "name": str(entry.name),
                    "is_closed": entry.is_closed,
                    "holder": entry.holder,
                    "file_id": entry.file_id,
                    "end_offset": entry.end_offset,
                }
                for entry in record.segments
            ],
        }
    )


def _print_outcome(outcome: Outcome, arguments: argparse.Namespace) -> None:
    for note in outcome.notes:
        print(f"bmq: note: {printable(note)}", file=sys.stderr)
    if arguments.json:
        print_json(
            {
                "cluster_id": outcome.cluster.cluster_id,
                "incarnation": outcome.cluster.rebuild_count,
                "topics": outcome.topics,
                "partitions": outcome.partitions,
                "open_segments": outcome.open_segments,
                "is_written": not arguments.dry_run,
                "notes": outcome.notes,
            }
        )
        return
    done = "would be rebuilt" if arguments.dry_run else "is rebuilt: start the servers"
    print(
        f"cluster {outcome.cluster.cluster_id}, rebuild count {outcome.cluster.rebuild_count}: {outcome.topics} topics,"
        f" {outcome.partitions} partitions, {outcome.open_segments} segments to be fenced; the metadata store {done}"
    )
