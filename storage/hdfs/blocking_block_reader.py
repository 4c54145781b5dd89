"""Long reads of a block into a buffer of the caller, by a thread with a blocking socket.

This is for readers of many bytes, to which processor time matters.  The kernel puts each packet's data straight into
the buffer, with one call a packet, and nothing is copied later; most of the time the thread does not hold the
interpreter's lock.  That is a third of the cost of a read through hdfs-native, which checks CRCs without the
processor's help and copies twice; figures are in docs/design/hdfs-client.md.

A packet on the wire (PacketReceiver): lengths, header, checksums, data.  An empty packet follows the last one.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from bmq.storage.hdfs import messages_pb2 as pb
from bmq.storage.hdfs.checksums import crc_function
from bmq.storage.hdfs.data_transfer import (
    OP_READ_BLOCK,
    STATUS_CHECKSUM_OK,
    STATUS_SUCCESS,
    WireError,
    decode_varint,
    delimited,
    operation,
    status_name,
    unpack_crcs,
)

_LENGTHS = struct.Struct(">IH")
_HEAD_BYTES = _LENGTHS.size + 25  # the header's fields are of fixed size (PacketHeader)
_PACKET_BYTES_MAX = 16 << 20  # PacketReceiver.MAX_PACKET_SIZE
_MESSAGE_BYTES_MAX = 1 << 20
_TIMEVAL = struct.Struct("@ll")


class ReadRefused(Exception):
    """The datanode's response refuses the read.  Never leaves this package."""


class WrongChecksum(Exception):
    """The bytes do not have the checksum that came with them.  Never leaves this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRange:
    """The bytes of a block to read, ``len(out)`` from ``offset`` on, and the datanode to read them from."""

    address: tuple[str, int]
    block: pb.Block
    token: pb.Token
    client_name: str
    offset: int
    out: memoryview


class BulkRead:
    """One read of a block (op 81).

    A thread calls ``run``; any other may call ``stop``, which ends it with an OSError.  ``step_s`` is the longest wait
    for any one packet.
    """

    def __init__(self, wanted: BlockRange, step_s: float) -> None:
        self._wanted = wanted
        self._step_s = step_s
        self._socket: socket.socket | None = None
        self._is_stopped = False
        self._filled = 0
        self._aside = bytearray()  # a packet that holds more than is wanted

    def run(self) -> None:
        """Fill ``out``.

        Raises OSError if the connection breaks or was stopped (TimeoutError if a packet is late), ReadRefused if
        the datanode does not serve the read, WrongChecksum if the bytes are damaged, and WireError or DecodeError if
        the datanode breaks the protocol.
        """
        with socket.create_connection(self._wanted.address, timeout=self._step_s) as connection:
            self._socket = connection
            if self._is_stopped:
                raise ConnectionAbortedError("stopped")
            # With a time-out of Python's the socket would not wait for all of the requested bytes.
            connection.settimeout(None)
            patience = _TIMEVAL.pack(int(self._step_s), int(self._step_s % 1 * 1e6))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            self._read(connection)

    def stop(self) -> None:
        """End ``run``, now or as soon as it begins.  Idempotent."""
        self._is_stopped = True
        connection = self._socket
        if connection is not None and connection.fileno() >= 0:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # the connection has ended already
                self._socket = None

    # ---- within the thread

    def _read(self, connection: socket.socket) -> None:
        wanted = self._wanted
        header = pb.OpHeader(base=pb.OpHeader.Base(block=wanted.block, token=wanted.token), client=wanted.client_name)
        length = len(wanted.out)
        request = pb.ReadBlock(header=header, offset=wanted.offset, length=length, send_checksums=True)
        connection.sendall(operation(OP_READ_BLOCK, request))
        response = pb.BlockOpResponse.FromString(_receive_delimited(connection))
        if response.status != STATUS_SUCCESS:
            raise ReadRefused(f"{status_name(response.status)} {response.message}")
        self._read_packets(connection, response.read_info)
        if self._filled < length:
            raise WireError(f"{self._filled} bytes of {length} at {wanted.offset}")
        connection.sendall(delimited(pb.ReadStatus(status=STATUS_CHECKSUM_OK)))

    def _read_packets(self, connection: socket.socket, info: pb.BlockOpResponse.ReadInfo) -> None:
        chunk_bytes, due = info.checksum.chunk_bytes, info.chunk_offset
        crcs_of = crc_function(info.checksum)
        head = memoryview(bytearray(_HEAD_BYTES))
        _receive(connection, [head])
        while True:
            packet_bytes, header_bytes = _LENGTHS.unpack_from(head)
            if packet_bytes > _PACKET_BYTES_MAX or header_bytes + _LENGTHS.size != _HEAD_BYTES:
                raise WireError(f"a packet of {packet_bytes} bytes with a header of {header_bytes}")
            header = pb.PacketHeader.FromString(bytes(head[_LENGTHS.size :]))
            size, crc_bytes = header.data_length, packet_bytes - 4 - header.data_length
            if not size:
                return
            if header.offset != due or size < 0 or crc_bytes < 0:
                raise WireError(f"a packet of {size} bytes at {header.offset}, {due} expected")
            place = self._place(due, size, chunk_bytes)
            crcs = memoryview(bytearray(crc_bytes))
            _receive(connection, [crcs, place, head])  # the next one's head with it
            if crcs_of is not None and list(unpack_crcs(crcs)) != crcs_of(place):
                raise WrongChecksum(f"bad checksum near {due}")
            self._take(due, place)
            due += size

    def _place(self, at: int, size: int, chunk_bytes: int) -> memoryview:
        """Return the memory for a packet's data: in ``out``, unless it begins before or ends behind the range."""
        start = at - self._wanted.offset
        if start >= 0 and start + size <= len(self._wanted.out):
            return self._wanted.out[start : start + size]
        if start >= len(self._wanted.out) + chunk_bytes:
            raise WireError(f"a packet at {at}, behind the requested bytes")
        if len(self._aside) < size:
            self._aside = bytearray(size)
        return memoryview(self._aside)[:size]

    def _take(self, at: int, place: memoryview) -> None:
        out = self._wanted.out
        start = at - self._wanted.offset
        stop = min(start + len(place), len(out))
        if place.obj is self._aside and stop > max(start, 0):
            out[max(start, 0) : stop] = place[max(-start, 0) : stop - start]
        self._filled = max(self._filled, stop)


def _receive(connection: socket.socket, places: list[memoryview]) -> None:
    """Fill all of ``places``, with one call unless a signal cuts it short.

    Raises ConnectionError if the datanode closes the connection, TimeoutError if it sends nothing in time.
    """
    while places:
        try:
            got = connection.recvmsg_into(places, 0, socket.MSG_WAITALL)[0]
        except BlockingIOError as error:
            raise TimeoutError("no packet in time") from error
        if not got:
            raise ConnectionResetError("the datanode closed the connection")
        places = _rest(places, got)


def _rest(places: list[memoryview], filled: int) -> list[memoryview]:
    """Return the rest of ``places`` behind the first ``filled`` bytes."""
    rest = []
    for place in places:
        if filled < len(place):
            rest.append(place[filled:])
        filled = max(0, filled - len(place))
    return rest


def _receive_delimited(connection: socket.socket) -> bytes:
    """Receive a message that has its length before it."""
    prefix = bytearray()
    while not prefix or prefix[-1] & 0x80:
        byte = bytearray(1)
        _receive(connection, [memoryview(byte)])
        prefix += byte
    length, _ = decode_varint(memoryview(prefix), 0)
    if length > _MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {length} bytes")
    message = bytearray(length)
    _receive(connection, [memoryview(message)])
    return bytes(message)
