"""Check that ``--root`` and ``--meta`` belong together, before a process serves or joins.

A cluster is one store and one root.  The store has the cluster's id and the id of its root; the root has both in files.
The facts decide:

=========  ==========  ======================  ========  ==================================================
store has  the root's  cluster.json names      its       then
a root id  data        the store's cluster id  root.json
=========  ==========  ======================  ========  ==================================================
any        any         no, another one         any       refuse: two clusters
yes        any         there is no file        any       refuse: an empty root
no         yes         there is no file        any       refuse: an empty root
no         no          there is no file        any       a new cluster: write both files, bind
yes        any         yes                     equal     serve
yes        any         yes                     differs   refuse: another root of this cluster
                                               or none
no         any         yes                     any       a cluster of an older version, or one whose first
                                                         process died here: write root.json, bind
=========  ==========  ======================  ========  ==================================================

"Data" are topics, partitions' records or deleted topics in the store.  To bind is to write the root's id into a store
that has none: of several processes with different roots one wins, and the others are refused.  An older version's root
without room for ``root.json`` is served without a binding, as before.  So topics can be deleted, and partitions go on
once there is room.  The next start or join that finds room binds the root.

A root with the level of a feature beyond this version is refused, whatever else holds (``core.features``).

A store that belongs to the root may be an old state of it: ``controller.store_age`` refuses such a store, before
anything is bound.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import NamedTuple

from bmq.controller.store_age import StoreOlder, check_store_age
from bmq.controller.topics.deletion import deleted_prefix
from bmq.core.errors import FormatError
from bmq.core.features import FEATURES, FeatureTable, UnsupportedLevel
from bmq.core.logging.fields import fields
from bmq.core.urls import without_userinfo
from bmq.meta.catalog import catalog_prefix, cluster_id_key, find_cluster_id
from bmq.meta.cluster.membership import JoinRefused
from bmq.meta.kv import Entry, KeyValue
from bmq.meta.ownership import partitions_prefix
from bmq.meta.prefix_watch import patiently
from bmq.meta.root import RootRecord, bind_root, read_root
from bmq.storage import layout
from bmq.storage.cluster_files import ClusterFile, WrongCluster, check_cluster, read_cluster
from bmq.storage.filesystem import FileSystem, OutOfSpace, StorageError, StorageUnavailable
from bmq.storage.root_id import make_root_id, read_root_id

_log = logging.getLogger("bmq.root")
STORAGE_PATIENCE_S = 120.0
"""How long storage that is not ready is waited for.  A NameNode leaves safe mode 30 s after the last block report that
it needs (dfs.namenode.safemode.extension)."""
STORAGE_RETRY_S = 2.0
"""Pause between tries."""
AGE_S = 5.0
"""Patience with storage of a process that joins again: clients wait."""


class RootVerdict(Enum):
    """Result of the check: serve the root, bind it, or refuse it for one of three reasons."""

    SERVE = auto()
    BIND = auto()
    TWO_CLUSTERS = auto()
    EMPTY_ROOT = auto()
    OTHER_ROOT = auto()


def judge(
    stored: RootRecord | None, has_data: bool, file: ClusterFile | None, root_id: str, cluster_id: str
) -> RootVerdict:
    """Return the verdict of the module's table.

    ``stored`` is the store's record of its root, ``file`` the root's cluster.json, ``root_id`` the id in its root.json
    ("" for none), and ``cluster_id`` the store's.
    """
    if file is None:  # only a new cluster may lack the file
        return RootVerdict.BIND if stored is None and not has_data else RootVerdict.EMPTY_ROOT
    if file.cluster_id != cluster_id:
        return RootVerdict.TWO_CLUSTERS
    if stored is None:
        return RootVerdict.BIND
    return RootVerdict.SERVE if stored.root_id == root_id else RootVerdict.OTHER_ROOT


class CheckedRoot(NamedTuple):
    """A root that belongs to the store; ``root_id`` is "" for a root without a binding."""

    cluster_id: str
    root_id: str
    file: ClusterFile


class RootGuard:
    """Guard of one process's root: ``check`` before it serves, ``before_join`` each time it joins the cluster."""

    def __init__(self, kv: KeyValue, fs: FileSystem, cluster: str, features: FeatureTable = FEATURES) -> None:
        """``features`` are this version's; a root with a level beyond them is refused."""
        self._features = features
        self._kv = kv
        self._fs = fs
        self._cluster = cluster
        self._checked: CheckedRoot | None = None

    @property
    def file(self) -> ClusterFile:
        """The root's cluster.json, once it was checked."""
        assert self._checked is not None, "the check comes first"
        return self._checked.file

    async def before_join(self) -> None:
        """Check root and store the first time; later only that the store is the same, and no old state.

        Raises WrongCluster the first time and JoinRefused later if they do not belong together; KvError, StorageError
        or FormatError if they cannot be read.
        """
        checked = self._checked
        if checked is None:
            await self.check()
        elif checked.root_id:
            await self._check_again(checked)
        else:  # served without a binding so far; now there may be room for root.json
            try:
                await self.check()
            except (WrongCluster, UnsupportedLevel) as error:
                raise JoinRefused(str(error)) from error

    async def check(self) -> ClusterFile:
        """Check root and store; write a new cluster's files, bind the root, and return its ``cluster.json``.

        Storage that is not ready is waited for, ``STORAGE_PATIENCE_S`` at most: datanodes that were just restarted have
        yet to report their blocks, and a NameNode may be in safe mode.  Raises WrongCluster, which says what to check,
        or its kind StoreOlder; UnsupportedLevel if storage has a level of a feature beyond this version; KvError,
        StorageError or FormatError if root or store cannot be read.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + STORAGE_PATIENCE_S
        is_logged = False
        while True:
            try:
                self._checked = await self._check()
                return self._checked.file
            except StorageUnavailable as error:
                if loop.time() >= until:
                    raise
                if not is_logged:  # once: the next tries have the same reason
                    is_logged = True
                    _log.warning(
                        "waiting for storage, which cannot give or take the root's files yet",
                        extra=fields(path=self._url, error=error),
                    )
            await asyncio.sleep(STORAGE_RETRY_S)

    async def _check(self) -> CheckedRoot:
        kv, fs = self._kv, self._fs
        cluster_id = await patiently(lambda: find_cluster_id(kv, self._cluster))
        stored = await patiently(lambda: read_root(kv, self._cluster))
        data = await patiently(lambda: first_data(kv, self._cluster))
        file, root_id = await read_cluster(fs, self._features), await read_root_id(fs)
        verdict = judge(stored, data is not None, file, root_id, cluster_id)
        if verdict is RootVerdict.EMPTY_ROOT:
            raise WrongCluster(_empty_root(self._url, cluster_id, stored, data))
        # writes the file of a new cluster; refuses another cluster's
        found = await check_cluster(fs, cluster_id, features=self._features)
        await patiently(lambda: check_store_age(kv, fs, self._cluster, found.rebuild_count))
        if verdict is RootVerdict.BIND:
            try:
                root_id = await make_root_id(fs)
            except OutOfSpace as error:
                if file is None:  # a new cluster must not start without a root id
                    raise
                _log.warning(
                    "storage has no room for %s: the root is served, but a process with another --root would not be"
                    " refused; the next start with room mends that",
                    layout.ROOT,
                    extra=fields(path=self._url, error=error),
                )
                return CheckedRoot(cluster_id, "", found)
            own = RootRecord(root_id=root_id, url=self._url, has_levels=found.has_levels)
            stored = await patiently(lambda: bind_root(kv, self._cluster, own))
        assert stored is not None, "the root is bound"
        if stored.root_id != root_id:
            raise WrongCluster(_other_root(self._url, root_id, cluster_id, stored))
        return CheckedRoot(cluster_id, root_id, found)

    async def _check_again(self, checked: CheckedRoot) -> None:
        """Check that the store is still the one of the first check: it may have been rebuilt or replaced."""
        entry = await self._kv.get(cluster_id_key(self._cluster))
        if entry is None or entry.value.decode("ascii", "replace") != checked.cluster_id:
            now = "empty or being rebuilt" if entry is None else "that of another cluster"
            raise JoinRefused(f"the metadata store of cluster {checked.cluster_id} is now {now}")
        stored = await read_root(self._kv, self._cluster)
        if stored is not None and stored.root_id != checked.root_id:
            raise JoinRefused(f"the cluster is now served from {stored.url} (root {stored.root_id}), not {self._url}")
        await self._check_age_again()

    async def _check_age_again(self) -> None:
        """Raise JoinRefused if an old state replaced the store, as after an etcd was restored from a snapshot.

        Without an answer of storage the process joins: takeovers compare again, before the first write of a partition.
        """
        try:
            async with asyncio.timeout(AGE_S):
                file = await read_cluster(self._fs, self._features)
                await check_store_age(self._kv, self._fs, self._cluster, file.rebuild_count if file is not None else 0)
        except (StoreOlder, UnsupportedLevel) as error:
            raise JoinRefused(str(error)) from error
        except (StorageError, FormatError, TimeoutError) as error:
            _log.warning(
                "could not check whether the metadata store is older than storage, joining all the same",
                extra=fields(path=self._url, error=error),
            )

    @property
    def _url(self) -> str:
        return without_userinfo(self._fs.url)


async def first_data(kv: KeyValue, cluster: str) -> Entry | None:
    """Return an entry that implies records on storage; None in the store of a new cluster."""
    for prefix in (f"{catalog_prefix(cluster)}topics/", partitions_prefix(cluster), deleted_prefix(cluster)):
        async for entry in kv.list(prefix, limit=1):
            return entry
    return None


def _empty_root(url: str, cluster_id: str, stored: RootRecord | None, data: Entry | None) -> str:
    has = f"the metadata store has cluster {cluster_id}"
    if data is not None:
        has += f" with topics ({data.key})"
    if stored is not None:
        has += f", served from {stored.url}"
    return (
        f"{url} is not the cluster's root: it has no cluster.json, and {has}. Served from here, its records would seem"
        " to be gone. Check --root: every process of a cluster needs the same. If the root was moved, give its new"
        " address; if it has lost its cluster.json, see `bmq cluster merge-root --help`. A new cluster needs an"
        " empty --meta, too, or a --cluster name of its own."
    )


def _other_root(url: str, root_id: str, cluster_id: str, stored: RootRecord) -> str:
    return (
        f"{url} (root {root_id or 'without an id'}) is not the root of cluster {cluster_id}: that is {stored.url} (root"
        f" {stored.root_id}). Check --root: every process of a cluster needs the same. If records were written to both,"
        " or this is the right one, stop every process of the cluster and put it together by `bmq cluster merge-root"
        " --root RIGHT --from WRONG --meta ...`."
    )
