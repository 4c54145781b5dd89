"""A coordinator that was replaced without hearing of it answers nothing from memory for longer than three seconds."""

from __future__ import annotations

import asyncio

import pytest

from bmq.coordinator.shard.freshness import FRESH_S, Freshness
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode
from bmq.core.wire import messages as m
from tests.harness.waiting import until
from tests.unit.coordinator.cluster_world import View, cluster, group_of
from tests.unit.coordinator.fakes import CLIENT, World, join_alone, join_request, running, sync_request
from tests.unit.coordinator.txn_requests import end


async def test_reads_and_heartbeats_confirm_the_ownership_now_and_then() -> None:
    async with running(World()) as world:
        member, generation = await join_alone(world, "g")
        beat = m.HeartbeatRequest(group_id="g", member_id=member, generation_id=generation)
        assert await world.commit("other", 5) == 0
        for _ in range(20):
            assert await world.heartbeat(beat) == 0
            assert await world.fetch("other") == 5
        assert world.log.confirmations == 0, "batches were acknowledged just now"
        for turn in range(10):
            await asyncio.sleep(FRESH_S + 0.1)
            answers = await asyncio.gather(*(world.heartbeat(beat) for _ in range(100)), world.fetch("other"))
            assert answers == [0] * 100 + [5]
            assert world.log.confirmations == turn + 1, "however many wait for it"


@pytest.mark.parametrize("how", ["beat", "fetch", "join", "describe", "list"])
async def test_a_log_that_does_not_answer_confirms_no_ownership(how: str) -> None:
    async with running(World()) as world:
        member, generation = await join_alone(world, "g", session_timeout_ms=1_000_000)
        await asyncio.sleep(FRESH_S + 0.1)
        world.log.stalled = asyncio.Event()
        asked = asyncio.ensure_future(_ask(world, how, member, generation))
        await asyncio.sleep(1)
        assert not asked.done()
        await world.coordinator.close()
        assert await asked == ErrorCode.NOT_COORDINATOR


async def _ask(world: World, how: str, member: str, generation: int) -> int:
    if how == "beat":
        return await world.heartbeat(m.HeartbeatRequest(group_id="g", member_id=member, generation_id=generation))
    if how == "fetch":
        request = m.OffsetFetchRequest(version=7, group_id="g", topics=[], require_stable=False)
        return int((await world.coordinator.offset_fetch(request, CLIENT)).error_code)
    if how == "join":
        return int((await world.coordinator.join_group(join_request("g", member), CLIENT)).error_code)
    if how == "list":
        return int((await world.coordinator.list_groups(m.ListGroupsRequest(version=4), CLIENT)).error_code)
    describe = m.DescribeGroupsRequest(version=5, groups=["g"], include_authorized_operations=False)
    return int((await world.coordinator.describe_groups(describe, CLIENT)).groups[0].error_code)


async def test_after_a_doubt_the_ownership_is_confirmed_before_the_next_response() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 5) == 0
        for turn in range(3):
            world.coordinator.doubt()
            assert await asyncio.gather(*(world.fetch("g") for _ in range(3))) == [5] * 3
            assert world.log.confirmations == turn + 1


async def test_offsets_for_the_lag_are_left_out_from_a_doubt_to_the_next_proof() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 5) == 0
        (offsets,) = world.coordinator.offsets()
        world.coordinator.doubt()
        world.log.stalled = asyncio.Event()
        for _ in range(3):
            assert world.coordinator.offsets() == []
            await asyncio.sleep(15)
        world.log.stalled.set()
        await asyncio.sleep(1)
        assert [world.coordinator.offsets() for _ in range(100)] == [[offsets]] * 100
        await asyncio.sleep(FRESH_S + 0.1)
        assert world.coordinator.offsets() == [offsets], "without a doubt no proof is asked for"
        assert world.log.confirmations == 1, "the three calls in doubt share a proof"


async def test_a_bug_in_a_proof_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def confirm() -> None:
        raise ValueError("a bug")

    freshness = Freshness(LoopClock(), confirm)
    assert freshness.ask()
    freshness.doubt()
    assert not freshness.ask()
    await asyncio.sleep(0.01)
    assert [record.message for record in caplog.records] == ["the proof of a shard's ownership failed"]
    freshness.close()


async def test_a_confirmation_that_began_before_a_doubt_confirms_nothing() -> None:
    async with running(World()) as world:
        assert await world.commit("g", 5) == 0
        world.coordinator.doubt()
        world.log.stalled = asyncio.Event()
        asked = asyncio.create_task(world.fetch("g"))
        await asyncio.sleep(1)
        world.coordinator.doubt()
        world.log.stalled.set()
        assert await asked == 5
        assert world.log.confirmations == 2


async def test_an_append_that_began_before_a_doubt_proves_nothing() -> None:
    """The acknowledgement may have lain in a socket while this process stood still."""
    async with running(World()) as world:
        assert await world.commit("g", 5) == 0
        world.log.flush_s = 1.0
        commit = asyncio.create_task(world.commit("g", 6))
        await asyncio.sleep(0.5)
        world.coordinator.doubt()
        assert await commit == 0
        assert await world.fetch("g") == 6
        assert world.log.confirmations == 1
        assert await world.commit("g", 7) == 0
        assert await world.fetch("g") == 7
        assert world.log.confirmations == 1


async def test_a_proof_for_a_response_is_of_after_its_request() -> None:
    """The question under way is of before the request; all that come meanwhile share the next one."""
    async with running(World()) as world:
        assert await world.commit("g", 5) == 0
        world.log.stalled = asyncio.Event()
        first = asyncio.create_task(end(world, epoch=3, version=2))
        await until(lambda: first.done())
        assert world.log.confirmations == 0, "the first marker is written"
        repeated = [asyncio.create_task(end(world, epoch=3, version=2))]
        await until(lambda: world.log.confirmations == 1)
        repeated += [asyncio.create_task(end(world, epoch=3, version=2)) for _ in range(20)]
        await asyncio.sleep(1)
        assert await world.fetch("g") == 5, "other requests do not wait for the proof"
        world.log.stalled.set()
        assert await asyncio.gather(*repeated) == [ErrorCode.NONE] * 21
        assert world.log.confirmations == 2


@pytest.mark.slow
async def test_a_remote_log_is_confirmed_by_its_broker() -> None:
    """Cut a coordinator and a proxy off from the store while the shard is given to another coordinator."""

    async with cluster() as world:
        group = group_of(0)
        left, right = world.proxies
        joined = await left.coordinator.join_group(join_request(group, version=3), CLIENT)
        member, generation = joined.member_id, joined.generation_id
        sync = sync_request(group, member, generation, {member: b""})
        assert (await left.coordinator.sync_group(sync, CLIENT)).error_code == 0
        assert await left.commit(group, 1, member_id=member, generation=generation) == 0
        world.give(0, "b")
        apart: list[View] = [world.coordinators["a"].view, left.view]
        world.tell(*(each for each in world.views if each not in apart))
        assert await right.commit(group, 2, member_id=member, generation=generation) == 0
        await asyncio.sleep(FRESH_S + 0.1)
        assert await left.heartbeat(group, member, generation) == ErrorCode.NOT_COORDINATOR
        assert await left.fetch(group) == (ErrorCode.NOT_COORDINATOR, -1)
        assert await right.heartbeat(group, member, generation) == 0
        assert await right.fetch(group) == (0, 2)


@pytest.mark.parametrize("again", [False, True])
async def test_a_bug_in_a_confirmation_fails_the_requests_that_wait_for_it(again: bool) -> None:
    """Fail both requests, and let the next one ask the log again."""

    async def confirm() -> None:
        await asyncio.sleep(1)
        if bugs:
            raise bugs.pop()

    bugs = [ValueError("a bug")]
    freshness = Freshness(LoopClock(), confirm)
    freshness.doubt()
    ask = freshness.prove_again if again else freshness.renew
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(ask(), ask(), return_exceptions=True)
        assert [type(each) for each in outcomes] == [ValueError] * 2
        await ask()
    freshness.close()
