"""Long reads of a block into memory of the caller, by a thread with a blocking socket.

Such reads are for readers of many bytes, to which processor time matters.  The kernel puts the packets' data straight
into the caller's memory, with one call for many packets, and nothing is copied later.  Most of the time the thread does
not hold the interpreter's lock.  Such a read costs a third of a read through hdfs-native, which checks CRCs without the
processor's help and copies twice; figures are in docs/design/hdfs-client.md.

A packet on the wire (PacketReceiver): lengths, header, checksums, data.  An empty packet follows the last one.  All
packets of a response but the last have the same size (BlockSender).  So after the first packet, a single call receives
several, every part to its own place.
"""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bmq.storage.fresh_memory import cut
from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.checksums import crc_function
from bmq.storage.hdfs.data_connections import WAITS, DataConnections
from bmq.storage.hdfs.data_transfer import (
    OP_READ_BLOCK,
    STATUS_ACCESS_TOKEN,
    STATUS_CHECKSUM_OK,
    STATUS_SUCCESS,
    WireError,
    decode_varint,
    delimited,
    operation,
    packet_head,
    status_name,
    unpack_crcs,
)
from bmq.storage.hdfs.handshake import MESSAGE_BYTES_MAX, Handshake, TokenRefused
from bmq.storage.hdfs.protected_socket import Connection, protect_socket

_LENGTHS = struct.Struct(">IH")
_HEAD_BYTES = _LENGTHS.size + 25  # the header's fields are of fixed size (PacketHeader)
_PACKET_BYTES_MAX = 16 << 20  # PacketReceiver.MAX_PACKET_SIZE
_MESSAGE_BYTES_MAX = 1 << 20
_LENGTH_BYTES_MAX = 5
_TOGETHER_BYTES_MAX = 1 << 20
"""Data of the packets that are received by one call: few enough to be in the processor's cache when it is checked."""
_PACKETS_MAX = 256  # IOV_MAX is 1,024, and a packet has three parts


class ReadRefused(Exception):
    """The datanode's response refuses the read.  Never leaves this package."""


class WrongChecksum(Exception):
    """The bytes do not have the checksum that came with them.  Never leaves this package."""


class _IrregularPackets(Exception):
    """The packets of a response differ in size: they must be received one by one."""


@dataclass(frozen=True, slots=True)
class _Packet:
    """A packet's header, and the size of its checksums."""

    seqno: int
    offset: int
    size: int
    crc_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """The bytes of a block to read, from ``offset`` on, the memory to fill one after the other, and the datanode.

    ``handshake`` makes the handshake of a new connection.
    """

    address: tuple[str, int]
    block: pb.Block
    token: pb.Token
    client_name: str
    offset: int
    parts: Sequence[memoryview]
    handshake: Callable[[], Handshake | None] = lambda: None


class BulkRead:
    """A read of a block (op 81), on a connection of ``connections`` or on a new connection.

    A thread calls ``run``; any other may call ``stop``, which ends it with an OSError.  ``step_s`` is the longest wait
    for more bytes.
    """

    def __init__(self, wanted: BlockRange, step_s: float, connections: DataConnections) -> None:
        self._wanted = wanted
        self._step_s = step_s
        self._connections = connections
        self._lock = threading.Lock()  # over the next two
        self._socket: Connection | None = None
        self._is_stopped = False
        self._filled = 0
        self._starts = [0, *itertools.accumulate(map(len, wanted.parts))]  # of the parts, and the end of the last
        self._aside = bytearray()  # a packet that holds more than is wanted, or bytes of two parts
        self._together_max = _PACKETS_MAX  # packets received by one call

    def run(self) -> None:
        """Fill the parts.

        Raises OSError if the connection breaks or was stopped (TimeoutError if a packet is late).  Raises ReadRefused
        or TokenRefused if the datanode does not serve the read, and WrongChecksum if the bytes are damaged.  Raises
        WireError or DecodeError if the datanode breaks the protocol.  On a new connection it also raises the exceptions
        of ``Handshake.receive``.
        """
        kept = self._connections.take(self._wanted.address)
        if kept is not None and self._run_on(kept, is_kept=True):
            return
        try:
            self._run_on(self._connections.connect(self._wanted.address, self._step_s))
        except _IrregularPackets:
            self._together_max = 1
            self._run_on(self._connections.connect(self._wanted.address, self._step_s))

    def stop(self) -> None:
        """End ``run``, now or as soon as it begins.  Idempotent."""
        with self._lock:
            self._is_stopped = True
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:  # the connection has ended already
                    self._socket = None

    # ---- within the thread

    def _run_on(self, connection: Connection, *, is_kept: bool = False) -> bool:
        """Read on ``connection``, and keep it for the next read.

        Return False if the datanode has closed a kept connection, or does not send packets of one size: another
        connection is needed then.
        """
        is_whole = False
        try:
            self._hold(connection)
            try:
                if not is_kept and (handshake := self._wanted.handshake()) is not None:
                    connection = _shake_hands(handshake, connection, self._step_s)
                info = self._request(connection)
            except ConnectionError:
                if is_kept and not self._is_stopped:
                    return False
                raise
            self._read_packets(connection, info)
            if self._filled < self._starts[-1]:
                raise WireError(f"{self._filled} bytes of {self._starts[-1]} at {self._wanted.offset}")
            connection.sendall(delimited(pb.ReadStatus(status=STATUS_CHECKSUM_OK)))
            is_whole = True
        except _IrregularPackets:
            if not is_kept:
                raise
            return False
        finally:
            with self._lock:
                self._socket = None
                is_whole = is_whole and not self._is_stopped
            if is_whole:
                self._connections.keep(self._wanted.address, connection)
            else:
                connection.close()
        return True

    def _hold(self, connection: Connection) -> None:
        with self._lock:
            if self._is_stopped:
                raise ConnectionAbortedError("stopped")
            self._socket = connection

    def _request(self, connection: Connection) -> pb.BlockOpResponse.ReadInfo:
        wanted = self._wanted
        header = pb.OpHeader(base=pb.OpHeader.Base(block=wanted.block, token=wanted.token), client=wanted.client_name)
        request = pb.ReadBlock(header=header, offset=wanted.offset, length=self._starts[-1], send_checksums=True)
        connection.sendall(operation(OP_READ_BLOCK, request))
        response = pb.BlockOpResponse.FromString(_receive_delimited(connection))
        if response.status == STATUS_ACCESS_TOKEN:
            raise TokenRefused(f"{status_name(response.status)} {response.message}")
        if response.status != STATUS_SUCCESS:
            raise ReadRefused(f"{status_name(response.status)} {response.message}")
        return response.read_info

    def _read_packets(self, connection: Connection, info: pb.BlockOpResponse.ReadInfo) -> None:
        chunk_bytes, due = info.checksum.chunk_bytes, info.chunk_offset
        crcs_of = crc_function(info.checksum)
        if due > self._wanted.offset:
            raise WireError(f"bytes from {due} on, {self._wanted.offset} wanted")
        head = memoryview(bytearray(_HEAD_BYTES))
        _receive(connection, [head])
        while (packet := _parse_head(head)).size:
            if packet.offset != due:
                raise WireError(f"a packet of {packet.size} bytes at {packet.offset}, {due} expected")
            count = self._count_together(packet, chunk_bytes)
            place = self._place(due, packet.size * count, chunk_bytes)
            crcs = _receive_packets(connection, packet, count, place, head)
            if crcs_of is not None:
                _check(unpack_crcs(crcs), crcs_of(place), due, chunk_bytes)
            self._take(due, place)
            due += len(place)

    def _count_together(self, packet: _Packet, chunk_bytes: int) -> int:
        """Return the number of packets to receive by a single call, from this packet on: whole packets within one
        part."""
        start, size = packet.offset - self._wanted.offset, packet.size
        if not 0 <= start < self._starts[-1] or size % chunk_bytes:
            return 1
        left = self._starts[self._part_at(start) + 1] - start
        return max(1, min(left // size, _TOGETHER_BYTES_MAX // size, self._together_max))

    def _part_at(self, start: int) -> int:
        return bisect_right(self._starts, start) - 1

    def _place(self, at: int, size: int, chunk_bytes: int) -> memoryview:
        """Return the memory for a packet's data: in a part, unless it begins before or ends behind that."""
        start = at - self._wanted.offset
        if start >= self._starts[-1] + chunk_bytes:
            raise WireError(f"a packet at {at}, behind the requested bytes")
        if 0 <= start < self._starts[-1]:
            number = self._part_at(start)
            if start + size <= self._starts[number + 1]:
                return self._wanted.parts[number][start - self._starts[number] :][:size]
        if len(self._aside) < size:
            self._aside = bytearray(size)
        return memoryview(self._aside)[:size]

    def _take(self, at: int, place: memoryview) -> None:
        start = at - self._wanted.offset
        stop = min(start + len(place), self._starts[-1])
        if place.obj is self._aside:
            done = max(start, 0)
            for part in cut(self._wanted.parts, done, stop):
                part[:] = place[done - start : done - start + len(part)]
                done += len(part)
        self._filled = max(self._filled, stop)


def _parse_head(head: memoryview) -> _Packet:
    """Return the packet that ``head``, lengths and header, announces.  Raises WireError if it is no such thing."""
    packet_bytes, header_bytes = _LENGTHS.unpack_from(head)
    if packet_bytes > _PACKET_BYTES_MAX or header_bytes + _LENGTHS.size != _HEAD_BYTES:
        raise WireError(f"a packet of {packet_bytes} bytes with a header of {header_bytes}")
    header = pb.PacketHeader.FromString(bytes(head[_LENGTHS.size :]))
    size, crc_bytes = header.data_length, packet_bytes - 4 - header.data_length
    if size < 0 or crc_bytes < 0:
        raise WireError(f"a packet of {size} bytes at {header.offset}, with {crc_bytes} bytes of checksums")
    return _Packet(header.seqno, header.offset, size, crc_bytes)


def _receive_packets(
    connection: Connection, first: _Packet, count: int, place: memoryview, next_head: memoryview
) -> memoryview:
    """Receive ``count`` packets, the first of which has sent its head, and the head after them; return their checksums.

    Their data goes to ``place``.  Raises _IrregularPackets if they are not all like the first.
    """
    size, crc_bytes = first.size, first.crc_bytes
    crcs = memoryview(bytearray(count * crc_bytes))
    heads = memoryview(bytearray((count - 1) * _HEAD_BYTES))
    places = []
    for number in range(count):
        places.append(crcs[number * crc_bytes : (number + 1) * crc_bytes])
        places.append(place[number * size : (number + 1) * size])
        places.append(heads[number * _HEAD_BYTES : (number + 1) * _HEAD_BYTES] if number < count - 1 else next_head)
    expected = b"".join(
        packet_head(first.seqno + number, first.offset + number * size, size, crc_bytes, last=False, sync=False)
        for number in range(1, count)
    )
    try:
        _receive(connection, places)
    except (ConnectionError, TimeoutError):  # larger packets than the first are fewer bytes than were expected
        if any(byte and byte != right for byte, right in zip(heads, expected, strict=True)):
            raise _IrregularPackets from None
        raise
    if heads != expected:
        raise _IrregularPackets
    return crcs


def _check(sent: tuple[int, ...], found: list[int], at: int, chunk_bytes: int) -> None:
    """Compare the checksums of chunks from position ``at`` on.  Raises WrongChecksum if they differ."""
    if list(sent) != found:
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(sent, found, strict=False)))
        raise WrongChecksum(f"bad checksum near {at + same * chunk_bytes}")


def _receive(connection: Connection, places: list[memoryview]) -> None:
    """Fill all of ``places``, with one call unless a signal cuts it short.

    Raises ConnectionError if the datanode closes the connection, TimeoutError if it sends nothing in time.
    """
    waits = 0
    while places:
        try:
            got = connection.recvmsg_into(places, 0, socket.MSG_WAITALL)[0]
        except BlockingIOError as error:
            waits += 1
            if waits == WAITS:
                raise TimeoutError("no packet in time") from error
            continue
        if not got:
            raise ConnectionResetError("the datanode closed the connection")
        waits = 0
        places = _rest(places, got)


def _rest(places: list[memoryview], filled: int) -> list[memoryview]:
    """Return the rest of ``places`` behind the first ``filled`` bytes."""
    rest = []
    for place in places:
        if filled < len(place):
            rest.append(place[filled:])
        filled = max(0, filled - len(place))
    return rest


def _shake_hands(handshake: Handshake, connection: Connection, limit_s: float) -> Connection:
    """Carry out the handshake on a new connection, and return the connection with the protection that was negotiated.

    Raises as ``Handshake.receive``, and OSError: TimeoutError after ``limit_s``, however slowly bytes come in.
    """
    deadline = time.monotonic() + limit_s
    connection.sendall(handshake.start())
    while not handshake.is_done:
        data = bytearray(MESSAGE_BYTES_MAX)
        try:
            got = connection.recvmsg_into([memoryview(data)])[0]
        except BlockingIOError:
            got = -1
        if time.monotonic() > deadline:
            raise TimeoutError("no handshake in time")
        if not got:
            raise ConnectionResetError("the datanode closed the connection in the handshake")
        if got > 0:
            connection.sendall(handshake.receive(bytes(data[:got])))
    return protect_socket(connection, handshake.channel)


def _receive_delimited(connection: Connection) -> bytes:
    """Receive a message that has its length before it."""
    prefix = bytearray()
    while not prefix or prefix[-1] & 0x80:
        byte = bytearray(1)
        _receive(connection, [memoryview(byte)])
        prefix += byte
        if len(prefix) > _LENGTH_BYTES_MAX:
            raise WireError("a length that does not end")
    length, _ = decode_varint(memoryview(prefix), 0)
    if length > _MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {length} bytes")
    message = bytearray(length)
    _receive(connection, [memoryview(message)])
    return bytes(message)
