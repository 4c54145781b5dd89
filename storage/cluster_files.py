"""The cluster's and the topics' files on storage, for readers without a metadata store and for its rebuilding.

::

    /cluster.json                            {"format": 1 or 2, "cluster_id": ..., "incarnation": 0}
    /topics/<topic>/topic-<revision>.json    {"format": 1, "name": ..., "topic_id": ..., "partitions": n, "configs": {},
                                              "replication_factor": n}

A topic's file is written under a temporary name (``.<name>-<holder>-<random>``) and renamed, which never overwrites:
a name that exists holds a whole file, and its content never changes.  Equal topics have equal bytes, whichever process
writes them; files of older versions have ``configs`` in another order.  The highest revision wins; older ones are
deleted when a newer one is there.  The metadata store is the truth, these files follow it.

A rebuilt store counts its revisions from the beginning.  So the number in a name is
``<rebuild count> << 48 | <revision>`` (the rebuild count is the field ``incarnation``), and the files of a later store
win over all files of an earlier store.  For that, and for producer ids, ``cluster.json`` is replaced when a store is
rebuilt, and once more, when the level of a feature is raised for the first time (``storage.feature_levels``).  It is of
format 2 then, so versions before levels refuse the file instead of misreading the records.  Readers look for levels in
a root of format 2 only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.features import FEATURES, FeatureTable, Levels
from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.logging.fields import fields
from bmq.core.urls import without_userinfo
from bmq.storage import layout
from bmq.storage.feature_levels import StoredLevels, newest_levels, put_levels
from bmq.storage.filesystem import (
    AlreadyExists,
    CreateOptions,
    FileSystem,
    NoSuchFile,
    PipelineFailed,
    StorageError,
    Unsupported,
    write_once,
)

_log = logging.getLogger(__name__)
_FILE_OR_SCAFFOLDING = re.compile(r"\.?topic-(\d+)\.json(?:-.+)?\Z", re.ASCII)
FORMAT = 1
FORMAT_WITH_LEVELS = 2
"""The format of ``cluster.json`` in a root that has had a level of a feature above 0."""
WRITE_ATTEMPTS = 3
REVISION_BITS = 48
REBUILD_COUNT_MAX = (1 << 14) - 1
"""The largest rebuild count: it is in the high bits of a producer id (``meta.producer_ids``)."""
PARTITIONS_MAX = 100_000
FILE_BYTES_MAX = 1 << 20
"""Bytes read of a file: a topic's overrides are a few hundred."""


class WrongCluster(StorageError):
    """The root belongs to another cluster than the metadata store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """The content of ``cluster.json``.

    ``rebuild_count``: how often the metadata store was rebuilt from storage; on storage the field ``incarnation``.
    ``has_levels``: the file is of format 2, and ``levels`` and ``held`` are those of ``storage.feature_levels``.
    """

    cluster_id: str
    rebuild_count: int = 0
    has_levels: bool = False
    levels: Levels = field(default_factory=dict, hash=False)
    held: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic as its newest file has it; ``configs`` are the overrides, ``revision`` is the number in its name.

    ``replication_factor`` is None in files of older versions, which do not have it.
    """

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    revision: int
    replication_factor: int | None = None


# ----------------------------------------------------------------------------------------------------- the cluster


async def check_cluster(
    fs: FileSystem, cluster_id: str, *, rebuild_count: int = 0, features: FeatureTable = FEATURES
) -> ClusterFile:
    """Return the content of ``/cluster.json``, and make the file if the root has none: the root is this cluster's then.

    Raises WrongCluster if it names another id (serving would give new ids to topics whose segments are here), and
    FormatError as ``read_cluster``.
    """
    found = await read_cluster(fs, features)
    if found is None:
        fresh = ClusterFile(cluster_id=cluster_id, rebuild_count=rebuild_count)
        with contextlib.suppress(AlreadyExists):  # another process of the cluster was faster: its file is read
            await write_whole(fs, layout.CLUSTER, _cluster_content(fresh))
        found = await read_cluster(fs, features) or fresh
    if found.cluster_id != cluster_id:
        raise WrongCluster(
            f"{fs.url} belongs to cluster {found.cluster_id}, the metadata store to cluster {cluster_id}. Either one of"
            " --root and --meta names the wrong place: give the pair that belongs together. Or the metadata store was"
            " lost and a new one made in its place: stop every server of the cluster, then have it rebuilt from storage"
            " by `bmq cluster rebuild --root ... --meta ...`."
        )
    return found


async def raise_rebuild_count(fs: FileSystem, found: ClusterFile) -> ClusterFile:
    """Replace ``/cluster.json`` by one with the next rebuild count, and return it.

    A crash in the middle leaves only a file with a temporary name.  A repetition raises the count once more, which
    does no harm.  A leader may have stood still in ``put_feature_levels``: its file is removed before it replaces this
    file.
    """
    risen = replace(found, rebuild_count=found.rebuild_count + 1)
    while True:
        spare = await _write_cluster_spare(fs, risen)
        await fs.replace(spare, layout.CLUSTER)
        folder, _, name = layout.CLUSTER.rpartition("/")
        async for child in fs.list(folder or "/"):
            if layout.base_name(child.path).startswith(f".{name}-"):
                await fs.delete(child.path)
        kept = await _read_cluster(fs)
        if kept is not None and kept.rebuild_count == risen.rebuild_count:
            return risen


async def put_feature_levels(fs: FileSystem, levels: StoredLevels) -> None:
    """Have the root show ``levels`` to its readers; before the first level above 0 ``cluster.json`` gets format 2.

    Users that may read ``cluster.json`` may read the levels.  May be repeated.  Raises StorageError, and FormatError as
    ``read_cluster``.
    """
    if levels.levels:
        while (found := await _read_cluster(fs)) is not None and not found.has_levels:
            spare = await _write_cluster_spare(fs, replace(found, has_levels=True))
            if await _read_cluster(fs) == found:  # else the count was raised before the spare file was there
                await fs.replace(spare, layout.CLUSTER)
            else:
                await _discard(fs, spare)
    await fs.make_folder(layout.LEVELS)
    await _give_cluster_rights(fs, layout.LEVELS)
    await put_levels(fs, levels)


async def _write_cluster_spare(fs: FileSystem, content: ClusterFile) -> str:
    """Write the successor of ``/cluster.json`` under a temporary name, with the rights of the present file."""
    spare = await _write_spare(fs, layout.CLUSTER, _cluster_content(content))
    await _give_cluster_rights(fs, spare)
    return spare


async def _give_cluster_rights(fs: FileSystem, path: str) -> None:
    """Give the file or folder at ``path`` what it lacks of the owner, the group and the mode of ``/cluster.json``.

    A folder has x where the file has r.  A refusal of storage is logged: the leader tries again in its next term
    (``storage.access_files``).
    """
    try:
        model, entry = await fs.status(layout.CLUSTER), await fs.status(path)
    except NoSuchFile:
        return
    mode = model.mode | (model.mode & 0o444) >> 2 if entry.is_dir else model.mode
    missing = Access(model.owner, model.group, mode).missing(entry.owner, entry.group, entry.mode)
    if not missing.is_given:
        return
    try:
        await fs.set_access(path, missing)
    except Unsupported as error:
        _log.warning(
            "storage does not give files of the root the rights of cluster.json, their readers may not be able to read"
            " them",
            extra=fields(path=path, error=error),
        )


async def read_cluster(fs: FileSystem, features: FeatureTable = FEATURES) -> ClusterFile | None:
    """Return the content of ``/cluster.json``, with the levels of features; None if the root has none yet.

    Processes and tools call this before they read anything else of a root.  Raises UnsupportedLevel if a level is not
    in ``features``, FormatError if the file is not a cluster's, or of a later format.
    """
    found = await _read_cluster(fs)
    if found is None or not found.has_levels:
        return found
    stored = await newest_levels(fs)
    features.check(stored.levels, f"{without_userinfo(fs.url)}{layout.LEVELS}")
    return replace(found, levels=stored.levels, held=stored.held)


async def _read_cluster(fs: FileSystem) -> ClusterFile | None:
    """Return the content of ``/cluster.json`` without levels; see ``read_cluster``."""
    try:
        data = await fs.read(layout.CLUSTER, 0, FILE_BYTES_MAX)
        raw = parse_file(layout.CLUSTER, data, formats=(FORMAT, FORMAT_WITH_LEVELS))
        cluster_id, count = raw["cluster_id"], raw["incarnation"]
        if not isinstance(cluster_id, str) or type(count) is not int or not 0 <= count <= REBUILD_COUNT_MAX:
            raise ValueError(f"cluster_id {cluster_id!r:.80}, incarnation {count!r:.80}")
        has_levels = raw["format"] == FORMAT_WITH_LEVELS
        return ClusterFile(cluster_id=cluster_id, rebuild_count=count, has_levels=has_levels)
    except NoSuchFile:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{layout.CLUSTER} is not a cluster's file: {error!r}") from error


def _cluster_content(cluster: ClusterFile) -> dict[str, object]:
    number = FORMAT_WITH_LEVELS if cluster.has_levels else FORMAT
    return {"format": number, "cluster_id": cluster.cluster_id, "incarnation": cluster.rebuild_count}


# ------------------------------------------------------------------------------------------------------ the topics


async def read_topic(fs: FileSystem, name: str) -> StoredTopic | None:
    """Return the topic as its newest file has it, None if there is no such topic.

    Raises FormatError if that file is not a topic's, or of a later format.
    """
    for is_last_attempt in (False, True):  # a newer file may replace the one that was just found
        revision = await _highest(fs, name)
        if not revision:
            return None
        path = layout.topic_json(name, revision)
        try:
            return parse_topic(path, await fs.read(path, 0, FILE_BYTES_MAX))
        except NoSuchFile:
            if is_last_attempt:
                raise
    raise AssertionError("the last attempt returns or raises")


def parse_topic(path: str, data: bytes) -> StoredTopic:
    """Return the topic that ``data``, the file at ``path``, describes; name and revision are the path's.

    Raises FormatError if it is not a topic's file, or of a later format.
    """
    raw, revision = parse_file(path, data), layout.parse_topic_json(layout.base_name(path))
    assert revision is not None, "it was found by its name"
    try:
        partitions = raw["partitions"]
        if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
            raise ValueError(f"{partitions!r:.80} partitions")
        return StoredTopic(
            name=path.split("/")[-2],
            topic_id=uuid.UUID(raw["topic_id"]),
            partitions=partitions,
            configs={str(key): str(value) for key, value in raw["configs"].items()},
            revision=revision,
            replication_factor=_optional_int(raw.get("replication_factor")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"{path} is not a topic: {error!r}") from error


class StoredTopics:
    """The topics' files, as the controller writes and deletes them.

    Every call raises RequestError KAFKA_STORAGE_ERROR if storage fails, and may be repeated.  ``rebuild_count`` is
    that of ``cluster.json``; revisions are those of the store so rebuilt.
    """

    def __init__(self, fs: FileSystem, *, rebuild_count: int = 0) -> None:
        self._fs = fs
        self.rebuild_count = rebuild_count

    async def write(
        self,
        name: str,
        revision: int,
        topic_id: uuid.UUID,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int | None = None,
        access: Access = NO_ACCESS,
    ) -> None:
        """Write the topic's file of this revision, unless it is there, and remove the older ones."""
        content: dict[str, object] = {
            "format": FORMAT,
            "name": name,
            "topic_id": str(topic_id),
            "partitions": partitions,
            "configs": dict(sorted(configs.items())),  # by name, as the store returns them: one content a revision
        }
        if replication_factor is not None:
            content["replication_factor"] = replication_factor
        number = self._number(revision)
        with _as_request_error(name):
            with contextlib.suppress(AlreadyExists):  # a revision has one content
                await write_whole(self._fs, layout.topic_json(name, number), content, access)
            await self._remove_files(name, number - 1)

    async def highest(self, name: str) -> int:
        """Return the highest revision on storage of this rebuild count, 0 if there is none."""
        with _as_request_error(name):
            return max(0, await _highest(self._fs, name) - self._number(0))

    async def withdraw(self, name: str, revision: int) -> None:
        """Remove the topic's files up to ``revision``, those of earlier rebuild counts included."""
        with _as_request_error(name):
            await self._remove_files(name, self._number(revision))

    def _number(self, revision: int) -> int:
        assert revision < 1 << REVISION_BITS, "a store does not live that long"
        return self.rebuild_count << REVISION_BITS | revision

    async def remove_some(self, name: str, topic_id: uuid.UUID, limit: int) -> bool:
        """Remove up to ``limit`` partitions' folders; return True once nothing of this topic id is left."""
        folder = f"{layout.topic_folder(name)}/{topic_id}"
        with _as_request_error(name):
            removed = 0
            async for child in self._fs.list(folder):
                if removed == limit:
                    return False
                await self._fs.delete(child.path, recursive=True)
                removed += 1
            await self._fs.delete(folder, recursive=True)
            await self._remove_empty(layout.topic_folder(name))
        return True

    async def _remove_files(self, name: str, number: int) -> None:
        """Remove a topic's files up to ``number``, and their temporary names, which crashed writers have left."""
        async for child in self._fs.list(layout.topic_folder(name)):
            match = _FILE_OR_SCAFFOLDING.match(layout.base_name(child.path))
            if match is not None and int(match[1]) <= number:
                await self._fs.delete(child.path)

    async def _remove_empty(self, folder: str) -> None:
        """Remove the folder if it is empty, and still so when storage deletes it."""
        async for _ in self._fs.list(folder):
            return
        with contextlib.suppress(
            StorageError
        ):  # it is not empty any more; and an empty folder that is left is harmless
            await self._fs.delete(folder)


async def _highest(fs: FileSystem, name: str) -> int:
    """Return the highest number of a topic's files, 0 if there is none.  A topic's folder has few children."""
    names = [layout.base_name(child.path) async for child in fs.list(layout.topic_folder(name))]
    return max((layout.parse_topic_json(name) or 0 for name in names), default=0)


async def write_whole(fs: FileSystem, path: str, content: Mapping[str, object], access: Access = NO_ACCESS) -> None:
    """Write ``content`` under ``path`` in one step: a reader sees all of it, or no file.

    Raises AlreadyExists if the name is taken.  A failed attempt leaves nothing behind if storage still deletes files:
    it may be repeated for as long as a disk is full.
    """
    spare = await _write_spare(fs, path, content, access)
    try:
        await fs.rename(spare, path)
    except StorageError:
        await _discard(fs, spare)
        raise


async def _write_spare(fs: FileSystem, path: str, content: Mapping[str, object], access: Access = NO_ACCESS) -> str:
    """Write ``content`` and close it under a temporary name beside ``path``, and return that name."""
    folder, _, name = path.rpartition("/")
    data = json.dumps(content, separators=(",", ":")).encode()
    options = CreateOptions(block_bytes=1 << 20, access=access)
    for attempt in range(WRITE_ATTEMPTS):
        spare = f"{folder}/.{name}-{fs.holder}-{uuid.uuid4().hex[:8]}"
        try:
            await write_once(fs, spare, data, options)
            return spare
        except StorageError as error:
            await _discard(fs, spare)
            if not isinstance(error, PipelineFailed) or attempt == WRITE_ATTEMPTS - 1:
                raise
            options = replace(options, exclude=(*options.exclude, *error.suspects))  # other datanodes may do better
    raise AssertionError("the last attempt returns or raises")


async def _discard(fs: FileSystem, spare: str) -> None:
    """Delete the file of a failed attempt, if there is one."""
    with contextlib.suppress(StorageError):  # the attempt's own error is raised, and a spare file is harmless
        await fs.delete(spare)


def _optional_int(value: object) -> int | None:
    """Return the value as a number, or None.  Raises ValueError if it is neither."""
    return None if value is None else int(str(value))


def parse_file(path: str, data: bytes, *, formats: Collection[int] = (FORMAT,)) -> dict[str, Any]:
    """Return the fields of a JSON file of this project.  Raises FormatError if it is not one, or of another format."""
    try:
        raw = json.loads(data)
        number = raw["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{path} is not a JSON object with a format number: {data[:80]!r}") from error
    if type(number) is not int or number not in formats:
        raise FormatError(f"{path} is of format {number}: this version reads {' and '.join(map(str, formats))}")
    return dict(raw)


@contextlib.contextmanager
def _as_request_error(name: str) -> Iterator[None]:
    """Raise storage's failures as RequestErrors, for callers that do not handle StorageErrors."""
    try:
        yield
    except StorageError as error:
        text = f"storage failed to serve the files of topic {name}: {error}"
        raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, text) from error
