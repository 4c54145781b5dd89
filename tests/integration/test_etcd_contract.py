"""The key-value store's contract (``tests.unit.meta.test_kv_contract``) on a real etcd.

etcd forgets its history when it is told to, not by itself after so many revisions: the tests about that are here again,
in their own words.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bmq.meta.etcd import messages_pb2 as pb
from bmq.meta.etcd.address import parse_etcd_url
from bmq.meta.etcd.cursor import WatchCursor
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.etcd.store import EtcdKeyValue
from bmq.meta.kv import Changes, Compacted, Delete, Entry, Event, KeyValue, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.open import open_keyvalue
from tests.services.etcd import EtcdCluster
from tests.unit.meta.test_kv_contract import *  # noqa: F403
from tests.unit.meta.test_kv_contract import Store, listed, next_changes, put, random_commit


@asynccontextmanager
async def opened_etcd(url: str) -> AsyncIterator[KeyValue]:
    kv = await open_keyvalue(url)
    try:
        yield kv
    finally:
        await kv.close()


@pytest.fixture  # type: ignore[no-redef]  # the suite's own knows no etcd
def store(etcd: EtcdCluster) -> Store:
    return opened_etcd(etcd.url)


async def test_a_watch_too_far_back_or_too_slow_hears_compacted(store: Store, etcd: EtcdCluster) -> None:  # type: ignore[no-redef]
    async with store as kv:
        slow = kv.watch("", after_revision=1)
        await put(kv, "a")
        await anext(slow)
        for _ in range(4):
            await put(kv, "a", bytes(500_000))  # more than flow control lets through to a reader that is away
        etcd.compact(5)
        for after_revision in (1, 4):
            with pytest.raises(Compacted) as too_far:
                await next_changes(kv, "", after_revision, 1)
            assert too_far.value.revision == 5
        assert [found[0].revision for found in await next_changes(kv, "", 5, 1)] == [6]
        # What etcd had sent before it forgot is given still; nothing is left out either way.
        for revision in range(3, 7):
            try:
                assert (await anext(slow))[0].revision == revision
            except Compacted:
                break
        await slow.aclose()


async def test_a_deletion_at_the_compacted_revision_is_not_missed(store: Store, etcd: EtcdCluster) -> None:
    """etcd takes a watch from the compacted revision on, of which older versions keep no deletions."""

    async with store as kv:
        await put(kv, "a")
        await kv.commit([], [Delete("a")])
        etcd.compact(3)
        with pytest.raises(Compacted):
            await next_changes(kv, "", 2, 1)


async def test_a_watch_of_a_quiet_prefix_outlives_the_history(  # type: ignore[no-redef]
    etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Disconnect a watch after a compaction: it had requested its progress, so it goes on without a loss."""
    is_up_to_date = asyncio.Event()

    class Spy(WatchCursor):
        def take(self, response: pb.WatchResponse) -> list[Changes]:
            found = super().take(response)
            if self.seen == 31:
                is_up_to_date.set()
            return found

    monkeypatch.setattr("bmq.meta.etcd.watching.WatchCursor", Spy)

    kv = await EtcdKeyValue.open(parse_etcd_url(etcd.url), EtcdSettings(progress_s=0.5))
    watching = asyncio.create_task(next_changes(kv, "quiet", 1, 1))
    for _ in range(30):
        await put(kv, "busy")
    await is_up_to_date.wait()
    etcd.compact(31)
    etcd.restart(0)
    revision = await put(kv, "quiet")
    assert await watching == [[Event("quiet", Entry("quiet", b"", revision), revision)]]
    await kv.close()


async def test_large_revisions_are_whole_however_they_are_sent(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd sends what is past 2 MB in fragments, which end in the midst of a revision."""
    fragments = 0

    class Spy(WatchCursor):
        def take(self, response: pb.WatchResponse) -> list[Changes]:
            nonlocal fragments
            fragments += response.fragment
            return super().take(response)

    monkeypatch.setattr("bmq.meta.etcd.watching.WatchCursor", Spy)

    async with store as kv:
        for n in range(6):
            writes = [Put(f"{n}/{m}", bytes(300_000)) for m in range(3)]
            await kv.commit([], writes)
        found = await next_changes(kv, "", 1, 6)
        assert [[event.key for event in changes] for changes in found] == [
            [f"{n}/{m}" for m in range(3)] for n in range(6)
        ]
        assert fragments > 0


@pytest.mark.smoke  # type: ignore[no-redef]
@pytest.mark.parametrize("seed", range(2))
async def test_the_adapters_agree_on_random_histories(seed: int, store: Store) -> None:
    async with store as kv:
        dice, memory = random.Random(seed), MemoryKeyValue(MemoryStore())
        for _ in range(60):
            compares, writes = random_commit(dice)
            assert await kv.commit(compares, writes) == await memory.commit(compares, writes)
            prefix, after, limit = dice.choice(["", "a", "b/"]), dice.choice(["", "a", "b"]), dice.randint(1, 4)
            assert await listed(kv, prefix, after, limit) == await listed(memory, prefix, after, limit)
        count = await memory.revision() - 1
        assert await next_changes(kv, "", 1, count) == await next_changes(memory, "", 1, count)
