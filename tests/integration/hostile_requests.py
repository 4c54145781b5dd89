"""Requests of a hostile client: every API and version, legal, damaged and made up, in a seeded order."""

from __future__ import annotations

import random
import struct
from uuid import UUID

from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest

from bmq.core.records.batch import Record, build_batch
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import is_flexible
from bmq.proxy.apis import ALL_APIS
from tests.integration.largest_requests import TOPIC, largest

SHARE = 0.02
"""Share of each API's limit that is sent: some hundreds of names, some thousands of partitions."""
PARTITIONS = 2_000
"""Number of partitions in a Produce or Fetch.  Most of them do not exist."""
UNKNOWN_KEYS = (-1, 4, 7, 25, 999, 32_767)
"""APIs that clients may not call, or that are none."""
NO_FRAMES = (
    b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32),  # the beginning of a TLS handshake
    struct.pack(">i", -1),
    struct.pack(">i", 0),
    struct.pack(">i", 3) + b"abc",
    struct.pack(">i", 2**31 - 1) + bytes(64),
    struct.pack(">i", 1_000) + bytes(10),  # cut off
    b"\0",
)


def sized(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def hostile_requests(rng: random.Random, topic_id: UUID) -> list[bytes]:
    """Return what one connection or another sends next, with the frames' sizes before them."""
    found: list[bytes] = []
    for api in ALL_APIS:
        for version in range(api.min_version, api.max_version + 1):
            if api.key == ApiKey.PRODUCE:
                found.append(_produce(version, topic_id))
            elif api.key == ApiKey.FETCH:
                found.append(_fetch(version, topic_id))
            else:
                found += [frame for _, frame in largest(api.key, version, SHARE)]
            found.append(_made_up(rng, api.key, version))
        found.append(_made_up(rng, api.key, api.max_version + 1))
        found.append(_made_up(rng, api.key, -1))
    found += [_made_up(rng, key, 0) for key in UNKNOWN_KEYS]
    for frame in rng.sample(found, len(found) // 2):
        damaged = bytearray(frame[: rng.randint(8, len(frame))])
        damaged[rng.randrange(7, len(damaged))] ^= 0xFF
        found.append(bytes(damaged))
    sent = [sized(frame) for frame in found] + list(NO_FRAMES)
    rng.shuffle(sent)
    return sent


def _made_up(rng: random.Random, key: int, version: int) -> bytes:
    return struct.pack(">hhihs", key, version, 1, 1, b"h") + rng.randbytes(rng.choice((0, 3, 40, 2_000)))


def _produce(version: int, topic_id: UUID) -> bytes:
    records = bytes(build_batch([Record(value=b"hostile")]))
    topic = ProduceRequest.fields["topic_data"]
    partition = topic.fields["partition_data"]
    partitions = [partition.data_class(index=number, records=records) for number in range(PARTITIONS)]
    named = {"topic_id": topic_id} if version >= 13 else {"name": TOPIC}
    topics = [topic.data_class(**named, partition_data=partitions)]
    request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=topics)
    return _frame(ApiKey.PRODUCE, version, request.encode(version=version))


def _fetch(version: int, topic_id: UUID) -> bytes:
    topic = FetchRequest.fields["topics"]
    partition = topic.fields["partitions"]
    partitions = [
        partition.data_class(partition=number, fetch_offset=0, partition_max_bytes=1 << 20)
        for number in range(PARTITIONS)
    ]
    named = {"topic_id": topic_id} if version >= 13 else {"topic": TOPIC}
    topics = [topic.data_class(**named, partitions=partitions)]
    request = FetchRequest(max_wait_ms=100, min_bytes=1, topics=topics, forgotten_topics_data=[])
    return _frame(ApiKey.FETCH, version, request.encode(version=version))


def _frame(key: int, version: int, body: bytes) -> bytes:
    return struct.pack(">hhihs", key, version, 1, 1, b"h") + (b"\0" if is_flexible(key, version) else b"") + body
