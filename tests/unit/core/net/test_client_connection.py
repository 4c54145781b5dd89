"""Client connections (core/net/listener.py) over a transport in memory and virtual time: order, bounds, closing."""

from __future__ import annotations

import asyncio
import io
import logging
import random

import pytest

from bmq.core.logging.limit import BURST
from bmq.core.net.exchanges import UNANSWERED_BYTES_MAX, UNANSWERED_MAX
from bmq.core.net.request import NO_RESPONSE, CloseConnection
from bmq.core.net.request_runner import BEGUN_A_TURN
from tests.harness.seeds import seeds
from tests.unit.core.net.world import PRODUCE, World, frame, turn

pytestmark = pytest.mark.slow

MB = 1 << 20


def frames(*numbers: int, key: int = 18) -> bytes:
    return b"".join(frame(number, key=key) for number in numbers)


# ---------------------------------------------------------------------------------------------------------- order


async def test_only_produces_begin_before_others_are_answered() -> None:
    world = World()
    script = world.script
    script.later(1, 2, 4, 5)
    peer = world.peer()
    peer.send(frames(1, 2, key=PRODUCE) + frames(3) + frames(4, 5, key=PRODUCE))
    assert script.begun == [1, 2]  # 4 and 5 do not overtake 3
    script.respond(2)
    await turn()
    assert peer.answers() == []
    script.respond(1)
    await turn()
    assert peer.answers() == [1, 2, 3]
    assert script.begun == [1, 2, 3, 4, 5]
    peer.send(frames(6))
    script.respond(4)
    await turn()
    assert script.begun[-1] == 5
    script.respond(5)
    await turn()
    assert peer.answers() == [1, 2, 3, 4, 5, 6]
    assert script.released == [1, 2, 3, 4, 5, 6]
    assert world.metrics.request_bytes_held == 0


@pytest.mark.parametrize("seed", seeds(6, 400))
async def test_random_mixtures_are_answered_in_order(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    peer = world.peer(piece=rng.choice((1, 7, 64, 1 << 20)), room=rng.choice((0, 30, 1 << 30)))
    count = rng.randint(5, 60)
    slow = [number for number in range(count) if rng.random() < 0.6]
    for number in slow:
        rng.choice((world.script.later, world.script.pending))(number)
    data = b"".join(frame(n, key=rng.choice((0, 18)), size=rng.choice((8, 300, 40_000))) for n in range(count))
    while data or slow or len(peer.answers()) < count:
        size = rng.randint(0, 50_000)
        peer.send(data[:size])
        data = data[size:]
        for number in rng.sample(slow, min(len(slow), rng.randint(0, 3))):
            slow.remove(number)
            world.script.respond(number, size=rng.choice((4, 5000, 100_000)))
        peer.read(rng.choice((0, 10, 200_000)))
        await turn()
        assert world.script.begun == list(range(len(world.script.begun)))
    assert peer.answers() == list(range(count))
    assert sorted(world.script.released) == list(range(count))
    assert world.metrics.request_bytes_held == 0


async def test_a_pending_response_is_written_in_the_call_that_resolves_it_and_nothing_begins_there() -> None:
    """The call may be in the middle of an event of the partition that the waiting request is for."""
    world = World()
    world.script.pending(1)
    peer = world.peer()
    peer.send(frames(1) + frames(2))
    world.script.respond(1)
    assert peer.answers() == [1]
    assert world.script.begun == [1]
    await turn()
    assert peer.answers() == world.script.begun == [1, 2]
    assert world.metrics.request_bytes_held == 0


async def test_pending_responses_of_one_turn_share_a_write() -> None:
    world = World()
    world.script.pending(1, 2, 3, 4)
    peer = world.peer()
    peer.send(frames(1, 2, 3, 4, key=PRODUCE))
    world.script.respond(3, 1, 2)
    assert peer.answers() == []
    await turn()
    assert (peer.answers(), peer.writes) == ([1, 2, 3], 1)
    world.script.respond(4)
    assert (peer.answers(), peer.writes) == ([1, 2, 3, 4], 2)


@pytest.mark.parametrize(("error", "lines"), [(CloseConnection("failed"), 1), (ValueError("a bug"), 2)])
async def test_a_pending_response_that_fails_closes_the_connection_behind_the_call(
    error: Exception, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A reason to close is logged once, each bug of its own."""

    world = World()
    world.script.pending(1, 2)
    peer = world.peer()
    peer.send(frames(1, 2, key=PRODUCE))
    for number in (1, 2):
        world.script.answers[number].resolve(error)
    assert not peer.is_gone
    await turn()
    assert peer.is_gone
    assert not world.listener.connections
    assert len(caplog.records) == lines


async def test_a_bug_is_logged_though_its_client_leaves_in_the_same_turn(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.script.pending(1)
    peer = world.peer()
    peer.send(frames(1, key=PRODUCE))
    world.script.answers[1].resolve(ValueError("a bug"))
    peer.leave()
    await turn()
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "ValueError: a bug" in caplog.text


async def test_a_pending_response_is_cancelled_with_its_connection() -> None:
    world = World()
    world.script.pending(1)
    peer = world.peer()
    peer.send(frames(1))
    peer.leave()
    assert world.script.answers[1].is_over
    world.script.respond(1)  # without effect
    assert peer.answers() == []


async def test_no_answer_sends_nothing_and_keeps_the_order() -> None:
    world = World()
    world.script.later(1)
    world.script.answers[2] = NO_RESPONSE
    peer = world.peer()
    peer.send(frames(1, 2, 3, key=PRODUCE))
    world.script.respond(1)
    await turn()
    assert peer.answers() == [1, 3]


async def test_a_frame_is_memory_of_its_own() -> None:
    world = World()
    world.peer().send(frame(1, size=100) + frame(2, size=100_000) + frame(3))
    made = world.script.frames
    assert [len(each) for each in made] == [100, 100_000, 8]
    for each in made:
        each[:] = b"x" * len(each)  # writable
    world.peer().send(frames(4))
    assert all(bytes(each[:8]) == b"xxxxxxxx" for each in made[:3])


# --------------------------------------------------------------------------------------------------------- closing


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff\xff\xff\xff", b"\0\0\0\x07abcdefg"])
async def test_garbage_is_closed_with_one_line(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    peer = world.peer()
    peer.send(frames(1) + data + data)
    await turn()
    assert peer.answers() == [1]
    assert peer.is_gone
    assert not world.listener.connections
    assert world.metrics.connections_malformed == 1
    assert world.metrics.connections == 0
    assert len(caplog.records) == 1
    assert "10.0.0.1:1" in caplog.text


async def test_refused_requests_close(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.script.answers[1] = CloseConnection("no such API")
    world.script.later(3)
    peers = [world.peer() for _ in range(3)]
    peers[0].send(frames(1, 2))
    peers[1].send(frames(3))
    world.script.answers[3].set_exception(ValueError("a bug"))
    peers[2].send(frames(4))
    await turn()
    assert [peer.is_gone for peer in peers] == [True, True, False]
    assert world.script.begun == [1, 3, 4]
    assert world.metrics.request_bytes_held == 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]
    assert "no such API" in caplog.text
    assert "ValueError: a bug" in caplog.text


async def test_a_client_that_leaves_cancels_what_it_waits_for() -> None:
    world = World()
    script = world.script
    script.later(1, 2, 3)
    peer = world.peer()
    closed = []
    peer.connection.on_close(lambda: closed.append("kept"))
    peer.connection.on_close(lambda: closed.append("forgotten"))()
    peer.send(frames(1, 2, 3, 4, key=PRODUCE) + frames(5) + frame(6)[:7])
    script.respond(3)  # ready, not sent
    await turn()
    script.respond(2)  # in the very turn in which the client leaves
    peer.leave()
    await turn()
    assert script.answers[1].cancelled()
    assert sorted(script.released) == [2, 3, 4]
    assert closed == ["kept"]
    assert peer.connection.is_closed
    assert world.metrics.request_bytes_held == 0
    assert world.metrics.connections == 0
    peer.connection.on_close(lambda: closed.append("late"))
    assert closed == ["kept", "late"]


# ---------------------------------------------------------------------------------------------------------- bounds


async def test_unanswered_requests_are_bounded() -> None:
    world = World()
    many, large = world.peer(piece=12), world.peer()
    numbers = range(UNANSWERED_MAX + 50)
    world.script.later(*numbers, 1000, 1001, 1002)
    many.send(frames(*numbers, key=PRODUCE))
    assert len(world.script.begun) == UNANSWERED_MAX
    assert many.is_paused
    world.script.respond(0)
    await turn()
    assert len(world.script.begun) == UNANSWERED_MAX + 1
    for number in (1000, 1001, 1002):
        large.send(frame(number, key=PRODUCE, size=UNANSWERED_BYTES_MAX * 2 // 3))
    assert world.script.begun[-2:] == [1000, 1001]
    assert large.is_paused
    world.script.respond(1000)
    await turn()
    assert world.script.begun[-1] == 1002


@pytest.mark.parametrize("key", [18, PRODUCE])
async def test_small_requests_of_one_read_begin_in_turns_of_the_loop(key: int) -> None:
    """Send many small requests in one read: another connection's requests that come meanwhile get their responses in
    between; order and bounds are kept."""

    world = World()
    many, other = world.peer(), world.peer()
    count = 5 * BEGUN_A_TURN
    many.send(frames(*range(count), key=key))
    assert len(world.script.begun) == BEGUN_A_TURN
    assert many.is_paused
    other.send(frames(9_000))
    assert other.answers() == [9_000]
    while len(many.answers()) < count:
        begun = len(world.script.begun)
        await asyncio.sleep(0)
        assert 0 < len(world.script.begun) - begun <= BEGUN_A_TURN
    assert many.answers() == list(range(count))
    assert not many.is_paused
    assert world.metrics.request_bytes_held == 0


async def test_requests_that_waited_for_one_begin_in_turns_of_the_loop() -> None:
    world = World()
    peer = world.peer()
    world.script.later(0)
    peer.send(frames(*range(2 * BEGUN_A_TURN)))
    assert world.script.begun == [0]
    world.script.respond(0)
    while len(peer.answers()) < 2 * BEGUN_A_TURN:
        begun = len(world.script.begun)
        await asyncio.sleep(0)
        assert len(world.script.begun) - begun <= BEGUN_A_TURN
    assert peer.answers() == list(range(2 * BEGUN_A_TURN))


async def test_a_connection_closed_between_two_turns_begins_nothing_more() -> None:
    world = World()
    peer = world.peer()
    world.script.answers[BEGUN_A_TURN] = CloseConnection("no")
    peer.send(frames(*range(3 * BEGUN_A_TURN)))
    await turn()
    assert world.script.begun == list(range(BEGUN_A_TURN + 1))
    assert world.metrics.request_bytes_held == 0


async def test_who_does_not_read_its_answers_waits_alone() -> None:
    world = World()
    script = world.script
    slow, other = world.peer(room=100_000), world.peer()
    script.later(1)
    slow.send(frames(1, 2, 3))
    script.respond(1, size=150_000)
    await turn()
    slow.send(frames(4))
    assert script.begun == [1]
    assert slow.is_paused
    assert script.released == []
    other.send(frames(7))
    assert other.answers() == [7]
    slow.read(1 << 20)
    assert slow.answers() == [1, 2, 3, 4]
    assert script.released == [7, 1, 2, 3, 4]
    assert not slow.is_paused


async def test_the_budget_stops_readers_and_lets_them_on_in_turn() -> None:
    world = World(queued_max_request_bytes=4 * MB, socket_request_max_bytes=4 * MB)
    script = world.script
    script.later(*range(20))
    peers = [world.peer() for _ in range(20)]
    for number, peer in enumerate(peers):
        peer.send(frame(number, key=PRODUCE, size=MB) + frame(number + 100))
    begun = len(script.begun)
    assert 4 <= begun <= 6
    for number in range(20):
        script.respond(number)
        await turn()
        assert world.metrics.request_bytes_held <= (4 + 20 + 4) * MB
    assert sorted(script.begun) == [*range(20), *range(100, 120)]
    assert world.metrics.request_bytes_held == 0
    assert not any(peer.is_paused for peer in peers)


@pytest.mark.parametrize("limit", [100 * MB, 101 * MB])
async def test_the_largest_frame_goes_through_the_smallest_budget(limit: int) -> None:
    world = World(queued_max_request_bytes=limit, socket_request_max_bytes=100 * MB)
    peer = world.peer()
    peer.send(frame(1, size=100 * MB) + frames(2))
    assert peer.answers() == [1, 2]
    assert world.metrics.request_bytes_held == 0


@pytest.mark.parametrize("seed", seeds(10, 100))
async def test_many_large_frames_in_a_small_budget_never_lock_up(seed: int) -> None:
    """All have begun a frame before any is complete, in pieces of any size; answers come late."""

    rng = random.Random(seed)
    world = World(queued_max_request_bytes=5 * MB, socket_request_max_bytes=5 * MB)
    script = world.script
    count = rng.randint(2, 9)
    peers = [world.peer(piece=rng.choice((30_000, 1 << 19, 1 << 30))) for _ in range(count)]
    data = [
        b"".join(frame(10 * peer + n, key=PRODUCE, size=rng.choice((8, 20_000, 3 * MB, 5 * MB))) for n in range(3))
        for peer in range(count)
    ]
    script.later(*(10 * peer + n for peer in range(count) for n in range(3)))
    answered: set[int] = set()
    while len(answered) < 3 * count:
        for number, peer in enumerate(peers):
            size = rng.choice((0, 100_000, 2 * MB))
            peer.send(data[number][:size])
            data[number] = data[number][size:]
        ready = [number for number in script.begun if number not in answered]
        for number in rng.sample(ready, min(len(ready), rng.randint(0, 2))):
            script.respond(number)
            answered.add(number)
        await turn()
        # five quarters of the limit, one frame, and a step (or what it comes with) of each connection
        assert world.metrics.request_bytes_held <= 45 * MB // 4 + count * (MB + (64 << 10))
    assert [peer.answers() for peer in peers] == [[10 * peer + n for n in range(3)] for peer in range(count)]
    assert world.metrics.request_bytes_held == 0


async def test_frames_that_stand_still_in_a_small_budget_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    world = World(queued_max_request_bytes=4 * MB, socket_request_max_bytes=4 * MB)
    idlers = [world.peer() for _ in range(3)]
    for number, peer in enumerate(idlers):
        peer.send(frame(number, size=3 * MB)[: 2 * MB])  # and no more
    honest = world.peer()
    honest.send(frame(9, size=2 * MB))
    honest.send(frames(10))
    assert world.listener.budget.is_crowded
    await asyncio.sleep(5)
    assert not any(peer.is_gone for peer in idlers)
    await asyncio.sleep(60)
    assert honest.answers() == [9, 10]
    assert sum(peer.is_gone for peer in idlers) >= 1
    assert not honest.is_gone
    assert "queued.max.request.bytes" in caplog.text


async def test_frames_that_are_only_claimed_hold_nobody_up() -> None:
    """Let 300 connections send 25 KB of a frame of 95 MB each, and no more: they hold 7.5 MB of 256."""

    world = World()
    part = frame(0, size=95 * MB)[: 25 << 10]
    for _ in range(300):
        world.peer().send(part)
    assert world.metrics.request_bytes_held < 8 * MB
    assert not world.listener.budget.is_tight
    kept = world.peer()
    kept.send(frame(1, size=2 * MB))
    assert kept.answers() == [1]


@pytest.mark.parametrize("claimed", [300 << 10, 16 * MB])
async def test_frames_that_stand_still_leave_room_for_others_and_are_closed(claimed: int) -> None:
    """Let so many connections send a part of a frame each, and no more, that it is all that may be held."""

    world = World(queued_max_request_bytes=16 * MB, socket_request_max_bytes=16 * MB)
    kept, late = world.peer(), world.peer()
    slow = [world.peer() for _ in range(60)]
    part = frame(0, size=claimed)[: 250 << 10]
    for peer in slow:
        peer.send(part)
    budget = world.listener.budget
    assert budget.is_crowded
    assert not budget.is_shut
    for number in range(1, 40):  # all the while, requests that arrive whole are answered at once
        kept.send(frame(number, size=60 << 10))
        assert kept.answers()[-1] == number
        if number == 10:
            late.send(frame(1, size=5 * MB))
        assert world.metrics.request_bytes_held <= (20 + 16) * MB
        await asyncio.sleep(1)
    assert late.answers() == [1]
    assert sum(peer.is_gone for peer in slow) >= 20
    assert world.metrics.connections_stuck_closed == sum(peer.is_gone for peer in slow)
    assert not late.is_gone
    assert not kept.is_gone
    assert not budget.is_crowded


@pytest.mark.parametrize("is_wanted", [False, True])
async def test_who_does_not_read_its_responses_is_closed_once_others_wait_for_their_memory(is_wanted: bool) -> None:
    wanted = [False]
    world = World(is_response_room_wanted=lambda: wanted[0])
    script = world.script
    script.answers[1] = script.reply(1, 8 * MB)
    deaf, slow, reading = (world.peer(room=100_000) for _ in range(3))
    for peer in (deaf, slow, reading):
        peer.send(frames(1))
    for second in range(120):
        await asyncio.sleep(1)
        slow.read(1_000)
        reading.read(70_000)
        wanted[0] = is_wanted and second >= 50
    assert (deaf.is_gone, slow.is_gone, reading.is_gone) == (is_wanted, is_wanted, False)
    assert world.metrics.connections_stuck_closed == 2 * is_wanted
    assert script.released.count(1) == 3 * is_wanted + (not is_wanted)


async def test_a_slow_client_is_left_alone_while_nobody_waits_for_it() -> None:
    world = World()
    slow = world.peer()
    data = frame(1, size=100_000)
    for second in range(100):
        slow.send(data[second * 1_001 : (second + 1) * 1_001])
        await asyncio.sleep(1)
    assert slow.answers() == [1]


# ------------------------------------------------------------------------------------------------- limits and time


async def test_idle_connections_are_closed_busy_ones_are_not() -> None:
    world = World(connections_max_idle_ms=60_000)
    world.script.later(1)
    idle, busy, talking = (world.peer() for _ in range(3))
    busy.send(frames(1))
    for number in range(2, 12):
        await asyncio.sleep(10)
        talking.send(frames(number))
        if number != 7:  # 60 s: from there on to the second tick after
            assert idle.is_gone == (number > 7)
    assert idle.is_gone
    assert not busy.is_gone
    assert not talking.is_gone
    assert world.metrics.connections_idle_closed == 1
    world.script.respond(1)
    await asyncio.sleep(200)
    assert busy.is_gone
    assert talking.is_gone
    assert world.metrics.connections == 0


async def test_a_client_that_reads_nothing_for_long_is_idle() -> None:
    world = World(connections_max_idle_ms=60_000)
    stopped, slow = world.peer(room=0), world.peer(room=0)
    stopped.send(frames(1))
    slow.send(frame(2))
    world.script.later(3)
    for _ in range(7):
        await asyncio.sleep(20)
        slow.read(1)
    assert stopped.is_gone
    assert stopped.is_aborted
    assert not slow.is_gone
    assert world.script.released == [1]


async def test_connection_limits(server_log: io.StringIO) -> None:
    world = World(max_connections=5, max_connections_per_ip=2)
    a = [world.peer(host="10.0.0.1") for _ in range(3)]
    await turn()
    assert [peer.is_gone for peer in a] == [False, False, True]
    b = [world.peer(host=f"10.0.1.{n}") for n in range(4)]
    await turn()
    assert [peer.is_gone for peer in b] == [False, False, False, True]
    assert world.metrics.connections == 5
    assert world.metrics.connections_total == 7
    assert world.metrics.connections_refused == 2
    a[0].leave()
    late = world.peer(host="10.0.0.1")
    late.send(frames(1))
    assert late.answers() == [1]
    for _ in range(500):
        world.peer(host="10.0.0.1")
    await turn()
    written = server_log.getvalue()
    assert "max.connections (5)" in written
    assert "max.connections.per.ip (2)" in written
    assert len(written.splitlines()) <= BURST, "not a line for each of 502"


async def test_drain_sends_what_is_under_way() -> None:
    world = World()
    world.script.later(1, 2)
    idle, busy, stuck, partial = (world.peer() for _ in range(4))
    busy.send(frames(1, 3))
    stuck.send(frames(2))
    partial.send(frame(7)[:6])
    draining = asyncio.ensure_future(world.listener.drain(10.0))
    await turn()
    assert idle.is_gone
    assert partial.is_gone
    assert not busy.is_gone
    busy.send(frames(4))  # is not read any more
    assert world.peer().connection.is_closed
    world.script.respond(1)
    await turn()
    assert busy.is_gone
    assert busy.answers() == [1, 3]
    begin = asyncio.get_running_loop().time()
    await draining
    assert asyncio.get_running_loop().time() - begin == pytest.approx(10.0)
    assert stuck.is_gone
    await turn()
    assert world.script.answers[2].cancelled()
    assert not world.listener.connections


async def test_drain_lets_a_reader_finish() -> None:
    world = World()
    peer = world.peer(room=2)
    peer.send(frames(1))
    draining = asyncio.ensure_future(world.listener.drain(10.0))
    await asyncio.sleep(1)
    assert not peer.is_gone
    peer.read(100)
    await draining
    assert peer.answers() == [1]
    assert asyncio.get_running_loop().time() < 2


async def test_bugs_of_many_requests_are_not_a_line_each(server_log: io.StringIO) -> None:
    world = World()
    world.script.answers[1] = ZeroDivisionError()
    for number in range(300):
        world.peer(host=f"10.0.0.{number}").send(frames(1))
    assert server_log.getvalue().count("its request failed") == BURST
