"""One connection to another process: the order of its calls, its bounds, and its loss.  On virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.core.aio.standstill import DOUBT_S, GIVEN_UP_S, Standstill
from bmq.core.clock import LoopClock
from bmq.core.rpc.peer import Evidence, PeerSettings
from bmq.core.rpc.peers import ConnectionKind, PeerBusy
from tests.harness.waiting import now
from tests.unit.core.rpc.world import (
    ECHO,
    KERNEL_BYTES,
    B,
    World,
    echo,
    lost,
    result,
    up,
)


async def test_responses_arrive_in_any_order() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        world.later("1", "2", "3")
        calls = [peer.call(ECHO, 0, echo(method)) for method in ("1", "2", "3")]
        assert peer.bytes_under_way > 0
        await asyncio.sleep(1)
        assert world.begun == ["1", "2", "3"]
        for number in (2, 0, 1):
            world.answer(str(number + 1))
            assert result(await calls[number]) == str(number + 1)
        assert peer.bytes_under_way == 0


async def test_a_request_without_a_response_does_not_delay_others() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        world.later("held")
        held = peer.call(ECHO, 0, echo("held", 8 << 20))
        for number in range(300):  # more than a client's connection may have unanswered
            world.later(f"held {number}")
            peer.call(ECHO, 0, echo(f"held {number}")).add_done_callback(lambda future: future.exception())
        assert result(await peer.call(ECHO, 0, echo("quick"))) == "quick"
        assert not held.done()
        await asyncio.sleep(60)  # nor is a connection idle or dead that waits for an answer
        world.answer("held")
        assert result(await held) == "held"


async def test_calls_are_sent_in_their_order_whatever_their_size() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        sizes = [0, 300_000, 5, 70_000, 1, 2_000_000, 3, 4, 100_000] * 3
        calls = [peer.call(ECHO, 0, echo(str(number), size)) for number, size in enumerate(sizes)]
        assert [result(await call) for call in calls] == [str(number) for number in range(len(sizes))]
        assert world.begun == [str(number) for number in range(len(sizes))]


async def test_the_response_to_a_cancelled_call_is_dropped() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        world.later("1")
        call = peer.call(ECHO, 0, echo("1"))
        await asyncio.sleep(1)
        call.cancel()
        world.answer("1")
        await asyncio.sleep(1)
        assert peer.bytes_under_way == 0
        assert result(await peer.call(ECHO, 0, echo("2"))) == "2"


@pytest.mark.parametrize("bound", [{"calls_max": 2}, {"bytes_max": 900}], ids=["calls", "bytes"])
async def test_a_call_past_a_bound_fails_and_the_connection_goes_on(bound: dict[str, int]) -> None:
    async with World(PeerSettings(**bound)) as world:
        peer = await up(world)
        world.later("1", "2", "3", "4")
        calls = [peer.call(ECHO, 0, echo("1")), peer.call(ECHO, 0, echo("2", 900))]
        for method in ("3", "4"):
            error = await lost(peer.call(ECHO, 0, echo(method)))
            assert isinstance(error, PeerBusy)
            assert not error.was_sent
        world.answer("2")
        await calls[1]
        calls[1] = peer.call(ECHO, 0, echo("3"))
        await asyncio.sleep(1)
        world.answer("1", "3")
        await asyncio.gather(*calls)
        assert world.begun == ["1", "2", "3"]


async def test_a_lost_connection_tells_the_calls_that_were_certainly_not_sent() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        seen: list[str] = []
        peer.on_lost(lambda: seen.append("lost"))
        peer.on_lost(lambda: seen.append("never"))()
        world.network.stop("b")
        sent = [peer.call(ECHO, 0, echo("1")), peer.call(ECHO, 0, echo("2", 2 * KERNEL_BYTES))]
        unsent = [peer.call(ECHO, 0, echo("3")), peer.call(ECHO, 0, echo("4"))]
        world.network.cut()
        assert [(await lost(call)).was_sent for call in sent + unsent] == [True, True, False, False]
        assert seen == ["lost"]
        assert (peer.is_up, peer.bytes_under_way) == (False, 0)
        assert [incarnation for incarnation, _ in world.broken] == ["b-1"]
        peer.on_lost(lambda: seen.append("at once"))
        assert seen == ["lost", "at once"]
        assert not (await lost(peer.call(ECHO, 0, echo("5")))).was_sent


@pytest.mark.parametrize("busy", ["quiet", "waiting", "blocked"])
async def test_a_connection_to_a_stopped_process_is_lost_within_seconds(busy: str) -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        await asyncio.sleep(10)
        assert peer.is_up
        began = now()
        world.network.stop("b")
        if busy != "quiet":
            call = peer.call(ECHO, 0, echo("1", 4 * KERNEL_BYTES if busy == "blocked" else 0))
            call.add_done_callback(lambda future: future.exception())
        gone = asyncio.Event()
        peer.on_lost(gone.set)
        await gone.wait()
        assert 2 <= now() - began <= 3.25
        assert len(world.broken) == 1
        assert world.broken[0][0] == "b-1"


async def test_a_connection_survives_a_short_stop() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        await asyncio.sleep(10)
        world.network.stop("b")
        call = peer.call(ECHO, 0, echo("1", 4 * KERNEL_BYTES))
        await asyncio.sleep(1.8)
        world.network.resume("b")
        assert result(await call) == "1"
        assert world.broken == []


BUSY = [f"busy {number}" for number in range(20)]


BUSY_BYTES = 400_000


@pytest.mark.parametrize("opened_apart", [False, True])
async def test_a_connection_to_a_busy_process_is_kept(opened_apart: bool) -> None:
    """A busy process stops reading a connection of which it holds enough, so it responds to no ping there: a control
    connection, opened for this, shows that it is alive, and nothing is lost."""

    async with World(queued_max_request_bytes=2 << 20, socket_request_max_bytes=2 << 20) as world:
        peer = await (world.peers.open(B, 5) if opened_apart else up(world, ConnectionKind.PRODUCE))
        world.later(*BUSY)
        calls = [peer.call(ECHO, 0, echo(each, BUSY_BYTES)) for each in BUSY]
        await asyncio.sleep(50)
        assert peer.is_up
        assert len(world.begun) < len(BUSY), "the rest is not read"
        world.answer(*BUSY)
        assert [result(await call) for call in calls] == BUSY
        assert world.broken == []


async def test_a_connection_to_a_busy_process_that_stops_is_lost() -> None:
    async with World(queued_max_request_bytes=2 << 20, socket_request_max_bytes=2 << 20) as world:
        peer = await up(world, ConnectionKind.PRODUCE)
        world.later(*BUSY)
        calls = [peer.call(ECHO, 0, echo(each, BUSY_BYTES)) for each in BUSY]
        await asyncio.sleep(10)
        began, gone = now(), asyncio.Event()
        peer.on_lost(gone.set)
        world.network.stop("b")
        await gone.wait()
        assert now() - began <= 3.25
        assert {(await lost(call)).was_sent for call in calls} == {True, False}
        world.network.resume("b")
        world.answer(*BUSY)


async def test_a_stop_of_this_process_loses_no_connection() -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        await asyncio.sleep(5)
        loop: Any = asyncio.get_running_loop()
        loop.clock.now += 30
        await asyncio.sleep(5)
        assert peer.is_up
        assert world.broken == []


@pytest.mark.parametrize(
    "response",
    [b"\0\0\0\x08\0\0\x27\x0f\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\0\0\0"],
    ids=["unasked", "negative", "huge"],
)
async def test_bytes_that_are_not_a_response_end_the_connection(response: bytes) -> None:
    async with World(PeerSettings()) as world:
        peer = await up(world)
        world.later("1")
        call = peer.call(ECHO, 0, echo("1"))
        world.network.ends[-1].write(response)
        assert (await lost(call)).was_sent
        assert not peer.is_up


@pytest.mark.parametrize("seconds", [1.01 * DOUBT_S, GIVEN_UP_S])
async def test_a_call_right_after_a_standstill_is_refused_and_the_connection_goes_on(seconds: float) -> None:
    """The call may be for a client that has given its request up: its connection is closed before anything is sent."""
    async with World(PeerSettings()) as world:
        standstill = Standstill(LoopClock())
        standstill.start()
        world.peers._standstill = standstill
        peer = await up(world)
        loop: Any = asyncio.get_running_loop()
        loop.clock.now += seconds
        refused = await lost(peer.call(ECHO, 0, echo("1")))
        assert isinstance(refused, PeerBusy)
        assert not refused.was_sent
        assert refused.evidence is Evidence.NONE, "nothing is said against the other process"
        await asyncio.sleep(0)
        assert result(await peer.call(ECHO, 0, echo("2"))) == "2"
        assert world.begun == ["2"]
        standstill.stop()
