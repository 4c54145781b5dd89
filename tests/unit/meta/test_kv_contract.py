"""The contract of every ``KeyValue`` (meta/kv.py), checked on each adapter that needs no server."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path

import pytest

from bmq.meta.kv import (
    COMMIT_BYTES_MAX,
    COMMIT_OPERATIONS_MAX,
    Changes,
    Commit,
    Compacted,
    Compare,
    Delete,
    Entry,
    Event,
    KeyValue,
    KvUnavailable,
    LeaseNotFound,
    Put,
    Write,
)
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.kv_sqlite import SqliteKeyValue
from tests.harness.seeds import seeds

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

Store = AbstractAsyncContextManager[KeyValue]

HISTORY = 20
TTL_S = 1.0  # real time, with room for a slow machine between two calls
shared = pytest.mark.parametrize("store", ["memory"], indirect=True)
"""A promise of stores that several processes share: over SQLite a lease ends with the process."""


@asynccontextmanager
async def opened(adapter: str, folder: Path) -> AsyncIterator[KeyValue]:
    kv: KeyValue
    if adapter == "memory":
        kv = MemoryKeyValue(MemoryStore(history=HISTORY))
    else:
        kv = await SqliteKeyValue.open(str(folder / "kv.db"), history=HISTORY)
    try:
        yield kv
    finally:
        await kv.close()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return a fresh store, to be opened."""
    return opened(request.param, tmp_path)


async def put(kv: KeyValue, key: str, value: bytes = b"", lease: int = 0) -> int:
    commit = await kv.commit([], [Put(key, value, lease)])
    assert commit.succeeded
    return commit.revision


async def keys(kv: KeyValue, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
    return [entry.key async for entry in kv.list(prefix, after=after, limit=limit)]


async def next_changes(kv: KeyValue, prefix: str, after_revision: int, count: int) -> list[Changes]:
    """Return the changes of the first ``count`` revisions, each in order of keys."""
    found: list[Changes] = []
    async with aclosing(kv.watch(prefix, after_revision=after_revision)) as watch:
        while len(found) < count:
            found.append(sorted(await anext(watch), key=lambda event: event.key))
    return found


async def test_a_commit_takes_one_revision_for_all_its_writes(store: Store) -> None:
    async with store as kv:
        assert await kv.revision() == 1
        assert await kv.get("a") is None
        assert await kv.commit([], [Put("a", b"1"), Put("b", b"2")]) == Commit(True, 2, {})
        assert await kv.get("a") == Entry("a", b"1", 2)
        assert await kv.get("b") == Entry("b", b"2", 2)
        assert await put(kv, "a", b"1") == 3  # the same value is a write all the same
        assert await kv.get("a") == Entry("a", b"1", 3)
        assert await kv.get("b") == Entry("b", b"2", 2)
        assert await kv.revision() == 3


async def test_a_false_compare_changes_nothing_and_shows_what_is_there(store: Store) -> None:
    async with store as kv:
        await put(kv, "a", b"old")
        await put(kv, "guard", b"g")
        refused = await kv.commit(
            [Compare("a", 2), Compare("guard", 2), Compare("none", 0)], [Put("a", b"new"), Delete("guard")]
        )
        current = {"a": Entry("a", b"old", 2), "guard": Entry("guard", b"g", 3), "none": None}
        assert refused == Commit(False, 3, current)
        assert await kv.get("a") == Entry("a", b"old", 2)
        assert await kv.commit([Compare("a", 2), Compare("guard", 3)], [Delete("a")]) == Commit(True, 4, {})
        assert await kv.commit([Compare("a", 2)], [Put("a", b"")]) == Commit(False, 4, {"a": None})


async def test_a_commit_that_changes_nothing_takes_no_revision(store: Store) -> None:
    async with store as kv:
        await put(kv, "a")
        assert await kv.commit([], [Delete("none")]) == Commit(True, 2, {})
        assert await kv.commit([Compare("a", 2)], []) == Commit(True, 2, {})
        assert await kv.commit([], [Delete("none"), Put("b", b"")]) == Commit(True, 3, {})
        assert await next_changes(kv, "", 1, 2) == [
            [Event("a", Entry("a", b"", 2), 2)],
            [Event("b", Entry("b", b"", 3), 3)],
        ]


async def test_of_many_who_compare_the_same_one_wins(store: Store) -> None:
    async with store as kv:
        commits = await asyncio.gather(
            *(kv.commit([Compare("leader", 0)], [Put("leader", str(who).encode())]) for who in range(50))
        )
        winners = [who for who, commit in enumerate(commits) if commit.succeeded]
        entry = await kv.get("leader")
        assert entry is not None
        assert winners == [int(entry.value)]
        assert all(commit.current == {"leader": entry} for commit in commits if not commit.succeeded)


async def test_no_increment_is_lost(store: Store) -> None:
    async def add_ten(kv: KeyValue) -> None:
        done = 0
        while done < 10:
            entry = await kv.get("n")
            count, revision = (int(entry.value), entry.revision) if entry else (0, 0)
            done += (await kv.commit([Compare("n", revision)], [Put("n", str(count + 1).encode())])).succeeded

    async with store as kv:
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(add_ten(kv))
        entry = await kv.get("n")
        assert entry is not None
        assert entry.value == b"100"


@pytest.mark.parametrize(
    ("compares", "writes"),
    [
        ([], [Put("a", b""), Put("a", b"")]),
        ([], [Put("a", b""), Delete("a")]),
        ([], [Put("", b"")]),
        ([Compare("", 0)], []),
        ([Compare("a", -1)], []),
        ([], [Delete(str(n)) for n in range(COMMIT_OPERATIONS_MAX + 1)]),
        ([Compare(str(n), 0) for n in range(COMMIT_OPERATIONS_MAX + 1)], []),
        ([], [Put("a", bytes(COMMIT_BYTES_MAX))]),
    ],
)
async def test_a_commit_beyond_the_limits_is_refused(
    store: Store, compares: list[Compare], writes: list[Write]
) -> None:
    async with store as kv:
        with pytest.raises(ValueError):
            await kv.commit(compares, writes)
        assert await kv.revision() == 1


async def test_a_commit_at_the_limits_is_done(store: Store) -> None:
    async with store as kv:
        many = [str(n) for n in range(COMMIT_OPERATIONS_MAX)]
        assert (await kv.commit([Compare(key, 0) for key in many], [Put(key, b"") for key in many])).succeeded
        assert await put(kv, "a", bytes(COMMIT_BYTES_MAX - 1)) == 3


async def test_list_gives_the_prefix_in_byte_order_whatever_the_page(store: Store) -> None:
    # UTF-16 would put U+10000 before U+FFFF; the neighbours of the prefixes must stay out.
    names = ["a", "a/", "a/1", "a/10", "a/2", "a/é", "a/\uffff", "a/\U00010000", "a/\U0010ffff", "a/\U0010ffffz", "a0"]

    async with store as kv:
        await kv.commit([], [Put(name, b"") for name in reversed(names)])
        assert await keys(kv, "") == names
        for limit in (1, 2, 3, 9, 10, 1000):
            assert await keys(kv, "a/", limit=limit) == names[1:-1]
        assert await keys(kv, "a/", after="a/10") == names[4:-1]
        assert await keys(kv, "a/", after="a/11", limit=2) == names[4:-1]
        assert await keys(kv, "a/", after="b") == []
        assert await keys(kv, "a/\U0010ffff") == ["a/\U0010ffff", "a/\U0010ffffz"]
        assert await keys(kv, "none") == []


async def test_list_goes_on_through_changes_between_its_pages(store: Store) -> None:
    async with store as kv:
        await kv.commit([], [Put(f"k{n}", b"") for n in range(6)])
        listing = kv.list("k", limit=2)
        seen = [(await anext(aiter(listing))).key, (await anext(aiter(listing))).key]
        await kv.commit([], [Delete("k1"), Delete("k2"), Put("k35", b"new")])
        seen += [entry.key async for entry in listing]
        assert seen == ["k0", "k1", "k3", "k35", "k4", "k5"]


async def test_revoke_deletes_the_leases_entries_under_one_revision(store: Store) -> None:
    async with store as kv:
        lease, other = await kv.grant(60), await kv.grant(60)
        assert lease != other
        assert 0 not in (lease, other)
        await kv.commit([], [Put(key, b"", lease) for key in ("a", "b", "freed", "moved")])
        await kv.commit([], [Put("freed", b""), Put("moved", b"", other)])
        assert await kv.get("a") == Entry("a", b"", 2, lease)
        assert await kv.get("moved") == Entry("moved", b"", 3, other)
        await kv.revoke(lease)
        assert await keys(kv, "") == ["freed", "moved"]
        assert await next_changes(kv, "", 3, 1) == [[Event("a", None, 4), Event("b", None, 4)]]
        await kv.revoke(await kv.grant(60))
        assert await kv.revision() == 4  # a lease without entries changes nothing


async def test_an_ended_lease_is_not_found_and_fails_the_whole_commit(store: Store) -> None:
    async with store as kv:
        lease = await kv.grant(60)
        await kv.revoke(lease)
        for call in (kv.keep_alive, kv.revoke):
            with pytest.raises(LeaseNotFound):
                await call(lease)
        with pytest.raises(LeaseNotFound):
            await kv.commit([], [Put("free", b""), Put("bound", b"", lease)])
        assert await kv.revision() == 1
        refused = await kv.commit([Compare("a", 7)], [Put("bound", b"", lease)])  # never got to the lease
        assert refused == Commit(False, 1, {"a": None})


@shared
async def test_a_lease_ends_by_itself_not_early_and_watches_see_it(store: Store) -> None:
    async with store as kv:
        lease = await kv.grant(TTL_S)
        await kv.commit([], [Put("a", b"", lease), Put("b", b"", lease)])
        began = time.monotonic()
        assert await kv.keep_alive(lease) == pytest.approx(TTL_S)
        assert await next_changes(kv, "", 2, 1) == [[Event("a", None, 3), Event("b", None, 3)]]
        assert time.monotonic() - began >= TTL_S
        assert await kv.get("a") is None
        with pytest.raises(LeaseNotFound):
            await kv.keep_alive(lease)


@shared
async def test_a_watch_already_waiting_sees_a_lease_granted_later_end(store: Store) -> None:
    async with store as kv:
        await kv.grant(3600)  # what the watch would otherwise wait for
        watch = kv.watch("leased", after_revision=1)
        await put(kv, "leased")
        await anext(watch)
        waiting = asyncio.create_task(next_changes(kv, "leased", 2, 2))
        await put(kv, "leased", b"", await kv.grant(TTL_S))
        await anext(watch)
        assert await anext(watch) == [Event("leased", None, 4)]
        assert (await waiting)[1] == [Event("leased", None, 4)]
        await watch.aclose()


async def test_watch_gives_each_revision_once_in_order_from_the_past_into_the_future(store: Store) -> None:
    async with store as kv:
        await put(kv, "p/a", b"1")
        await kv.commit([], [Put("p/b", b"2"), Put("q", b""), Put("p/c", b"3")])
        watching = asyncio.create_task(next_changes(kv, "p/", 1, 5))
        await put(kv, "q", b"not watched")
        await kv.commit([], [Delete("p/a"), Put("p/b", b"4")])
        await put(kv, "p/a", b"5")
        await put(kv, "p", b"not watched")
        await put(kv, "p/a", b"6")
        assert await watching == [
            [Event("p/a", Entry("p/a", b"1", 2), 2)],
            [Event("p/b", Entry("p/b", b"2", 3), 3), Event("p/c", Entry("p/c", b"3", 3), 3)],
            [Event("p/a", None, 5), Event("p/b", Entry("p/b", b"4", 5), 5)],
            [Event("p/a", Entry("p/a", b"5", 6), 6)],
            [Event("p/a", Entry("p/a", b"6", 8), 8)],
        ]


async def test_watches_miss_nothing_under_concurrent_commits(store: Store) -> None:
    async with store as kv:
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(next_changes(kv, "k", 1, 300)) for _ in range(5)]
            for n in range(100):  # three at a time: below the history, so that no watch is too slow
                await asyncio.gather(*(put(kv, f"k{n}-{m}") for m in range(3)))
        for watch in watches:
            assert [changes[0].revision for changes in watch.result()] == list(range(2, 302))


async def test_a_watch_from_a_future_revision_skips_what_comes_before(store: Store) -> None:
    async with store as kv:
        watching = asyncio.create_task(next_changes(kv, "", 3, 1))
        for n in range(4):
            await put(kv, f"k{n}")
        assert await watching == [[Event("k2", Entry("k2", b"", 4), 4)]]


async def test_a_watch_too_far_back_or_too_slow_hears_compacted(store: Store) -> None:
    async with store as kv:
        slow = kv.watch("", after_revision=1)
        await put(kv, "a")
        await anext(slow)
        for _ in range(HISTORY + 1):
            await put(kv, "a")
        with pytest.raises(Compacted) as too_slow:
            await anext(slow)
        assert too_slow.value.revision == 3  # now at 23: twenty are kept
        with pytest.raises(Compacted):
            await next_changes(kv, "", 2, 1)
        assert [found[0].revision for found in await next_changes(kv, "", 3, 20)] == list(range(4, 24))


async def test_a_watch_of_a_quiet_prefix_outlives_the_history(store: Store) -> None:
    async with store as kv:
        watching = asyncio.create_task(next_changes(kv, "quiet", 1, 1))
        busy = kv.watch("busy", after_revision=1)  # shows that the watches keep up
        for _ in range(HISTORY * 3):
            await put(kv, "busy")
            await anext(busy)
        revision = await put(kv, "quiet")
        assert await watching == [[Event("quiet", Entry("quiet", b"", revision), revision)]]
        await busy.aclose()


async def test_a_cancelled_watch_ends_and_leaves_the_store_as_it_was(store: Store) -> None:
    async with store as kv:
        watching = asyncio.create_task(next_changes(kv, "", 1, 2))
        await put(kv, "a")
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching
        assert await put(kv, "a") == 3


async def test_a_cancelled_commit_is_done_or_not_and_hurts_nobody_else(store: Store) -> None:
    async with store as kv:
        tasks = [asyncio.create_task(put(kv, f"k{n:02}")) for n in range(20)]
        await asyncio.sleep(0)  # let them send
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert set(await keys(kv, "k")) >= {f"k{n:02}" for n in range(1, 20, 2)}


async def test_close_ends_watches_refuses_calls_and_may_be_repeated(store: Store) -> None:
    async with store as kv:
        await put(kv, "a")
        watching = asyncio.create_task(next_changes(kv, "", 1, 3))
        under_way = asyncio.create_task(put(kv, "b"))
        await asyncio.sleep(0)  # let it send
        await kv.close()
        assert await under_way == 3
        with pytest.raises(KvUnavailable):
            await watching
        for call in (kv.revision(), kv.get("a"), kv.commit([], []), kv.grant(1), keys(kv, "")):
            with pytest.raises(KvUnavailable):
                await call
        await kv.close()


@pytest.mark.parametrize("seed", seeds(8, 40))
async def test_the_adapters_agree_on_random_histories(seed: int, tmp_path: Path) -> None:
    async def scenario(one: KeyValue, other: KeyValue) -> None:
        dice = random.Random(seed)
        for _ in range(60):
            compares, writes = random_commit(dice)
            assert await one.commit(compares, writes) == await other.commit(compares, writes)
            prefix, after, limit = dice.choice(["", "a", "b/"]), dice.choice(["", "a", "b"]), dice.randint(1, 4)
            assert await listed(one, prefix, after, limit) == await listed(other, prefix, after, limit)
        since = await one.revision() - dice.randrange(HISTORY)
        count = await one.revision() - since
        assert await next_changes(one, "", since, count) == await next_changes(other, "", since, count)

    async with asyncio.timeout(30), opened("memory", tmp_path) as one, opened("sqlite", tmp_path) as other:
        await scenario(one, other)


def random_commit(dice: random.Random) -> tuple[list[Compare], list[Write]]:
    names = dice.sample([head + tail for head, tail in itertools.product("ab", ["", "/", "/x", "/é"])], 3)
    compares = [Compare(name, dice.choice([0, 0, dice.randrange(40)])) for name in names[: dice.randrange(3)]]
    writes = [Put(name, dice.randbytes(3)) if dice.random() < 0.6 else Delete(name) for name in names]
    return compares, writes[: dice.randint(1, 3)]


async def listed(kv: KeyValue, prefix: str, after: str, limit: int) -> list[Entry]:
    return [entry async for entry in kv.list(prefix, after=after, limit=limit)]
