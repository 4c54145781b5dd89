"""Repair without a server: a root and a store that do not belong together are refused, and nothing is written."""

from __future__ import annotations

import pytest

from bmq.broker.repair.repair import NotRepaired
from bmq.cli.repair.direct import check_root
from bmq.core.store_count import StoreCount
from bmq.meta.catalog import cluster_id_key
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.root import RootRecord, encode_root, root_key
from bmq.storage.cluster_files import check_cluster, put_feature_levels
from bmq.storage.feature_levels import StoredLevels
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from bmq.storage.root_id import make_root_id
from bmq.storage.store_counts import put_store_count


async def places(*, in_root: str, in_store: str, root_id: str | None = None) -> tuple[MemoryKeyValue, MemoryFileSystem]:
    """Return a store and a root with these cluster ids; the store knows the root by its id, or by `root_id`."""
    fs, kv = MemoryFileSystem(MemoryStorage(), "n"), MemoryKeyValue(MemoryStore())
    await check_cluster(fs, in_root)
    own = await make_root_id(fs)
    record = RootRecord(root_id=own if root_id is None else root_id, url="memory:")
    await kv.commit([], [Put(cluster_id_key("c"), in_store.encode()), Put(root_key("c"), encode_root(record))])
    return kv, fs


async def test_the_clusters_own_root_is_taken() -> None:
    kv, fs = await places(in_root="id", in_store="id")
    revision = await kv.revision()
    await check_root(kv, fs, "c")
    assert await kv.revision() == revision


@pytest.mark.parametrize(
    "ids",
    [
        {"in_root": "another", "in_store": "id"},
        {"in_root": "id", "in_store": "id", "root_id": "another"},
    ],
    ids=["another cluster's root", "another root of the cluster"],
)
async def test_a_root_that_the_store_does_not_know_is_refused(ids: dict[str, str]) -> None:
    kv, fs = await places(**ids)
    with pytest.raises(NotRepaired, match="is not the root of the cluster c in this metadata store"):
        await check_root(kv, fs, "c")


async def test_an_empty_root_is_refused() -> None:
    kv, _ = await places(in_root="id", in_store="id")
    with pytest.raises(NotRepaired):
        await check_root(kv, MemoryFileSystem(MemoryStorage(), "n"), "c")


async def test_a_store_that_is_older_than_its_root_is_refused() -> None:
    kv, fs = await places(in_root="id", in_store="id")
    await put_store_count(fs, StoreCount(rebuild_count=0, number=7, id="a" * 32))
    with pytest.raises(NotRepaired, match=r"older than storage.*bmq cluster rebuild"):
        await check_root(kv, fs, "c")


async def test_a_level_that_this_version_does_not_support_is_refused() -> None:
    kv, fs = await places(in_root="id", in_store="id")
    await put_feature_levels(fs, StoredLevels(revision=9, levels={"transaction.version": 3}))
    with pytest.raises(NotRepaired, match=r"transaction\.version 3 is in force, this version supports 0 to 2\. Use"):
        await check_root(kv, fs, "c")
