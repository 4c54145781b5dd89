"""Batch headers as they lie in the log, by a Fetch request of a few bytes made by hand.

Client libraries hide whether a batch is compressed and whether its producer was idempotent; a test of just these things
has to look itself.
"""

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_TIMEOUT_S = 20.0
_FETCH, _FETCH_VERSION = 1, 4  # the oldest version that Kafka 4 still speaks
_BYTES_MAX = 50 << 20
# base offset, length, leader epoch, magic, crc, attributes, last offset delta, two timestamps, producer id
_BATCH = struct.Struct(">qiibIhiqqq")
_LENGTH_FROM = 12  # the length counts what follows it


@dataclass(frozen=True, slots=True)
class BatchHeader:
    base_offset: int
    codec: str
    producer_id: int  # -1 without idempotence


def batch_headers(bootstrap: str, topic: str, partition: int) -> list[BatchHeader]:
    """Return every batch of this partition, which must be led by the one broker at ``bootstrap`` and be small."""
    headers: list[BatchHeader] = []
    host, _, port = bootstrap.partition(":")
    with socket.create_connection((host, int(port)), timeout=_TIMEOUT_S) as connection:
        offset = 0
        while records := _fetch(connection, topic, partition, offset):
            for header, last_offset in _split(records):
                headers.append(header)
                offset = last_offset + 1
    return headers


def _split(records: bytes) -> Iterator[tuple[BatchHeader, int]]:
    """Yield each whole batch and its last offset; Kafka may cut the last one off."""
    position = 0
    while position + _BATCH.size <= len(records):
        base, length, _, magic, _, attributes, last_delta, _, _, producer_id = _BATCH.unpack_from(records, position)
        assert magic == 2, f"a batch of magic {magic}"
        position += _LENGTH_FROM + length
        if position <= len(records):
            yield BatchHeader(base, CODEC_NAMES[attributes & 7], producer_id), base + last_delta


def _fetch(connection: socket.socket, topic: str, partition: int, offset: int) -> bytes:
    name = topic.encode()
    body = struct.pack(">hhih", _FETCH, _FETCH_VERSION, 1, -1)  # correlation id 1, no client id
    body += struct.pack(">iiiib", -1, 0, 0, _BYTES_MAX, 0)  # a consumer that does not wait
    body += struct.pack(f">ih{len(name)}s", 1, len(name), name) + struct.pack(">iiqi", 1, partition, offset, _BYTES_MAX)
    connection.sendall(struct.pack(">i", len(body)) + body)
    (size,) = struct.unpack(">i", _receive(connection, 4))
    response = _receive(connection, size)
    # correlation id, throttle time, one topic with its name, one partition: index, error, two offsets, aborted, records
    at = 4 + 4 + 4 + 2 + len(name) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", response, at)
    assert error == 0, f"Fetch of {topic}-{partition} from {offset}: error code {error}"
    assert aborted <= 0, f"{aborted} aborted transactions"
    (length,) = struct.unpack_from(">i", response, at + 26)
    return response[at + 30 : at + 30 + max(0, length)]


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "connection closed"
        data += part
    return data
