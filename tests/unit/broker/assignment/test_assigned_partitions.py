"""The partitions assigned to a broker: which are open, in what order they are opened, and failures of an opening."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any, cast

import pytest

from bmq.broker.assignment import events as ev
from bmq.broker.assignment.assigned_partition import OFFLINE_LOOK_MS, OFFLINE_LOOKS_MAX
from bmq.broker.assignment.assigned_partitions import BACKGROUND_PARALLEL
from bmq.broker.assignment.open_state import OpenState
from bmq.broker.config import BrokerConfig, LogConfig, log_config
from bmq.broker.not_served_api import NotServedApi
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import BatchRules
from bmq.core.rpc.messages.broker import PartitionsNotServedRequest, PartitionsNotServedResponse
from bmq.meta import ownership
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import KvFaults
from bmq.meta.ownership import PartitionRecord
from bmq.storage.memory import Faults
from tests.harness.loop_stops import is_short, loop_stops
from tests.harness.seeds import amount
from tests.harness.waiting import until
from tests.unit.broker.world import World, batch, idempotent, world

pytestmark = pytest.mark.slow
PARTITIONS = amount(50_000, 100_000)
"""Partitions of one broker: handled in one turn of the loop, they stop it for 60 ms or longer."""


def refusal(outcome: BaseException | None) -> ErrorCode:
    assert isinstance(outcome, RequestError)
    return outcome.code


async def test_assigned_partitions_are_opened_in_the_background() -> None:
    """A few at a time, without anybody asking."""

    async with world() as w:
        w.kv.faults = KvFaults(latency_s=0.01)
        w.topic("orders", 50)
        most = 0
        while sum(event[0] == "opened" for event in w.flush_listener.notified) < 50:
            most = max(most, len(w.assigned._opening))
            await asyncio.sleep(0.001)
        assert most == BACKGROUND_PARALLEL
        order = [event[1] for event in w.flush_listener.notified]
        assert all(abs(at - number) <= BACKGROUND_PARALLEL for at, number in enumerate(order)), "as they were assigned"


@pytest.mark.parametrize("copies", [1, 2, 3])
async def test_a_segment_has_as_many_copies_as_its_topic_asks_for(copies: int) -> None:
    async with world() as w:
        topic = w.topic("orders", assign=False)
        config = log_config(topic.configs, copies)
        w.assigned.assign(w.path(), w.key(), config)
        await w.owner()
        await w.produce_one(batch())
        files = w.storage.namespace.files.values()
        (segment,) = (file for file in files if "/topics/" in w.storage.namespace.path_of(file) and file.replicas)
        assert len(segment.replicas) == copies


@pytest.mark.parametrize("ask", ["wait", "get"])
async def test_partitions_that_requests_wait_for_are_opened_first(ask: str) -> None:
    """The last of 1,000 is open long before the others; a fetch only ever calls ``get``."""

    async with world() as w:
        w.kv.faults = KvFaults(latency_s=0.01)
        w.topic("orders", 1000)
        key = w.key("orders", 999)
        if ask == "wait":
            await w.assigned.wait(key, 5.0)
        else:
            await until(lambda: w.assigned.get(key) is not None)
        assert w.assigned.get(key) is not None
        assert len(w.flush_listener.notified) <= 2 * BACKGROUND_PARALLEL


async def test_a_request_is_opened_before_all_partitions_that_metadata_names() -> None:
    """One Metadata response checks every partition that there is: a produce must not wait behind them all."""

    async with world() as w:
        w.kv.faults = KvFaults(latency_s=0.01)
        w.topic("orders", 1000)
        for number in range(1000):
            w.assigned.get(w.key("orders", number))
        await w.assigned.wait(w.key("orders", 999), 5.0)
        assert len(w.flush_listener.notified) <= 2 * BrokerConfig().open_parallel, (
            "those before it, and those beside it"
        )


async def test_many_partitions_that_requests_wait_for_open_concurrently() -> None:
    async with world(broker=BrokerConfig(open_parallel=8)) as w:
        w.kv.faults = KvFaults(latency_s=0.01)
        w.topic("orders", 100)
        asking = [asyncio.ensure_future(w.assigned.wait(w.key("orders", number), 5.0)) for number in range(100)]
        await asyncio.sleep(0.005)
        assert len(w.assigned._opening) == 8
        await asyncio.gather(*asking)


async def test_a_request_that_is_woken_finds_its_partition_open() -> None:
    """A fetch is woken by ``opened`` and asks in the same turn: hearing "not here" it would park again."""
    found: list[bool] = []

    async with world() as w:
        w.flush_listener.opened = lambda key, *_: found.append(w.assigned.get(key) is not None)  # type: ignore[method-assign]
        w.topic("orders", 3)
        for number in range(3):
            await w.owner("orders", number)
        assert found == [True] * 3


async def test_a_wait_ends_with_a_retriable_error() -> None:
    async with world() as w:
        w.kv.faults = KvFaults(unavailable=1.0)
        w.topic()
        began = asyncio.get_running_loop().time()
        with pytest.raises(RequestError) as late:
            await w.assigned.wait(w.key(), 2.0)
        assert (refusal(late.value), asyncio.get_running_loop().time()) == (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            began + 2.0,
        )
        w.kv.faults = KvFaults()
        await w.assigned.wait(w.key(), 2.0)
        w.topic("unassigned", assign=False)
        with pytest.raises(RequestError) as nobody:
            await w.assigned.wait(w.key("unassigned"), 2.0)
        assert refusal(nobody.value) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert w.assigned.get(w.key("unassigned")) is None


@pytest.mark.leaves_tasks
async def test_the_first_file_after_a_death_is_created_while_the_dead_owners_files_are_fenced() -> None:
    """A file that takes a second, as with a silent datanode: the takeover and the file take one second, not two."""

    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        w.broker.context.timers.close()  # kill -9
        w.fs.crash()
        w.kv.crash()
        await w.start()
        fence, create = w.fs.fence, w.fs.create

        async def fence_slowly(*arguments: Any, **options: Any) -> int:
            await asyncio.sleep(1.0)
            return await fence(*arguments, **options)

        async def create_slowly(*arguments: Any, **options: Any) -> Any:
            await asyncio.sleep(1.0)
            return await create(*arguments, **options)

        w.fs.fence, w.fs.create = fence_slowly, create_slowly  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        w.assign()
        assert (await w.produce_one(batch())).base_offset == 1
        assert asyncio.get_running_loop().time() - began < 1.5
        assert [path for path in w.storage.open_files() if ".spare-" in path] == [], "it was taken"


@pytest.mark.leaves_tasks
async def test_storage_that_is_throttled_at_start_is_no_reason_to_give_up() -> None:
    """AutoMQ #3177: half an hour of it, two of a soak, then everything opens without anybody asking again."""

    async with world() as w:
        w.topic("orders", 4)
        for number in range(4):
            await w.produce_one(batch(), number)
        w.broker.context.timers.close()  # kill -9
        w.fs.crash()
        w.kv.crash()
        await w.start()
        w.storage.faults = Faults(unavailable=1.0)
        w.assign()
        await asyncio.sleep(amount(1800, 2 * 3600))
        w.storage.faults = Faults()
        await asyncio.sleep(30)
        for number in range(4):
            owner = w.assigned.get(w.key("orders", number))
            assert owner is not None
            assert (owner.high_watermark, owner.epoch) == (1, 2)


async def test_a_lost_partition_is_opened_again() -> None:
    async with world() as w:
        w.topic()
        first = await w.owner()
        await w.produce_one(batch())
        w.broker.fence_all()
        assert w.assigned.get(w.key()) is None
        second = await w.owner()
        assert (second.epoch, second.high_watermark, first.is_open) == (2, 1, False)
        await asyncio.sleep(5)  # the broker forgets the old one, not the new
        assert w.assigned.get(w.key()) is second
        assert [event[0] for event in w.flush_listener.notified] == ["opened", "flushed", "closed", "opened"]


async def test_a_lost_membership_is_followed_by_another() -> None:
    """Everything is fenced; once the process is a member again, it owns everything again."""

    async with world() as w:
        w.topic("orders", 3)
        for number in range(3):
            await w.produce_one(batch(), number)
        w.membership.is_member = False
        w.broker.fence_all()
        await asyncio.sleep(30)
        assert [event[0] for event in w.flush_listener.notified].count("closed") == 3
        assert not w.assigned.open_owners()
        w.membership.is_member = True
        for number in range(3):
            assert (await w.produce_one(batch(), number)).base_offset == 1
        assert not w.broker.is_lost


async def test_a_partition_that_another_broker_takes_again_and_again_is_opened_ever_more_slowly() -> None:
    """Back-off between tries is bounded, and grows."""

    async with world() as w:
        w.topic()
        await w.owner()
        times = []
        loop = asyncio.get_running_loop()
        opening = w.broker.open

        async def refuse(*_: Any) -> Any:
            times.append(loop.time())
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "fenced at once")

        w.broker.open = refuse  # type: ignore[method-assign, assignment]
        w.broker.fence_all()
        await asyncio.sleep(20)
        waits = [round(after - before, 1) for before, after in pairwise(times)]
        assert waits[:5] == [0.2, 0.4, 0.8, 1.6, 2.0]
        assert set(waits[5:]) == {2.0}
        w.broker.open = opening  # type: ignore[method-assign]
        assert (await w.owner()).epoch == 2


@pytest.mark.leaves_tasks
async def test_an_offline_partition_waits_for_an_operator() -> None:
    """Said at once and with the reason, as a storage error; not tried again."""

    async with world() as w:
        w.topic()
        for number in range(3):
            await w.produce_one(batch(b"%d" % number * 100))
        await asyncio.sleep(5)
        owner = await w.owner()
        active = owner.active_segment
        assert active is not None
        w.broker.context.timers.close()  # kill -9
        w.fs.crash()
        w.kv.crash()
        await w.start()
        await w.fs.delete(w.path().log(active.name))
        w.assign()
        for _ in range(2):
            with pytest.raises(RequestError) as offline:
                await w.assigned.wait(w.key(), 60.0)
            assert refusal(offline.value) is ErrorCode.KAFKA_STORAGE_ERROR
            assert "offline" in offline.value.message
        assert asyncio.get_running_loop().time() < 60
        assert w.assigned.get(w.key()) is None
        assert (await w.produce_one(batch())).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_undecodable_records_take_their_own_partitions_offline_and_no_other() -> None:
    """More of them than the background opens at a time: those behind them are opened all the same."""

    async with world() as w:
        bad = BACKGROUND_PARALLEL + 1
        w.topic("orders", bad + 2, assign=False)
        for partition in range(bad):
            key = ownership.partition_key("bmq", w.key(partition=partition))
            await w.kv.commit([], [Put(key, b'{"format":2}')])
        w.assign()
        for partition in range(bad, bad + 2):
            assert (await w.owner(partition=partition)).epoch == 1
        for partition in range(bad):
            with pytest.raises(RequestError) as offline:
                await w.assigned.wait(w.key(partition=partition), 60.0)
            assert refusal(offline.value) is ErrorCode.KAFKA_STORAGE_ERROR
            assert "format 2" in offline.value.message


@pytest.mark.parametrize("finds", ["registration", "upkeep"])
async def test_a_record_that_becomes_undecodable_stops_its_owner_and_no_other(finds: str) -> None:
    """Found by the compare of the next registration, or by the proof before a deletion."""

    async with world() as w:
        w.topic("orders", 2, retention_ms="1000", file_delete_delay_ms="0")
        assert (await w.produce_one(batch())).error_code == 0
        assert (await w.produce_one(batch(), 1)).error_code == 0
        await asyncio.sleep(400)  # both segments are closed
        owner = await w.owner()
        await w.kv.commit([], [Put(ownership.partition_key("bmq", w.key()), b"what?")])
        if finds == "registration":
            assert (await w.produce_one(batch())).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            with pytest.raises(RequestError):
                await owner.delete_before(1)
        assert (await w.produce_one(batch())).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        failed: list[str] = []
        w.wiring.on_failed = failed.append
        await asyncio.sleep(600)  # rounds of upkeep
        assert failed == []
        assert (await w.produce_one(batch(), 1)).error_code == 0


async def test_assign_is_idempotent_and_reconfigures() -> None:
    async with world() as w:
        w.topic()
        w.assign()
        owner = await w.owner()
        assert (await w.produce_one(batch(b"x" * 500))).error_code == 0
        w.assigned.assign(w.path(), w.key(), LogConfig(rules=BatchRules(max_message_bytes=100)))
        assert (await w.produce_one(batch(b"x" * 500))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert w.assigned.get(w.key()) is owner
        assert len(w.assigned) == 1
        assert [event[0] for event in w.flush_listener.notified] == ["opened", "flushed"]


async def test_a_config_that_changes_while_a_partition_opens_reaches_it() -> None:
    async with world() as w:
        w.kv.faults = KvFaults(latency_s=0.1)
        w.topic("orders", 5)
        await asyncio.sleep(0.05)
        small = LogConfig(rules=BatchRules(max_message_bytes=100))
        for number in range(5):
            w.assigned.assign(w.path("orders", number), w.key("orders", number), small)
        for number in range(5):
            assert (await w.owner("orders", number)).max_message_bytes == 100


async def test_a_withdrawn_partition_flushes_what_it_accepted_and_is_released() -> None:
    """Withdraw a partition with a batch in flight: it is gone for all readers at once; the batch is flushed and
    acknowledged first."""

    async with world() as w:
        w.topic()
        await w.produce_one(idempotent(0))
        w.storage.faults = Faults(ack_s=(0.5, 0.5))
        sent = w.produce({("orders", 0): idempotent(1)})
        await asyncio.sleep(0)
        task = w.assigned.withdraw(w.key())
        assert w.assigned.get(w.key()) is None
        await task
        assert (await sent)[0].base_offset == 1
        assert w.broker.get(w.key()) is None
        assert w.broker._departed
        await w.assigned.withdraw(w.key())  # once more does no harm
        w.assign()
        assert (await w.owner()).high_watermark == 2


async def test_a_pipeline_that_does_not_close_delays_no_release() -> None:
    """A datanode hangs just when the last segment is closed: its file is taken over, and the hand-over ends."""

    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        w.storage.faults = Faults(hung_ack=1.0)
        task = w.assigned.withdraw(w.key())
        await asyncio.sleep(w.broker.config.close_timeout_ms / 1000 - 1)
        assert not task.done()
        w.storage.faults = Faults()
        async with asyncio.timeout(5):
            await task
        w.assign()
        assert (await w.owner()).high_watermark == 1


@pytest.mark.parametrize("is_withdrawn", [False, True])
async def test_storage_that_is_gone_does_not_keep_a_broker_from_leaving(is_withdrawn: bool) -> None:
    """The only datanode that holds the segment has died.  When it is back, the next broker finds every record."""

    async with world() as w:
        topic = w.topic("orders", assign=False)
        w.assigned.assign(w.path(), w.key(), log_config(topic.configs, 1))
        await w.produce_one(batch())
        files = w.storage.namespace.files.values()
        (node,) = (r.node.name for f in files if "/topics/" in w.storage.namespace.path_of(f) for r in f.replicas)
        w.storage.kill_datanode(node)
        if is_withdrawn:
            w.assigned.withdraw(w.key())
        async with asyncio.timeout(w.broker.config.handover_ms / 1000 + 60):
            await w.stop()
        w.storage.start_datanode(node)
        await w.start()
        w.assigned.assign(w.path(), w.key(), log_config(topic.configs, 1))
        owner = await w.assigned.wait(w.key(), 60.0)  # its replica waits for a recovery of the lease
        assert owner.high_watermark == 1


async def test_a_hand_over_that_a_deletion_waits_for_ends_with_the_process() -> None:
    """Delete a topic while its hand-over waits for storage, and end the process: no task is left."""
    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        w.storage.faults = Faults(hung_ack=1.0)
        handing_over = w.assigned.withdraw(w.key())
        await asyncio.sleep(0.1)
        w.assigned.delete(w.key())
        assert not handing_over.done()
        await w.assigned.close()
        assert handing_over.cancelled()
        assert not w.assigned._leave_tasks
        w.storage.faults = Faults()


async def test_withdraw_of_a_deleted_topic_leaves_nothing() -> None:
    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        await w.assigned.withdraw(w.key(), is_deleted=True)
        assert not w.broker._departed
        assert len(w.assigned) == len(w.broker) == 0
        assert not w.assigned._leaving


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.15, 0.3])
async def test_a_partition_withdrawn_while_it_opens_can_be_assigned_again(after_s: float) -> None:
    async with world() as w:
        w.topic("orders", 3)
        await w.produce_one(batch())
        await w.assigned.withdraw(w.key())
        w.kv.faults = KvFaults(latency_s=0.1)
        w.assign()
        waiting = asyncio.ensure_future(w.assigned.wait(w.key(), 10.0))
        await asyncio.sleep(after_s)
        leaving = w.assigned.withdraw(w.key())
        outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
        if isinstance(outcome, RequestError):
            assert outcome.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        w.assign()  # before it has left
        owner = await w.owner()
        assert owner.high_watermark == 1
        assert leaving.done()
        await asyncio.sleep(5)
        assert w.assigned.get(w.key()) is owner


async def test_close_refuses_the_requests_that_wait() -> None:
    async with world() as w:
        w.kv.faults = KvFaults(unavailable=1.0)
        w.topic("orders", 3)
        waiting = [asyncio.ensure_future(w.assigned.wait(w.key("orders", number), 60.0)) for number in range(3)]
        held = w.produce({("orders", 1): batch()})
        await asyncio.sleep(1)
        await w.assigned.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {refusal(each) for each in outcomes if isinstance(each, BaseException)} == {
            ErrorCode.NOT_LEADER_OR_FOLLOWER
        }
        assert (await held)[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        w.kv.faults = KvFaults()


async def test_an_idle_partition_has_no_task_and_no_timer() -> None:
    async with world() as w:
        before = len(asyncio.all_tasks())
        w.topic("orders", 100)
        for number in range(100):
            await w.owner("orders", number)
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == before
        assert not w.broker.context.timers._heap


# ------------------------------------------------------------------------------------------------------------ OFFLINE


async def offline(w: World) -> None:
    """Assign a partition with a record that cannot be decoded."""
    w.topic(assign=False)
    await w.kv.commit([], [Put(ownership.partition_key("bmq", w.key()), b"what?")])
    w.assign()
    with pytest.raises(RequestError) as refused:
        await w.owner()
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("owner", ["", "repair-1"])
async def test_a_partition_that_a_repair_releases_is_opened_soon(owner: str) -> None:
    """A released record opens the partition within two pauses between checks; not while the repair is at work."""

    async with world() as w:
        await offline(w)
        await asyncio.sleep(5 * OFFLINE_LOOK_MS / 1000 + 1)  # the looks at which it is tried in any case are 1, 2, 4, 8
        record = PartitionRecord(epoch=7, owner=owner)
        await w.kv.commit([], [Put(ownership.partition_key("bmq", w.key()), ownership.encode(record))])
        await asyncio.sleep(2 * OFFLINE_LOOK_MS / 1000)
        assert (w.assigned.get(w.key()) is not None) == (owner == "")


async def test_partitions_that_cannot_be_served_are_named_until_they_can_be() -> None:
    async with world() as w:
        await offline(w)
        ((path, why),) = w.assigned.not_served()
        assert (path, "offline" in why) == (w.path(), True)
        assert why in w.assigned.why_not_served(w.key())
        body = memoryview(b"".join(map(bytes, PartitionsNotServedRequest().encode())))
        reply = await NotServedApi(w.broker, w.assigned).handle(body, cast(Any, None))
        response = PartitionsNotServedResponse.decode(memoryview(b"".join(map(bytes, reply))))
        assert response.partitions == ((w.path().topic, w.path().partition, why),)
        assert (response.total, response.storage_trouble) == (1, "")
        await w.kv.commit([], [Delete(ownership.partition_key("bmq", w.key()))])
        await asyncio.sleep(OFFLINE_LOOKS_MAX * OFFLINE_LOOK_MS / 1000)
        assert w.assigned.get(w.key()) is not None
        assert list(w.assigned.not_served()) == []
        assert w.assigned.why_not_served(w.key()) == ""


async def test_an_offline_partition_is_tried_again_more_and_more_rarely() -> None:
    """Retry an offline partition with growing pauses: one whose undecodable record is gone opens without any
    notification."""

    async with world() as w:
        await offline(w)
        tries = 0
        opened = w.broker.open

        async def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal tries
            tries += 1
            return await opened(*args, **kwargs)

        w.broker.open = counted  # type: ignore[method-assign]
        key = ownership.partition_key("bmq", w.key())
        for _ in range(100):
            await asyncio.sleep(OFFLINE_LOOK_MS / 1000)
        assert 6 <= tries <= 8
        await w.kv.commit([], [Delete(key)])
        await asyncio.sleep(OFFLINE_LOOKS_MAX * OFFLINE_LOOK_MS / 1000)
        assert w.assigned.get(w.key()) is not None


async def with_waiting(w: World, partitions: int) -> None:
    """Assign partitions, all of which wait for the member "other" to hand them over."""
    w.assigned._pump = lambda: None  # type: ignore[method-assign]  # none is opened here
    w.topic("orders", partitions)
    for slot in w.assigned._slots.values():
        slot.state = OpenState.OPENING
        w.assigned._handle(slot, ev.RecordRead("other", 1, False))


def states(w: World) -> Counter[OpenState]:
    return Counter(slot.state for slot in w.assigned._slots.values())


async def test_very_many_partitions_of_a_member_that_is_gone_are_queued_without_a_stop() -> None:
    async with world() as w:
        await with_waiting(w, PARTITIONS)
        with loop_stops() as stops:
            w.assigned.members_gone(["other"])
            w.assigned.withdraw(w.key("orders", PARTITIONS - 1))  # between two steps
            await w.assigned._many.finish()
        assert states(w) == {OpenState.ASKED: PARTITIONS - 1}
        assert is_short(stops.longest_s, 0.020), stops.longest_s


async def test_partitions_that_wait_for_a_member_are_left_where_they_are_if_the_broker_closes() -> None:
    async with world() as w:
        await with_waiting(w, 5_000)
        w.assigned.members_gone(["other"])
        await w.assigned.close()
        assert states(w)[OpenState.WAITING] >= 3_000


async def test_very_many_partitions_of_a_process_that_is_a_member_again_are_queued_without_a_stop() -> None:
    async with world() as w:
        await with_waiting(w, PARTITIONS)
        w.membership.is_member = False
        for slot in w.assigned._slots.values():
            slot.state = OpenState.QUEUED
            w.assigned._handle(slot, ev.TurnCame(OpenState.QUEUED, is_lost=True))
        w.membership.is_member = True
        with loop_stops() as stops:
            w.assigned._check_membership()
            await w.assigned._many.finish()
        assert states(w) == {OpenState.QUEUED: PARTITIONS}
        assert is_short(stops.longest_s, 0.020), stops.longest_s


async def test_very_many_partitions_that_were_not_handed_over_in_time_are_queued_without_a_stop() -> None:
    async with world() as w:
        await with_waiting(w, PARTITIONS)
        with loop_stops() as stops:
            await asyncio.sleep(w.broker.config.handover_wait_ms / 1000 + 1)
        assert states(w) == {OpenState.ASKED: PARTITIONS}
        assert is_short(stops.longest_s, 0.020), stops.longest_s
