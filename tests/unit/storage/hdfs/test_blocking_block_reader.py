"""Long reads, against a datanode that is played: packets as BlockSender cuts them, and what may go wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import pytest

from bmq.storage.hdfs import block_reader as block
from bmq.storage.hdfs import blocking_block_reader as blocking
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.blocking_block_reader import BlockRange, BulkRead, ReadRefused, WrongChecksum
from bmq.storage.hdfs.data_connections import WAITS, DataConnections
from bmq.storage.hdfs.data_transfer import (
    CHECKSUM_CRC32C,
    WireError,
    chunk_crcs,
    decode_varint,
    delimited,
    pack_crcs,
    packet_head,
)

BLOCK = os.urandom(50_000)
CHUNK = 512
PACKET = 16 * CHUNK
STEP_S = 30.0

Send = Callable[[bytes], None]


def packets(offset: int, length: int, *, damaged: int = -1, sizes: Sequence[int] = (PACKET,)) -> Iterator[bytes]:
    """Yield packets from the chunk that ``offset`` lies in to the end of the one that the last byte lies in.

    ``sizes``: those of the packets, again and again.
    """
    at, end = offset // CHUNK * CHUNK, min(-(-(offset + length) // CHUNK) * CHUNK, len(BLOCK))
    number = 0
    while at < end:
        data = BLOCK[at : min(at + sizes[number % len(sizes)], end)]
        crcs = pack_crcs(chunk_crcs(data, CHUNK))
        if number == damaged:
            data = bytes([data[0] ^ 1]) + data[1:]
        yield packet_head(number, at, len(data), len(crcs), last=False, sync=False) + crcs + data
        at += len(data)
        number += 1
    yield packet_head(number, at, 0, 0, last=True, sync=False)


def accepted(offset: int) -> bytes:
    checksum = pb.Checksum(type=CHECKSUM_CRC32C, chunk_bytes=CHUNK)
    info = pb.BlockOpResponse.ReadInfo(checksum=checksum, chunk_offset=offset // CHUNK * CHUNK)
    return delimited(pb.BlockOpResponse(status=0, read_info=info))


@contextlib.contextmanager
def datanode(*answers: Callable[[Send], None]) -> Iterator[tuple[str, int]]:
    """Yield the address of a datanode that responds to one request on each connection, in this order, and then waits
    until the client closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for response in answers:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(ConnectionError):
                    connection.recv(1 << 16)
                    response(connection.sendall)
                    _say_no_more(connection)
                    while connection.recv(1 << 16):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            thread.join(STEP_S)
            assert not thread.is_alive()


def _say_no_more(connection: socket.socket) -> None:
    """Shut the sending side down, unless the client has closed the connection already, having all that it wants."""
    try:
        connection.shutdown(socket.SHUT_WR)
    except OSError as error:
        if error.errno != errno.ENOTCONN:
            raise


def reading(
    address: tuple[str, int],
    offset: int,
    out: memoryview | Sequence[memoryview],
    step_s: float = STEP_S,
    *,
    connections: DataConnections | None = None,
) -> BulkRead:
    """Return a read that has not begun.  Without ``connections`` its own is closed at its end."""
    block = pb.Block(pool="pool", id=1, generation=1, length=len(BLOCK))
    wanted = BlockRange(
        address=address,
        block=block,
        token=pb.Token(identifier=b"", password=b"", kind="", service=""),
        client_name="test",
        offset=offset,
        parts=[out] if isinstance(out, memoryview) else out,
    )
    if connections is None:
        connections = DataConnections()
        connections.close()
    return BulkRead(wanted, step_s, connections)


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, 50_000), (0, 1), (1, 49_999), (511, 2), (512, 512), (700, 10_000), (8192, 8192), (49_999, 1), (100, 8200)],
)
def test_any_range_is_filled_and_nothing_else(offset: int, length: int) -> None:
    def respond(send: Send) -> None:
        send(accepted(offset))
        for packet in packets(offset, length):
            send(packet)

    memory = bytearray(b"-" * (length + 20))
    with datanode(respond) as address:
        reading(address, offset, memoryview(memory)[10:-10]).run()
    assert memory == b"-" * 10 + BLOCK[offset : offset + length] + b"-" * 10


@pytest.mark.parametrize("offset", [0, 300, 8192])
@pytest.mark.parametrize(
    "lengths",
    [
        (8192, 8192, 8192, 5000),
        (16384, 16384),
        (1, 2, 3),
        (10_000, 20_000, 7),
        (511, 1, 512, 8192),
        (40_000, 1),
        (5, 0, 30_000),
    ],
)
def test_several_parts_are_filled_wherever_packets_end(offset: int, lengths: Sequence[int]) -> None:
    def respond(send: Send) -> None:
        send(accepted(offset) + b"".join(packets(offset, sum(lengths))))

    parts = [memoryview(bytearray(b"-" * length)) for length in lengths]
    with datanode(respond) as address:
        reading(address, offset, parts).run()
    assert b"".join(parts) == BLOCK[offset : offset + sum(lengths)]


def test_packets_that_arrive_in_pieces_are_put_together() -> None:
    def respond(send: Send) -> None:
        data = accepted(300) + b"".join(packets(300, 20_000))
        for at in range(0, len(data), 1001):
            send(data[at : at + 1001])

    out = bytearray(20_000)
    with datanode(respond) as address:
        reading(address, 300, memoryview(out)).run()
    assert out == BLOCK[300:20_300]


@pytest.mark.parametrize("number", [0, 2])
def test_bytes_that_differ_from_their_checksum_are_refused(number: int) -> None:
    def respond(send: Send) -> None:
        send(accepted(0) + b"".join(packets(0, 40_000, damaged=number)))

    with datanode(respond) as address, pytest.raises(WrongChecksum, match=str(number * PACKET)):
        reading(address, 0, memoryview(bytearray(40_000))).run()


def test_the_datanodes_reason_for_a_refusal_is_in_the_error() -> None:
    def respond(send: Send) -> None:
        send(delimited(pb.BlockOpResponse(status=1, message="Replica not found")))

    with datanode(respond) as address, pytest.raises(ReadRefused, match="Replica not found"):
        reading(address, 0, memoryview(bytearray(10))).run()


@pytest.mark.parametrize("sent", [0, 3, 100, 20_000])
def test_a_connection_that_ends_early_is_an_error(sent: int) -> None:
    def respond(send: Send) -> None:
        send((accepted(0) + b"".join(packets(0, 40_000)))[:sent])

    with datanode(respond) as address, pytest.raises(ConnectionResetError):
        reading(address, 0, memoryview(bytearray(40_000))).run()


def test_fewer_bytes_than_wanted_are_an_error() -> None:
    def respond(send: Send) -> None:
        send(accepted(0) + b"".join(packets(0, 10_000)))

    with datanode(respond, respond) as address, pytest.raises(WireError, match="of 40000"):
        reading(address, 0, memoryview(bytearray(40_000))).run()


def test_a_missing_packet_is_an_error() -> None:
    def respond(send: Send) -> None:
        first, _, third, *_ = packets(0, 40_000)
        send(accepted(0) + first + third)

    with datanode(respond, respond) as address, pytest.raises(WireError, match=f"{PACKET} expected"):
        reading(address, 0, memoryview(bytearray(40_000))).run()


def test_bytes_that_begin_behind_those_wanted_are_an_error() -> None:
    """The memory before them would be taken for the block's."""

    def respond(send: Send) -> None:
        send(accepted(1024) + b"".join(packets(1024, 20_000)))

    with datanode(respond) as address, pytest.raises(WireError, match="from 1024 on, 300 wanted"):
        reading(address, 300, memoryview(bytearray(20_000))).run()


@pytest.mark.parametrize("sizes", [(PACKET, CHUNK), (CHUNK, PACKET), (2 * CHUNK, CHUNK, CHUNK)])
def test_packets_of_other_sizes_than_the_first_are_received_one_by_one(sizes: Sequence[int]) -> None:
    """BlockSender's are of one size but for the last.  Received as if they were, these lie in wrong places."""

    def respond(send: Send) -> None:
        send(accepted(300) + b"".join(packets(300, 40_000, sizes=sizes)))

    out = bytearray(40_000)
    with datanode(respond, respond) as address:
        reading(address, 300, memoryview(out)).run()
    assert out == BLOCK[300:40_300]


def _varint(stream: BinaryIO) -> int:
    data = stream.read(1)
    while data[-1] & 0x80:
        data += stream.read(1)
    return decode_varint(data, 0)[0]


def test_the_next_read_uses_the_same_connection() -> None:
    connections, accepts = DataConnections(), []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            accepts.append(connection)
            with connection, connection.makefile("rb") as stream:
                for offset in (0, 1000, 2000):
                    assert stream.read(3) == b"\x00\x1c\x51"
                    stream.read(_varint(stream))
                    connection.sendall(accepted(offset) + b"".join(packets(offset, 30_000)))
                    stream.read(_varint(stream))  # the read's status

        thread = threading.Thread(target=serve)
        thread.start()
        for number in range(3):
            out = bytearray(30_000)
            read = reading(listener.getsockname(), number * 1000, memoryview(out), connections=connections)
            read.run()
            assert out == BLOCK[number * 1000 : number * 1000 + 30_000]
            read.stop()
            assert len(connections) == 1, "a read that is over stops nothing"
        connections.close()
        thread.join(STEP_S)
    assert len(accepts) == 1


def test_a_kept_connection_that_ends_with_the_request_is_replaced() -> None:
    """The datanode closes idle connections, too: the request of a read may cross that."""

    def respond(send: Send) -> None:
        send(accepted(0) + b"".join(packets(0, 30_000)))

    connections, out = DataConnections(), bytearray(30_000)
    with datanode(lambda send: None, respond) as address:
        connections.keep(address, connections.connect(address, STEP_S))
        reading(address, 0, memoryview(out), connections=connections).run()
        connections.close()
    assert out == BLOCK[:30_000]


def test_a_connection_of_a_read_that_failed_is_not_kept() -> None:
    def respond(send: Send) -> None:
        send(accepted(0) + b"".join(packets(0, 40_000, damaged=1)))

    connections = DataConnections()
    with datanode(respond) as address, pytest.raises(WrongChecksum):
        reading(address, 0, memoryview(bytearray(40_000)), connections=connections).run()
    assert not len(connections)


def test_a_datanode_that_sends_nothing_times_out() -> None:
    """Accept the connection and send nothing, as a datanode whose process is stopped does."""
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError):
        reading(silent.getsockname(), 0, memoryview(bytearray(10)), step_s=0.05).run()


class Stalling:
    """A connection that receives so many bytes by each call; None: a wait passes without any."""

    def __init__(self, *receives: int | None) -> None:
        self.left = list(receives)

    def recvmsg_into(self, places: Sequence[memoryview], *_: int) -> tuple[int]:
        got = self.left.pop(0)
        if got is None:
            raise BlockingIOError
        return (min(got, sum(map(len, places))),)


def test_a_datanode_is_late_after_its_time_also_where_a_part_came_before() -> None:
    places = [memoryview(bytearray(100))]
    good: Any = Stalling(*[None] * (WAITS - 1), 10, *[None] * (WAITS - 1), 90)
    blocking._receive(good, places)
    assert good.left == []
    stalled: Any = Stalling(10, *[None] * WAITS, 90)
    with pytest.raises(TimeoutError):
        blocking._receive(stalled, places)
    assert stalled.left == [90]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections = DataConnections()
        with connections.connect(listener.getsockname(), 4.0) as connection:
            wait = connection.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.calcsize("@ll"))
        assert struct.unpack("@ll", wait) == (1, 0), "a fourth of the time"


def test_another_thread_stops_a_read_that_waits_for_bytes() -> None:
    half = threading.Event()
    over = threading.Event()

    def respond(send: Send) -> None:
        send(accepted(0) + b"".join(packets(0, 40_000))[:20_000])
        half.set()
        over.wait(STEP_S)

    with datanode(respond) as address:
        read = reading(address, 0, memoryview(bytearray(40_000)))
        found: list[BaseException] = []

        def run() -> None:
            try:
                read.run()
            except OSError as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert half.wait(STEP_S)
        read.stop()
        thread.join(STEP_S)
        over.set()
        assert not thread.is_alive()
    assert len(found) == 1


def test_a_read_that_was_stopped_before_it_began_does_not_begin() -> None:
    with datanode(lambda send: None) as address:
        read = reading(address, 0, memoryview(bytearray(10)))
        read.stop()
        with pytest.raises(ConnectionAbortedError):
            read.run()


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize("length", [1, 2, 4 << 20])
async def test_a_read_allocates_its_bytes_once(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Read a block by a thread: the received bytes are the result, and are not copied into it."""

    async def fill(client: Any, node: Any, located: Any, offset: int, parts: Sequence[memoryview]) -> None:
        parts[0][-1:] = b"z"

    async def from_one_replica(client: Any, located: Any, offset: int, length: int, take: Any, **_: Any) -> Any:
        return await take(None, length)

    monkeypatch.setattr(block, "_read_replica_into", fill)
    monkeypatch.setattr(block, "_from_any_replica", from_one_replica)
    nothing: Any = None

    async def read() -> tuple[bytes, int]:
        tracemalloc.start()
        try:
            data = await block.read_block_by_thread(nothing, nothing, 0, length, is_open=False)
            return data, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    data, most = await read()
    assert isinstance(data, bytes)
    assert (len(data), data[-1:]) == (length, b"z")
    assert most < length + (64 << 10)
