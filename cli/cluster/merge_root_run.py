"""``bmq cluster merge-root``, carried out.

Every step may be repeated. A move either has happened or has not, and the two files of the root are written once. The
store is changed last, in a single commit.
"""

from __future__ import annotations

import argparse
import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from urllib.parse import SplitResult, quote, unquote

from bmq.cli.exit_status import EXIT_REFUSED, EXIT_USAGE
from bmq.cli.output import fail, printable
from bmq.cli.rebuild.store import NotLost, check_nobody, mark_key
from bmq.cli.store_command import check_root, check_store_file, settings
from bmq.cli.usage import UsageError
from bmq.controller.store_age import StoreOlder, check_store_age
from bmq.controller.topics.access import access_prefix
from bmq.core.config import ConfigError, NodeConfig
from bmq.core.errors import FormatError
from bmq.core.features import FEATURES
from bmq.core.http_call import RequestRefused
from bmq.core.urls import normal_url, split_url, without_userinfo
from bmq.meta.catalog import cluster_id_key
from bmq.meta.cluster.keys import features_key
from bmq.meta.cluster.levels import FeatureLevels, decode_record
from bmq.meta.kv import Compare, Delete, KeyValue, KvError, Put
from bmq.meta.open import open_keyvalue
from bmq.meta.producer_ids import decode_counter, producer_ids_key
from bmq.meta.root import RootRecord, encode_root, root_key
from bmq.meta.settled_commit import commit_settled
from bmq.storage import layout
from bmq.storage.cluster_files import ClusterFile, check_cluster, parse_topic, put_feature_levels, read_cluster
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import FileSystem, NoSuchFile, RootLock, StorageError
from bmq.storage.open import open_filesystem
from bmq.storage.root_id import make_root_id

_MERGED = (layout.TOPICS, layout.JOURNALS)
_COMPARED_BYTES_MAX = 1 << 20
"""Largest file that may be the same in two roots: topics' descriptions are written to every root in use."""


@dataclass(slots=True)
class Merged:
    """The files that were moved and left, as paths in the folder that all roots lie in.

    ``moved`` names a whole folder if the right root had nothing in its place.
    """

    moved: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Files of which the right root has another."""


async def merge(fs: FileSystem, right: str, wrong: str, *, is_dry: bool = False) -> Merged:
    """Move the content of folder ``wrong`` into folder ``right``; files that are the same in both stay, unlisted.

    With ``is_dry`` nothing is moved.  Raises StorageError.
    """
    merged = Merged()
    for folder in _MERGED:
        if await _is_folder(fs, wrong + folder) is not None:
            await _merge(fs, wrong + folder, right + folder, merged, is_dry=is_dry)
    return merged


async def _merge(fs: FileSystem, source: str, target: str, merged: Merged, *, is_dry: bool) -> None:
    is_source, is_target = await _is_folder(fs, source), await _is_folder(fs, target)
    if is_target is None:
        merged.moved.append(source)
        if not is_dry:
            await fs.rename(source, target)
    elif is_source and is_target:
        names = [layout.base_name(child.path) async for child in fs.list(source)]  # an index before its segment
        for name in names:
            if not _is_index_alone(name, names):
                await _merge(fs, f"{source}/{name}", f"{target}/{name}", merged, is_dry=is_dry)
    elif is_source or is_target or not await _is_same(fs, source, target):
        merged.left.append(source)


def _is_index_alone(name: str, names: Sequence[str]) -> bool:
    """Return whether ``name`` is the index of a segment that its root does not have.

    The process with the wrong root wrote it for a file that it took for empty: beside the segment it would be wrong.
    """
    segment = layout.parse_segment(name)
    return segment is not None and segment[1] == "idx" and f"{segment[0]}.log" not in names


async def _is_folder(fs: FileSystem, path: str) -> bool | None:
    """Return whether ``path`` is a folder; None if nothing is there."""
    try:
        return (await fs.status(path)).is_dir
    except NoSuchFile:
        return None


async def _is_same(fs: FileSystem, one: str, other: str) -> bool:
    lengths = [(await fs.status(path)).length for path in (one, other)]
    is_topic = layout.parse_topic_json(layout.base_name(one)) is not None
    if max(lengths) > _COMPARED_BYTES_MAX or (lengths[0] != lengths[1] and not is_topic):
        return False
    contents = [await fs.read(path, 0, length) for path, length in zip((one, other), lengths, strict=True)]
    return contents[0] == contents[1] or (is_topic and _is_same_topic((one, contents[0]), (other, contents[1])))


def _is_same_topic(*files: tuple[str, bytes]) -> bool:
    """Return whether files of one revision describe one topic.

    Files of older versions have the configs in any order, and the oldest do not have the replication factor.
    """
    try:
        one, other = (parse_topic(path, data) for path, data in files)
    except FormatError:
        return False  # an unreadable file counts as another one: the command names it
    if None in (one.replication_factor, other.replication_factor):
        one, other = (replace(each, replication_factor=None) for each in (one, other))
    return one == other


# --------------------------------------------------------------------------------------------------------- the store


async def check_roots(kv: KeyValue, cluster: str, right: FileSystem, wrongs: Sequence[FileSystem]) -> ClusterFile:
    """Return the content of the right root's ``cluster.json``, or the content to write if it is missing.

    Raises NotLost if a process runs, and UnsupportedLevel if this version lacks the level of a feature. Raises
    RequestRefused if a root or the store is not this cluster's, or if the store is older than a root.
    """
    await check_nobody(kv, cluster)
    if await kv.get(mark_key(cluster)) is not None:
        raise RequestRefused(
            "`bmq cluster rebuild` has not ended on this store: run it again first, with the right --root"
        )
    entry = await kv.get(cluster_id_key(cluster))
    if entry is None:
        raise RequestRefused(f"the metadata store has no cluster {cluster}: check --meta and --cluster")
    cluster_id = entry.value.decode("ascii")
    await _levels(kv, cluster)
    files = [await read_cluster(fs) for fs in (right, *wrongs)]
    for fs, file in zip((right, *wrongs), files, strict=True):
        if file is not None and file.cluster_id != cluster_id:
            raise RequestRefused(f"{fs.url} belongs to cluster {file.cluster_id}, the metadata store to {cluster_id}")
        if file is None and (fs is not right or await _is_folder(fs, layout.TOPICS) is None):
            raise RequestRefused(
                f"{fs.url} has no cluster.json: no cluster was ever served from there. Is it the right URL?"
            )
        try:
            await check_store_age(kv, fs, cluster, 0 if file is None else file.rebuild_count)
        except StoreOlder as error:
            raise RequestRefused(error.what) from error
    if files[0] is not None:
        return files[0]
    counter = await kv.get(producer_ids_key(cluster))
    known = [file.rebuild_count for file in files if file is not None]
    known.append(decode_counter(counter)[0] if counter is not None else 0)
    return ClusterFile(cluster_id=cluster_id, rebuild_count=max(known))


async def bind(kv: KeyValue, cluster: str, right: FileSystem, file: ClusterFile) -> RootRecord:
    """Make ``right`` the cluster's root.

    Raises NotLost if a process has started meanwhile, RequestRefused if another one wrote the root.
    """
    await check_cluster(right, file.cluster_id, rebuild_count=file.rebuild_count)
    has_levels = await _file_levels(kv, cluster, right, file.rebuild_count)
    url = without_userinfo(right.url)
    record = RootRecord(root_id=await make_root_id(right), url=url, has_levels=has_levels)
    await check_nobody(kv, cluster)
    async for walk in kv.list(access_prefix(cluster)):  # files that came from elsewhere may have other rights
        await kv.commit([], [Delete(walk.key)])
    key = root_key(cluster)
    before = await kv.get(key)
    settled = await commit_settled(
        kv, [Compare(key, before.revision if before else 0)], [Put(key, encode_root(record))]
    )
    now = await kv.get(key)
    if not settled.commit.succeeded and (now is None or now.value != encode_root(record)):
        raise RequestRefused("the store's root was changed by another process at the same time: run this again")
    return record


async def _file_levels(kv: KeyValue, cluster: str, right: FileSystem, rebuild_count: int) -> bool:
    """Have the right root show the levels of features that the store has, as the leader would.

    Returns whether a level was ever above 0, or is intended to be.
    """
    found = await _levels(kv, cluster)
    if found is None:
        return False
    revision, record = found
    levels = StoredLevels(rebuild_count=rebuild_count, revision=revision, levels=record.highest, held=record.held)
    await put_feature_levels(right, levels)
    return record.epoch > 0 or bool(levels.levels)


async def _levels(kv: KeyValue, cluster: str) -> tuple[int, FeatureLevels] | None:
    """Return the store's levels of features with their revision; None if there are none.

    Raises UnsupportedLevel if this version does not support one.
    """
    entry = await kv.get(features_key(cluster))
    if entry is None:
        return None
    record = decode_record(entry.value)
    FEATURES.check(record.highest, entry.key)
    return entry.revision, record


# ------------------------------------------------------------------------------------------------------ command line


def perform(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit status; errors go to standard error in one line."""
    try:
        return asyncio.run(_run(arguments))
    except (RequestRefused, NotLost) as error:
        return fail(str(error), status=EXIT_REFUSED)
    except (UsageError, ConfigError, StorageError, KvError, FormatError, ValueError) as error:
        return fail(str(error) or type(error).__name__, status=EXIT_USAGE)


async def _run(arguments: argparse.Namespace) -> int:
    config = _settings(arguments)
    roots = [normal_url(url) for url in (config.root, *arguments.wrong)]
    base, folders = common_folder(roots)
    holder = f"bmq-merge-{uuid.uuid4().hex}"
    kv = await open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password)
    opened: list[FileSystem] = []
    try:
        lock = RootLock.NONE if arguments.dry_run else RootLock.EXCLUSIVE
        for url in (base, *roots):
            opened.append(
                await open_filesystem(
                    url,
                    holder=holder,
                    hadoop_conf_dir=config.hadoop_conf_dir,
                    hdfs_login=config.hdfs_login,
                    lock=RootLock.NONE if url == base else lock,
                )
            )
        fs, right, *wrongs = opened
        file = await check_roots(kv, config.cluster, right, wrongs)
        left = []
        for folder in folders[1:]:
            merged = await merge(fs, folders[0], folder, is_dry=arguments.dry_run)
            left += merged.left
            for path in merged.moved:
                print(printable(f"{'would move' if arguments.dry_run else 'moved'} {path} of {base}"))
        if not arguments.dry_run:
            record = await bind(kv, config.cluster, right, file)
            print(f"cluster {file.cluster_id} is served from {record.url} (root {record.root_id}): start the servers")
    finally:
        for each in reversed(opened):
            await each.close()
        await kv.close()
    for path in left:
        fail(f"left, the right root has another file of this name: {path} of {base}")
    return EXIT_REFUSED if left else 0


def _settings(arguments: argparse.Namespace) -> NodeConfig:
    config = settings(arguments, root="the right root", meta="the cluster's store")
    for url in (config.root, *arguments.wrong):
        if split_url(url).scheme not in ("file", "hdfs"):
            raise UsageError(f"{without_userinfo(url)}: roots of this command are file:///dir or hdfs://namenode/dir")
        check_root(url)
    check_store_file(config.meta)
    return config


def common_folder(urls: Sequence[str]) -> tuple[str, list[str]]:
    """Return the URL of the folder that all roots lie in, and each root's path in it.

    Raises UsageError if they lie on different file systems, or one in another.
    """
    parts = [split_url(url) for url in urls]
    if len({(each.scheme, each.netloc) for each in parts}) > 1:
        raise UsageError(
            "the roots are not on one file system by their URLs (name the same NameNodes in each). Between two, copy"
            " topics and journals with `hadoop distcp -update` or `cp -rn`, and run this without --from"
        )
    names = [_names(each) for each in parts]
    shared = _common_beginning(names)
    if any(len(each) <= len(shared) for each in names) and len(names) > 1:
        raise UsageError("one of the roots lies in another one, or they are the same")
    if len(names) == 1:
        shared = shared[:-1]
    path = "/" + "/".join(shared)
    base = parts[0]._replace(path=quote(path) if parts[0].scheme == "file" else path).geturl()
    return base, ["/" + "/".join(each[len(shared) :]) for each in names]


def _common_beginning(names: Sequence[Sequence[str]]) -> list[str]:
    return [each[0] for each in takewhile(lambda each: len(set(each)) == 1, zip(*names, strict=False))]


def _names(parts: SplitResult) -> list[str]:
    path = unquote(parts.path) if parts.scheme == "file" else parts.path
    return [name for name in path.split("/") if name]
