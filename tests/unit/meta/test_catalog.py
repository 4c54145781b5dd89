"""The watched view of topics and configs: it starts from a list, follows, survives compaction, and is never ahead."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from random import Random

import pytest

from bmq.core.errors import FormatError
from bmq.meta.catalog import (
    KvCatalog,
    Owned,
    Topic,
    TopicChange,
    broker_configs_key,
    cluster_id_key,
    decode_topic,
    encode_configs,
    encode_topic,
    topic_key,
)
from bmq.meta.kv import Compare, Delete, Entry, KvError, KvUnavailable, Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from tests.harness.loop import run

pytestmark = pytest.mark.slow


def topic(name: str, number: int = 1, partitions: int = 1) -> Topic:
    return Topic(name=name, topic_id=uuid.UUID(int=number), partitions=partitions)


async def put(kv: MemoryKeyValue, made: Topic) -> int:
    return (await kv.commit([], [Put(topic_key("c", made.name), encode_topic(made))])).revision


def partition_counts(changes: list[TopicChange]) -> list[tuple[int | None, int | None]]:
    """Return changes as pairs of the ids' numbers."""
    return [(c.before.topic_id.int if c.before else None, c.after.topic_id.int if c.after else None) for c in changes]


def test_a_topic_is_read_as_it_was_written() -> None:
    wanted = replace(topic("t", 7, 3), configs={"b": "2", "a": "1"}, replication_factor=3)
    found = decode_topic("t", Entry("k", encode_topic(wanted), 9))
    assert found == replace(wanted, revision=9)
    assert encode_topic(wanted) == (
        b'{"format":1,"id":"00000000-0000-0000-0000-000000000007","partitions":3,"replication_factor":3,'
        b'"configs":{"a":"1","b":"2"}}'
    )
    owned = replace(wanted, principal="User:alice")
    assert decode_topic("t", Entry("k", encode_topic(owned), 9)) == replace(owned, revision=9)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":2}',
        b'{"format":1}',
        b'{"format":1,"id":"x"}',
        b'{"format":1,"id":"00000000-0000-0000-0000-000000000007","partitions":3,"replication_factor":3,"configs":{},'
        b'"principal":7}',
    ],
)
def test_what_is_no_topic_is_refused(value: bytes) -> None:
    with pytest.raises(FormatError):
        decode_topic("t", Entry("k", value, 9))


async def test_refresh_waits_until_the_view_shows_what_the_store_has() -> None:
    kv = MemoryKeyValue(MemoryStore())
    catalog = KvCatalog(kv, "c")
    await catalog.start()
    await put(kv, topic("new", 2))
    assert "new" not in catalog.topics, "the watch tells of it in a later turn"
    found = await catalog.refresh("new")
    assert found is not None
    assert catalog.topics["new"] == found
    assert await catalog.refresh("nothing") is None
    await kv.commit([], [Put(topic_key("c", "later"), b'{"format":9}')])
    with pytest.raises(FormatError):
        await catalog.refresh("later")
    await catalog.close()


async def test_a_copied_key_of_a_topic_is_set_aside() -> None:
    """Two names with one id share partitions and files; the second name is not shown, and stops no view."""

    kv, failed = MemoryKeyValue(MemoryStore()), list[str]()
    await put(kv, topic("before", 1))
    await put(kv, topic("before-copy", 1))
    catalog, changes = KvCatalog(kv, "c", failed.append), list[TopicChange]()
    catalog.subscribe(changes.append)
    await catalog.start()
    await put(kv, topic("after", 2))
    await catalog.wait_revision(await put(kv, topic("after-copy", 2)))
    assert set(catalog.topics) == {"before", "after"}
    assert set(catalog.unreadable) == {topic_key("c", "before-copy"), topic_key("c", "after-copy")}
    assert "has the id of topic before," in catalog.unreadable[topic_key("c", "before-copy")]
    for name in ("before", "before-copy", "after-copy", "after"):
        revision = (await kv.commit([], [Delete(topic_key("c", name))])).revision
    await catalog.wait_revision(revision)
    assert not catalog.topics
    assert not catalog.unreadable
    await catalog.wait_revision(await put(kv, topic("again", 1)))
    assert catalog.by_id(uuid.UUID(int=1)) == catalog.topics["again"]
    assert partition_counts(changes) == [(None, 1), (None, 2), (1, None), (2, None), (None, 1)]
    await catalog.close()
    assert failed == []


async def test_it_shows_what_was_there_and_follows() -> None:
    kv = MemoryKeyValue(MemoryStore())
    await put(kv, topic("old"))
    await kv.commit([], [Put(broker_configs_key("c", None), encode_configs({"log.retention.ms": "1"}))])
    catalog = KvCatalog(kv, "c")
    changes: list[TopicChange] = []
    configs: list[None] = []
    catalog.subscribe(changes.append)
    catalog.subscribe_configs(lambda: configs.append(None))
    await catalog.start()
    assert set(catalog.topics) == {"old"}
    assert catalog.broker_configs(None) == {"log.retention.ms": "1"}
    version = catalog.version
    await catalog.wait_revision(await put(kv, topic("new", 2)))
    assert set(catalog.topics) == {"old", "new"}
    assert catalog.version == version + 1
    found = catalog.by_id(uuid.UUID(int=2))
    assert found is not None
    assert found.name == "new"
    await catalog.wait_revision((await kv.commit([], [Delete(topic_key("c", "old"))])).revision)
    assert catalog.by_id(uuid.UUID(int=1)) is None
    done = await kv.commit([], [Put(broker_configs_key("c", 5), encode_configs({"a": "b"}))])
    await catalog.wait_revision(done.revision)
    assert catalog.broker_configs(5) == {"a": "b"}
    assert catalog.broker_configs(6) == {}
    assert partition_counts(changes) == [(None, 1), (None, 2), (1, None)]
    assert len(configs) == 2
    await catalog.close()


async def test_a_principal_owns_what_it_created_while_it_is_there() -> None:
    store = MemoryStore()
    kv = MemoryKeyValue(store)
    view = KvCatalog(kv, "c")
    alice = "User:alice"
    await put(kv, replace(topic("a", 1, 2), principal=alice))
    await put(kv, topic("old", 2, 50))
    await view.start()
    assert view.owned_by(alice) == Owned(1, 2)
    await put(kv, replace(topic("b", 3, 3), principal=alice))
    await view.wait_revision(await put(kv, replace(topic("a", 1, 7), principal=alice)))
    assert view.owned_by(alice) == Owned(2, 10)
    await put(kv, replace(topic("a", 4, 1), principal="User:bob"))
    await view.wait_revision((await kv.commit([], [Delete(topic_key("c", "b"))])).revision)
    assert (view.owned_by(alice), view.owned_by("User:bob")) == (Owned(), Owned(1, 1))
    await view.close()


async def test_a_topic_made_anew_under_its_name_is_two_changes() -> None:
    """Compact the store meanwhile, so that the view does not see the deletion: it still reports two changes."""

    store = MemoryStore(history=3)
    kv, watcher = MemoryKeyValue(store), MemoryKeyValue(store)
    await put(kv, topic("t", 1))
    await put(kv, topic("gone", 9))
    catalog = KvCatalog(watcher, "c")
    changes: list[TopicChange] = []
    await catalog.start()
    catalog.subscribe(changes.append)
    watcher.pause()
    await kv.commit([], [Delete(topic_key("c", "t")), Delete(topic_key("c", "gone"))])
    for number in range(2, 12):  # far past the history
        await put(kv, topic("t", 2, partitions=number))
    last = await put(kv, topic("u", 3))
    watcher.resume()
    await catalog.wait_revision(last)
    assert partition_counts(changes) == [(9, None), (1, None), (None, 2), (None, 3)]
    assert catalog.topics["t"].partitions == 11
    assert catalog.topics["t"].revision == last - 1
    await catalog.close()


def test_the_cluster_id_is_made_once() -> None:
    async def main(seed: int) -> None:
        store = MemoryStore()
        faults = KvFaults(unknown_applied=0.2, unknown_lost=0.1, unknown_late=0.1, unavailable=0.1, latency_s=0.05)
        catalogs = [KvCatalog(MemoryKeyValue(store, random=Random(seed + n), faults=faults), "c") for n in range(5)]
        outcomes = await asyncio.gather(*(catalog.start() for catalog in catalogs), return_exceptions=True)
        await asyncio.sleep(5)  # late commits arrive
        found = store.get(cluster_id_key("c"))
        assert found is not None
        started = [catalog for catalog, outcome in zip(catalogs, outcomes, strict=True) if outcome is None]
        assert started
        assert {catalog.cluster_id for catalog in started} == {found.value.decode()}
        assert len(found.value) == 22
        assert all(outcome is None or isinstance(outcome, KvError) for outcome in outcomes)
        for catalog in catalogs:
            await catalog.close()

    for seed in range(0, 100, 10):
        run(main(seed), seed)


async def test_a_store_that_is_away_at_the_start_is_said() -> None:
    store = MemoryStore()
    store.stop()
    with pytest.raises(KvUnavailable):
        await KvCatalog(MemoryKeyValue(store), "c").start()


async def test_an_outage_is_waited_out() -> None:
    store = MemoryStore(history=2)
    kv = MemoryKeyValue(store)
    catalog = KvCatalog(MemoryKeyValue(store), "c")
    await catalog.start()
    await put(kv, topic("a", 1))
    store.stop()
    await asyncio.sleep(60)
    store.start(asyncio.get_running_loop().time())
    for number in range(2, 9):
        revision = await put(kv, topic("a", 1, number))
    await catalog.wait_revision(revision)
    assert catalog.topics["a"].partitions == 8
    await catalog.close()


def test_random_changes_under_faults_end_in_the_stores_truth() -> None:
    """Whatever is lost on the way, the view ends up as the store is, and each topic's changes fit together."""

    async def main(seed: int) -> None:
        random = Random(seed)
        store = MemoryStore(history=random.choice([2, 5, 1000]))
        kv = MemoryKeyValue(store)
        faults = KvFaults(latency_s=0.05, unavailable=0.3)
        catalog = KvCatalog(MemoryKeyValue(store, random=random), "c")
        await catalog.start()
        shown: dict[str, Topic] = {}

        def follow(change: TopicChange) -> None:
            name = (change.before or change.after or topic("")).name
            assert shown.get(name) == change.before
            if change.before is not None and change.after is not None:
                assert change.before.topic_id == change.after.topic_id
            if change.after is None:
                del shown[name]
            else:
                shown[name] = change.after

        catalog.subscribe(follow)
        watcher = catalog._kv
        assert isinstance(watcher, MemoryKeyValue)
        watcher.faults = faults
        for number in range(1, 80):
            name = random.choice("abcd")
            if random.random() < 0.4:
                await kv.commit([], [Delete(topic_key("c", name))])
            else:
                held = store.get(topic_key("c", name))
                if held is not None and random.random() < 0.5:
                    await put(kv, replace(decode_topic(name, held), partitions=number))
                else:
                    await put(kv, topic(name, number))
            await asyncio.sleep(random.choice([0, 0, 0.02, 0.3]))
        last = await put(kv, topic("last", 1000))
        await catalog.wait_revision(last)
        truth = {e.key.rsplit("/", 1)[-1]: e async for e in kv.list("/c/catalog/topics/")}
        assert catalog.topics == {name: decode_topic(name, entry) for name, entry in truth.items()} == shown
        await catalog.close()

    for seed in range(20):
        run(main(seed), seed)


async def test_a_later_formats_change_leaves_what_was_there() -> None:
    kv = MemoryKeyValue(MemoryStore())
    catalog = KvCatalog(kv, "c")
    await catalog.start()
    await put(kv, topic("t"))
    done = await kv.commit([], [Put(topic_key("c", "t"), b'{"format":2}')])
    await catalog.wait_revision(done.revision)
    assert catalog.topics["t"].partitions == 1
    assert list(catalog.unreadable) == [topic_key("c", "t")]
    await catalog.close()


BAD = {
    topic_key("c", "float"): b'{"format":1,"id":"%s","partitions":1.5,"replication_factor":1,"configs":{}}',
    topic_key("c", "bool"): b'{"format":1,"id":"%s","partitions":true,"replication_factor":1,"configs":{}}',
    topic_key("c", "none"): b'{"format":1,"id":"%s","partitions":0,"replication_factor":1,"configs":{}}',
    topic_key("c", "many"): b'{"format":1,"id":"%s","partitions":100001,"replication_factor":1,"configs":{}}',
    topic_key("c", "copies"): b'{"format":1,"id":"%s","partitions":1,"replication_factor":"3","configs":{}}',
    topic_key("c", "list"): b'{"format":1,"id":"%s","partitions":1,"replication_factor":1,"configs":[]}',
    topic_key("c", "texts"): b'{"format":1,"id":"%s","partitions":1,"replication_factor":1,"configs":{"a":1}}',
    topic_key("c", "a/b"): b'{"format":1,"id":"%s","partitions":1,"replication_factor":1,"configs":{}}',
    topic_key("c", "later"): b'{"format":2}',
    topic_key("c", "bytes"): b"\xff",
    topic_key("c", "deep"): b"[" * 100_000,
    broker_configs_key("c", None) + "x/../../y": b'{"format":1,"configs":{}}',
    broker_configs_key("c", 3): b'{"format":1,"configs":{"a":1}}',
    broker_configs_key("c", 4): b'{"format":1,"configs":null}',
}


@pytest.mark.parametrize("is_started", [False, True])
async def test_one_bad_key_stops_nobody(is_started: bool) -> None:
    """Neither one that comes while the view follows, nor one that is there when it starts."""

    failures: list[str] = []
    kv = MemoryKeyValue(MemoryStore())
    catalog = KvCatalog(kv, "c", failures.append)
    changes: list[TopicChange] = []
    catalog.subscribe(changes.append)
    if is_started:
        await catalog.start()
    for key, value in BAD.items():
        await kv.commit([], [Put(key, value.replace(b"%s", str(uuid.UUID(int=9)).encode()))])
    await put(kv, topic("sound"))
    if not is_started:
        await catalog.start()
    await catalog.wait_revision(await kv.revision())
    assert set(catalog.topics) == {"sound"}
    assert set(catalog.unreadable) == set(BAD)
    assert catalog.broker_configs(3) == {}
    for key in BAD:
        done = await kv.commit([], [Delete(key)])
    await catalog.wait_revision(done.revision)
    assert catalog.unreadable == {}
    assert len(changes) == 1
    await catalog.close()
    assert failures == []


async def test_a_key_that_is_mended_is_shown() -> None:
    kv = MemoryKeyValue(MemoryStore())
    await kv.commit([], [Put(topic_key("c", "t"), b"")])
    catalog = KvCatalog(kv, "c")
    await catalog.start()
    assert "t" not in catalog.topics
    await catalog.wait_revision(await put(kv, topic("t", 1, 3)))
    assert catalog.topics["t"].partitions == 3
    assert catalog.unreadable == {}
    await catalog.close()


async def test_whoever_waits_hears_of_the_end() -> None:
    catalog = KvCatalog(MemoryKeyValue(MemoryStore()), "c")
    await catalog.start()
    waiter = asyncio.create_task(catalog.wait_revision(1_000))
    await asyncio.sleep(1)
    await catalog.close()
    with pytest.raises(KvUnavailable):
        await waiter
    with pytest.raises(KvUnavailable):
        await catalog.wait_revision(1_000)
    await catalog.close()


async def test_a_subscriber_that_fails_stops_the_view_loudly() -> None:
    kv = MemoryKeyValue(MemoryStore())
    catalog = KvCatalog(kv, "c")
    await catalog.start()

    def fail(change: TopicChange) -> None:
        raise ZeroDivisionError

    catalog.subscribe(fail)
    with pytest.raises(ZeroDivisionError):
        await catalog.wait_revision(await put(kv, topic("t")) + 1)
    with pytest.raises(ZeroDivisionError):
        await catalog.close()


async def test_ten_thousand_topics_start_in_pages() -> None:
    """The start asks a dozen times, not once a topic."""

    store = MemoryStore()
    for number in range(10_000):
        made = topic(f"t{number}", number + 1)
        store.commit([Compare(topic_key("c", made.name), 0)], [Put(topic_key("c", made.name), encode_topic(made))], 0)
    kv = MemoryKeyValue(store, random=Random(0), faults=KvFaults(latency_s=0.01))
    catalog = KvCatalog(kv, "c")
    began = asyncio.get_running_loop().time()
    await catalog.start()
    assert len(catalog.topics) == 10_000
    assert asyncio.get_running_loop().time() - began < 0.5
    await catalog.close()
