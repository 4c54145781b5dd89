"""``MemoryKeyValue`` under a simulated process: delay, lost calls and responses, pauses, death, outages."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from bmq.meta.kv import (
    Commit,
    Compare,
    Delete,
    Entry,
    Event,
    KvError,
    KvUnavailable,
    KvUnknown,
    LeaseNotFound,
    Put,
)
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from tests.harness.seeds import seeds
from tests.harness.waiting import now


def client(store: MemoryStore, faults: KvFaults | None = None, *, seed: int = 1) -> MemoryKeyValue:
    return MemoryKeyValue(store, random=random.Random(seed), faults=faults)


async def hangs(task: asyncio.Future[Any]) -> bool:
    """Return whether the task is still waiting after a virtual hour; the wait does not end it."""
    done, _ = await asyncio.wait([task], timeout=3_600)
    return not done


async def end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_unavailable_means_that_nothing_was_done() -> None:
    store = MemoryStore()
    kv = client(store, KvFaults(unavailable=1))
    for call in (kv.commit([], [Put("a", b"")]), kv.get("a"), kv.revision(), kv.grant(1), kv.keep_alive(1)):
        with pytest.raises(KvUnavailable):
            await call
    assert store.revision == 1
    kv.faults = KvFaults()
    assert (await kv.commit([], [Put("a", b"")])).succeeded


@pytest.mark.parametrize(("faults", "revision"), [(KvFaults(unknown_applied=1), 2), (KvFaults(unknown_lost=1), 1)])
async def test_rule_3_an_unknown_commit_is_done_or_not(faults: KvFaults, revision: int) -> None:
    store = MemoryStore()
    kv = client(store, faults)
    with pytest.raises(KvUnknown):
        await kv.commit([], [Put("a", b"")])
    assert store.revision == revision


async def test_rule_3_an_unknown_commit_may_be_done_after_a_read_that_does_not_show_it() -> None:
    store = MemoryStore()
    kv = client(store, KvFaults(unknown_late=1, late_s=5))
    with pytest.raises(KvUnknown):
        await kv.commit([Compare("a", 0)], [Put("a", b"late")])
    kv.faults = KvFaults()
    assert await kv.get("a") is None
    await asyncio.sleep(5)
    assert await kv.get("a") == Entry("a", b"late", 2)


async def test_rule_3_a_further_commit_with_the_same_compares_settles_an_unknown_one() -> None:
    store = MemoryStore()
    kv = client(store, KvFaults(unknown_late=1, late_s=5))
    with pytest.raises(KvUnknown):
        await kv.commit([Compare("a", 0)], [Put("a", b"late")])
    kv.faults = KvFaults()
    assert await kv.commit([Compare("a", 0)], [Put("a", b"settled")]) == Commit(True, 2, {})
    await asyncio.sleep(5)
    assert await kv.get("a") == Entry("a", b"settled", 2)


async def test_a_lost_answer_hides_what_the_store_thought_of_the_call() -> None:
    for faults in (KvFaults(unknown_applied=1), KvFaults(unknown_late=1)):
        with pytest.raises(KvUnknown):
            await client(MemoryStore(), faults).revoke(77)
    await asyncio.sleep(1)  # the late one arrives, and LeaseNotFound reaches no caller


async def add_token(kv: MemoryKeyValue, token: bytes) -> None:
    """Append ``token`` to the list at "log" exactly once, the way the module's head says."""
    while True:
        try:
            entry = await kv.get("log")
            value, revision = (entry.value, entry.revision) if entry else (b"", 0)
            if token in value.split():
                return
            if (await kv.commit([Compare("log", revision)], [Put("log", value + b" " + token)])).succeeded:
                return
        except KvError:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", seeds(16, 500))
async def test_rule_3_compared_writes_happen_exactly_once_under_all_faults(seed: int) -> None:
    store = MemoryStore()
    unknown = {"unknown_applied": 0.15, "unknown_lost": 0.15, "unknown_late": 0.15}
    faults = KvFaults(latency_s=0.05, late_s=0.3, unavailable=0.1, **unknown)
    async with asyncio.TaskGroup() as group:
        for n in range(5):
            kv = client(store, faults, seed=seed * 5 + n)
            group.create_task(add_token(kv, b"%d" % n))
    await asyncio.sleep(1)  # all that is late has arrived
    entry = store.get("log")
    assert entry is not None
    assert sorted(entry.value.split()) == [b"0", b"1", b"2", b"3", b"4"], f"seed {seed}"


async def test_latency_is_paid_each_way_and_repeats_from_the_seed() -> None:
    async def measure(seed: int) -> list[float]:
        kv = client(MemoryStore(), KvFaults(latency_s=0.5), seed=seed)
        times = []
        for _ in range(20):
            began = now()
            await kv.commit([], [Put("a", b"")])
            times.append(now() - began)
        return times

    times = await measure(7)
    assert all(0 < took <= 1 for took in times)
    assert max(times) > 0.5
    assert await measure(7) == pytest.approx(times)
    assert await measure(8) != pytest.approx(times)


async def test_a_crashed_process_never_returns_and_changes_nothing_more() -> None:
    store = MemoryStore()
    kv, other = client(store, KvFaults(latency_s=1)), client(store)
    sent = asyncio.create_task(kv.commit([], [Put("sent", b"")]))
    watching = asyncio.create_task(anext(kv.watch("", after_revision=1)))
    await asyncio.sleep(0)  # both are under way
    kv.crash()
    later = asyncio.create_task(kv.commit([], [Put("later", b"")]))
    await other.commit([], [Put("other", b"")])
    kv.resume()  # brings nothing back
    for task in (sent, watching, later):
        assert await hangs(task)
    assert [entry.key async for entry in other.list("")] == ["other"]
    assert store.revision == 2
    await end(sent, watching, later)


async def test_a_crash_stops_what_is_late() -> None:
    store = MemoryStore()
    kv = client(store, KvFaults(unknown_late=1))
    with pytest.raises(KvUnknown):
        await kv.commit([], [Put("a", b"")])
    kv.crash()
    await asyncio.sleep(10)
    assert store.revision == 1


async def test_a_crashed_process_loses_its_lease_in_time_and_others_see_it() -> None:
    store = MemoryStore()
    kv, other = client(store), client(store)
    lease = await kv.grant(10)
    await asyncio.sleep(4)
    assert await kv.keep_alive(lease) == 10
    await kv.commit([], [Put("alive", b"", lease)])
    kv.crash()
    assert await anext(other.watch("alive", after_revision=2)) == [Event("alive", None, 3)]
    assert now() == pytest.approx(14)


async def test_a_paused_process_hears_nothing_until_it_resumes() -> None:
    store = MemoryStore()
    kv, other = client(store, KvFaults(latency_s=1)), client(store)
    watching = asyncio.create_task(anext(kv.watch("", after_revision=1)))
    sent = asyncio.create_task(kv.commit([], [Put("sent", b"")]))
    await asyncio.sleep(0)  # both are under way
    kv.pause()
    later = asyncio.create_task(kv.commit([Compare("later", 0)], [Put("later", b"mine")]))
    for task in (watching, sent, later):
        assert await hangs(task)
    assert await other.get("sent") == Entry("sent", b"", 2)  # it had left before the pause
    assert await other.get("later") is None
    await other.commit([], [Put("later", b"theirs")])
    kv.resume()
    assert await sent == Commit(True, 2, {})
    assert await watching == [Event("sent", Entry("sent", b"", 2), 2)]
    assert await later == Commit(False, 3, {"later": Entry("later", b"theirs", 3)})


async def test_a_process_paused_beyond_its_lease_has_lost_it() -> None:
    store = MemoryStore()
    kv, other = client(store), client(store)
    lease = await kv.grant(10)
    await kv.commit([], [Put("owner", b"", lease)])
    kv.pause()
    keeping = asyncio.create_task(kv.keep_alive(lease))
    await asyncio.sleep(11)
    assert await other.commit([Compare("owner", 0)], [Put("owner", b"next")]) == Commit(True, 4, {})
    kv.resume()
    with pytest.raises(LeaseNotFound):
        await keeping
    assert await kv.commit([Compare("owner", 2)], [Delete("owner")]) == Commit(
        False, 4, {"owner": Entry("owner", b"next", 4)}
    )


async def test_an_outage_ends_no_lease_and_watches_catch_up() -> None:
    store = MemoryStore()
    kv = client(store)
    lease = await kv.grant(10)
    await kv.commit([], [Put("a", b"", lease)])
    watch = kv.watch("", after_revision=1)
    await anext(watch)
    ending = asyncio.create_task(anext(watch))
    await asyncio.sleep(5)
    store.stop()
    assert await hangs(ending)
    with pytest.raises(KvUnavailable):
        await kv.keep_alive(lease)
    store.start(now())
    resumed = now()
    assert await ending == [Event("a", None, 3)]
    assert now() - resumed == pytest.approx(10)


async def test_a_watch_is_late_while_the_store_cannot_be_reached() -> None:
    store = MemoryStore()
    kv, other = client(store, KvFaults(unavailable=1)), client(store)
    watch = kv.watch("", after_revision=1)
    first = asyncio.create_task(anext(watch))
    for n in range(3):
        await other.commit([], [Put(f"k{n}", b"")])
    done, _ = await asyncio.wait([first], timeout=60)
    assert not done
    kv.faults = KvFaults()
    seen = [await first, await anext(watch), await anext(watch)]
    assert [changes[0].key for changes in seen] == ["k0", "k1", "k2"]


async def test_the_state_is_one_line() -> None:
    store = MemoryStore()
    kv = client(store)
    await kv.commit([], [Put("a", b"")])
    kv.pause()
    assert repr(kv) == "MemoryKeyValue(paused, late=0, MemoryStore(revision=2, compacted=1, keys=1))"
