"""Repairs at an operator's command: refusals that say why, and failures after which the operator may repeat it."""

from __future__ import annotations

from random import Random

import pytest

from bmq.console.operations import NotPossible
from bmq.core.clock import LoopClock
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.queries.repairs import Repairs
from bmq.storage.block_cache import BlockCache
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

WANTED = {
    "topic": "orders", "partition": 0, "choice": "skip", "records": False, "all": False,
    "unreadable_is_lost": False, "apply": False,
}  # fmt: skip


def repairs_of(store: MemoryStore) -> Repairs:
    fs = MemoryFileSystem(MemoryStorage(Random(0)), "n")
    return Repairs(fs, MemoryKeyValue(store), LoopClock(), BlockCache(fs), "bmq")


async def test_a_partition_that_does_not_exist_is_refused() -> None:
    with pytest.raises(NotPossible) as refused:
        await repairs_of(MemoryStore()).repair(WANTED)
    assert (refused.value.status, refused.value.error) == (409, "not_repaired")
    assert "orders" in str(refused.value)


async def test_a_store_that_fails_leaves_the_repair_to_be_repeated() -> None:
    store = MemoryStore()
    store.stop()
    with pytest.raises(NotPossible) as failed:
        await repairs_of(store).repair(WANTED)
    assert (failed.value.status, failed.value.error) == (503, "not_repaired")
    assert str(failed.value).endswith(": run it again")
