"""Requests without a response (acks=0): their client sends, flushes and closes, and counts them as done."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
import weakref

import pytest

from bmq.core.aio.standstill import DOUBT_S, GIVEN_UP_S
from bmq.core.net.client_connection import ClientConnection
from bmq.core.net.internal_connection import UnorderedConnection
from bmq.core.net.listener import Listener
from bmq.core.net.request import NO_RESPONSE, CloseConnection, CloseQuietly
from bmq.core.net.request_budget import CONNECTION_BYTES, FRAME_BYTES
from bmq.core.net.request_runner import BEGUN_A_TURN
from bmq.core.security.session import NOT_BEGUN, Session
from tests.harness.certificates import Certificates
from tests.harness.waiting import until
from tests.unit.core.net.test_departures import opened, sockets
from tests.unit.core.net.world import NO_ACKS, PRODUCE, Peer, World, frame, turn


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


def without_response(number: int) -> bytes:
    return frame(number, key=PRODUCE, version=NO_ACKS)


def burst(world: World, count: int, size: int = 8) -> bytes:
    """Return so many requests without a response, of ``size`` bytes each."""
    for number in range(count):
        world.script.answers[number] = NO_RESPONSE
    return b"".join(frame(number, key=PRODUCE, version=NO_ACKS, size=size) for number in range(count))


async def left(peer: Peer) -> bool:
    """Bring the end of the client's half; return whether the connection stays."""
    stays = peer.connection.eof_received()
    await turn()
    return bool(stays)


@sockets
@pytest.mark.slow
@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize("how", ["close", "half"])
@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 8), (3 * BEGUN_A_TURN, 8), (30 * BEGUN_A_TURN, 8), (12 * BEGUN_A_TURN, 100), (30 * BEGUN_A_TURN, 100)],
)
async def test_all_that_came_before_the_end_is_served(
    made: Certificates, is_secure: bool, how: str, count: int, size: int
) -> None:
    """Requests of 8 bytes fit into one read.  Those of 100 bytes need several, between which reading pauses."""
    async with opened(made if is_secure else None) as port:
        client = await port.client()

        data = burst(port, count, size)

        def send_and_leave() -> None:
            client.sendall(data)
            if how == "half":
                socket.socket.shutdown(client, socket.SHUT_WR)
            else:
                client.close()

        await asyncio.to_thread(send_and_leave)
        await until(lambda: not port.listener.connections)
        assert port.script.begun == list(range(count))
        client.close()


@sockets
@pytest.mark.slow
@pytest.mark.parametrize("is_secure", [False, True])
@pytest.mark.parametrize(("stopped_s", "given_up"), [(1.5 * DOUBT_S, []), (GIVEN_UP_S, [0]), (100.0, [0])])
async def test_a_standstill_takes_back_only_what_has_a_response(
    made: Certificates, is_secure: bool, stopped_s: float, given_up: list[int]
) -> None:
    async with opened(made if is_secure else None) as port:
        client = await port.client()
        client.sendall(frame(1_000) + burst(port, 300) + frame(1_001))
        client.close()
        port.wait_for_end()
        port.stand_still(stopped_s)
        await until(lambda: not port.listener.connections)
        assert port.script.begun == list(range(300))
        assert port.closed == [1]
        assert port.given_up == given_up


@sockets
@pytest.mark.slow
async def test_a_new_connection_after_a_standstill_keeps_what_has_no_response() -> None:
    async with opened() as port:
        port.stand_still()
        port.listener.standstill.look()
        client = port.connect()  # in this turn of the loop: accepted by the kernel only
        client.sendall(frame(1_000) + burst(port, 20))
        client.close()
        await until(lambda: port.metrics.connections_total == 1)
        await until(lambda: not port.listener.connections)
        assert port.script.begun == list(range(20))


class BeforeLogIn(ClientConnection):
    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.session = Session(protocol="SASL_PLAINTEXT", expires_at=NOT_BEGUN)


class BeforeHandshake(ClientConnection):
    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.session = Session(protocol="SSL")


@pytest.mark.parametrize(
    ("kind", "is_closed"),
    [(ClientConnection, False), (BeforeLogIn, True), (BeforeHandshake, True), (UnorderedConnection, True)],
)
async def test_a_new_connection_without_requests_is_closed_if_its_client_has_gone(
    kind: type[ClientConnection], is_closed: bool
) -> None:
    world = World()
    world.listener = Listener(world.script, world.config, world.metrics, ended=list)
    world.listener.close_departed()
    peer = world.peer(kind=kind)
    assert peer.is_gone is is_closed
    peer.connection.close()
    await turn()


@sockets
@pytest.mark.slow
async def test_a_lost_membership_takes_back_only_what_has_a_response() -> None:
    """Clients are given up without a standstill: those that have gone are looked for then."""
    async with opened() as port:
        leaves, stays = await port.client(), await port.client()
        leaves.sendall(frame(1_000) + burst(port, 300))
        leaves.close()
        stays.sendall(frame(1_001))
        port.wait_for_end()
        assert port.listener.give_clients_up() == 1
        await until(lambda: not port.listener.connections)
        assert port.script.begun == list(range(300))
        stays.close()


async def test_those_in_progress_outlive_the_connection() -> None:
    """A produce that waits for its partition is not given up, and keeps its bytes in the budget."""
    world = World()
    world.script.later(1)
    world.script.pending(2)
    peer = world.peer()
    peer.send(without_response(1) + without_response(2))
    held = world.metrics.request_bytes_held
    assert not await left(peer)
    assert peer.is_gone
    assert not world.listener.connections
    assert world.metrics.request_bytes_held == held + CONNECTION_BYTES
    assert world.metrics.requests_outliving == 2
    for left_over, number in enumerate((1, 2)):
        assert world.metrics.request_bytes_held > 0
        world.script.respond(3 - number)
        await turn()
        await turn()
        assert world.metrics.requests_outliving == 1 - left_over
    assert peer.answers() == []
    assert sorted(world.script.released) == [1, 2]
    assert world.metrics.request_bytes_held == 0


@sockets
async def test_an_outlived_connection_keeps_no_transport(made: Certificates) -> None:
    """The transport of TLS has 50 KB.  It is freed without a collection of garbage: see ``core.garbage_collector``."""
    async with opened(made) as port:
        client = await port.client()
        port.script.later(1)
        client.sendall(without_response(1))
        await until(lambda: bool(port.script.begun))
        (connection,) = port.listener.connections
        transport = weakref.ref(connection.transport)
        client.close()
        await until(lambda: connection in port.listener._outlived)
        await turn()
        assert transport() is None
        port.script.respond(1)
        await until(lambda: not connection.is_outlived)


async def test_the_budget_counts_the_memory_of_an_outlived_connection() -> None:
    world = World()

    async def outlive(numbers: range) -> int:
        world.script.later(*numbers)
        before = tracemalloc.get_traced_memory()[0]
        for number in numbers:
            peer = world.peer()
            peer.send(without_response(number))
            peer.leave()
            del peer
        await turn()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        await outlive(range(20))
        held = world.metrics.request_bytes_held
        taken = await outlive(range(20, 220))
    finally:
        tracemalloc.stop()
    counted = world.metrics.request_bytes_held - held
    assert 0.8 * counted < taken < counted
    world.listener.close()
    await turn()
    assert world.metrics.request_bytes_held == 0


async def test_a_connection_that_has_ended_keeps_no_place() -> None:
    world = World(max_connections=1, max_connections_per_ip=1)
    world.script.later(*range(1, 4))
    for number in range(1, 4):
        peer = world.peer()
        peer.send(without_response(number))
        assert not await left(peer)
    assert world.script.begun == [1, 2, 3]
    assert world.metrics.connections_refused == 0
    assert world.metrics.connections == 0
    world.listener.close()


async def test_the_connection_stays_until_the_last_of_them_has_begun() -> None:
    world = World()
    peer = world.peer()
    peer.connection.mute(10)
    world.script.later(1)
    peer.send(without_response(1))
    assert await left(peer)
    assert not peer.is_gone
    peer.connection.unmute()
    await turn()
    assert world.script.begun == [1]
    assert peer.is_gone
    world.listener.close()
    assert world.metrics.request_bytes_held == 0


async def test_a_stop_waits_for_those_in_progress() -> None:
    world = World()
    world.script.later(1)
    peer = world.peer()
    peer.send(without_response(1))
    assert not await left(peer)
    stop = asyncio.create_task(world.listener.drain(1_000))
    await turn()
    assert not stop.done()
    world.script.respond(1)
    await turn()
    await turn()
    assert stop.done()
    assert world.metrics.request_bytes_held == 0


@pytest.mark.parametrize("has_ended", [True, False])
async def test_a_stop_gives_those_in_progress_up_after_its_time(has_ended: bool) -> None:
    world = World()
    world.script.later(1)
    peer = world.peer()
    peer.send(without_response(1))
    if has_ended:
        assert not await left(peer)
    assert world.metrics.requests_outliving == has_ended
    await world.listener.drain(1)
    await turn()
    assert world.script.answers[1].cancelled()
    assert (world.metrics.request_bytes_held, world.metrics.requests_outliving) == (0, 0)


@pytest.mark.parametrize("kind", [ClientConnection, BeforeHandshake])
async def test_clients_that_close_again_and_again_wait_once_the_memory_is_used_up(kind: type[ClientConnection]) -> None:
    """A first read counts only once it has come, and its connection may be closed by then.  Nothing is lost."""
    limit, count = 64 << 10, 50
    world = World(queued_max_request_bytes=limit)
    world.script.pending(*range(10 * count))
    peers: list[Peer] = []
    for number in range(10):
        peer = world.peer(kind=kind)
        peers.append(peer)
        if kind is BeforeHandshake:
            assert not peer.is_paused, "its bytes are the handshake's"
            peer.connection.identified()
        data = b"".join(without_response(count * number + each) for each in range(count))
        peer.send(data + b"\xff\xff\xff\xff")  # a size that closes the connection
    read = count * (8 + FRAME_BYTES) + CONNECTION_BYTES
    assert limit <= world.metrics.request_bytes_held < limit + read
    assert [each.connection.is_outlived for each in peers] == [True] * 3 + [False] * 7
    for begun in range(10):
        world.script.respond(*range(begun * count, (begun + 1) * count))
        await turn()
        assert world.metrics.request_bytes_held < limit + read
    assert world.script.begun == list(range(10 * count))
    assert world.metrics.request_bytes_held == 0


async def test_a_frame_that_cannot_end_leaves_the_budget() -> None:
    """Other connections wait for the first one that finishes its frame."""
    world = World()
    peer = world.peer()
    peer.connection.mute(10)
    peer.send(without_response(1) + (10_000).to_bytes(4, "big") + bytes(5_000))
    held = world.metrics.request_bytes_held
    assert held > 5_000
    assert await left(peer)
    assert 0 < world.metrics.request_bytes_held <= held - 5_000
    assert not peer.connection.has_begun
    peer.connection.unmute()
    await turn()
    await turn()
    assert peer.is_gone
    assert world.metrics.request_bytes_held == 0


async def test_requests_with_a_response_are_dropped_beside_them() -> None:
    world = World()
    world.script.later(1, 3)
    world.script.pending(2)
    peer = world.peer()
    peer.send(frame(1) + frame(2, key=PRODUCE) + without_response(3) + frame(4) + without_response(5))
    assert world.script.begun == [1, 2, 3]
    assert await left(peer)
    assert world.script.answers[1].cancelled()
    assert world.script.answers[2].is_over
    assert not world.script.answers[3].cancelled()
    assert world.script.begun == [1, 2, 3, 5]
    world.script.respond(3)
    await turn()
    await turn()
    assert peer.is_gone
    assert peer.answers() == []
    assert world.metrics.request_bytes_held == 0


async def test_requests_over_a_quota_wait_and_are_served_after_the_end() -> None:
    world = World()
    peer = world.peer()
    peer.connection.mute(10)
    peer.send(burst(world, 3))
    assert await left(peer)
    assert world.script.begun == []
    peer.connection.unmute()
    await turn()
    await turn()
    await turn()
    assert world.script.begun == [0, 1, 2]
    assert peer.is_gone


async def test_a_client_that_reads_no_responses_is_served_after_its_end() -> None:
    world = World()
    peer = world.peer(room=0)
    large = 64 << 10  # written at once
    world.script.answers[1] = world.script.reply(1, large)
    peer.send(frame(1) + burst(world, 1) + frame(2))
    assert world.script.begun == [1]
    assert await left(peer)
    assert world.script.begun == [1, 0]
    assert peer.is_gone
    assert peer.is_aborted


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_a_failure_ends_the_connection_with_those_behind_it(is_at_once: bool) -> None:
    """Close the connection, as Kafka does: the client looks up the leader again.  What came before goes on."""
    world = World()
    world.script.later(1, 2)
    failure = CloseConnection("a produce with acks=0 failed")
    if is_at_once:
        world.script.answers[2] = failure
    peer = world.peer()
    peer.send(without_response(1) + without_response(2) + frame(3))
    if not is_at_once:
        world.script.answers[2].set_exception(failure)
    await turn()
    assert peer.is_gone
    assert world.script.begun == [1, 2]
    assert not world.script.answers[1].cancelled()
    assert world.metrics.request_bytes_held > 0
    world.script.respond(1)
    await turn()
    await turn()
    assert world.script.released == [1]
    assert world.metrics.request_bytes_held == 0


@pytest.mark.parametrize(
    ("failure", "lines"),
    [(CloseConnection("a produce with acks=0 failed"), 1), (CloseQuietly(), 0), (ValueError("a bug"), 1)],
)
async def test_a_failure_after_the_end_is_logged(
    caplog: pytest.LogCaptureFixture, failure: Exception, lines: int
) -> None:
    world = World()
    world.script.later(1, 2)
    peer = world.peer()
    peer.send(without_response(1) + without_response(2))
    assert not await left(peer)
    world.script.answers[1].set_exception(failure)
    await turn()
    assert len(caplog.records) == lines
    assert not world.script.answers[2].cancelled()
    world.script.respond(2)
    await turn()
    await turn()
    assert world.metrics.request_bytes_held == 0


@pytest.mark.parametrize("has_left", [True, False])
async def test_failures_of_one_connection_count_once(caplog: pytest.LogCaptureFixture, has_left: bool) -> None:
    world = World()
    world.script.pending(*range(50))
    peer = world.peer()
    peer.send(b"".join(without_response(number) for number in range(50)))
    if has_left:
        assert not await left(peer)
    for number in range(50):
        world.script.answers[number].resolve(CloseConnection("a produce with acks=0 failed"))
    await turn(6)
    assert world.metrics.connections_malformed == 1
    event = "closing a connection: its request is invalid"
    if has_left:
        event = "a request without a response failed after the end of its connection"
    assert [each.getMessage() for each in caplog.records] == [event]
    assert world.metrics.request_bytes_held == 0


async def test_a_reset_does_not_end_them() -> None:
    """Kafka serves what it has read."""
    world = World()
    world.script.later(1)
    peer = world.peer()
    peer.send(without_response(1))
    peer.leave()
    await turn()
    assert not world.script.answers[1].cancelled()
    world.script.respond(1)
    await turn()
    await turn()
    assert world.metrics.request_bytes_held == 0


async def test_another_process_has_none_of_them() -> None:
    world = World()
    world.script.later(1)
    peer = world.peer(kind=UnorderedConnection)
    peer.send(without_response(1))
    assert not await left(peer)
    assert peer.is_gone
    assert world.script.answers[1].cancelled()
