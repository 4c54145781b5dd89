"""A Kafka client of a few bytes, without threads, timers or retries of its own: what it measures is the server.

Metadata version 1 and Produce version 3, the oldest that Kafka 4 and BMQ both serve (KIP-896).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bmq.core.records.batch import Record, build_batch

METADATA, METADATA_VERSION = 3, 1
PRODUCE, PRODUCE_VERSION = 0, 3
ACKS_ALL = -1
RETRY_S = 0.01
"""Seconds between two attempts of ``first_ack``: its resolution, together with the time of one request."""
CONNECT_TIMEOUT_S = 0.5
RESPONSE_TIMEOUT_S = 5.0
Address = tuple[str, int]


class NotAcknowledged(Exception):
    """A request that the server refused; the text has Kafka's error code."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The node that Metadata names as the leader of a partition."""

    node_id: int
    address: Address


def addresses_of(bootstrap: str) -> list[Address]:
    """Return the addresses in ``host:port,…``."""
    pairs = (each.rpartition(":") for each in bootstrap.split(","))
    return [(host, int(port)) for host, _, port in pairs]


def connect(address: Address, *, timeout_s: float = RESPONSE_TIMEOUT_S) -> socket.socket:
    """Connect; a response may take ``timeout_s``.  Raises OSError."""
    connection = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
    connection.settimeout(timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def leader_of(connection: socket.socket, topic: str, partition: int = 0) -> Leader:
    """Return the partition's leader.  Raises NotAcknowledged if it has none now, OSError if the connection fails."""
    connection.sendall(request(METADATA, METADATA_VERSION, struct.pack(">i", 1) + string(topic)))
    reader = Reader(receive(connection))
    reader.take("i")  # correlation id
    nodes = {}
    for _ in range(reader.take("i")):
        node_id, host, port = reader.take("i"), reader.string(), reader.take("i")
        reader.string()  # rack
        nodes[node_id] = (host, port)
    reader.take("i")  # controller
    for _ in range(reader.take("i")):
        error = reader.take("h")
        reader.string()
        reader.take("b")  # whether it is internal
        for _ in range(reader.take("i")):
            partition_error, index, leader = reader.take("h"), reader.take("i"), reader.take("i")
            for _ in range(2):  # replicas, those in sync
                for _ in range(reader.take("i")):
                    reader.take("i")
            if index == partition:
                if leader not in nodes:
                    raise NotAcknowledged(f"{topic}-{partition} has no leader: {partition_error}")
                return Leader(leader, nodes[leader])
        raise NotAcknowledged(f"{topic}-{partition}: error {error}")
    raise NotAcknowledged(f"no topic {topic} in the response")


def produce_frame(topic: str, value: bytes, partition: int = 0) -> bytes:
    """Return a request that produces one record, ``acks=all``.  It may be sent again as it is."""
    batch = bytes(build_batch([Record(value=value)], base_timestamp=int(time.time() * 1000)))
    body = struct.pack(">hhii", -1, ACKS_ALL, 30_000, 1) + string(topic)
    return request(PRODUCE, PRODUCE_VERSION, body + struct.pack(">iii", 1, partition, len(batch)) + batch)


def produce(connection: socket.socket, frame: bytes) -> int:
    """Send a request of ``produce_frame``; return the record's offset.

    Raises NotAcknowledged if it is refused, OSError if the connection fails.
    """
    connection.sendall(frame)
    reader = Reader(receive(connection))
    reader.take("i")  # correlation id
    reader.take("i")  # one topic
    reader.string()
    reader.take("i")  # one partition
    reader.take("i")
    error, offset = reader.take("h"), reader.take("q")
    if error:
        raise NotAcknowledged(f"error {error}")
    return offset


def first_ack(addresses: Sequence[Address], topic: str, frame: bytes, *, timeout_s: float) -> float:
    """Attempt to produce until it is acknowledged; return the time, by ``time.monotonic``, of the acknowledgement.

    An attempt asks the first address that accepts a connection who leads, and produces there; a failed one is followed
    by the next ``RETRY_S`` after it began.  Raises TimeoutError.
    """
    end, reason = time.monotonic() + timeout_s, ""
    while (begun := time.monotonic()) < end:
        for address in addresses:
            try:
                with connect(address) as any_node:
                    leader = leader_of(any_node, topic)
                with connect(leader.address) as node:
                    produce(node, frame)
                return time.monotonic()
            except (OSError, NotAcknowledged) as error:
                reason = repr(error)
        time.sleep(max(0.0, begun + RETRY_S - time.monotonic()))
    raise TimeoutError(f"{topic}: nothing acknowledged in {timeout_s:.0f} s: {reason}")


class Reader:
    """Fields of a response, one after another.  Raises struct.error if it is too short."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, kind: str) -> int:
        """Return the integer of this kind of ``struct``."""
        field = struct.Struct(f">{kind}")
        (value,) = field.unpack_from(self._data, self._at)
        self._at += field.size
        return int(value)

    def string(self) -> str:
        """Return a nullable string, "" for null."""
        return self._take("h").decode()

    def blob(self) -> bytes:
        """Return nullable bytes, none for null."""
        return self._take("i")

    def _take(self, kind: str) -> bytes:
        size = max(0, self.take(kind))
        self._at += size
        return self._data[self._at - size : self._at]


def string(text: str) -> bytes:
    """Return a string as requests hold it."""
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def request(api_key: int, version: int, body: bytes) -> bytes:
    """Return a request: its length, a header without a client id, and the body."""
    head = struct.pack(">hhih", api_key, version, 1, -1)  # correlation id 1, no client id
    return struct.pack(">i", len(head) + len(body)) + head + body


def receive(connection: socket.socket) -> bytes:
    """Return a response with its header.  Raises OSError."""
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("closed by the server")
        data += part
    return bytes(data)
