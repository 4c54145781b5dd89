"""A process that stood still closes its clients' connections before it serves what lies in them."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from bmq.core.aio.standstill import GIVEN_UP_S, Standstill
from bmq.core.clock import LoopClock
from bmq.core.net.request_budget import LEAST_RATE, STUCK_S
from tests.harness.waiting import until
from tests.unit.core.net.world import PRODUCE, Peer, World, frame, turn


def watched() -> World:
    """Return a world whose listener closes its connections after a standstill, as a process's does."""
    world = World()
    standstill = world.listener.standstill = Standstill(LoopClock())

    def found(_: float) -> None:
        world.listener.give_clients_up()

    standstill.on_found.add(found)
    standstill.start()
    return world


def stop_loop() -> None:
    loop: Any = asyncio.get_running_loop()
    loop.clock.now += GIVEN_UP_S


async def test_bytes_that_lay_in_a_socket_begin_no_request() -> None:
    world = watched()
    peer, other = world.peer(), world.peer()
    peer.send(frame(1))
    stop_loop()
    peer.send(frame(2) + frame(3))
    other.send(frame(4))
    assert world.script.begun == [1]
    await turn()
    assert peer.is_gone
    assert other.is_gone
    assert not world.listener.connections
    later = world.peer()
    later.send(frame(5))
    assert later.answers() == [5], "the listener goes on"
    world.listener.standstill.stop()


async def test_requests_that_were_read_before_do_not_begin_and_those_in_progress_are_cancelled() -> None:
    world = watched()
    world.script.later(1)
    peer = world.peer()
    peer.send(frame(1) + frame(2))
    assert world.script.begun == [1]
    running = world.script.answers[1]
    stop_loop()
    running.set_result(world.script.reply(1))
    await turn()
    await turn()
    assert world.script.begun == [1]
    assert peer.answers() == []
    assert world.metrics.request_bytes_held == 0
    world.listener.standstill.stop()


async def test_a_stop_between_two_requests_of_one_read_ends_with_the_first() -> None:
    world = watched()
    begin = world.listener.dispatch

    def stops(data: memoryview, client: Any) -> Any:
        response = begin(data, client)
        stop_loop()
        return response

    stops.is_pipelined = begin.is_pipelined  # type: ignore[attr-defined]
    stops.expects_response = begin.expects_response  # type: ignore[attr-defined]
    world.listener.dispatch = stops  # type: ignore[assignment]
    peer = world.peer()
    peer.send(frame(1, key=PRODUCE) + frame(2, key=PRODUCE))
    assert world.script.begun == [1]
    await turn()
    assert peer.is_gone
    world.listener.standstill.stop()


@pytest.mark.slow
@pytest.mark.loops("asyncio", "uvloop")
async def test_connections_that_wait_to_be_accepted_are_closed_too() -> None:
    world = World()
    await world.listener.start("127.0.0.1", 0)
    address = ("127.0.0.1", world.listener.port)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(frame(1))
    await reader.readexactly(8)
    waiting = [socket.create_connection(address) for _ in range(3)]  # in this turn of the loop: not accepted yet
    for each in waiting:
        each.sendall(frame(2))
    assert world.listener.give_clients_up() == 4
    assert await reader.read() == b""
    writer.close()
    for each in waiting:
        with pytest.raises(ConnectionResetError):
            each.recv(1)
        each.close()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(frame(3))
    await reader.readexactly(8)
    assert world.script.begun == [1, 3]
    writer.close()
    await until(lambda: not world.listener.connections)
    await world.listener.drain(5)


@pytest.mark.parametrize(("rate", "is_closed"), [(0, True), (LEAST_RATE // 2, True), (LEAST_RATE * 2, False)])
async def test_a_client_whose_unread_response_keeps_the_gate_shut_is_closed(rate: int, is_closed: bool) -> None:
    """Requests wait behind the response, and their bytes keep all other clients from being read."""
    world = World(queued_max_request_bytes=1 << 20, socket_request_max_bytes=1 << 20)
    world.script.later(1)
    slow, other = world.peer(room=1_000), world.peer()
    slow.send(frame(1) + b"".join(frame(number, size=500_000) for number in range(2, 5)))
    world.script.respond(1, size=64 << 20)
    other.send(frame(5))
    assert world.listener.budget.is_shut
    for _ in range(3 * int(STUCK_S)):
        await asyncio.sleep(1)
        slow.read(rate)
    assert slow.is_gone is is_closed
    other.send(frame(6))
    assert world.listener.budget.is_shut is not is_closed
    assert (6 in other.answers()) is is_closed


@pytest.mark.parametrize(("every_s", "is_closed"), [(0.75 * STUCK_S, True), (1.0, False)])
async def test_a_client_that_reads_each_response_whole_and_slowly_is_closed(every_s: float, is_closed: bool) -> None:
    """Each response is taken before the time is over, and the requests behind them keep the gate shut."""
    count, size = 2_000, 20_000
    world = World(queued_max_request_bytes=1 << 19)
    for number in range(count):
        world.script.answers[number] = world.script.reply(number, size)
    slow = world.peer(room=0)
    slow.send(b"".join(frame(number) for number in range(count)))
    other = world.peer()
    other.send(frame(count))
    assert world.listener.budget.is_shut
    for _ in range(int(3 * STUCK_S / every_s)):
        await asyncio.sleep(every_s)
        if not slow.is_gone:
            slow.read(slow.get_write_buffer_size())
    assert slow.is_gone is is_closed
    assert bool(other.answers()) is is_closed
    world.listener.close()


async def test_a_client_that_read_slowly_before_others_waited_keeps_its_connection() -> None:
    count, size = 600, 20_000
    world = World(queued_max_request_bytes=1 << 19)
    for number in range(count):
        world.script.answers[number] = world.script.reply(number, size)
    world.script.later(count)
    reading, other = world.peer(room=0), world.peer()
    reading.send(b"".join(frame(number) for number in range(count)))
    for _ in range(40):
        await asyncio.sleep(10)
        reading.read(reading.get_write_buffer_size())
    other.send(frame(count, size=1 << 19))
    assert world.listener.budget.is_shut
    for _ in range(int(2 * STUCK_S)):
        await asyncio.sleep(1)
        reading.read(reading.get_write_buffer_size())
    assert world.listener.budget.is_shut
    assert not reading.is_gone
    world.listener.close()


async def test_a_gate_that_opens_and_shuts_again_does_not_save_a_client_that_reads_nothing() -> None:
    """Others wait for memory for responses, which this client keeps: the gate of requests says nothing about it."""
    world = World(is_response_room_wanted=lambda: True, queued_max_request_bytes=1 << 19)
    stuck, other = world.peer(room=1_000), world.peer()
    world.script.later(1)
    stuck.send(frame(1))
    world.script.respond(1, size=1 << 20)
    await turn()
    for number in range(2, 2 + int(2 * STUCK_S)):
        world.script.later(number)
        other.send(frame(number, size=1 << 19))
        assert world.listener.budget.is_shut
        await asyncio.sleep(1)
        world.script.respond(number, size=100)
        await turn()
        assert not world.listener.budget.is_shut
    assert stuck.is_gone
    assert not other.is_gone
    world.listener.close()


async def test_clients_that_let_the_gate_open_for_moments_are_closed_if_they_read_nothing() -> None:
    """Keep less memory than the seven eighths at which the gate opens: it opens after each request of another."""
    limit = 1 << 20
    world = World(queued_max_request_bytes=limit, socket_request_max_bytes=limit)
    stuck: list[Peer] = []
    while world.listener.budget.held < limit * 13 // 16:
        number = 10 * len(stuck)
        world.script.later(number)
        stuck.append(world.peer(room=0))
        stuck[-1].send(frame(number) + b"".join(frame(number + 1 + each, size=8_000) for each in range(7)))
        world.script.respond(number, size=100_000)
        await turn()
    assert world.listener.budget.held < limit * 7 // 8
    other = world.peer()
    for number in range(1_000, 1_000 + int(3 * STUCK_S)):
        world.script.later(number)
        other.send(frame(number, size=300_000))
        await asyncio.sleep(1)
        world.script.respond(number, size=100)
        await turn()
        assert not world.listener.budget.is_shut
    assert world.listener.budget.times_shut > STUCK_S
    assert [each.is_gone for each in stuck] == [True] * len(stuck)
    assert not other.is_gone
    world.listener.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sends a large frame", "waits for its quota"])
async def test_a_client_that_does_not_keep_the_gate_shut_stays_though_it_shuts_for_moments(kind: str) -> None:
    """A gate that shuts between two reads of the client is shut for others only."""
    limit, seconds = 32 << 20, int(3 * STUCK_S)
    world = World(queued_max_request_bytes=limit, socket_request_max_bytes=limit)
    client, others = world.peer(), [world.peer() for _ in range(9)]
    sent = memoryview(frame(1, size=seconds * LEAST_RATE * 2))
    if kind == "waits for its quota":
        client.connection.mute(2 * seconds)
        client.send(frame(1) + frame(2))
    for second in range(seconds):
        if kind == "sends a large frame":
            client.send(bytes(sent[: LEAST_RATE * 2]))
            sent = sent[LEAST_RATE * 2 :]
        if second % 5 == 0:
            numbers = range(1_000 + 10 * second, 1_009 + 10 * second)
            world.script.later(*numbers)
            for other, number in zip(others, numbers, strict=True):
                other.send(frame(number, size=limit // 8))
            assert world.listener.budget.is_shut
            await asyncio.sleep(0.01)
            world.script.respond(*(number for number in numbers if number in world.script.begun))
            await turn()
            world.script.respond(
                *(n for n in numbers if n in world.script.begun and not world.script.answers[n].done())
            )
            await turn()
            assert not world.listener.budget.is_shut
        await asyncio.sleep(1)
    client.send(bytes(sent))
    assert not client.is_gone
    assert (1 in world.script.begun) is (kind == "sends a large frame")
    world.listener.close()


@pytest.mark.slow
async def test_a_client_that_reads_fast_enough_keeps_its_connection_while_others_shut_the_gate() -> None:
    world = World(queued_max_request_bytes=1 << 20, socket_request_max_bytes=2 << 20)
    world.script.later(1, 3)
    reading, other = world.peer(room=1_000), world.peer()
    reading.send(frame(1) + frame(2))
    world.script.respond(1, size=64 << 20)
    await turn()
    other.send(frame(3, size=1 << 20))
    assert world.listener.budget.is_shut
    for _ in range(3 * int(STUCK_S)):
        await asyncio.sleep(1)
        reading.read(2 * LEAST_RATE)
    assert not reading.is_gone
    assert world.script.begun == [1, 3], "its second request is held behind the first one's response"
