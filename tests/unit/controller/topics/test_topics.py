"""Admin acts: Kafka's errors, and that no interleaving, unknown outcome or crash loses, doubles or reverts one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from bmq.controller.topics.deletion import deleted_key
from bmq.controller.topics.topics import TopicAdmin
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import (
    OFFSETS_TOPIC,
    KvCatalog,
    Topic,
    broker_configs_key,
    decode_configs,
    decode_topic,
    encode_configs,
    topic_key,
)
from bmq.meta.config_changes import Changes, ConfigChange, Operation
from bmq.meta.kv import Put
from bmq.meta.kv_memory import MemoryStore
from bmq.storage.cluster_files import read_topic
from bmq.storage.layout import topic_json
from bmq.storage.memory import MemoryStorage
from tests.harness.loop import run
from tests.unit.controller.admin.world import AdminWorld, world

pytestmark = pytest.mark.slow

Act = Callable[[TopicAdmin], Awaitable[Any]]


async def refused(act: Awaitable[Any], code: ErrorCode, text: str | None = None) -> RequestError:
    with pytest.raises(RequestError, match=text) as caught:
        await act
    assert caught.value.code is code
    return caught.value


def sets(**configs: str) -> list[ConfigChange]:
    return [ConfigChange(name.replace("_", "."), Operation.SET, value) for name, value in configs.items()]


# ------------------------------------------------------------------------------------------------------ what is made


async def one() -> int:
    return 1


async def three() -> int:
    return 3


async def test_a_topic_is_there_everywhere_when_it_is_answered() -> None:
    async with world(config=NodeConfig(num_partitions=4, default_replication_factor=2)) as w:
        made = await w.admin.create_topic("t", configs={"retention.ms": " 5 "})
        assert (made.partitions, made.replication_factor, made.configs) == (4, 2, {"retention.ms": "5"})
        assert w.catalog.topics["t"] == made
        stored = await read_topic(w.fs, "t")
        assert stored is not None
        assert (stored.topic_id, stored.partitions, stored.revision) == (made.topic_id, 4, made.revision)
        assert stored.configs == {"retention.ms": "5"}


async def test_validate_only_changes_nothing() -> None:
    async with world() as w:
        made = await w.admin.create_topic("t", 2)
        before = w.store.revision
        assert (await w.admin.create_topic("u", 3, validate_only=True)).partitions == 3
        assert (await w.admin.add_partitions("t", 5, validate_only=True)).partitions == 5
        await w.admin.alter_topic_configs("t", sets(retention_ms="1"), validate_only=True)
        await w.admin.alter_broker_configs(None, sets(log_retention_ms="1"), validate_only=True)
        assert w.store.revision == before
        assert w.catalog.topics == {"t": made}


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda a: a.create_topic("t"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (lambda a: a.create_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a: a.create_topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a: a.create_topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a: a.create_topic("ä"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a: a.create_topic("x\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a: a.create_topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a: a.create_topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION),  # a.b is there
        (lambda a: a.create_topic("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        (lambda a: a.create_topic("n", 0), ErrorCode.INVALID_PARTITIONS),
        (lambda a: a.create_topic("n", -2), ErrorCode.INVALID_PARTITIONS),
        (lambda a: a.create_topic("n", 100_001), ErrorCode.INVALID_PARTITIONS),
        (lambda a: a.create_topic("n", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (lambda a: a.create_topic("n", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
        (lambda a: a.create_topic("n", configs={"x": "1"}), ErrorCode.INVALID_CONFIG),
        (lambda a: a.create_topic("n", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
        (lambda a: a.create_topic("n", 1, assignments={0: [0]}), ErrorCode.INVALID_REQUEST),
        (lambda a: a.create_topic("n", assignments={1: [0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda a: a.create_topic("n", assignments={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda a: a.create_topic("n", assignments={0: [7]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda a: a.create_topic("n", assignments={0: [0, 0]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda a: a.create_topic("n", assignments={0: [0], 1: [0, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda a: a.create_topic("__consumer_offsets", 3), ErrorCode.INVALID_PARTITIONS),
        (lambda a: a.ensure_topic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (lambda a: a.delete_topic("n"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda a: a.delete_topic("__consumer_offsets"), ErrorCode.INVALID_REQUEST),
        (lambda a: a.add_partitions("n", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda a: a.add_partitions("t", 2), ErrorCode.INVALID_PARTITIONS),
        (lambda a: a.add_partitions("t", 1), ErrorCode.INVALID_PARTITIONS),
        (lambda a: a.add_partitions("t", 100_001), ErrorCode.INVALID_PARTITIONS),
        (lambda a: a.add_partitions("t", 3, [[0], [1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda a: a.add_partitions("t", 3, [[0, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda a: a.alter_topic_configs("n", {}), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda a: a.alter_topic_configs("t", {"x": "1"}), ErrorCode.INVALID_CONFIG),
        (lambda a: a.alter_topic_configs("t", {"remote.storage.enable": "true"}), ErrorCode.INVALID_CONFIG),
        (lambda a: a.alter_broker_configs(None, {"num.partitions": "3"}), ErrorCode.INVALID_REQUEST),
    ],
)
async def test_a_wrong_request_has_kafkas_error_and_writes_nothing(act: Act, code: ErrorCode) -> None:
    async with world(replicas_max=three, nodes=lambda: (0, 1)) as w:
        await w.admin.create_topic("t", 2)
        await w.admin.create_topic("a.b")
        before = w.store.revision
        await refused(act(w.admin), code)
        assert w.store.revision == before


async def test_deletion_may_be_disabled() -> None:
    async with world(config=NodeConfig(delete_topic_enable=False)) as w:
        await w.admin.create_topic("t")
        await refused(w.admin.delete_topic("t"), ErrorCode.TOPIC_DELETION_DISABLED)


async def test_manual_assignments_give_the_numbers() -> None:
    async with world(nodes=lambda: (0, 1, 2)) as w:
        made = await w.admin.create_topic("t", assignments={0: [0, 1], 1: [2, 0]})
        assert (made.partitions, made.replication_factor) == (2, 2)
        assert (await w.admin.add_partitions("t", 3, [[1, 2]])).partitions == 3


async def test_offsets_topic_is_as_kafkas() -> None:
    config = NodeConfig(
        default_replication_factor=3, offsets_topic_num_partitions=7, offsets_topic_segment_bytes=50 << 20
    )
    async with world(config=config, replicas_max=one) as w:
        made = await w.admin.ensure_topic("__consumer_offsets")
        assert (made.partitions, made.replication_factor) == (7, 1)
        assert made.configs == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": "52428800",
            "max.message.bytes": "16777216",
        }
        await refused(w.admin.add_partitions("__consumer_offsets", 9), ErrorCode.INVALID_PARTITIONS)
        other = await w.admin.ensure_topic("__transaction_state")
        assert other.partitions == 50, "of which offsets.topic.num.partitions says nothing"
        assert other.configs["segment.bytes"] == "104857600"


@pytest.mark.parametrize(
    ("nodes", "asked", "factor", "least"), [(3, 2, 3, 2), (1, 2, 3, 1), (3, 5, 3, 3), (3, 2, 1, 1), (3, 1, 3, 1)]
)
async def test_transactions_ask_for_as_many_copies_as_their_setting_says_and_storage_keeps(
    nodes: int, asked: int, factor: int, least: int
) -> None:
    async def count() -> int:
        return nodes

    config = NodeConfig(transaction_state_log_min_isr=asked, default_replication_factor=factor)
    async with world(config=config, replicas_max=count) as w:
        made = await w.admin.ensure_topic("__transaction_state")
        assert made.configs["min.insync.replicas"] == str(least)
        assert "min.insync.replicas" not in (await w.admin.ensure_topic("__consumer_offsets")).configs


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("__consumer_offsets", "the offsets and members of all groups"),
        ("__transaction_state", "the state of all transactions"),
    ],
)
async def test_a_refusal_about_an_internal_topic_names_what_would_be_lost(name: str, held: str) -> None:
    async with world() as w:
        made = await w.admin.ensure_topic(name)
        await refused(w.admin.delete_topic(name), ErrorCode.INVALID_REQUEST, f"would lose {held}")
        change = w.admin.alter_topic_configs(name, sets(cleanup_policy="delete"))
        await refused(change, ErrorCode.INVALID_CONFIG, f"would delete {held}")
        assert w.catalog.topics[name] == made


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
async def test_an_internal_topic_stays_compacted(name: str) -> None:
    """Retention would delete the offsets of groups: every way to another policy is refused, and the text says why."""
    async with world() as w:
        for policy in ("delete", "compact,delete"):
            await refused(w.admin.create_topic(name, configs={"cleanup.policy": policy}), ErrorCode.INVALID_CONFIG)
        made = await w.admin.ensure_topic(name)
        refusals: list[Changes] = [
            sets(cleanup_policy="delete"),
            sets(cleanup_policy="compact,delete"),
            [ConfigChange("cleanup.policy", Operation.DELETE, None)],
            [ConfigChange("cleanup.policy", Operation.APPEND, "delete")],
            {"segment.bytes": "1048576"},
        ]
        for changes in refusals:
            with pytest.raises(RequestError, match=f"{name} is internal: its cleanup.policy must be compact") as error:
                await w.admin.alter_topic_configs(name, changes)
            assert error.value.code is ErrorCode.INVALID_CONFIG
        assert w.catalog.topics[name] == made
        await w.admin.alter_topic_configs(name, sets(segment_bytes="1048576"))
        await w.admin.alter_topic_configs(name, {"segment.bytes": "2097152", "cleanup.policy": "compact"})


async def test_a_delete_by_id_does_not_delete_a_topic_of_another_id() -> None:
    async with world() as w:
        first = await w.admin.create_topic("t")
        await w.admin.delete_topic("t", first.topic_id)
        second = await w.admin.create_topic("t")
        await refused(w.admin.delete_topic("t", first.topic_id), ErrorCode.UNKNOWN_TOPIC_ID)
        assert w.catalog.topics["t"] == second
        assert w.store.get(deleted_key("c", first.topic_id)) is not None
        stored = await read_topic(w.fs, "t")
        assert stored is not None
        assert stored.topic_id == second.topic_id


async def test_configs_change_by_operation_and_as_a_whole() -> None:
    async with world() as w:
        await w.admin.create_topic("t", configs={"retention.ms": "1", "segment.ms": "2"})
        await w.admin.alter_topic_configs("t", sets(flush_mode="hsync"))
        assert w.catalog.topics["t"].configs == {"retention.ms": "1", "segment.ms": "2", "flush.mode": "hsync"}
        await w.admin.alter_topic_configs("t", {"retention.ms": "9"})
        assert w.catalog.topics["t"].configs == {"retention.ms": "9"}
        stored = await read_topic(w.fs, "t")
        assert stored is not None
        assert stored.configs == {"retention.ms": "9"}
        await w.admin.alter_broker_configs(None, sets(log_retention_ms="3"))
        await w.admin.alter_broker_configs(4, sets(log_retention_ms="4"))
        assert w.catalog.broker_configs(None) == {"log.retention.ms": "3"}
        assert w.catalog.broker_configs(4) == {"log.retention.ms": "4"}
        await w.admin.alter_broker_configs(4, [ConfigChange("log.retention.ms", Operation.DELETE, None)])
        assert w.catalog.broker_configs(4) == {}


async def test_where_any_broker_may_own_a_partition_no_broker_has_defaults_of_its_own() -> None:
    """Set defaults of one broker: refused, since they would be shown as in force and hold by chance.

    Those of an earlier version can be removed.
    """

    async with world(has_node_configs=False) as w:
        catalog = KvCatalog(w.kv, "c", has_node_configs=False)
        await w.kv.commit([], [Put(broker_configs_key("c", 4), encode_configs({"log.retention.ms": "4"}))])
        await catalog.start()
        assert catalog.broker_configs(4) == {}
        for wanted in (sets(log_retention_ms="5"), {"message.max.bytes": "1000"}):
            with pytest.raises(RequestError, match="entity-default") as refused:
                await w.admin.alter_broker_configs(4, wanted)
            assert refused.value.code is ErrorCode.INVALID_REQUEST
        revision = await w.admin.alter_broker_configs(4, [ConfigChange("log.retention.ms", Operation.DELETE, None)])
        entry = await w.kv.get(broker_configs_key("c", 4))
        assert entry is not None
        assert (entry.revision, decode_configs(entry)) == (revision, {})
        await w.admin.alter_broker_configs(None, sets(log_retention_ms="5"))
        assert w.catalog.broker_configs(None) == {"log.retention.ms": "5"}
        await catalog.close()


# ------------------------------------------------------------------------------------------- faults others shipped


async def test_a_stale_snapshot_is_never_written_back() -> None:
    """KafScale #162.  The view of one process stands still while another changes the topic: its act keeps both."""

    store, storage = MemoryStore(), MemoryStorage()
    async with world(store, storage, name="a") as slow, world(store, storage, name="b") as quick:
        await slow.admin.create_topic("t", configs={"segment.ms": "1"})
        await quick.catalog.wait_revision(store.revision)
        slow.view_kv.pause()
        await quick.admin.alter_topic_configs("t", sets(retention_ms="2"))
        await quick.admin.add_partitions("t", 8)
        assert slow.catalog.topics["t"].partitions == 1, "the view is stale, as the test needs it"
        act = asyncio.create_task(slow.admin.alter_topic_configs("t", sets(flush_mode="hsync")))
        await asyncio.sleep(1)
        slow.view_kv.resume()
        made = await act
        assert made.partitions == 8
        assert made.configs == {"segment.ms": "1", "retention.ms": "2", "flush.mode": "hsync"}


async def test_a_change_to_what_stands_already_writes_nothing() -> None:
    """KafScale #151: a store must not fill up from looking things up, nor from setting what is set."""

    async with world() as w:
        await w.admin.ensure_topic("t")
        await w.admin.alter_topic_configs("t", sets(retention_ms="2"))
        await w.admin.alter_broker_configs(None, sets(log_retention_ms="2"))
        before = w.store.revision
        for _ in range(100):
            await w.admin.ensure_topic("t")
            await w.admin.alter_topic_configs("t", sets(retention_ms="2"))
            await w.admin.alter_broker_configs(None, sets(log_retention_ms="2"))
        assert w.store.revision == before


# ---------------------------------------------------------------------------------------------------- interleavings


def test_concurrent_requests_create_one_topic() -> None:
    async def main(seed: int) -> None:
        store, storage = MemoryStore(), MemoryStorage()
        worlds = [AdminWorld(store, storage, random=Random(seed + n), name=f"p{n}") for n in range(3)]
        for one in worlds:
            await one.start()
            one.fail(latency_s=0.05, unknown_applied=0.15, unknown_lost=0.1, unknown_late=0.1, late_s=0.4)
        calls = [one.admin.ensure_topic("t") for one in worlds for _ in range(5)]
        made = await asyncio.gather(*calls, return_exceptions=True)
        entry = store.get(topic_key("c", "t"))
        assert entry is not None
        wanted = decode_topic("t", entry)
        topics = [each for each in made if isinstance(each, Topic)]
        assert len(topics) > 10
        assert all(each == wanted for each in topics)
        assert all(
            isinstance(each, Topic) or getattr(each, "code", None) is ErrorCode.REQUEST_TIMED_OUT for each in made
        )
        assert {each.topic_id for each in topics} == {wanted.topic_id}
        for one in worlds:
            await one.close()

    for seed in range(0, 200, 10):
        run(main(seed), seed)


def test_changes_by_several_processes_under_unknown_outcomes_are_done_once() -> None:
    """Each adds its own config and its own partition.  What was answered is there; what was refused for want of an
    answer is there once or not at all."""

    async def main(seed: int) -> None:
        store, storage = MemoryStore(), MemoryStorage()
        worlds = [AdminWorld(store, storage, random=Random(seed + n), name=f"p{n}") for n in range(3)]
        for one in worlds:
            await one.start()
        await worlds[0].admin.create_topic("t", 1)
        for one in worlds:
            one.fail(latency_s=0.1, unknown_applied=0.2, unknown_lost=0.1, unknown_late=0.1, late_s=0.5)
        names = [
            "retention.ms",
            "segment.ms",
            "max.message.bytes",
            "delete.retention.ms",
            "flush.ms",
            "retention.bytes",
        ]

        async def act(one: AdminWorld, name: str) -> bool:
            await asyncio.sleep(Random(f"{seed}{name}").random() / 5)
            try:
                await one.admin.alter_topic_configs("t", [ConfigChange(name, Operation.SET, "77")])
            except RequestError as error:
                codes.add(error.code)
                return False
            return True

        codes: set[ErrorCode] = set()
        done = await asyncio.gather(*(act(worlds[n % 3], name) for n, name in enumerate(names)))
        assert codes <= {ErrorCode.REQUEST_TIMED_OUT}
        await asyncio.sleep(2)  # late commits
        entry = store.get(topic_key("c", "t"))
        assert entry is not None
        final = decode_topic("t", entry)
        for name, was_done in zip(names, done, strict=True):
            assert not was_done or final.configs.get(name) == "77"
        assert set(final.configs.values()) <= {"77"}
        for one in worlds:
            one.fail()
        await worlds[0].catalog.wait_revision(store.revision)
        assert worlds[0].catalog.topics["t"] == final
        for one in worlds:
            await one.close()

    for seed in range(0, 300, 10):
        run(main(seed), seed)


def test_an_own_commit_whose_answer_was_lost_is_recognised() -> None:
    """Lose the response to a commit: to decide again would refuse it, since the topic has these partitions already."""

    async def main(seed: int) -> None:
        async with world(random=Random(seed)) as w:
            await w.admin.create_topic("t")
            w.fail(unknown_applied=0.3)
            w.kv.get = w.view_kv.get  # type: ignore[method-assign]  # reads are not what this is about
            for count in range(2, 20):
                assert (await w.admin.add_partitions("t", count)).partitions == count
                assert w.catalog.topics["t"].partitions == count

    for seed in range(5):
        run(main(seed), seed)


def test_creating_and_deleting_under_unknown_outcomes_keeps_every_id_apart() -> None:
    async def main(seed: int) -> None:
        store, storage = MemoryStore(), MemoryStorage()
        worlds = [AdminWorld(store, storage, random=Random(seed + n), name=f"p{n}") for n in range(2)]
        for one in worlds:
            await one.start()
            one.fail(latency_s=0.05, unknown_applied=0.2, unknown_lost=0.1, unknown_late=0.1, late_s=0.3)
        created: list[Topic] = []
        deletions = 0
        codes: set[ErrorCode] = set()

        async def act(one: AdminWorld) -> None:
            nonlocal deletions
            for _ in range(6):
                try:
                    created.append(await one.admin.create_topic("t"))
                except RequestError as error:
                    codes.add(error.code)
                try:
                    await one.admin.delete_topic("t")
                    deletions += 1
                except RequestError as error:
                    codes.add(error.code)

        await asyncio.gather(*map(act, worlds))
        assert codes <= {
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.REQUEST_TIMED_OUT,
        }
        await asyncio.sleep(2)
        kv = worlds[0].view_kv
        buried = [e.key.rsplit("/", 1)[-1] async for e in kv.list("/c/deleted/")]
        alive = store.get(topic_key("c", "t"))
        ids = {str(each.topic_id) for each in created}
        assert len(ids) == len(created), "two creations were answered with one topic"
        assert len(buried) >= deletions
        assert ids <= {*buried, *([str(decode_topic("t", alive).topic_id)] if alive else [])}
        for one in worlds:
            one.fail()
            await one.close()

    for seed in range(0, 200, 10):
        run(main(seed), seed)


# ---------------------------------------------------------------------------------------------------------- outages


async def test_a_store_that_is_away_gives_a_clear_error() -> None:
    async with world() as w:
        await w.admin.create_topic("t")
        w.store.stop()
        error = await refused(w.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT, "nothing was done")
        assert error.code.is_retriable
        await refused(w.admin.alter_topic_configs("t", {}), ErrorCode.REQUEST_TIMED_OUT, "cannot be reached")
        assert (await w.admin.ensure_topic("t")).name == "t", "what is known is still served"
        w.store.start(asyncio.get_running_loop().time())
        assert (await w.admin.create_topic("u")).name == "u"


async def test_a_topic_whose_creation_stays_unknown_is_reported_so() -> None:
    async with world(random=Random(1)) as w:
        w.fail(unknown_lost=1.0)
        await refused(w.admin.create_topic("u"), ErrorCode.REQUEST_TIMED_OUT, "is not known")


async def test_a_topics_file_that_storage_refuses_is_written_later() -> None:
    """The commit stands, the answer is yes; the file follows, also after a crash in between."""

    async with world() as w:
        w.storage.is_full = True
        made = await w.admin.create_topic("t")
        assert await read_topic(w.fs, "t") is None
        w.storage.is_full = False
        await asyncio.sleep(30)
        stored = await read_topic(w.fs, "t")
        assert stored is not None
        assert stored.revision == made.revision


async def test_a_crash_between_commit_and_file_is_made_good_at_the_next_start() -> None:
    store, storage = MemoryStore(), MemoryStorage()
    async with world(store, storage, name="a") as w:
        made = await w.admin.create_topic("t")
        for n in range(30):
            await w.admin.create_topic(f"more{n}")
    entry = store.get(topic_key("c", "t"))
    assert entry is not None
    async with world(store, storage, name="b") as w:
        await w.kv.commit([], [Put(entry.key, entry.value.replace(b'"partitions":1', b'"partitions":5'))])
    assert (await read_topic(w.fs, "t")).revision == made.revision  # type: ignore[union-attr]
    async with world(store, storage, name="d") as w:
        await asyncio.sleep(10)
        stored = await read_topic(w.fs, "t")
        assert stored is not None
        assert (stored.partitions, stored.revision) == (5, store.revision)
        assert [name for name in await w.names("/topics/t") if "json" in name] == [f"topic-{store.revision}.json"]


async def test_every_root_has_the_same_file_of_a_topic() -> None:
    """The process that creates a topic writes the file; if it ends before that, its successor does, from the store.

    `bmq cluster merge-root` compares such files."""

    store, right, wrong = MemoryStore(), MemoryStorage(), MemoryStorage()
    async with world(store, right) as w:
        made = await w.admin.ensure_topic(OFFSETS_TOPIC)
    path = topic_json(OFFSETS_TOPIC, made.revision)
    async with world(store, wrong) as other:
        await asyncio.sleep(10)
        assert await other.fs.read(path, 0, 10_000) == await w.fs.read(path, 0, 10_000)


def test_a_creation_whose_client_has_left_is_written_to_storage() -> None:
    """Cancel a creation at any moment: once the topic is there, storage has its record without a restart."""

    async def main(after_s: float) -> bool:
        async with world(random=Random(1)) as w:
            w.fail(latency_s=0.5)
            act = asyncio.create_task(w.admin.create_topic("t"))
            await asyncio.sleep(after_s)
            act.cancel()
            await asyncio.sleep(30)
            stored = await read_topic(w.fs, "t")
            assert (stored is not None) == ("t" in w.catalog.topics)
            return stored is not None

    outcomes = {run(main(n / 50)) for n in range(50)}
    assert outcomes == {False, True}
