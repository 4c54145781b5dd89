"""The cache of segments' indexes: its bound, and which indexes it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from bmq.spark.planning.index_cache import IndexCache
from bmq.storage.filesystem import FileSystem
from tests.unit.spark.checkpoints import said
from tests.unit.spark.storing import Store


def test_indexes_are_kept_within_a_bound() -> None:
    cache = IndexCache(bytes_max=100)
    whole = replace(said(Store(cast(FileSystem, None)), 1), position=7)
    for n in range(5):
        cache.put(f"{n}.idx", 7, whole, 40)
    assert [cache.get(f"{n}.idx", 7) for n in range(5)] == [None, None, None, whole, whole]
    assert repr(cache) == "<IndexCache 2 indexes of 80 bytes>"
    cache.put("4.idx", 7, whole, 60)
    assert repr(cache) == "<IndexCache 2 indexes of 100 bytes>"
    cache.put("large.idx", 7, whole, 101)
    cache.put("partial.idx", 9, whole, 1)
    assert cache.get("large.idx", 7) is None
    assert cache.get("partial.idx", 9) is None
    assert cache.get("4.idx", 8) is None, "it was joined with its neighbour"
