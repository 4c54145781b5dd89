"""Partitions go where the view says: what is opened, what is waited for, and what a planned move costs."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from bmq.broker.assignment import follower as following
from bmq.broker.assignment.follower import AssignmentFollower
from bmq.broker.config import BrokerConfig
from bmq.broker.partition.release import NOTHING, ReleaseNote
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields_of
from bmq.core.model import PartitionKey
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.core.rpc.messages.broker import HandedOverRequest
from bmq.meta.catalog import Topic
from bmq.meta.cluster.view import ViewChange
from bmq.meta.kv_memory import KvFaults
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.layout import JOURNALS, PartitionPath
from bmq.storage.log_reader import LogReader
from bmq.storage.memory import Faults
from tests.harness.loop_stops import TurnCounter, is_short, loop_stops
from tests.harness.members import OneView, no_successors
from tests.harness.seeds import seeds
from tests.harness.waiting import now
from tests.unit.broker.cluster import Cluster, cluster
from tests.unit.broker.moves import count_gets, record_of
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.broker.world import batch, idempotent, world
from tests.unit.endpoint.serving import append

pytestmark = pytest.mark.slow


async def test_only_what_the_view_assigns_is_opened() -> None:
    async with cluster() as c:
        c.topic(4)
        keys = c.keys()
        c.give("a", *keys[:3])
        c.give("b", keys[3])
        await c.write("a", keys[2], batch())
        await c.write("b", keys[3], batch())
        assert (len(c["a"].follower), len(c["b"].follower)) == (3, 1)
        with pytest.raises(RequestError) as refused:
            await c["b"].assigned.wait(keys[0], 5.0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_assignment_and_topic_may_come_in_any_order() -> None:
    async with cluster() as c:
        topic = c.topic(2)
        keys = c.keys()
        c.catalog.put("orders", None)
        c.give("a", *keys)
        assert len(c["a"].follower) == 0
        c.catalog.put("orders", replace(topic, partitions=1))
        assert len(c["a"].follower) == 1
        c.catalog.put("orders", topic)  # grown by one that was assigned already
        assert len(c["a"].follower) == 2
        assert await c.write("a", keys[1], batch()) == 0


async def test_a_change_costs_what_it_names() -> None:
    """Move one of 1,000 partitions: the follower asks the view for that one only."""

    async with cluster() as c:
        c.topic(1000)
        keys = c.keys()
        c.give("a", *keys)
        working = c["a"].follower._working  # a thousand partitions have a turn of their own
        assert working is not None
        await working
        asked = c["a"].view.asked
        c["a"].view.assign("b", keys[7])
        await asyncio.sleep(1)
        assert c["a"].view.asked - asked <= 2
        assert len(c["a"].assigned) == len(c["a"].follower) == 999


async def test_a_topics_configs_reach_what_is_held() -> None:
    async with cluster() as c:
        topic = c.topic(2)
        keys = c.keys()
        c.give("a", keys[0])
        owner = await c["a"].assigned.wait(keys[0], 5.0)
        c.catalog.put("orders", replace(topic, configs={"max.message.bytes": "100"}))
        assert owner.max_message_bytes == 100
        assert owner.is_open
        assert len(c["a"].assigned) == 1


async def test_a_deleted_topic_leaves_nothing_behind() -> None:
    """Neither where it was owned at last nor where it was before."""

    async with cluster() as c:
        c.topic(2)
        keys = c.keys()
        c.give("a", *keys)
        for key in keys:
            await c.write("a", key, batch())
        c.give("b", keys[0])
        await c.write("b", keys[0], batch())
        assert list(c["a"].broker._departed) == [keys[0]]
        c.catalog.put("orders", None)
        await asyncio.sleep(1)
        for node in c.nodes.values():
            assert not node.broker._departed
            assert len(node.broker) == len(node.assigned) == len(node.follower) == 0


async def test_a_topic_that_is_deleted_while_it_moves_leaves_nothing_behind() -> None:
    async with cluster() as c:
        c.topic(1)
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c.give("b", key)
        c.catalog.put("orders", None)
        await asyncio.sleep(5)
        assert not c["a"].broker._departed
        assert len(c["a"].broker) == len(c["b"].broker) == 0


async def test_a_process_that_is_its_whole_cluster_owns_everything() -> None:
    async with world() as w:
        w.catalog.subscribe_configs = lambda call: configs.append(call)  # type: ignore[method-assign]
        configs: list[Callable[[], None]] = []
        view = OneView("b1", "broker")
        w.topic("before", 2, assign=False)
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        topic = w.topic("orders", 3, assign=False)
        assert (await w.produce_one(batch(), 2)).base_offset == 0
        assert len(w.assigned) == 5
        w.catalog.broker_configs = lambda node: {"message.max.bytes": "100"}  # type: ignore[method-assign, assignment]
        configs[0]()
        await asyncio.sleep(0.1)
        assert (await w.produce_one(batch(b"x" * 200), 2)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        w.catalog.put("orders", replace(topic, partitions=4))
        assert (await w.owner("orders", 3)).is_open
        w.catalog.put("before", None)
        await asyncio.sleep(1)
        assert len(w.assigned) == len(follower) == 4
        assert not w.broker._departed


STEP = 100
LARGE = 5 * STEP // 2
"""Partitions that take three steps."""


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "COST_PER_STEP", STEP)


@pytest.mark.usefixtures("_small_steps")
async def test_what_a_large_topic_brings_is_done_in_steps() -> None:
    """Follow a large topic in steps at the start, when it is made, when its config changes, and when it is deleted."""

    async with world() as w:
        w.catalog.subscribe_configs = lambda call: None  # type: ignore[method-assign]
        view = OneView("b1", "broker")
        turns = TurnCounter()
        w.assigned.assign = w.assigned.delete = turns.count  # type: ignore[method-assign]
        for number in range(30):
            w.topic(f"small-{number}", 2, assign=False)
        w.topic("before", LARGE, assign=False)
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        taken = turns.take()
        assert (sum(taken), len(follower)) == (60 + LARGE, 60 + LARGE)
        assert max(taken) < 2 * STEP

        topic = w.topic("orders", LARGE, assign=False)
        small = w.topic("small", 3, assign=False)
        await asyncio.sleep(0.1)
        assert turns.take() == [STEP, STEP, 3, STEP // 2], "what is small waits for a step of what is large"

        w.catalog.put("orders", replace(topic, configs={"retention.ms": "1000"}))
        await asyncio.sleep(0.1)
        assert turns.take() == [STEP, STEP, STEP // 2]

        w.catalog.put("small", None)
        w.catalog.put("orders", None)
        await asyncio.sleep(0.1)
        assert turns.take() == [3, STEP, STEP, STEP // 2]
        assert (len(follower), small.partitions) == (60 + LARGE, 3)
        follower.close()


@pytest.mark.usefixtures("_small_steps")
async def test_a_large_topic_that_is_deleted_while_it_is_taken() -> None:
    """No partition of the topic is assigned after its deletion."""

    async with world() as w:
        w.catalog.subscribe_configs = lambda call: None  # type: ignore[method-assign]
        view = OneView("b1", "broker")
        calls: list[str] = []
        w.assigned.assign = lambda *_: calls.append("assign")  # type: ignore[method-assign]
        w.assigned.delete = lambda *_: calls.append("delete")  # type: ignore[method-assign]
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        topic = w.topic("orders", LARGE, assign=False)
        w.catalog.put("orders", replace(topic, configs={"retention.ms": "1000"}))
        assert calls.count("assign") < LARGE
        before = len(calls)
        w.catalog.put("orders", None)
        await asyncio.sleep(0.1)
        assert set(calls[before:]) == {"delete"}
        assert calls.count("delete") == LARGE
        assert len(follower) == 0
        follower.close()


@pytest.mark.usefixtures("_small_steps")
async def test_a_step_that_fails_is_logged_and_stops_no_other_topic(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        w.catalog.subscribe_configs = lambda call: None  # type: ignore[method-assign]
        view = OneView("b1", "broker")
        assigned: list[PartitionPath] = []

        def assign(path: PartitionPath, *_: object) -> None:
            if path.topic == "bad" and path.partition == STEP:
                raise ZeroDivisionError
            assigned.append(path)

        w.assigned.assign = assign  # type: ignore[method-assign, assignment]
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        w.topic("bad", LARGE, assign=False)
        w.topic("good", LARGE, assign=False)
        await asyncio.sleep(0.1)
        (failure,) = caplog.records
        assert failure.getMessage().startswith("bug: some partitions of the topic may not be opened")
        assert fields_of(failure) == {"topic": "bad"}
        assert Counter(path.topic for path in assigned) == {"bad": STEP, "good": LARGE}
        w.topic("later", LARGE, assign=False)
        await asyncio.sleep(0.1)
        assert sum(path.topic == "later" for path in assigned) == LARGE
        follower.close()


async def test_a_default_that_fails_for_one_topic_reaches_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        w.catalog.subscribe_configs = lambda call: configs.append(call)  # type: ignore[method-assign]
        configs: list[Callable[[], None]] = []
        view = OneView("b1", "broker")
        for name in ("a", "bad", "c"):
            w.topic(name, 1, assign=False)
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        reached: list[str] = []

        def assign(path: PartitionPath, *_: object) -> None:
            if path.topic == "bad":
                raise ZeroDivisionError
            reached.append(path.topic)

        w.assigned.assign = assign  # type: ignore[method-assign, assignment]
        w.catalog.broker_configs = lambda node_id: {"message.max.bytes": "100"}  # type: ignore[method-assign]
        configs[0]()
        await asyncio.sleep(1)
        assert reached == ["a", "c"]
        (failure,) = caplog.records
        assert failure.getMessage().startswith("bug: some partitions of the topic may not be opened")
        assert fields_of(failure) == {"topic": "bad"}
        follower.close()


async def test_a_changed_default_reaches_thousands_of_topics_in_steps() -> None:
    """Change the default twice: the last change counts, though it comes while the first is being applied."""

    async with world() as w:
        w.catalog.subscribe_configs = lambda call: configs.append(call)  # type: ignore[method-assign]
        configs: list[Callable[[], None]] = []
        view = OneView("b1", "broker")
        for number in range(1_000):
            w.topic(f"t{number}", 1, assign=False)
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        sizes: list[int] = []
        w.assigned.assign = lambda path, key, config: sizes.append(config.rules.max_message_bytes)  # type: ignore[method-assign]
        for size in (100, 200):
            w.catalog.broker_configs = lambda node, size=size: {"message.max.bytes": str(size)}  # type: ignore[method-assign, misc]
            configs[0]()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert 0 < sizes.count(100) < 1_000
        await asyncio.sleep(1)
        assert sizes.count(200) == 1_000
        follower.close()


async def test_a_planned_move_is_opened_without_a_fence_and_with_every_producer() -> None:
    """The old owner flushes, closes and sends its release note; the new one opens then, without fencing, and has every
    producer's state."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        for sequence in range(3):
            assert await c.write("a", key, idempotent(sequence)) == sequence
        c.give("b", key)
        began = now()
        assert await c.write("b", key, idempotent(2)) == 2, "a repeated batch, by another owner's memory"
        assert await c.write("b", key, idempotent(3)) == 3
        assert now() - began < 0.1
        found = [(to, message.partitions) for to, message in c["a"].wire.asked]
        assert found == [("b", ((key.topic_id, 0),))]
        assert (await record_of(c)).owner == "b"


async def test_what_was_accepted_before_the_move_is_acknowledged() -> None:
    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c.storage.faults = Faults(ack_s=(0.05, 0.05))
        accepted = asyncio.ensure_future(c.write("a", key, batch()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        c.give("b", key)
        held = asyncio.ensure_future(c.write("b", key, batch()))
        assert await accepted == 1
        assert not held.done()
        assert await held == 2


async def test_a_new_owner_does_not_wait_for_ever_for_the_old_one() -> None:
    """The former owner is not notified of the move (its view hangs): it is fenced after ``handover_wait_ms``."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["b"].view.assign("b", key)
        began = now()
        assert await c.write("b", key, batch()) == 1
        assert 3.0 <= now() - began < 3.5
        zombie = c["a"].assigned.get(key)
        assert zombie is not None
        with pytest.raises(RequestError) as refused:
            await c.write("a", key, batch())
        assert refused.value.code.is_retriable
        assert not zombie.is_open


async def test_a_lost_release_note_costs_the_time_that_a_new_owner_waits() -> None:
    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["a"].wire.is_cut = True
        c.give("b", key)
        began = now()
        assert await c.write("b", key, batch()) == 1
        assert 3.0 <= now() - began < 3.5
        assert len(c["a"].wire.asked) == 3, "tried a few times, then dropped"
        assert not c["a"].handovers._tasks


@pytest.mark.leaves_tasks
@pytest.mark.parametrize("is_news_early", [False, True])
async def test_a_dead_owner_is_not_waited_for(is_news_early: bool) -> None:
    """Kill the owner: its successor does not wait for it, whether the death is reported before the assignment or
    after."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["a"].kill()
        if is_news_early:
            c["b"].view.leave("a")
        c["b"].view.assign("b", key)
        began = now()
        writing = asyncio.ensure_future(c.write("b", key, batch()))
        await asyncio.sleep(0.2)
        if not is_news_early:
            assert not writing.done()
            assert len(c["b"].assigned._waiting["a"]) == 1
            c["b"].view.leave("a")
        assert await writing == 1
        assert now() - began < 0.5
        assert not c["b"].assigned._waiting
        del c.nodes["a"]


async def test_a_release_note_that_comes_while_the_record_is_read_counts() -> None:
    """The record is read before the release, and the release note arrives before the read returns: the new owner does
    not wait."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        read = c["b"].broker.read_record

        async def slow(asked: Any) -> Any:
            found = await read(asked)
            await asyncio.sleep(0.5)
            return found

        c["b"].broker.read_record = slow  # type: ignore[method-assign, assignment]
        c.give("b", key)
        began = now()
        assert await c.write("b", key, batch()) == 1
        assert now() - began < 1.0


async def test_a_release_note_may_come_before_the_assignment() -> None:
    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["a"].view.assign("b", key)
        await asyncio.sleep(1)
        assert c["a"].wire.asked
        c["b"].view.assign("b", key)
        began = now()
        assert await c.write("b", key, batch()) == 1
        assert now() - began < 0.1


async def test_a_partition_withdrawn_while_it_waits_for_its_old_owner_is_not_opened() -> None:
    """Move a partition from a to b to c: b never had it and sends no release note to c, which waits for a."""

    async with cluster("a", "b", "c") as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["b"].view.assign("b", key)
        await asyncio.sleep(0.1)
        assert len(c["b"].assigned._waiting["a"]) == 1
        c["b"].view.assign("c", key)
        c["c"].view.assign("c", key)
        await asyncio.sleep(0.1)
        assert not c["b"].assigned._waiting
        assert not c["b"].wire.asked
        c["a"].view.assign("c", key)
        assert await c.write("c", key, batch()) == 1
        assert (await record_of(c)).epoch == 2
        await asyncio.sleep(5)  # the timer of the wait that is over expires
        assert len(c["b"].broker) == 0


async def test_a_partition_withdrawn_while_it_is_claimed_is_released() -> None:
    """a to b to c: b has not claimed the partition yet, so it knows no record that c could build on."""

    async with cluster("a", "b", "c") as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["b"].kv.faults = KvFaults(latency_s=1.0, unknown_lost=1.0)
        c["c"].kv.faults = KvFaults(latency_s=0.1)
        c.give("b", key)
        async with asyncio.timeout(5):
            while not c["b"].broker.get(key):  # noqa: ASYNC110  (virtual time)
                await asyncio.sleep(0.01)
        c.give("c", key)
        await asyncio.sleep(1.0)
        c["b"].kv.faults = KvFaults()
        _, message = c["b"].wire.asked[-1]
        assert ReleaseNote.of(message.releases[0]) == NOTHING
        assert await c.write("c", key, batch()) == 1


async def test_a_partition_that_moves_to_and_fro_keeps_its_log() -> None:
    """Moved back before it has left: it is opened again, by its own hand."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        for number in range(10):
            owner = "ab"[number % 2]
            c.give(owner, key)
            assert await c.write(owner, key, batch()) == number
        c.give("b", key)
        c.give("a", key)
        assert await c.write("a", key, batch()) == 10


async def test_new_owners_are_notified_of_many_moves_together() -> None:
    """100 partitions: one message at a time, and closed and opened in parallel, bounded."""

    async with cluster() as c:
        c.topic(100)
        keys = c.keys()
        c.give("a", *keys)
        await asyncio.gather(*(c.write("a", key, batch()) for key in keys))
        c.storage.faults = Faults(call_s=(0.001, 0.001), ack_s=(0.0003, 0.0003))
        for node in c.nodes.values():
            node.kv.faults = KvFaults(latency_s=0.002)
        c.give("b", *keys)
        most = [0]

        async def watch() -> None:
            while True:
                most.append(len(c["b"].assigned._opening))
                await asyncio.sleep(0.001)

        watching = asyncio.ensure_future(watch())
        assert await asyncio.gather(*(c.write("b", key, batch()) for key in keys)) == [1] * 100
        watching.cancel()
        messages = [message for _, message in c["a"].wire.asked]
        assert sum(len(message.partitions) for message in messages) == 100
        assert len(messages) < 100
        assert 2 < max(most) <= c.broker_config.open_parallel


async def test_a_move_takes_as_long_as_its_serial_calls() -> None:
    """The new owner's first acknowledgement comes well within 100 ms of the assignment, with HDFS's usual times.

    These are 2 ms a call to the NameNode or the store, and 0.3 ms a flush.  The assertions show what each side takes.
    """

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c.storage.faults = Faults(call_s=(0.001, 0.001), ack_s=(0.0003, 0.0003))
        for node in c.nodes.values():
            node.kv.faults = KvFaults(latency_s=0.002)
        began = now()
        c.give("b", key)
        writing = asyncio.ensure_future(c.write("b", key, batch()))
        await c["a"].wire.has_asked.wait()
        released = now()
        heir = await c["b"].assigned.wait(key, 5.0)
        opened = now()
        assert heir.epoch == 2
        assert await writing == 1
        spent = {"release": released - began, "open": opened - released, "first segment": now() - opened}
        assert sum(spent.values()) < 0.06, spent


@pytest.mark.leaves_tasks
async def test_a_settled_log_is_opened_without_reading_journals() -> None:
    """A live broker's journal is long and grows: reading it for each partition that it hands over would cost most."""

    async with cluster() as c:
        c.topic(2)
        keys = c.keys()
        c.give("a", *keys)
        for key in keys:
            await c.write("a", key, idempotent(0))
            await c.write("a", key, idempotent(1))
        found: list[Any] = []
        journals = c["b"].broker.context.journals
        find = journals.find

        async def count(incarnation: str, key: Any, *, passes_damaged: bool = False) -> Any:
            found.append(key)
            return await find(incarnation, key, passes_damaged=passes_damaged)

        journals.find = count  # type: ignore[method-assign]
        c.give("b", keys[0])
        assert await c.write("b", keys[0], idempotent(1)) == 1
        assert not found
        # A log start that moved after the last segment was closed stands in the journal alone.
        owner = await c["a"].assigned.wait(keys[1], 5.0)
        await asyncio.sleep(c.broker_config.idle_close_ms / 1000 + 1)
        assert owner.active_segment is None
        assert await owner.delete_before(1) == 1
        c.give("b", keys[1])
        heir = await c["b"].assigned.wait(keys[1], 5.0)
        assert heir.log_start == 1
        assert found
        # And what the heir does to it before it has a segment stands in the heir's.
        moved = await c["b"].assigned.wait(keys[0], 5.0)
        assert await moved.delete_before(2) == 2
        c["b"].kill()
        c["a"].view.leave("b")
        c["a"].view.assign("a", keys[0])
        back = await c["a"].assigned.wait(keys[0], 5.0)
        assert (back.log_start, back.high_watermark) == (2, 2)
        del c.nodes["b"]


async def test_a_settled_log_whose_index_is_damaged_or_gone() -> None:
    """Damage or remove the index of a settled log: the journals are read after all."""

    async with cluster() as c:
        c.topic(1)
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, idempotent(0))
        await c["a"].assigned.withdraw(key)
        assert (await record_of(c)).is_settled
        (index,) = [path async for path in indexes(c)]
        await c["a"].fs.delete(index)
        c["b"].view.assign("b", key)
        heir = await c["b"].assigned.wait(key, 5.0)
        assert (heir.high_watermark, heir.epoch) == (1, 2)
        assert not (await record_of(c)).is_settled


async def journal_files(c: Cluster) -> list[str]:
    return [file.path async for file in c["a"].fs.list(JOURNALS)]


async def indexes(c: Cluster) -> Any:
    path = PartitionPath("orders", str(c.catalog.topics["orders"].topic_id), 0)
    async for status in c["a"].fs.list(path.folder):
        if status.path.endswith(".idx"):
            yield status.path


@pytest.mark.parametrize("seed", seeds(3, 100))
async def test_kafscale_120_two_brokers_wrote_one_partition(seed: int) -> None:
    """Two brokers are each assigned the partition, and both write for a minute of contradiction, over a slow store and
    storage: every acknowledged batch has an offset of its own, and stands there."""

    async with cluster(seed=seed, broker=BrokerConfig(handover_wait_ms=500)) as c:
        c.topic()
        c.storage.faults = Faults(call_s=(0.0, 0.02), ack_s=(0.0, 0.05), early_bytes=0.5)
        for node in c.nodes.values():
            node.kv.faults = KvFaults(latency_s=0.05)
        (key,) = c.keys()
        c["a"].view.assign("a", key)
        c["b"].view.assign("b", key)
        acked: dict[int, bytes] = {}

        async def produce(name: str) -> None:
            for number in range(200):
                value = f"{name}{number}".encode()
                try:
                    offset = await c.write(name, key, batch(value), 2.0)
                except RequestError as error:
                    if not error.code.is_retriable:
                        raise
                else:
                    assert offset not in acked
                    acked[offset] = value
                await asyncio.sleep(0.3)

        await asyncio.gather(produce("a"), produce("b"))
        drivers = {value[:1] for value in acked.values()}
        assert drivers == {b"a", b"b"}, "each was the owner for a while"
        c.give("a", key)  # the views agree again
        end = await insist(c, "a", key, batch(b"last"))
        written = await values(c, key)
        assert written[end] == b"last"
        assert {offset: written[offset] for offset in acked} == acked


class Contradicted:
    """a believes that it owns the partition, which b has taken from it, and a producer's next batch comes to a."""

    def __init__(self, c: Cluster) -> None:
        c.topic()
        self.c = c
        (self.key,) = c.keys()

    async def begin(self) -> None:
        c, key = self.c, self.key
        c["a"].view.assign("a", key)
        assert await c.write("a", key, idempotent(0)) == 0
        c["b"].view.assign("b", key)
        assert await c.write("b", key, idempotent(1)) == 1

    def send(self, sequence: int) -> Awaitable[Any]:
        owner = self.c["a"].assigned.get(self.key)
        assert owner is not None, "nobody has told it"
        return append(owner, idempotent(sequence))


@pytest.mark.parametrize("count", [1, 3])
async def test_rule_9_a_broker_that_is_not_the_owner_any_more_refuses_no_sequence(count: int) -> None:
    """A former owner's producer table lacks what its successor has acknowledged: it refuses the batch as not the
    leader, not as out of sequence, and the successor takes it."""

    async with cluster() as c:
        case = Contradicted(c)
        await case.begin()
        reads = count_gets(c["a"])
        sent = await asyncio.gather(*(case.send(2 + n) for n in range(count)), return_exceptions=True)
        assert [error.code for error in sent if isinstance(error, RequestError)] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        ] * count
        assert len(reads) <= 2, "one question for all"
        assert await c.write("b", case.key, idempotent(2)) == 2


@pytest.mark.parametrize("is_cut", [True, False])
async def test_rule_9_a_sequence_gap_is_refused_by_the_present_owner(is_cut: bool) -> None:
    """Leave a gap in the sequence numbers: the owner refuses it. While the store does not respond who the owner is, the
    producer is to try again."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        assert await c.write("a", key, idempotent(0)) == 0
        c["a"].kv.faults = KvFaults(unknown_lost=float(is_cut), unavailable=float(is_cut))
        with pytest.raises(RequestError) as refused:
            await c.write("a", key, idempotent(5))
        is_known = refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert is_known or refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert is_known != is_cut
        c["a"].kv.faults = KvFaults()
        assert await c.write("a", key, idempotent(1)) == 1


@pytest.mark.parametrize("is_cut", [True, False])
async def test_rule_9_a_plain_batch_in_a_transaction_is_refused_by_the_present_owner(is_cut: bool) -> None:
    """A former owner may lack the marker that ended the transaction."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        assert await c.write("a", key, idempotent(0)) == 0
        driver = c["a"].broker.get(key)
        assert driver is not None
        assert await driver.append(data(1, pid=7).data, is_internal=True) == 1
        c["a"].kv.faults = KvFaults(unknown_lost=float(is_cut), unavailable=float(is_cut))
        with pytest.raises(RequestError) as refused:
            await c.write("a", key, idempotent(2))
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if is_cut else ErrorCode.INVALID_TXN_STATE
        assert refused.value.code is code
        c["a"].kv.faults = KvFaults()
        assert await driver.append(marker(pid=7).data, is_internal=True) == 2
        assert await c.write("a", key, idempotent(2)) == 3


async def test_a_sequence_gap_is_refused_though_its_partition_ends_meanwhile() -> None:
    async with cluster() as c:
        case = Contradicted(c)
        await case.begin()
        c["a"].kv.faults = KvFaults(latency_s=1.0)
        sent = [case.send(2), case.send(3)]
        await asyncio.sleep(0)
        c["a"].membership.is_member = False
        c["a"].broker.fence_all()
        for each in sent:
            with pytest.raises(RequestError) as refused:
                await each
            assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("seed", range(6))
async def test_a_partition_that_is_moved_again_at_any_moment_keeps_its_log(seed: int) -> None:
    """The moves are among three brokers, often before the last move is done, over a slow store that loses requests."""

    async with cluster("a", "b", "c", seed=seed, broker=BrokerConfig(handover_wait_ms=500)) as c:
        c.topic()
        (key,) = c.keys()
        rng = Random(seed)
        c.storage.faults = Faults(call_s=(0.0, 0.005), ack_s=(0.0, 0.005))
        for node in c.nodes.values():
            node.kv.faults = KvFaults(latency_s=0.05, unknown_lost=0.2, unknown_applied=0.1)
        acked: dict[int, bytes] = {}
        for number in range(20):
            for _ in range(rng.randint(1, 4)):
                owner = rng.choice("abc")
                c.give(owner, key)
                await asyncio.sleep(rng.random() * rng.choice((0.02, 0.2)))
            value = b"%d" % number
            offset = await insist(c, owner, key, batch(value))
            assert offset not in acked
            acked[offset] = value
        c.give("a", key)
        await insist(c, "a", key, batch(b"last"))
        written = await values(c, key)
        assert {offset: written[offset] for offset in acked} == acked


async def insist(c: Cluster, owner: str, key: Any, data: bytearray) -> int:
    """Write as a producer does, again after each retriable error, and return the base offset."""
    while True:
        try:
            return await c.write(owner, key, bytearray(data))
        except RequestError as error:
            if not error.code.is_retriable:
                raise
            await asyncio.sleep(0.1)


async def values(c: Cluster, key: Any) -> dict[int, bytes]:
    """Return all values in the log, by offset, as a reader of storage finds them."""
    owner = await c["a"].assigned.wait(key, 10.0)
    pool = BlockCache(c["a"].fs, ReadConfig())
    reader = LogReader(pool, PartitionPath("orders", str(key.topic_id), key.partition))
    found: dict[int, bytes] = {}
    at, end = 0, owner.high_watermark
    while at < end:
        data = await reader.read(at, 1 << 20, end, active=owner.active_segment)
        for one in read_batches(memoryview(data)):
            assert one.base_offset == at
            for record in read_records(one):
                found[record.offset] = bytes(record.value or b"")
            at = one.next_offset
    await pool.close()
    return found


async def test_kafscale_162_a_stale_record_is_never_written_over_a_newer_one() -> None:
    """b has read the record; a registers a segment, c takes the partition over; then b claims with what it has read.
    The claim compares the revision: nothing that the newer record lists is lost."""

    async with cluster("a", "b", "c") as c:
        c.topic()
        (key,) = c.keys()
        c["a"].view.assign("a", key)
        await c["a"].assigned.wait(key, 5.0)
        stale = await c["b"].broker.read_record(key)
        assert await c.write("a", key, batch()) == 0
        c["c"].view.leave("a")
        c["c"].view.assign("c", key)
        assert await c.write("c", key, batch()) == 1
        newest = await record_of(c)
        path = next(iter(c["a"].broker.partitions())).path
        with pytest.raises(RequestError):
            await c["b"].broker.open(path, key, None, stale)
        assert await record_of(c) == newest
        assert await c.write("c", key, batch()) == 2
        assert (await c["c"].assigned.wait(key, 1.0)).epoch == newest.epoch


async def test_a_lost_membership_ends_everything_at_once() -> None:
    async with cluster() as c:
        c.topic(3)
        keys = c.keys()
        c.give("a", *keys)
        for key in keys:
            await c.write("a", key, batch())
        c.storage.faults = Faults(ack_s=(0.5, 0.5))
        waiting = asyncio.ensure_future(c.write("a", keys[0], batch()))
        await asyncio.sleep(0.01)
        c["a"].membership.is_member = False
        c["a"].broker.fence_all()
        assert all(c["a"].assigned.get(key) is None for key in keys)
        with pytest.raises(RequestError) as refused:
            await waiting
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "it may be in the file"
        assert c["a"].broker.is_lost
        assert not c["a"].broker.is_serving
        await asyncio.sleep(30)
        assert len(c["a"].broker) == 0, "nothing is opened while it is no member"
        c["a"].membership.is_member = True
        c.storage.faults = Faults()
        assert await c.write("a", keys[1], batch()) == 1


async def test_what_a_returned_member_owned_is_not_waited_for() -> None:
    """A member was declared dead and has joined again: it reports that it no longer holds the partitions given away."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["a"].membership.is_member = False
        c["a"].broker.fence_all()
        await asyncio.sleep(5)
        c.give("b", key)
        began = now()
        assert await c.write("b", key, batch()) == 1
        assert now() - began < 0.5


async def test_a_broker_that_cannot_flush_says_so() -> None:
    """Storage acknowledges nothing to it for five seconds, and it has something to write."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        await asyncio.sleep(60)
        assert c["a"].broker.is_serving, "idle is not stalled"
        c.storage.faults = Faults(hung_ack=1.0, create_fails=1.0)
        writing = asyncio.ensure_future(c.write("a", key, batch()))
        await asyncio.sleep(4.5)
        assert c["a"].broker.is_serving
        await asyncio.sleep(2.5)
        assert not c["a"].broker.is_serving
        assert any("storage has acknowledged nothing" in report for report in c["a"].broker.reports)
        c.storage.faults = Faults()
        assert await writing == 1
        await asyncio.sleep(2)
        assert c["a"].broker.is_serving


async def test_an_emptied_broker_serves_again_once_it_reaches_storage_and_not_before() -> None:
    """Give a stalled broker's partitions to others: it then has nothing to write, which is not a sign that storage
    serves it."""

    async with cluster("a", "b") as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["a"].fs.pause()
        writing = asyncio.ensure_future(c.write("a", key, batch()))
        await asyncio.sleep(7.5)
        assert not c["a"].broker.is_serving
        c.give("b", key)
        await c.write("b", key, batch())
        with pytest.raises(RequestError):
            await writing
        await asyncio.sleep(120)
        assert c["a"].broker.unflushed_bytes == 0
        assert not c["a"].broker.is_serving
        assert "storage acknowledges nothing" in c["a"].broker.storage_trouble
        c["a"].fs.resume()
        await asyncio.sleep(5)
        assert c["a"].broker.is_serving
        assert not c["a"].broker.storage_trouble
        files = await journal_files(c)
        await asyncio.sleep(60)
        assert await journal_files(c) == files, "it is tried once"


@pytest.mark.leaves_tasks
async def test_a_broker_that_cannot_take_over_says_so_too() -> None:
    """A broker that cannot open anything has nothing to write: it must report that it does not serve nevertheless."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        c["a"].kill()
        c.storage.faults = Faults(unavailable=1.0)
        c["b"].view.leave("a")
        c["b"].view.assign("b", key)
        await asyncio.sleep(8)
        assert not c["b"].broker.is_serving
        c.storage.faults = Faults()
        assert await c.write("b", key, batch()) == 1
        await asyncio.sleep(2)
        assert c["b"].broker.is_serving
        del c.nodes["a"]


async def test_a_store_that_is_away_is_no_stall() -> None:
    """Rule 7: nothing can be opened, and storage is not to blame."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        for node in c.nodes.values():
            node.kv.faults = KvFaults(unavailable=1.0)
        c.give("a", key)
        await asyncio.sleep(60)
        assert c["a"].broker.is_serving
        for node in c.nodes.values():
            node.kv.faults = KvFaults()
        assert await c.write("a", key, batch()) == 0


async def test_a_partition_that_waits_for_the_store_to_register_a_segment_is_no_stall() -> None:
    """Keep the store from registering the next segment: the partition's bytes are not acknowledged, the log names the
    store, and the writes complete when the store responds."""

    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        broker = c["a"].broker
        await asyncio.sleep(broker.config.idle_close_ms / 1000 + 10)
        assert not broker.open_pipelines, "the next write opens a segment"
        c["a"].kv.faults = KvFaults(unavailable=1.0)
        writing = asyncio.ensure_future(c.write("a", key, batch(), timeout_s=600.0))
        await asyncio.sleep(60)
        assert broker.unflushed_bytes > 0
        assert broker.waiting_for_store == 1
        assert broker.is_serving
        (logged,) = broker.reports
        assert "the metadata store has not answered for over 5000 ms: 1 partitions wait for it" in logged
        c["a"].kv.faults = KvFaults()
        assert await writing == 1
        assert broker.waiting_for_store == 0
        await asyncio.sleep(10)
        c["a"].kv.faults = KvFaults(unavailable=1.0)
        c.storage.faults = Faults(hung_ack=1.0, create_fails=1.0)
        writing = asyncio.ensure_future(c.write("a", key, batch(), timeout_s=600.0))
        await asyncio.sleep(7.5)
        assert not broker.is_serving, "with a segment open it is storage that does not answer"
        c["a"].kv.faults, c.storage.faults = KvFaults(), Faults()
        assert await writing == 2


async def test_a_gray_brokers_partitions_are_fenced_away() -> None:
    """The controller has given them to another; the gray one cannot hand over, so patience ends it."""

    async with cluster(broker=BrokerConfig(handover_wait_ms=1_000)) as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        assert await c.write("a", key, batch()) == 0
        c.storage.faults = Faults(hung_ack=1.0)
        stuck = asyncio.ensure_future(c.write("a", key, batch()))
        await asyncio.sleep(0.1)
        c.storage.faults = Faults()
        c.give("b", key)
        began = now()
        offset = await c.write("b", key, batch())
        assert now() - began < c.broker_config.handover_wait_ms / 1000 + 0.5
        outcome = (await asyncio.gather(stuck, return_exceptions=True))[0]
        if isinstance(outcome, RequestError):
            assert outcome.code.is_retriable
        else:
            assert outcome != offset


async def test_a_gray_broker_refuses_its_batches_once_another_owns_the_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gray broker can neither flush nor take over its own file. Clients ask no other broker before it has responded,
    so it must respond once another one has the partition."""

    async with cluster(broker=BrokerConfig(handover_wait_ms=1_000)) as c:
        is_asked = asyncio.Event()

        async def no_answer(*_: object, **__: object) -> None:
            is_asked.set()
            await asyncio.Event().wait()

        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        assert await c.write("a", key, batch()) == 0
        for call in ("create", "fence"):
            monkeypatch.setattr(c["a"].fs, call, no_answer)
        c.storage.faults = Faults(pipeline_fails=1.0)
        stuck = asyncio.ensure_future(c.write("a", key, batch()))
        await is_asked.wait()
        c.storage.faults = Faults()
        c.give("b", key)
        await c.write("b", key, batch())
        async with asyncio.timeout(60):
            with pytest.raises(RequestError) as refused:
                await stuck
        assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_a_release_note_of_an_unknown_partition_is_ignored() -> None:
    """Partitions that are open already, or are not ours, or do not exist."""

    async with cluster() as c:
        topic = c.topic(2)
        keys = c.keys()
        c.give("a", keys[0])
        owner = await c["a"].assigned.wait(keys[0], 5.0)
        handover = HandedOverRequest(((topic.topic_id, 0), (topic.topic_id, 1), (topic.topic_id, 9)))
        await c["b"].wire.ask(c["b"].view.members["a"], handover, 1.0)
        await asyncio.sleep(5)
        assert owner.is_open
        assert len(c["a"].assigned) == 1


async def test_a_topic_with_a_wrong_config_is_kept_from_opening_and_no_other() -> None:
    """Store a config that this version refuses, as another version may write it: the follower continues, the other
    topics open, and a change that corrects the config opens the topic."""

    async with cluster("a") as c:
        wrong = replace(c.topic(2, "wrong"), configs={"compression.type": "brotli"})
        c.catalog.put("wrong", wrong)
        c.topic(1)
        follower = c["a"].follower
        c.give("a", *c.keys("wrong"), *c.keys())
        await c.write("a", c.keys()[0], batch())
        assert len(follower) == 1
        assert list(follower.refused) == ["wrong"]
        assert "brotli" in follower.refused["wrong"]
        c.catalog.put("wrong", replace(wrong, configs={"compression.type": "zstd"}))
        for key in c.keys("wrong"):
            await c.write("a", key, batch())
        assert follower.refused == {}
        assert len(follower) == 3
        # One that is served goes on with what it had.
        orders = c.catalog.topics["orders"]
        c.catalog.put("orders", replace(orders, configs={"retention.ms": "soon"}))
        assert list(follower.refused) == ["orders"]
        await c.write("a", c.keys()[0], batch())
        c.catalog.put("orders", orders)
        assert follower.refused == {}


async def test_a_deleted_topic_is_not_refused_any_more() -> None:
    async with cluster("a") as c:
        c.catalog.put("wrong", replace(c.topic(1, "wrong"), configs={"segment.ms": "x"}))
        c.give("a", *c.keys("wrong"))
        assert list(c["a"].follower.refused) == ["wrong"]
        c.catalog.put("wrong", None)
        assert c["a"].follower.refused == {}


async def test_many_topics_and_partitions_that_change_in_one_turn_are_followed_without_a_stop() -> None:
    """A watch shows 125 topics, or 2,500 moves, in one turn of the loop."""
    async with world() as w:
        w.assigned._pump = lambda: None  # type: ignore[method-assign]  # none is opened here
        w.catalog.subscribe_configs = lambda call: None  # type: ignore[method-assign]
        view = OneView("b1")
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        topics = [Topic(name=f"t{n}", topic_id=uuid.UUID(int=n + 1), partitions=800) for n in range(125)]

        async def change(to: Callable[[Topic], Topic | None]) -> None:
            with loop_stops() as stops:
                for each in topics:
                    w.catalog.put(each.name, to(each))
                await asyncio.sleep(1)
            assert is_short(stops.longest_s, 0.025), stops.longest_s

        await change(lambda each: each)
        assert len(follower) == len(w.assigned) == 100_000
        await change(lambda each: replace(each, configs={"retention.ms": "1000"}))
        assert {slot.config.retention_ms for slot in w.assigned._slots.values()} == {1_000}
        moved = {PartitionKey(topics[n % 125].topic_id, n // 125) for n in range(2_500)}
        for owner, left in (("other", 97_500), ("b1", 100_000)):
            view.owner_of = lambda key, owner=owner: owner  # type: ignore[method-assign,misc]
            with loop_stops() as stops:
                view._subscribers.notify(ViewChange(partitions=moved))
                await asyncio.sleep(1)
            assert is_short(stops.longest_s, 0.025), stops.longest_s
            assert len(follower) == len(w.assigned) == left
        await change(lambda each: None)
        assert len(follower) == len(w.assigned) == 0
        follower.close()


async def test_a_topic_that_changes_again_while_its_change_waits_has_its_last_config() -> None:
    """Let a config wait for its turn; another one comes in that turn, before the work that waits."""
    async with world() as w:
        w.assigned._pump = lambda: None  # type: ignore[method-assign]
        w.catalog.subscribe_configs = lambda call: None  # type: ignore[method-assign]
        view = OneView("b1")
        follower = AssignmentFollower(w.assigned, w.catalog, view, w.config, no_successors(view))
        await follower.start()
        topic, gone = w.topic("orders", 2, assign=False), w.topic("gone", 2, assign=False)
        large = w.topic("large", 2_500, assign=False)
        await asyncio.sleep(1)

        w.catalog.put("large", replace(large, configs={"retention.ms": "1"}))
        w.catalog.put("orders", replace(topic, configs={"retention.ms": "1"}))
        w.catalog.put("gone", replace(gone, configs={"retention.ms": "1"}))
        await asyncio.sleep(0)
        w.catalog.put("orders", replace(topic, configs={"retention.ms": "2"}))
        w.catalog.put("gone", None)
        await asyncio.sleep(1)
        assert {slot.config.retention_ms for slot in w.assigned._slots.values() if slot.path.topic == "orders"} == {2}
        assert {slot.path.topic for slot in w.assigned._slots.values()} == {"orders", "large"}
        follower.close()
