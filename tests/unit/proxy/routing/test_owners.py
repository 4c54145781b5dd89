"""A proxy over brokers elsewhere: produces, reads and questions, while partitions move and connections break."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.aio.steps import Steps
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import Batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.peers import ConnectionKind
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.fetch.operation import FetchResult
from bmq.meta.kv_memory import KvFaults
from bmq.proxy.routing.owners import SWEEP_S, UNUSED_S, RoutedOwners
from bmq.proxy.routing.produce_route import RouteState
from bmq.proxy.routing.remote_owner import RemoteOwner
from bmq.proxy.routing.remote_tail import CONFIRM_EVERY_S
from bmq.storage import checkpoint
from bmq.storage.checkpoint import ProducerState
from bmq.storage.memory import Faults
from tests.harness.fakes import FakeClient
from tests.harness.loop_stops import TurnCounter
from tests.unit.endpoint.serving import append
from tests.unit.proxy.cluster import PING_S, Cluster, cluster, idempotent, plain

pytestmark = pytest.mark.slow


async def answers(sent: list[Any]) -> list[tuple[str, int]]:
    return [(ErrorCode(each.error_code).name, each.base_offset) for each in await asyncio.gather(*sent)]


async def values(world: Cluster, partition: int = 0, offset: int = 0) -> list[str]:
    """Return the values of the log from ``offset`` on, as the proxy reads it."""
    out: list[str] = []
    end = (await (await world.owners.wait(world.key(partition), 10)).ends()).high_watermark
    while offset < end:
        fetched = await world.fetch(world.want(offset, partition), max_wait_s=5)
        batches = batches_of(fetched)
        assert all(not look.error for look in fetched.results), fetched.results
        for batch in batches:
            out.append(value_of(batch))
            offset = batch.next_offset
        if fetched.release is not None:
            fetched.release()
    return out


def batches_of(fetched: FetchResult) -> list[Batch]:
    data = memoryview(b"".join([bytes(each) for look in fetched.results for each in look.buffers]))
    return list(read_batches(data))


def value_of(batch: Batch) -> str:
    (record,) = read_records(batch)
    assert record.value is not None
    return bytes(record.value).rstrip(b".").decode()


def errors_of(fetched: FetchResult) -> list[str]:
    return [look.error.name for look in fetched.results if look.error]


# --------------------------------------------------------------------------------------------------------- produces


async def test_produces_stand_in_the_order_of_their_requests() -> None:
    async with cluster() as world:
        sent = [world.send(idempotent(number)) for number in range(20)]
        assert await answers(sent) == [("NONE", number) for number in range(20)]
        assert await values(world) == [f"7/{number}" for number in range(20)]


async def test_one_turns_parts_are_one_request() -> None:
    """Two, when acks differ."""

    async with cluster(partitions=8) as world:
        await answers([world.send(plain(), partition) for partition in range(8)])
        link = world.network.links["b1", ConnectionKind.PRODUCE]
        before = link.requests[ApiKey.PRODUCE]
        sent = [world.send(plain(), partition, acks=acks) for partition in range(4) for acks in (-1, -1)]
        sent += [world.send(plain(), partition, acks=1) for partition in range(4, 8)]
        assert {code for code, _ in await answers(sent)} == {"NONE"}
        assert link.requests[ApiKey.PRODUCE] - before == 2


async def test_mixed_acks_of_one_partition_keep_their_order() -> None:
    async with cluster() as world:
        sent = [world.send(idempotent(number), acks=(-1, 1, 1, -1)[number % 4]) for number in range(12)]
        assert await answers(sent) == [("NONE", number) for number in range(12)]


@pytest.mark.parametrize("seed", range(20))
async def test_mixed_acks_at_any_pace_keep_their_order(seed: int) -> None:
    async with cluster() as world:
        rng = random.Random(seed)
        sent = []
        for number in range(12):
            sent.append(world.send(idempotent(number), acks=rng.choice((-1, 1))))
            await asyncio.sleep(rng.choice((0, 0.0005, 0.001)))
        assert await answers(sent) == [("NONE", number) for number in range(12)]


async def test_a_planned_move_is_no_error() -> None:
    async with cluster() as world:
        sent = []
        for number in range(60):
            sent.append(world.send(idempotent(number)))
            if number in (20, 40):
                world.move(0, "b2" if number == 20 else "b1")
            await asyncio.sleep(0.001)
        assert await answers(sent) == [("NONE", number) for number in range(60)]


async def test_a_partition_that_comes_back_is_not_refused_for_what_was_refused_before() -> None:
    """The broker remembers, for the proxy's one connection, what it refused when the partition left it."""

    async with cluster() as world:
        await answers([world.send(idempotent(0))])
        sent = world.send(idempotent(1))
        world.move(0, "b2")
        assert (await sent).error_code == ErrorCode.NONE
        assert len(world.broker("b1").services.produce_queue.retry_order) == 1
        await answers([world.send(idempotent(number)) for number in range(2, 5)])
        world.move(0, "b1")
        began = asyncio.get_running_loop().time()
        assert (await world.send(idempotent(5))).error_code == ErrorCode.NONE
        assert asyncio.get_running_loop().time() - began < 1


async def test_what_a_killed_broker_may_have_accepted_stands_once() -> None:
    async with cluster() as world:
        sent = []
        for number in range(60):
            sent.append(world.send(idempotent(number)))
            if number == 30:
                world.kill("b1")
            if number == 40:
                world.bury("b1", "b2")
            await asyncio.sleep(0.001)
        assert await answers(sent) == [("NONE", number) for number in range(60)]
        assert await values(world) == [f"7/{number}" for number in range(60)]


async def test_rule_9_without_a_producer_id_the_client_decides() -> None:
    """Refused before it was sent is another matter: that is kept."""

    async with cluster() as world:
        await answers([world.send(plain())])
        lost = world.send(plain())
        await asyncio.sleep(0.0008)
        world.kill("b1")
        assert (await lost).error_code == ErrorCode.REQUEST_TIMED_OUT
        kept = world.send(plain())
        await asyncio.sleep(0.01)
        assert not kept.done()
        world.bury("b1", "b2")
        assert (await kept).error_code == ErrorCode.NONE


async def test_a_broken_connection_alone_is_no_error() -> None:
    async with cluster() as world:
        sent = []
        for number in range(40):
            sent.append(world.send(idempotent(number)))
            if number % 10 == 5:
                world.network.cut("b1")
            await asyncio.sleep(0.001)
        assert await answers(sent) == [("NONE", number) for number in range(40)]


async def test_rule_9_what_is_kept_for_a_client_that_has_gone_is_dropped() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        client = FakeClient()
        world.send(idempotent(0), client=client)
        await asyncio.sleep(0.0001)  # with the broker link, not with the broker
        world.kill("b1")
        await asyncio.sleep(0.01)
        owner = world.remote_owners._owner(world.key())
        assert owner.route.is_idle
        assert world.services.produce_queue.parts == 1
        client.close()
        assert world.services.produce_queue.parts == world.services.produce_queue.held_bytes == 0
        world.bury("b1", "b2")
        await answers([world.send(plain(b"later"))])
        assert await values(world) == ["x", "later"]


async def test_rule_9_nothing_is_kept_past_its_requests_time_out() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        late = world.send(idempotent(0), timeout_ms=300)
        await asyncio.sleep(0.0001)
        world.kill("b1")
        assert (await late).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert world.remote_owners._owner(world.key()).route.is_idle
        assert 0.3 <= asyncio.get_running_loop().time() < 1.0


async def test_rule_9_nothing_is_kept_longer_than_held_produce_ms() -> None:
    async with cluster(held_produce_ms=2000) as world:
        await answers([world.send(plain())])
        late = [world.send(idempotent(number)) for number in range(3)]
        await asyncio.sleep(0.0001)
        world.kill("b1")
        began = asyncio.get_running_loop().time()
        assert {code for code, _ in await answers(late)} == {"NOT_LEADER_OR_FOLLOWER"}
        assert 1.9 <= asyncio.get_running_loop().time() - began <= 2.2


async def test_what_a_lost_broker_may_have_accepted_is_not_answered_as_certainly_refused() -> None:
    """Clients take NOT_LEADER_OR_FOLLOWER for "certainly not written"; what was never sent is."""

    async with cluster(held_produce_ms=2000) as world:
        await answers([world.send(plain())])
        sent = world.send(idempotent(0))
        await asyncio.sleep(0.0008)
        world.kill("b1")
        await asyncio.sleep(0.01)
        later = world.send(plain())
        assert await answers([sent, later]) == [("REQUEST_TIMED_OUT", -1), ("NOT_LEADER_OR_FOLLOWER", -1)]
        assert len(world.services.produce_queue) == world.services.produce_queue.held_bytes == 0


async def test_rule_9_what_is_given_back_goes_before_what_waits_and_ends_in_its_own_time() -> None:
    """The one that waits came a second later, so its time is up a second later."""

    async with cluster(held_produce_ms=2000) as world:
        await answers([world.send(plain())])
        world.broker("b1").stopped = []
        loop = asyncio.get_running_loop()
        sent = world.send(idempotent(0))
        await asyncio.sleep(0.01)
        world.view.assign("b2", world.key())  # nothing more is sent until b1 has answered
        await asyncio.sleep(1)
        began = loop.time()
        later = world.send(idempotent(1))
        await asyncio.sleep(0.1)
        assert world.services.produce_queue.parts == 1
        world.kill("b2")
        world.network.cut("b1")
        assert (await sent).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert loop.time() - began == pytest.approx(1, abs=0.2)
        assert (await later).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert loop.time() - began < 2.2


async def test_rule_9_the_time_that_it_is_held_is_counted_once() -> None:
    """Let the broker hold the produce too, since it cannot open the partition, and refuse it at last."""

    async with cluster() as world:
        await answers([world.send(plain())])
        loop, broker = asyncio.get_running_loop(), world.broker("b1")
        broker.assigned.withdraw(world.key())
        await asyncio.sleep(0.5)
        broker.broker._opening = asyncio.Semaphore(0)
        world.open(0, "b1")
        began = loop.time()
        sent = [world.send(idempotent(number), timeout_ms=120_000) for number in range(2)]
        await asyncio.sleep(3)
        sent += [world.send(idempotent(2), timeout_ms=120_000), world.send(plain(), 1)]
        times = []
        for each in sent[:3]:
            assert (await each).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            times.append(loop.time() - began)
        held_s = world.config.held_produce_ms / 1000
        assert times[:2] == pytest.approx([held_s] * 2, abs=0.2)
        assert held_s <= times[2] <= 3 + held_s + 0.2
        assert (await sent[3]).error_code == ErrorCode.NONE


async def test_a_stopped_broker_that_comes_back_was_fenced() -> None:
    """Stop a broker with requests on their way to it and replace it: its successor stores them, it adds none later."""

    async with cluster() as world:
        await answers([world.send(idempotent(0))])
        zombie = world.broker("b1")
        zombie.stopped = []
        sent = [world.send(idempotent(number)) for number in range(1, 5)]
        await asyncio.sleep(PING_S)
        world.network.cut("b1")
        world.bury("b1", "b2")
        assert await answers(sent) == [("NONE", number) for number in range(1, 5)]
        zombie.resume()
        await asyncio.sleep(1)
        assert await values(world) == [f"7/{number}" for number in range(5)]


async def test_credit_bounds_what_is_under_way() -> None:
    """Send more than the credit: the rest waits in the partition's queue, in order; other partitions go on."""

    async with cluster(credit_bytes=10_000) as world:
        await answers([world.send(plain(), partition) for partition in range(2)])
        world.broker("b1").stopped = []
        sent = [world.send(idempotent(number, size=1000)) for number in range(30)]
        await asyncio.sleep(0.01)
        owner = world.remote_owners._owner(world.key())
        assert owner.route.bytes < 12_000
        assert not owner.has_room
        assert world.remote_owners._owner(world.key(1)).has_room
        assert len(world.services.produce_queue) == 1
        world.broker("b1").resume()
        assert [code for code, _ in await answers(sent)] == ["NONE"] * 30
        assert [each for each in await values(world) if "/" in each] == [f"7/{number}" for number in range(30)]


async def test_an_assignment_before_its_member_is_heard_of() -> None:
    async with cluster() as world:
        sent = world.send(plain())
        await sent
        late = world.send(plain(), 1)
        world.view.assign("b3", world.key())
        await asyncio.sleep(0.1)
        waits = world.send(plain())
        await asyncio.sleep(0.1)
        assert not waits.done()
        await world.add("b3")
        world.broker("b1").assigned.withdraw(world.key())
        world.open(0, "b3")
        assert (await waits).error_code == ErrorCode.NONE
        assert (await late).error_code == ErrorCode.NONE


async def test_waiting_for_an_owner_is_bounded_and_ends_when_it_comes() -> None:
    async with cluster() as world:
        world.view.assign("", world.key())
        with pytest.raises(RequestError) as caught:
            await world.owners.wait(world.key(), 0.5)
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert world.owners.get(world.key()) is None
        waiting = asyncio.ensure_future(world.owners.wait(world.key(), 5))
        await asyncio.sleep(0.1)
        world.view.assign("b1", world.key())
        owner = await waiting
        assert owner.is_open
        assert world.owners.get(world.key()) is owner


async def test_a_sweep_that_fails_is_logged_and_not_the_last(caplog: pytest.LogCaptureFixture) -> None:
    async with cluster() as world:
        await answers([world.send(plain(), 0)])
        sweep, swept = world.remote_owners._tails.sweep, list[float]()

        def fail_once() -> Steps[None]:
            swept.append(asyncio.get_running_loop().time())
            if len(swept) == 1:
                raise ZeroDivisionError
            return sweep()

        world.remote_owners._tails.sweep = fail_once  # type: ignore[method-assign]
        await asyncio.sleep(UNUSED_S + 2 * SWEEP_S)
        assert len(swept) > 1
        assert not world.remote_owners._owners
        assert [message for message in caplog.messages if "bug" in message] == [
            "bug: unused routes are kept, the next sweep is in 10 s"
        ]


async def test_partitions_that_nobody_writes_to_have_no_route() -> None:
    async with cluster(partitions=4) as world:
        await answers([world.send(plain(), partition) for partition in range(4)])
        assert len(world.remote_owners._owners) == 4
        for _ in range(5):
            await asyncio.sleep(10)
            await world.send(plain(), 2)
        assert list(world.remote_owners._owners) == [world.key(2)]
        assert list(world.network.links["b1", ConnectionKind.PRODUCE].requests.values()) == [1 + 5]
        await answers([world.send(plain(), 0)])


# -------------------------------------------------------------------------------------------------------- questions


async def test_many_producers_are_decoded_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as world:
        await answers([world.send(idempotent(0, producer_id=number)) for number in range(1, 8)])
        remote = await world.owners.wait(world.key(), 5)
        turns, get = TurnCounter(), checkpoint._get_producer

        def counted(data: memoryview, at: int) -> tuple[ProducerState, int]:
            turns.count()
            return get(data, at)

        monkeypatch.setattr(checkpoint, "PRODUCERS_A_STEP", 2)
        monkeypatch.setattr(checkpoint, "_get_producer", counted)
        assert sorted(state.producer_id for state in await remote.producers()) == [*range(1, 8)]
        assert turns.take() == [2, 2, 2, 1]


async def test_questions_are_answered_as_the_owner_would() -> None:
    async with cluster() as world:
        await answers([world.send(idempotent(number)) for number in range(5)])
        remote = await world.owners.wait(world.key(), 5)
        local = world.broker("b1").assigned.get(world.key())
        assert local is not None
        assert await remote.ends() == await local.ends()
        assert await remote.end_of_epoch(local.epoch) == await local.end_of_epoch(local.epoch)
        assert await remote.end_of_epoch(99) == (-1, -1)
        assert await remote.offset_of_max_timestamp() == await local.offset_of_max_timestamp()
        assert await remote.offset_for_timestamp(0) == (0, 0)
        assert await remote.offset_for_timestamp(1 << 40) is None
        assert await remote.log_bytes() == await local.log_bytes()
        assert list(await remote.producers()) == list(await local.producers())
        assert await remote.delete_before(2) == 2
        assert await remote.delete_before(-1) == 5
        with pytest.raises(RequestError) as caught:
            await remote.delete_before(6)
        assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_question_waits_through_a_move() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        remote = await world.owners.wait(world.key(), 5)
        world.kill("b1")
        asked = asyncio.ensure_future(remote.ends())
        await asyncio.sleep(0.3)
        world.bury("b1", "b2")
        assert (await asked).high_watermark == 1


async def test_a_question_without_an_owner_is_a_retriable_error() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        remote = await world.owners.wait(world.key(), 5)
        world.kill("b1")
        with pytest.raises(RequestError) as caught:
            await remote.ends()
        assert caught.value.code.is_retriable
        assert asyncio.get_running_loop().time() < 6


# ------------------------------------------------------------------------------------------------------------ reads


async def test_a_parked_fetch_wakes_with_the_flush_and_reads_no_storage() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        loop = asyncio.get_running_loop()
        for number in range(5):
            parked = asyncio.ensure_future(world.fetch(world.want(number), max_wait_s=30))
            await asyncio.sleep(1)
            sent, began = world.send(plain()), loop.time()
            fetched = await parked
            assert loop.time() - began < 0.02
            assert [batch.base_offset for batch in batches_of(fetched)] == [number]
            await sent
        assert world.metrics.storage_read_bytes == 0
        assert world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH] < 40


async def test_a_partition_that_joins_does_not_wait_for_a_parked_request() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        await asyncio.sleep(0.1)  # the session's request is parked at the broker
        loop = asyncio.get_running_loop()
        parked = asyncio.ensure_future(world.fetch(world.want(0, 1), max_wait_s=30))
        await asyncio.sleep(0.01)
        began = loop.time()
        await world.send(plain(), 1)
        assert [batch.base_offset for batch in batches_of(await parked)] == [0]
        assert loop.time() - began < 0.05


async def test_old_records_are_read_from_storage_with_one_question_for_all() -> None:
    async with cluster() as world:
        await answers([world.send(plain(b"%d" % number, 3000)) for number in range(50)])
        await world.fetch(world.want(50))
        asked = world.network.asked[InternalKey.ACTIVE_SEGMENT]
        found = await asyncio.gather(*[world.fetch(world.want(0), max_wait_s=5) for _ in range(8)])
        assert min(len(batches_of(each)) for each in found) >= 40, "all at once share the room for responses"
        assert world.network.asked[InternalKey.ACTIVE_SEGMENT] - asked == 1
        for each in found:
            assert each.release is not None
            each.release()
        again = await world.fetch(world.want(7))
        assert world.network.asked[InternalKey.ACTIVE_SEGMENT] - asked == 1
        assert len(batches_of(again)) == 43


async def test_the_open_segments_index_is_told_piece_by_piece() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        known = []
        for _ in range(4):
            await answers([world.send(plain(b"x", 50_000)) for _ in range(8)])
            followed = world.owners.follow(world.key())
            assert followed is not None
            active = await followed.ask_active_segment()
            own = world.broker("b1").assigned.get(world.key())
            assert active is not None
            assert own is not None
            assert own.active_segment is not None
            assert active.index.entries == own.active_segment.index.entries
            assert active.end_offset >= followed.high_watermark
            known.append(active.index)
        assert len(known[-1]) > 8
        assert all(each is known[0] for each in known)


async def test_rule_2_out_of_range_only_after_the_owner_was_asked() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        asked = world.network.asked[InternalKey.ASK]
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_NOT_AVAILABLE"]
        await asyncio.sleep(0.1)
        assert world.network.asked[InternalKey.ASK] == asked + 1
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_OUT_OF_RANGE"]
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_NOT_AVAILABLE"]
        await asyncio.sleep(5)  # that word is old by now
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_NOT_AVAILABLE"]


async def test_rule_2_a_parked_fetch_hears_in_time_that_it_is_out_of_range() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0.5)) == ["OFFSET_OUT_OF_RANGE"]


async def test_rule_2_who_was_fenced_and_has_not_heard_of_it_calls_nothing_out_of_range() -> None:
    """Send a consumer that has read further through another proxy to one that is cut off together with the old owner.

    OFFSET_OUT_OF_RANGE would make it jump, and read again or skip.  Only the store knows who owns the partition.
    """

    async with cluster() as world:
        await answers([world.send(plain()) for _ in range(3)])
        await world.fetch(world.want(0))
        world.broker("b1").kv.faults = KvFaults(unavailable=1.0)
        for _ in range(3):
            assert errors_of(await world.fetch(world.want(7), max_wait_s=0.3)) == ["OFFSET_NOT_AVAILABLE"]
        world.open(0, "b2")
        owner = await world.broker("b2").assigned.wait(world.key(), 5)
        for _ in range(5):
            await asyncio.ensure_future(_appended(owner))
        world.broker("b1").kv.faults = KvFaults()
        for _ in range(3):
            found = errors_of(await world.fetch(world.want(7), max_wait_s=0.3))
            assert "OFFSET_OUT_OF_RANGE" not in found
        world.view.assign("b2", world.key())
        await asyncio.sleep(1)
        assert errors_of(await world.fetch(world.want(7), max_wait_s=5)) == []


async def test_a_fetch_past_the_end_waits_for_nothing_but_the_proof() -> None:
    """Whatever it may wait: kafka-go's has no end."""

    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        now = asyncio.get_running_loop().time
        begin = now()
        assert errors_of(await world.fetch(world.want(5), max_wait_s=3600, min_bytes=1 << 20)) == [
            "OFFSET_OUT_OF_RANGE"
        ]
        assert now() - begin < 1
        world.broker("b1").kv.faults = KvFaults(unavailable=1.0)
        waiting = asyncio.ensure_future(world.fetch(world.want(5), max_wait_s=3600))
        await asyncio.sleep(30)
        assert not waiting.done(), "without the store nobody can prove it"
        world.broker("b1").kv.faults = KvFaults()
        begin = now()
        assert errors_of(await waiting) == ["OFFSET_OUT_OF_RANGE"]
        assert now() - begin < 3


async def test_a_client_that_asks_past_the_end_again_and_again_does_not_load_the_store() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        asked, begin = world.network.asked[InternalKey.ASK], asyncio.get_running_loop().time()
        for _ in range(100):
            assert errors_of(await world.fetch(world.want(5), max_wait_s=60)) == ["OFFSET_OUT_OF_RANGE"]
        took_s = asyncio.get_running_loop().time() - begin
        assert world.network.asked[InternalKey.ASK] - asked <= took_s / CONFIRM_EVERY_S + 1


async def test_the_end_of_what_was_acknowledged_is_told_through_the_proxy() -> None:
    async with cluster() as world:
        world.storage.faults = Faults(ack_s=(0.5, 0.5))
        assert await answers([world.send(plain(), acks=1) for _ in range(2)]) == [("NONE", 0), ("NONE", 1)]
        remote = await world.owners.wait(world.key(), 5)
        assert (await remote.ends()).high_watermark == 0
        assert (await remote.flushed_ends()).high_watermark == 2
        assert await answers([world.send(plain(), acks=1)]) == [("NONE", 2)]
        assert await remote.delete_before(-1) == 3
        assert await answers([world.send(plain(), acks=1)]) == [("NONE", 3)]
        assert await remote.delete_before(4) == 4


async def _appended(owner: PartitionOwner) -> None:
    await append(owner, plain())


async def test_rule_2_an_owner_that_cannot_be_asked_says_nothing() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        world.network.links["b1", ConnectionKind.CONTROL].cut()
        world.network.unreachable.add("b1")
        for _ in range(5):
            assert errors_of(await world.fetch(world.want(5), max_wait_s=0.3)) == ["OFFSET_NOT_AVAILABLE"]


async def test_a_reader_goes_on_with_the_next_owner() -> None:
    """Move a partition, then kill its owner, under a reader: nothing comes twice or out of order."""

    async with cluster() as world:
        offset = 0
        seen: list[str] = []

        async def read() -> None:
            nonlocal offset
            while len(seen) < 90:
                fetched = await world.fetch(world.want(offset), max_wait_s=1)
                assert set(errors_of(fetched)) <= {"NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE"}
                for batch in batches_of(fetched):
                    assert batch.base_offset == offset
                    offset = batch.next_offset
                    seen.append(value_of(batch))
                if fetched.release is not None:
                    fetched.release()

        reader = asyncio.ensure_future(read())
        for number in range(90):
            await world.send(idempotent(number))
            if number == 30:
                world.move(0, "b2")
            if number == 60:
                world.kill("b2")
                world.bury("b2", "b1")
        await reader
        assert seen == [f"7/{number}" for number in range(90)]


async def test_a_deleted_beginning_is_heard_of() -> None:
    async with cluster() as world:
        await answers([world.send(plain()) for _ in range(5)])
        await world.fetch(world.want(5))
        owner = await world.owners.wait(world.key(), 5)
        await owner.delete_before(3)
        await asyncio.sleep(0.6)
        followed = world.owners.follow(world.key())
        assert followed is not None
        assert followed.log_start == 3
        assert errors_of(await world.fetch(world.want(1))) == ["OFFSET_OUT_OF_RANGE"]


async def test_what_nobody_reads_leaves_the_session() -> None:
    """A parked fetch keeps its partition; when there is none left, nothing more is asked."""

    async with cluster() as world:
        await world.fetch(world.want(0), world.want(0, 1))
        parked = asyncio.ensure_future(world.fetch(world.want(0, 1), max_wait_s=100))
        assert world.remote_owners.followed == 2
        await asyncio.sleep(60)
        assert world.key(0) not in world.remote_owners._tails
        assert world.key(1) in world.remote_owners._tails
        await world.send(plain(), 1)
        assert len(batches_of(await parked)) == 1
        await asyncio.sleep(60)
        assert world.remote_owners.followed == 0
        before = world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH]
        await asyncio.sleep(60)
        assert world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH] == before
        await world.send(plain(b"y"), 0)
        assert await values(world) == ["y"]


async def test_an_idle_session_asks_twice_a_second() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0), world.want(0, 1))
        link = world.network.links["b1", ConnectionKind.TAIL]
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=100))
        before = link.requests[ApiKey.FETCH]
        await asyncio.sleep(20)
        assert 30 <= link.requests[ApiKey.FETCH] - before <= 42
        parked.cancel()


async def test_a_session_that_the_broker_has_forgotten_is_begun_anew() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        sessions = world.broker("b1").services.fetch_service.sessions
        link = world.remote_owners._tail_links["b1"]
        await asyncio.sleep(0.1)
        session = sessions.get(link._session.id)
        assert session is not None
        world.broker("b1").services.fetch_service.end_session(session)
        await asyncio.sleep(1)
        parked = asyncio.ensure_future(world.fetch(world.want(0), max_wait_s=30))
        await world.send(plain())
        assert len(batches_of(await parked)) == 1
        assert world.owners.follow(world.key()) is not None


async def test_many_partitions_follow_at_once() -> None:
    async with cluster(partitions=300) as world:
        await world.fetch(*[world.want(0, partition) for partition in range(300)])
        assert all(world.owners.follow(world.key(partition)) is not None for partition in range(300))
        assert not world.network.asked[InternalKey.ASK]
        assert world.network.asked[InternalKey.ASK_PARTITIONS] <= 3
        await answers([world.send(plain(), partition) for partition in range(300)])
        await asyncio.sleep(0.1)
        marks = {world.owners.follow(world.key(number)).high_watermark for number in range(300)}  # type: ignore[union-attr]
        assert marks == {1}


# ---------------------------------------------------------------------------------------------------------- histories


@pytest.mark.parametrize("seed", range(12))
async def test_of_any_history_nothing_acked_is_lost_or_doubled(seed: int) -> None:
    """Producers that send again what was not acked, while partitions move, connections break and a broker dies."""

    async with cluster() as world:
        rng, acked = world.rng, {7: 0, 8: 0, 9: 0}
        until = asyncio.get_running_loop().time() + 10

        async def write(producer: int) -> None:
            sequence = 0
            while asyncio.get_running_loop().time() < until or sequence < 20:
                answer = await world.send(idempotent(sequence, producer), timeout_ms=rng.choice([300, 5000]))
                code = ErrorCode(answer.error_code)
                assert code is ErrorCode.NONE or code.is_retriable, code
                sequence += code is ErrorCode.NONE
                acked[producer] = sequence
                await asyncio.sleep(rng.uniform(0, 0.1))

        async def trouble() -> None:
            alive = ["b1", "b2"]
            while asyncio.get_running_loop().time() < until - 2:
                await asyncio.sleep(rng.uniform(0.05, 1))
                owner = world.view.owner_of(world.key())
                match rng.randrange(4):
                    case 0:
                        world.move(0, rng.choice(alive))
                    case 1:
                        world.network.cut(owner)
                    case 2:
                        world.view.assign(rng.choice([*alive, ""]), world.key())
                        await asyncio.sleep(rng.uniform(0, 0.3))
                        world.view.assign(owner, world.key())
                    case _ if len(alive) == 2:
                        alive.append(f"b{rng.randrange(1 << 30)}")
                        await world.add(alive[-1])
                        alive.remove(owner)
                        world.kill(owner)
                        await asyncio.sleep(rng.uniform(0, 1))
                        world.bury(owner, alive[0])

        async with asyncio.TaskGroup() as group:
            group.create_task(trouble())
            for producer in acked:
                group.create_task(write(producer))
        found = await values(world)
        for producer, count in acked.items():
            own = [each for each in found if each.startswith(f"{producer}/")]
            assert own == [f"{producer}/{number}" for number in range(len(own))]
            assert len(own) >= count
        assert world.remote_owners._owner(world.key()).route.state is RouteState.OPEN


# -------------------------------------------------------------------------------------------- a process that owns some


async def test_what_this_process_owns_it_takes_the_short_way() -> None:
    """While a partition comes to it and goes again: nothing is refused, doubled or lost."""

    async with cluster() as world:
        own = world.broker("b2")
        routed = RoutedOwners(world.view, own.assigned, world.remote_owners)
        world.view.own = "b2"
        world.services.owners = routed
        world.fetch_service._owners = routed
        own.broker.shared.flush_listener = world.fetch_service
        sent = []
        for number in range(60):
            sent.append(world.send(idempotent(number)))
            if number in (20, 40):
                world.move(0, "b2" if number == 20 else "b1")
            await asyncio.sleep(0.005)
        assert await answers(sent) == [("NONE", number) for number in range(60)]
        local = own.assigned.get(world.key())
        assert local is None
        assert isinstance(await routed.wait(world.key(), 5), RemoteOwner)
        world.move(0, "b2")
        assert isinstance(await routed.wait(world.key(), 5), PartitionOwner)


async def test_rule_9_what_comes_to_this_process_waits_for_the_answers_of_its_earlier_owner() -> None:
    """Stop the earlier owner with two batches of a producer: the third must not be the first that our owner sees."""

    async with cluster() as world:
        own = world.broker("b2")
        world.view.own = "b2"
        routed = world.services.owners = RoutedOwners(world.view, own.assigned, world.remote_owners)
        await routed.wait(world.key(), 5)
        world.broker("b1").stopped = []
        first = [world.send(idempotent(number)) for number in range(2)]
        world.open(0, "b2")
        world.view.assign("b2", world.key())
        await own.assigned.wait(world.key(), 5)
        third = world.send(idempotent(2))
        assert routed.get(world.key()) is None
        with pytest.raises(RequestError) as refused:
            await routed.wait(world.key(), 0.5)
        assert refused.value.code.is_retriable
        assert not third.done()
        world.network.cut("b1")
        assert await answers([*first, third]) == [("NONE", 0), ("NONE", 1), ("NONE", 2)]
        again = [await world.send(idempotent(number)) for number in range(3)]
        assert [(each.error_code, each.base_offset) for each in again] == [(0, 0), (0, 1), (0, 2)]
