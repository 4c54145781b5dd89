"""A proxy over brokers elsewhere: produces, reads and questions, while partitions move and connections break."""

from __future__ import annotations

import asyncio
import random

import pytest

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.aio.steps import Steps
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.control import Marker, TransactionMarker
from bmq.core.rpc.peers import ConnectionKind
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.routing.owners import SWEEP_S, UNUSED_S, RoutedOwners
from bmq.proxy.routing.produce_route import RouteState
from bmq.proxy.routing.remote_owner import RemoteOwner
from bmq.storage import checkpoint
from bmq.storage.checkpoint import ProducerState
from tests.harness.fakes import FakeClient
from tests.harness.loop_stops import TurnCounter
from tests.harness.scopes import change
from tests.harness.seeds import seeds
from tests.unit.broker.partition.transactional import PID, data
from tests.unit.proxy.cluster import PING_S, answers, cluster, idempotent, plain, values

pytestmark = pytest.mark.slow


async def test_produces_stand_in_the_order_of_their_requests() -> None:
    async with cluster() as world:
        sent = [world.send(idempotent(number)) for number in range(20)]
        assert await answers(sent) == [("NONE", number) for number in range(20)]
        assert await values(world) == [f"7/{number}" for number in range(20)]


async def test_batches_of_one_turn_are_one_request() -> None:
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


async def test_a_planned_move_fails_no_produce() -> None:
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
        assert len(world.broker("b1").scopes.process.produce_queue.retry_order) == 1
        await answers([world.send(idempotent(number)) for number in range(2, 5)])
        world.move(0, "b1")
        began = asyncio.get_running_loop().time()
        assert (await world.send(idempotent(5))).error_code == ErrorCode.NONE
        assert asyncio.get_running_loop().time() - began < 1


async def test_batches_that_a_killed_broker_may_have_accepted_are_stored_once() -> None:
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


async def test_a_broken_connection_alone_fails_no_produce() -> None:
    async with cluster() as world:
        sent = []
        for number in range(40):
            sent.append(world.send(idempotent(number)))
            if number % 10 == 5:
                world.network.cut("b1")
            await asyncio.sleep(0.001)
        assert await answers(sent) == [("NONE", number) for number in range(40)]


async def test_rule_9_batches_of_a_client_that_has_gone_are_dropped() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        client = FakeClient()
        world.send(idempotent(0), client=client)
        await asyncio.sleep(0.0001)  # with the broker link, not with the broker
        world.kill("b1")
        await asyncio.sleep(0.01)
        owner = world.remote_owners._owner(world.key())
        assert owner.route.is_idle
        assert world.scopes.process.produce_queue.parts == 1
        client.close()
        assert world.scopes.process.produce_queue.parts == world.scopes.process.produce_queue.held_bytes == 0
        world.bury("b1", "b2")
        await answers([world.send(plain(b"later"))])
        assert await values(world) == ["x", "later"]


async def test_rule_9_batches_without_a_response_of_a_client_that_has_gone_are_kept() -> None:
    """The client counts them as done once they are sent."""
    async with cluster() as world:
        await answers([world.send(plain())])
        client, closed = FakeClient(), FakeClient()
        closed.close()
        sent = [world.send(plain(b"kept"), acks=0, client=client)]
        await asyncio.sleep(0.0001)  # with the broker link, not with the broker
        world.kill("b1")
        await asyncio.sleep(0.01)
        sent.append(world.send(plain(b"begun late"), acks=0, client=closed))  # as after a quota's wait
        client.close()
        assert world.scopes.process.produce_queue.parts == 2
        world.bury("b1", "b2")
        await answers([world.send(plain(b"later"))])
        await asyncio.gather(*sent, return_exceptions=True)  # there is no response to decode
        assert await values(world) == ["x", "kept", "begun late", "later"]


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


async def test_batches_that_a_lost_broker_may_have_accepted_are_not_answered_as_refused() -> None:
    """Clients take NOT_LEADER_OR_FOLLOWER for "certainly not written"; what was never sent is."""

    async with cluster(held_produce_ms=2000) as world:
        await answers([world.send(plain())])
        sent = world.send(idempotent(0))
        await asyncio.sleep(0.0008)
        world.kill("b1")
        await asyncio.sleep(0.01)
        later = world.send(plain())
        assert await answers([sent, later]) == [("REQUEST_TIMED_OUT", -1), ("NOT_LEADER_OR_FOLLOWER", -1)]
        assert len(world.scopes.process.produce_queue) == world.scopes.process.produce_queue.held_bytes == 0


async def test_rule_9_batches_given_back_go_before_waiting_ones_and_keep_their_time_limit() -> None:
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
        assert world.scopes.process.produce_queue.parts == 1
        world.kill("b2")
        world.network.cut("b1")
        assert (await sent).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert loop.time() - began == pytest.approx(1, abs=0.2)
        assert (await later).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert loop.time() - began < 2.2


async def test_rule_9_the_time_limit_of_a_held_batch_is_counted_once() -> None:
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


async def test_credit_bounds_the_bytes_in_flight() -> None:
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
        assert len(world.scopes.process.produce_queue) == 1
        world.broker("b1").resume()
        assert [code for code, _ in await answers(sent)] == ["NONE"] * 30
        assert [each for each in await values(world) if "/" in each] == [f"7/{number}" for number in range(30)]


async def test_an_assignment_may_come_before_its_member() -> None:
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


async def test_a_marker_ends_a_transaction_at_an_owner_elsewhere() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        remote = await world.owners.wait(world.key(), 5)
        local = world.broker("b1").assigned.get(world.key())
        assert local is not None
        await local.append_internal(data(-1).data)
        assert (await remote.ends()).last_stable_offset == 1
        marker = TransactionMarker(PID, 1, 5, Marker.ABORT, 2)
        await remote.end_transaction(marker)
        await remote.end_transaction(marker)
        assert (await remote.ends())[2:] == (3, 3)
        with pytest.raises(RequestError) as caught:
            await remote.end_transaction(marker._replace(coordinator_epoch=4))
        assert caught.value.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED


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


@pytest.mark.parametrize("seed", seeds(6, 60))
async def test_of_any_history_nothing_acked_is_lost_or_doubled(seed: int) -> None:
    """Producers that send again what was not acked, while partitions move, connections break and a broker dies."""

    async with cluster() as world:
        rng, acked = world.rng, {7: 0, 8: 0, 9: 0}
        until = asyncio.get_running_loop().time() + 10

        async def write(producer: int) -> None:
            sequence = 0
            while asyncio.get_running_loop().time() < until or sequence < 20:
                response = await world.send(idempotent(sequence, producer), timeout_ms=rng.choice([300, 5000]))
                code = ErrorCode(response.error_code)
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


async def test_partitions_of_this_process_are_appended_to_directly() -> None:
    """Produce while a partition comes to this process and goes again: nothing is refused, doubled or lost."""

    async with cluster() as world:
        own = world.broker("b2")
        routed = RoutedOwners(world.view, own.assigned, world.remote_owners)
        world.view.own = "b2"
        world.scopes = change(world.scopes, owners=routed)
        world.fetch_service._checks._owners = world.fetch_service._reads._owners = routed
        own.wiring.flush_listener = world.fetch_service.context
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


async def test_rule_9_a_partition_that_moves_to_this_process_waits_for_its_earlier_owners_responses() -> None:
    """Stop the earlier owner with two batches of a producer: the third must not be the first that our owner sees."""

    async with cluster() as world:
        own = world.broker("b2")
        world.view.own = "b2"
        routed = RoutedOwners(world.view, own.assigned, world.remote_owners)
        world.scopes = change(world.scopes, owners=routed)
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


async def test_a_process_that_is_not_a_member_holds_no_produces() -> None:
    """Go on with what has an open owner; a client that would wait for one goes to another proxy at once."""

    async with cluster() as world:
        loop = asyncio.get_running_loop()
        world.move(1, "b2")
        assert await answers([world.send(plain()), world.send(plain(), 1)]) == [("NONE", 0), ("NONE", 0)]
        world.owners.send_away(True)
        world.kill("b1")
        asked_at = loop.time()
        assert (await world.send(plain())).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert loop.time() - asked_at < 0.1
        assert (await world.send(plain(), 1)).error_code == ErrorCode.NONE
        world.owners.send_away(False)
        held = world.send(plain())
        await asyncio.sleep(1)
        assert not held.done()
        world.bury("b1", "b2")
        assert (await held).error_code == ErrorCode.NONE


async def test_connections_to_a_broker_end_with_it() -> None:
    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        assert world.remote_owners.is_up("b1")
        world.kill("b1")
        assert not world.remote_owners.is_up("b1")
        world.bury("b1", "b2")
        await world.send(plain())
        await world.fetch(world.want(2))
        assert list(world.remote_owners._produce_links) == ["b2"]
        assert list(world.remote_owners._tail_links) == ["b2"]
        await asyncio.sleep(1)
        assert not world.remote_owners._closing


async def test_close_leaves_no_task() -> None:
    """Close while produces are kept, fetches are parked and questions are under way."""

    async with cluster() as world:
        await world.send(plain())
        await world.fetch(world.want(1))
        world.broker("b1").stopped = []
        kept = [world.send(idempotent(number)) for number in range(3)]
        parked = asyncio.ensure_future(world.fetch(world.want(9), max_wait_s=30))
        await asyncio.sleep(0.1)
        world.network.cut("b1")
        await world.remote_owners.close()
        assert {(await each).error_code for each in kept} == {ErrorCode.REQUEST_TIMED_OUT}
        parked.cancel()
        ours = {"Link.", "RemoteOwners.", "TailLink.", "Tail."}
        left = [task for task in asyncio.all_tasks() if any(each in repr(task.get_coro()) for each in ours)]
        assert left == []
        assert world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH] > 0
