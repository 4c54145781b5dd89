"""What storage says of the cluster and its topics, for readers without a metadata store and for its rebuilding.

::

    /cluster.json                            {"format": 1, "cluster_id": ..., "incarnation": 0}
    /topics/<topic>/topic-<revision>.json    {"format": 1, "name": ..., "topic_id": ..., "partitions": n, "configs": {},
                                              "replication_factor": n}

A topic's file is written under a scaffolding name (``.<name>-<holder>-<random>``) and renamed, which never overwrites:
a name that exists holds a whole file, and its content never changes.  Equal topics have equal bytes, whichever process
writes them; files of older versions have ``configs`` in another order.  The highest revision wins; older ones go when a
newer one is there.  The metadata store is the truth, these files follow it.

A store that was rebuilt counts its revisions from the beginning, so the number in a name has the incarnation above the
store's revision (``<incarnation> << 48 | <revision>``): what is told by a later store wins over all that an earlier one
has told.  For that, and for producer ids, ``cluster.json`` is replaced when a store is rebuilt, and never else.
"""

from __future__ import annotations

import contextlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.storage import layout
from bmq.storage.filesystem import (
    AlreadyExists,
    CreateOptions,
    FileSystem,
    NoSuchFile,
    PipelineFailed,
    StorageError,
    write_once,
)

_FILE_OR_SCAFFOLDING = re.compile(r"\.?topic-(\d+)\.json(?:-.+)?\Z", re.ASCII)
FORMAT = 1
WRITE_ATTEMPTS = 3
REVISION_BITS = 48
INCARNATION_MAX = (1 << 14) - 1
"""The high bits of a producer id (``meta.producer_ids``)."""
PARTITIONS_MAX = 100_000
FILE_BYTES_MAX = 1 << 20
"""A topic's overrides are a few hundred bytes."""


class WrongCluster(StorageError):
    """The root belongs to another cluster than the metadata store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """``incarnation`` counts how often the metadata store was rebuilt from storage."""

    cluster_id: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTopic:
    """A topic as its newest file has it; ``configs`` are the overrides, ``revision`` is the number in its name.

    ``replication_factor`` is None in files of a time when it was not told."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str]
    revision: int
    replication_factor: int | None = None


# ----------------------------------------------------------------------------------------------------- the cluster


async def check_cluster(fs: FileSystem, cluster_id: str, *, incarnation: int = 0) -> ClusterFile:
    """What ``/cluster.json`` says; a root without one becomes this cluster's.

    WrongCluster when it names another id: serving would give new ids to topics whose segments lie here.
    """
    found = await read_cluster(fs)
    if found is None:
        fresh = ClusterFile(cluster_id=cluster_id, incarnation=incarnation)
        with contextlib.suppress(AlreadyExists):  # another process of the cluster was faster: look what it wrote
            await write_whole(fs, layout.CLUSTER, _cluster_content(fresh))
        found = await read_cluster(fs) or fresh
    if found.cluster_id != cluster_id:
        raise WrongCluster(
            f"{fs.url} belongs to cluster {found.cluster_id}, the metadata store to cluster {cluster_id}. Either one of"
            " --root and --meta names the wrong place: give the pair that belongs together. Or the metadata store was"
            " lost and a new one made in its place: stop every server of the cluster, then have it rebuilt from storage"
            " by `bmq cluster rebuild --root ... --meta ...`."
        )
    return found


async def raise_incarnation(fs: FileSystem, found: ClusterFile) -> ClusterFile:
    """Begin another life of the cluster: ``/cluster.json`` is replaced by one with the next incarnation.

    Of a crash in the middle nothing is left but a scaffolding name; a repetition raises it once more, which harms not.
    """
    risen = replace(found, incarnation=found.incarnation + 1)
    spare = await _write_spare(fs, layout.CLUSTER, _cluster_content(risen))
    await fs.replace(spare, layout.CLUSTER)
    return risen


async def read_cluster(fs: FileSystem) -> ClusterFile | None:
    """None when the root has no cluster yet.  FormatError."""
    try:
        raw = parse_file(layout.CLUSTER, await fs.read(layout.CLUSTER, 0, FILE_BYTES_MAX))
        cluster_id, incarnation = raw["cluster_id"], raw["incarnation"]
        if not isinstance(cluster_id, str) or type(incarnation) is not int or not 0 <= incarnation <= INCARNATION_MAX:
            raise ValueError(f"cluster_id {cluster_id!r:.80}, incarnation {incarnation!r:.80}")
        return ClusterFile(cluster_id=cluster_id, incarnation=incarnation)
    except NoSuchFile:
        return None
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{layout.CLUSTER} lacks something: {error!r}") from error


def _cluster_content(cluster: ClusterFile) -> dict[str, object]:
    return {"format": FORMAT, "cluster_id": cluster.cluster_id, "incarnation": cluster.incarnation}


# ------------------------------------------------------------------------------------------------------ the topics


async def read_topic(fs: FileSystem, name: str) -> StoredTopic | None:
    """The newest file's word; None when there is no such topic.  FormatError."""
    for is_last_look in (False, True):  # a newer file may replace the one that was just found
        revision = await _highest(fs, name)
        if not revision:
            return None
        path = layout.topic_json(name, revision)
        try:
            return parse_topic(path, await fs.read(path, 0, FILE_BYTES_MAX))
        except NoSuchFile:
            if is_last_look:
                raise
    raise AssertionError("the last look returns or raises")


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
    """What the controller needs of storage (``controller``: ``TopicFiles``, ``DeletedFiles``).

    RequestError KAFKA_STORAGE_ERROR when storage fails; every call may be repeated.  ``incarnation`` is storage's
    (``cluster.json``), set before the first call; revisions are those of the store, in this incarnation.
    """

    def __init__(self, fs: FileSystem, *, incarnation: int = 0) -> None:
        self._fs = fs
        self.incarnation = incarnation

    async def write(
        self,
        name: str,
        revision: int,
        topic_id: uuid.UUID,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int | None = None,
    ) -> None:
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
                await write_whole(self._fs, layout.topic_json(name, number), content)
            await self._remove_files(name, number - 1)

    async def highest(self, name: str) -> int:
        """Of this incarnation."""
        with _as_request_error(name):
            return max(0, await _highest(self._fs, name) - self._number(0))

    async def withdraw(self, name: str, revision: int) -> None:
        """Those of earlier incarnations too."""
        with _as_request_error(name):
            await self._remove_files(name, self._number(revision))

    def _number(self, revision: int) -> int:
        assert revision < 1 << REVISION_BITS, "a store does not live that long"
        return self.incarnation << REVISION_BITS | revision

    async def remove_some(self, name: str, topic_id: uuid.UUID, limit: int) -> bool:
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
        """Those up to ``number``, and what crashed writers of them left under scaffolding names."""
        async for child in self._fs.list(layout.topic_folder(name)):
            match = _FILE_OR_SCAFFOLDING.match(layout.base_name(child.path))
            if match is not None and int(match[1]) <= number:
                await self._fs.delete(child.path)

    async def _remove_empty(self, folder: str) -> None:
        """A folder that fills meanwhile is not empty, and stays."""
        async for _ in self._fs.list(folder):
            return
        with contextlib.suppress(StorageError):  # not empty any more; nothing is lost with an empty folder left
            await self._fs.delete(folder)


async def _highest(fs: FileSystem, name: str) -> int:
    """0 when there is none; a topic's folder has few children."""
    names = [layout.base_name(child.path) async for child in fs.list(layout.topic_folder(name))]
    return max((layout.parse_topic_json(name) or 0 for name in names), default=0)


async def write_whole(fs: FileSystem, path: str, content: Mapping[str, object]) -> None:
    """Write ``content`` under ``path`` in one step: nobody sees a part of it.

    Raises AlreadyExists if the name is taken.  A try that fails leaves nothing behind where storage still deletes: it
    may be repeated for as long as a disk is full.
    """
    spare = await _write_spare(fs, path, content)
    try:
        await fs.rename(spare, path)
    except StorageError:
        await _discard(fs, spare)
        raise


async def _write_spare(fs: FileSystem, path: str, content: Mapping[str, object]) -> str:
    """``content`` whole and closed, under a scaffolding name beside ``path``: that name."""
    folder, _, name = path.rpartition("/")
    data = json.dumps(content, separators=(",", ":")).encode()
    options = CreateOptions(block_bytes=1 << 20)
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
    """Delete what a failed try has left, if it has left anything."""
    with contextlib.suppress(StorageError):  # why the try failed is raised, and a spare harms nobody
        await fs.delete(spare)


def _optional_int(value: object) -> int | None:
    """TypeError, ValueError when it is no number."""
    return None if value is None else int(str(value))


def parse_file(path: str, data: bytes) -> dict[str, Any]:
    """Return the fields of one of our JSON files.  Raises FormatError if it is not one, or of a later format."""
    try:
        raw = json.loads(data)
        number = raw["format"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{path} is not one of ours: {data[:80]!r}") from error
    if number != FORMAT:
        raise FormatError(f"{path} is of format {number}: this version reads {FORMAT}")
    return dict(raw)


@contextlib.contextmanager
def _as_request_error(name: str) -> Iterator[None]:
    """Storage's failures, as whoever knows no storage is told them."""
    try:
        yield
    except StorageError as error:
        text = f"storage cannot tell of topic {name} now: {error}"
        raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, text) from error
