"""Malformed frames: whatever the bytes, the wire layer returns a message or raises FormatError, in work that the
frame's size bounds."""

from __future__ import annotations

import random
import struct
import tracemalloc
from typing import Any

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request
from bmq.core.wire.fetch import FetchRequest, parse_fetch
from bmq.core.wire.header import Header, parse_header
from bmq.core.wire.messages import schema_range
from bmq.core.wire.primitives import ELEMENTS_MAX, TAGS_MAX, uvarint
from bmq.core.wire.produce import ProduceRequest, parse_produce
from tests.harness.seeds import IS_SOAK
from tests.unit.core.wire import mutations, oracle

pytestmark = pytest.mark.slow

FRAMES = 10_000_000 if IS_SOAK else 40_000
SHARDS = 4
SEED = 20_260


def decode(frame: memoryview) -> Any:
    """Decode a frame as the endpoint does; of an API or version without a schema, the header alone."""
    header = parse_header(frame)
    known = schema_range(header.api_key)
    if known is None or not known[0] <= header.api_version <= known[1]:
        return header
    body = frame[header.body_start :]
    if header.api_key == ApiKey.PRODUCE:
        return parse_produce(body, header.api_version)
    if header.api_key == ApiKey.FETCH:
        return parse_fetch(body, header.api_version)
    return decode_request(header.api_key, header.api_version, body)


def test_every_message_cut_anywhere_is_refused() -> None:
    """All of a message is needed to read it, so no part of it from the front is one."""
    for whole in mutations.sample_frames(SEED, each=1):
        decode(memoryview(whole))
        for size in range(len(whole)):
            with pytest.raises(FormatError):
                decode(memoryview(whole)[:size])


def test_bytes_behind_a_message_are_ignored() -> None:
    for whole in mutations.sample_frames(SEED, each=1):
        decode(memoryview(whole + b"\xff" * 9))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_mutated_frame_is_a_format_error_or_a_valid_message(shard: int) -> None:
    rng = random.Random(f"{SEED} {shard}")
    frames = mutations.sample_frames(SEED + shard, each=2)
    accepted = refused = 0
    for _ in range(FRAMES // SHARDS):
        frame = mutations.mutate(rng, frames)
        try:
            message = decode(memoryview(frame))
        except FormatError:
            refused += 1
        else:
            accepted += 1
            check_accepted(message)
    assert accepted > FRAMES // SHARDS // 20, "nothing gets through: the mutations are too coarse"
    assert refused > FRAMES // SHARDS // 4, "nearly all gets through: the mutations are too fine"


def check_accepted(message: Any) -> None:
    """Check that a message holds what its schema allows: another encoder can write it, and what that wrote reads the
    same."""
    if isinstance(message, Header | ProduceRequest | FetchRequest):
        return
    version = message.API_VERSION
    description = type(message)
    again = decode_request(description.API_KEY, version, memoryview(bytes(message.encode(version=version))))
    assert oracle.of_kafka(description, version, again) == oracle.of_kafka(description, version, message)


def test_tagged_fields_of_a_structure_are_bounded() -> None:
    """Bound the tagged fields of messages decoded from schemas, of headers, and of messages decoded by hand."""
    for count, is_read in ((TAGS_MAX, True), (TAGS_MAX + 1, False)):
        unknown = uvarint(count) + b"\x7f\x00" * count
        bodies = [
            (ApiKey.HEARTBEAT, 4, b"\0" + bytes.fromhex("01 00000000 01 00") + unknown),
            (ApiKey.HEARTBEAT, 4, unknown + bytes.fromhex("01 00000000 01 00 00")),
            (ApiKey.PRODUCE, 9, bytes.fromhex("00 00 ffff 00001388 01") + unknown),
            (
                ApiKey.FETCH,
                12,
                b"\0" + bytes.fromhex("ffffffff 000001f4 00000001 03200000 00 00000000 ffffffff 010101") + unknown,
            ),
        ]
        for key, version, rest in bodies:
            frame = memoryview(struct.pack(">hhih", key, version, 1, -1) + rest)
            if is_read:
                decode(frame)
            else:
                with pytest.raises(FormatError, match="tagged fields"):
                    decode(frame)


def test_partitions_of_produce_and_fetch_are_bounded() -> None:
    partitions = struct.pack(">ii", 0, -1) * (ELEMENTS_MAX + 1)
    head = bytes.fromhex("ffff ffff 00001388 00000001 0001 74")
    with pytest.raises(FormatError, match="more than"):
        parse_produce(memoryview(head + struct.pack(">i", ELEMENTS_MAX + 1) + partitions), 3)
    partitions = struct.pack(">iqi", 0, 0, 0) * (ELEMENTS_MAX + 1)
    head = bytes.fromhex("ffffffff 000001f4 00000001 03200000 00 00000001 0001 74")
    with pytest.raises(FormatError, match="more than"):
        parse_fetch(memoryview(head + struct.pack(">i", ELEMENTS_MAX + 1) + partitions), 4)


def test_a_refused_frame_leaves_no_memory_behind() -> None:
    frames = [bytes(mutations.mutate(random.Random(n), mutations.sample_frames(SEED, each=1))) for n in range(20)]

    def refuse_all() -> None:
        for frame in frames:
            try:
                decode(memoryview(frame))
            except FormatError:
                continue

    refuse_all()
    tracemalloc.start()
    refuse_all()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(50):
        refuse_all()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10_000
