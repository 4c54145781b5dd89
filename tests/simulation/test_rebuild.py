"""The loss of the metadata store, at any moment, and its rebuilding from storage (``bmq cluster rebuild``).

Histories as in ``test_endpoint``, whose clients go on all the time and must not see more than an outage: what was
acknowledged, seen or committed stays.  The rebuilding itself is killed at each of its writes, and run again.
"""

from __future__ import annotations

import asyncio
import uuid
from random import Random
from typing import Any

import pytest

from bmq.cli.rebuild.run import Outcome, rebuild
from bmq.cli.rebuild.store import NotLost, mark_key
from bmq.controller.topics import internal_topics
from bmq.core.clock import LoopClock
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Record, build_batch
from bmq.meta import ownership
from bmq.meta.catalog import INTERNAL_TOPICS, KvCatalog, decode_topic, topic_key
from bmq.meta.cluster.assignment import decode_shards
from bmq.meta.cluster.keys import member_key, shards_key
from bmq.meta.kv import KeyValue, KvError, Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import GROUPS
from bmq.storage.cluster_files import WrongCluster, check_cluster, read_cluster, read_topic
from bmq.storage.filesystem import FileSystem, StorageError, write_once
from bmq.storage.layout import PartitionPath, topic_json
from bmq.storage.memory import Faults, MemoryFileSystem
from tests.harness.loop import run
from tests.harness.members import lone_broker
from tests.harness.waiting import until
from tests.simulation.group_clients import Member
from tests.simulation.histories import Histories, seeds_wanted
from tests.simulation.kafka_clients import create_and_delete, create_topic, observe, produce, produce_plain, topic_id
from tests.simulation.kafka_world import KafkaWorld
from tests.simulation.test_endpoint import PARTITIONS, TOPIC, verdict
from tests.simulation.test_partition import storage_faults, store_faults

pytestmark = pytest.mark.leaves_tasks

HISTORIES = Histories(module=__name__, seeds=seeds_wanted(40) // 25 or 1, blocks=10, limit_s=14_400)
ATTEMPTS, STORMY = 200, 10
ADOPTED = {TOPIC: PARTITIONS}
"""Storage may have been away when the topic was made: an operator would know of it."""


class Died(BaseException):
    """The process of the rebuilding ends here."""


class Mortal:
    """A file system, a store or an open file, that dies right before or right after the ``at``-th write of all."""

    WRITES = frozenset({"create", "rename", "replace", "delete", "fence", "flush", "close", "commit"})

    def __init__(self, inner: Any, fate: Fate) -> None:
        self._inner = inner
        self._fate = fate

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._inner, name)
        return self._watched(attribute) if name in self.WRITES else attribute

    def _watched(self, attribute: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self._fate.meet("before")
            result = await attribute(*args, **kwargs)
            self._fate.meet("after")
            return Mortal(result, self._fate) if hasattr(result, "flushed") else result

        return call


class Fate:
    def __init__(self, at: int, when: str) -> None:
        self.at, self.when = at, when
        self.writes = 0

    def meet(self, when: str) -> None:
        self.writes += when == "before"
        if self.writes == self.at and when == self.when:
            raise Died


async def rebuild_once(world: KafkaWorld, name: str, fate: Fate | None = None, *, is_dry: bool = False) -> Outcome:
    fs: FileSystem = MemoryFileSystem(world.storage, name)
    kv: KeyValue = MemoryKeyValue(world.store, random=world.rng, faults=world.kv_faults)
    if fate is None:
        return await rebuild(fs, kv, world.config, adopt=ADOPTED, is_dry=is_dry)
    mortal_fs: Any = Mortal(fs, fate)
    mortal_kv: Any = Mortal(kv, fate)
    try:
        return await rebuild(mortal_fs, mortal_kv, world.config, adopt=ADOPTED)
    finally:
        fs.crash()  # type: ignore[attr-defined]
        kv.crash()  # type: ignore[attr-defined]


async def lose_store(world: KafkaWorld, rng: Random) -> None:
    """Lose the store and the server; then rebuild, with crashes and interruptions, until it succeeds."""
    world.server.crash()
    given = ownership_numbers(world)
    world.store = MemoryStore()
    if rng.random() < 0.3:
        world.start()  # in vain: it finds that the store does not belong to storage
        await asyncio.sleep(2.0)
        world.server.crash()
        await asyncio.sleep(20.0)  # its lease ends
    weather = world.storage.faults, world.kv_faults
    for attempt in range(ATTEMPTS):
        if attempt == STORMY:  # some sixty calls in a row must succeed: not in every weather
            world.storage.faults, world.kv_faults = Faults(), KvFaults()
        fate = Fate(rng.randint(1, 15), rng.choice(("before", "after"))) if rng.random() < 0.5 else None
        try:
            await rebuild_once(world, f"r{len(world.servers)}-{attempt}", fate)
            break
        except (Died, StorageError, KvError):
            await asyncio.sleep(rng.random())
        except NotLost:
            assert attempt, "the store was empty"
            break  # it had been done: only the answer to its last commit was lost
    else:
        raise AssertionError(f"not rebuilt in {ATTEMPTS} tries, and only the first {STORMY} had other faults")
    world.storage.faults, world.kv_faults = weather
    world.start()
    await until(lambda: ownership_numbers(world).keys() >= given.keys(), 600.0)
    numbers = ownership_numbers(world)
    assert all(numbers[shard] > number for shard, number in given.items()), "the ownership of a shard was given twice"


def ownership_numbers(world: KafkaWorld) -> dict[int, int]:
    """Return the number of the last ownership of each shard of groups, as the store has it."""
    entry = world.store.get(shards_key(world.config.cluster, GROUPS))
    return {shard: owner.number for shard, owner in decode_shards(entry.value).items()} if entry is not None else {}


async def history(seed: int) -> int:
    rng = Random(seed)
    world = KafkaWorld(seed, faults=storage_faults(rng), kv_faults=store_faults(rng))
    world.start()
    await create_topic(world, TOPIC, PARTITIONS)
    work = [
        produce(world, "a", TOPIC, 0, rng.randint(10, 60)),
        produce(world, "b", TOPIC, 1, rng.randint(10, 60), window=2),
        produce_plain(world, "d", TOPIC, 1, rng.randint(5, 30)),
        observe(world, TOPIC, PARTITIONS),
        Member(world, "g", TOPIC, PARTITIONS).run(),
        Member(world, "g", TOPIC, PARTITIONS, instance="static-1").run(),
    ]
    if rng.random() < 0.4:
        work.append(create_and_delete(world, "scratch"))
    clients = [asyncio.create_task(each) for each in work]
    for _ in range(rng.randint(1, 3)):
        await asyncio.sleep(rng.choice((0.05, 0.5, 2.0, 8.0)) * rng.random())
        if rng.random() < 0.3:
            world.server.crash()
            world.start()
        await lose_store(world, rng)
        await create_topic(world, TOPIC, PARTITIONS)  # should storage have known nothing at all of it
    await asyncio.sleep(rng.uniform(5.0, 20.0))
    await verdict(world)
    for client in clients:
        client.cancel()
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return sum(map(len, world.observed.acked.values()))


def play(seed: int) -> int:
    return HISTORIES.play(history, seed)


@HISTORIES.each_block
def test_histories(block: int) -> None:
    acked = sum(map(play, HISTORIES.seeds_of(block)))
    HISTORIES.check_acted(block, acked)


def test_a_history_acknowledges_something() -> None:
    HISTORIES.check_one_acts(history)


# ------------------------------------------------------------------------------------------------- one fixed story


async def story(world: KafkaWorld) -> None:
    """Run a server for a while, kill it with everything open, then lose the store."""
    world.start()
    await create_topic(world, TOPIC, PARTITIONS)
    await create_topic(world, "gone", 1)
    group = asyncio.create_task(Member(world, "g", TOPIC, PARTITIONS).run())
    await asyncio.gather(produce(world, "a", TOPIC, 0, 40), produce(world, "b", TOPIC, 1, 40))
    await until(lambda: bool(world.observed.committed))
    group.cancel()
    world.server.crash()
    world.store = MemoryStore()


async def judge(world: KafkaWorld) -> None:
    assert world.observed.committed
    assert sum(map(len, world.observed.acked.values())) == 80
    await verdict(world)
    assert not world.starts_failed


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_write_and_run_again(when: str) -> None:
    async def body(at: int) -> bool:
        world = KafkaWorld(1)
        await story(world)
        try:
            await rebuild_once(world, "first", Fate(at, when))
        except Died:
            is_last = await is_done(world)
            if not is_last:
                await server_is_refused(world)
                await rebuild_once(world, "second")
            else:
                with pytest.raises(NotLost, match="topics already"):
                    await rebuild_once(world, "second")
            await judge(world)
            return True
        return False

    at = 1
    while run(body(at)):
        at += 1
    assert at > 6, "a cluster file (four writes), a mark, facts, an end"


async def is_done(world: KafkaWorld) -> bool:
    kv = MemoryKeyValue(world.store)
    return await kv.get(mark_key("bmq")) is None and await kv.get(topic_key("bmq", TOPIC)) is not None


async def server_is_refused(world: KafkaWorld) -> None:
    """Check that no server takes the store for its own before the rebuilding has ended, or has begun."""
    catalog = KvCatalog(MemoryKeyValue(world.store), "bmq")
    await catalog.start()
    with pytest.raises(WrongCluster, match="bmq cluster rebuild"):
        await check_cluster(MemoryFileSystem(world.storage, "early"), catalog.cluster_id)
    await catalog.close()


async def test_nothing_is_given_twice() -> None:
    """Producer ids, epochs and topic files are above all that the lost store gave; a dry run changes nothing."""

    world = KafkaWorld(2)
    await story(world)
    fs = MemoryFileSystem(world.storage, "look")
    before = await read_topic(fs, TOPIC)
    assert before is not None
    dry = await rebuild_once(world, "dry", is_dry=True)
    assert (await read_cluster(fs)).rebuild_count == 0  # type: ignore[union-attr]
    assert await MemoryKeyValue(world.store).revision() == 1
    outcome = await rebuild_once(world, "rebuild")
    assert (outcome.cluster, outcome.topics, outcome.partitions) == (dry.cluster, dry.topics, dry.partitions)
    assert outcome.cluster.rebuild_count == 1
    assert outcome.topics == 3
    assert outcome.open_segments == dry.open_segments > 0
    record, _ = await ownership.read(
        MemoryKeyValue(world.store), ownership.partition_key("bmq", PartitionKey(before.topic_id, 0))
    )
    assert record.epoch > 1000
    assert {entry.holder for entry in record.segments if not entry.is_closed} == {"s0"}
    await judge(world)
    catalog = KvCatalog(MemoryKeyValue(world.store), "bmq")
    await catalog.start()
    topic = catalog.topics[TOPIC]
    assert (topic.topic_id, topic.partitions, topic.configs) == (before.topic_id, PARTITIONS, before.configs)
    await catalog.close()
    after = await read_topic(fs, TOPIC)
    assert after is not None
    assert after.revision == 1 << 48 | topic.revision > before.revision, "the server has told storage anew"
    assert await topic_id(world.client(), TOPIC) == before.topic_id


async def test_deleted_topics_stay_away() -> None:
    """Lose the store before a deleted topic's files are gone: it stays deleted, the remaining files are reported."""

    world = KafkaWorld(3)
    world.start()
    await create_topic(world, TOPIC, PARTITIONS)
    await create_topic(world, "scratch", 1)
    await produce_plain(world, "d", "scratch", 0, 3)
    await world.server.node.admin.delete_topic("scratch")
    world.server.crash()
    world.store = MemoryStore()
    outcome = await rebuild_once(world, "rebuild")
    assert any("/topics/scratch/" in note for note in outcome.notes)
    kv = MemoryKeyValue(world.store)
    assert await kv.get(topic_key("bmq", "scratch")) is None
    assert await kv.get(topic_key("bmq", TOPIC)) is not None


async def test_topics_that_storage_was_never_told_of() -> None:
    """Rebuild without storage's records of topics: the operator adopts one by name, the groups' comes by itself."""

    world = KafkaWorld(7)
    await story(world)
    fs = MemoryFileSystem(world.storage, "look")
    for name in (TOPIC, "__consumer_offsets"):
        stored = await read_topic(fs, name)
        assert stored is not None
        await fs.delete(topic_json(name, stored.revision))
    alone = await rebuild(fs, MemoryKeyValue(world.store), world.config, is_dry=True)
    assert alone.topics == 2
    assert [note for note in alone.notes if f"--adopt {TOPIC}=PARTITIONS" in note]
    outcome = await rebuild_once(world, "rebuild")
    assert outcome.topics == 3
    assert len(outcome.notes) == 2
    await judge(world)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
async def test_an_internal_topic_without_a_file_comes_back_by_itself(name: str) -> None:
    """Open transactions would stay open without ``__transaction_state``, and old producers would not be fenced."""

    world = KafkaWorld(7)
    await story(world)
    fs, topic_id = MemoryFileSystem(world.storage, "look"), uuid.UUID(int=77)
    stored = await read_topic(fs, name)
    if stored is not None:
        topic_id = stored.topic_id
        await fs.delete(topic_json(name, stored.revision))
    else:
        segment = PartitionPath(name, str(topic_id), 3).log(SegmentName(0, 1, 0))
        await write_once(fs, segment, build_batch([Record(key=b"id")]))
    world.store = MemoryStore()
    kv = MemoryKeyValue(world.store)
    outcome = await rebuild(fs, kv, world.config)
    entry = await kv.get(topic_key("bmq", name))
    assert entry is not None
    topic = decode_topic(name, entry)
    assert (topic.topic_id, topic.partitions) == (topic_id, internal_topics.BY_NAME[name].partitions(world.config))
    assert topic.configs["cleanup.policy"] == "compact"
    assert any(note.startswith(f"topic {name}: its file is missing") for note in outcome.notes)


async def test_a_moved_log_start_stays() -> None:
    """Move the log start, which then stands in a journal only: no file was deleted, and none is closed."""

    world = KafkaWorld(8)
    await story(world)
    stored = await read_topic(MemoryFileSystem(world.storage, "look"), TOPIC)
    assert stored is not None
    key, path = PartitionKey(stored.topic_id, 0), PartitionPath(TOPIC, str(stored.topic_id), 0)

    async def opened(incarnation: str, delete_before: int) -> tuple[int, int]:
        fs, kv = MemoryFileSystem(world.storage, incarnation), MemoryKeyValue(world.store)
        broker = lone_broker(fs, kv, incarnation=incarnation, clock=LoopClock())
        await broker.start()
        driver = await broker.open(path, key)
        await driver.delete_before(delete_before)
        found = driver.machine.log_start, driver.machine.high_watermark
        fs.crash()
        kv.crash()
        return found

    for life in range(3):
        world.store = MemoryStore()
        await rebuild_once(world, f"rebuild{life}")
        assert await opened(f"b{life}", 7 if life == 0 else 0) == (7, 40)


async def test_a_store_in_use_is_refused() -> None:
    """Rebuild while a process runs, or with data in the store: nothing is written, not even to storage."""

    world = KafkaWorld(4)
    await story(world)
    kv = MemoryKeyValue(world.store)
    lease = await kv.grant(60)
    await kv.commit([], [Put(member_key("bmq", "b7"), b"{}", lease)])
    with pytest.raises(NotLost, match="b7 is running"):
        await rebuild_once(world, "rebuild")
    await kv.revoke(lease)
    await kv.commit([], [Put(topic_key("bmq", "other"), b"{}")])
    with pytest.raises(NotLost, match="topics already"):
        await rebuild_once(world, "rebuild")
    fs = MemoryFileSystem(world.storage, "look")
    assert (await read_cluster(fs)).rebuild_count == 0  # type: ignore[union-attr]


async def test_of_two_at_once_the_later_one_wins() -> None:
    world = KafkaWorld(5)
    await story(world)
    outcomes = await asyncio.gather(*(rebuild_once(world, f"r{number}") for number in range(2)), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in outcomes) in (["NotLost", "Outcome"], ["NotLost"] * 2)
    if not await is_done(world):
        await rebuild_once(world, "again")
    await judge(world)


async def test_a_zombie_of_the_lost_store_is_fenced_by_the_takeover() -> None:
    """Let the old server write on into its open segment: what it acknowledged is in the log, and no more comes."""

    world = KafkaWorld(6)
    world.start()
    await create_topic(world, TOPIC, 1)
    await produce(world, "a", TOPIC, 0, 10)
    zombie, world.store = world.server, MemoryStore()
    zombie.kv.crash()
    await rebuild_once(world, "rebuild")
    await produce(world, "b", TOPIC, 0, 10)  # to the zombie, which has not noticed
    stored = await read_topic(MemoryFileSystem(world.storage, "look"), TOPIC)
    assert stored is not None
    key = PartitionKey(stored.topic_id, 0)
    fs, kv = MemoryFileSystem(world.storage, "new"), MemoryKeyValue(world.store)
    async with lone_broker(fs, kv, incarnation="new", clock=LoopClock()) as broker:
        driver = await broker.open(zombie.node.broker.broker.get(key).path, key)  # type: ignore[union-attr]
        assert driver.machine.high_watermark == 20
        late = asyncio.create_task(produce(world, "c", TOPIC, 0, 1))
        await asyncio.sleep(60.0)
        assert not late.done()
        assert len(world.observed.acked[TOPIC, 0]) == 20
        late.cancel()
