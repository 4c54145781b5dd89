"""The filing of levels of features: all places that refuse a process or a reader, before a level is in force.

| place | refused |
|---|---|
| the store's record of the root (``meta.root``), format 2 | processes of a version before levels that join again |
| ``cluster.json``, format 2 | tools and starting processes of a version before levels |
| ``/levels`` | readers of storage that do not support the level |

A process of a version before levels compares no record of levels when it registers.  It may have lost its key without
notice before a level was raised.  When the process joins again, it reads the root's record, and a later format ends it.
"""

from __future__ import annotations

from dataclasses import replace

from bmq.controller.kv_commit import Guard, deposed, is_deposed
from bmq.core.urls import without_userinfo
from bmq.meta.kv import Compare, KeyValue, KvUnavailable, Put
from bmq.meta.root import RootRecord, decode_root, encode_root, root_key
from bmq.meta.settled_commit import commit_settled
from bmq.storage.cluster_files import put_feature_levels
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.filesystem import FileSystem
from bmq.storage.root_id import make_root_id


async def file_levels(kv: KeyValue, cluster: str, fs: FileSystem, levels: StoredLevels, guard: Guard) -> None:
    """File ``levels`` in store and storage.  May be repeated.

    Raises KvError, StorageError or FormatError, and RequestError if another process leads.
    """
    if levels.levels:
        await _mark_root(kv, cluster, fs, guard)
    await put_feature_levels(fs, levels)


async def _mark_root(kv: KeyValue, cluster: str, fs: FileSystem, guard: Guard) -> None:
    """Give the root's record format 2; write the record if the store has none.

    A process with an earlier ``cluster.json`` in hand may be about to bind a root without a record: its record would be
    of format 1, for good.  The store takes one of the two records, and a record of format 1 is found and marked.
    """
    key = root_key(cluster)
    entry = await kv.get(key)
    if entry is None:
        record = RootRecord(root_id=await make_root_id(fs), url=without_userinfo(fs.url))
    elif (record := decode_root(entry)).has_levels:
        return
    revision = 0 if entry is None else entry.revision
    compares, put = guard(), Put(key, encode_root(replace(record, has_levels=True)))
    done, _ = await commit_settled(kv, [*compares, Compare(key, revision)], [put])
    if done.succeeded:
        return
    if is_deposed(compares, done):
        raise deposed()
    found = done.current[key]
    if found is None or not decode_root(found).has_levels:  # else an earlier try has done it, its response was lost
        raise KvUnavailable(f"{key} was changed at the same time")
