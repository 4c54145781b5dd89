"""The work of ``bmq segment repair`` without a server: on the root and the metadata store of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from bmq.broker.repair.log_plan import RepairRequest
from bmq.broker.repair.repair import NotRepaired, Repair, find_partition
from bmq.cli.store_command import check_store_file, settings
from bmq.controller.store_age import StoreOlder, check_store_age
from bmq.core.clock import SystemClock
from bmq.core.features import UnsupportedLevel
from bmq.core.urls import without_userinfo
from bmq.meta.catalog import cluster_id_key
from bmq.meta.kv import KeyValue
from bmq.meta.open import is_shared, open_keyvalue
from bmq.meta.root import read_root
from bmq.server.root_guard import RootVerdict, judge
from bmq.storage.cluster_files import read_cluster
from bmq.storage.filesystem import FileSystem, RootLock
from bmq.storage.open import open_filesystem
from bmq.storage.root_id import read_root_id


async def check_root(kv: KeyValue, fs: FileSystem, cluster: str) -> None:
    """Check that root and store belong together, without writing anything.

    Raises NotRepaired if they do not, if the store is older than the root, or if a level of a feature is in force that
    this version does not support.
    """
    entry = await kv.get(cluster_id_key(cluster))
    cluster_id = entry.value.decode("ascii", "replace") if entry is not None else ""
    try:
        stored, file = await read_root(kv, cluster), await read_cluster(fs)
    except UnsupportedLevel as error:
        raise NotRepaired(str(error)) from error
    verdict = judge(stored, True, file, await read_root_id(fs), cluster_id)
    if verdict not in (RootVerdict.SERVE, RootVerdict.BIND):
        raise NotRepaired(
            f"{without_userinfo(fs.url)} is not the root of the cluster {cluster} in this metadata store: check --root,"
            " --meta and --cluster"
        )
    assert file is not None, "without it the verdict is EMPTY_ROOT"
    try:
        await check_store_age(kv, fs, cluster, file.rebuild_count)
    except StoreOlder as error:
        raise NotRepaired(str(error)) from error


async def repair(arguments: argparse.Namespace, body: Mapping[str, Any], holder: str) -> Mapping[str, Any]:
    """Repair the partition, or only report without ``apply`` in ``body``; return the report.

    Raises UsageError, ConfigError, NotRepaired, StorageError or KvError.
    """
    config = settings(arguments, root="where the segments lie", meta="the cluster's store")
    request = RepairRequest.of(body)
    check_store_file(config.meta)
    async with AsyncExitStack() as stack:
        kv = await open_keyvalue(config.meta, user=config.meta_user, password=config.meta_password)
        stack.push_async_callback(kv.close)
        fs = await open_filesystem(
            config.root,
            holder=holder,
            hadoop_conf_dir=config.hadoop_conf_dir,
            hdfs_login=config.hdfs_login,
            lock=_lock(config.meta, request),
        )
        stack.push_async_callback(fs.close)
        await check_root(kv, fs, config.cluster)
        place = await find_partition(kv, config.cluster, arguments.topic, arguments.partition)
        report = await Repair(fs, kv, SystemClock(), place).run(request)
        return report.to_json()


def _lock(meta: str, request: RepairRequest) -> RootLock:
    """Return the lock of a local root: a report needs none, and on etcd servers may go on beside the repair."""
    if request.is_dry:
        return RootLock.NONE
    return RootLock.SHARED if is_shared(meta) else RootLock.EXCLUSIVE
