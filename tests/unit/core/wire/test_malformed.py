"""Malformed frames: whatever the bytes, the wire layer returns a message or raises FormatError, in work that the
frame's size bounds."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request
from bmq.core.wire.fetch import FetchRequest, parse_fetch
from bmq.core.wire.header import Header, parse_header
from bmq.core.wire.limits import elements_max
from bmq.core.wire.messages import schema_range
from bmq.core.wire.primitives import ELEMENTS_MAX, TAGS_MAX, read_uvarint, uvarint
from bmq.core.wire.produce import ProduceRequest, parse_produce
from tests.unit.core.wire import mutations, oracle
from tests.unit.core.wire.profile import IS_SOAK

pytestmark = pytest.mark.slow

FRAMES = 10_000_000 if IS_SOAK else 100_000
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


def test_what_follows_a_message_is_ignored() -> None:
    for whole in mutations.sample_frames(SEED, each=1):
        decode(memoryview(whole + b"\xff" * 9))


@pytest.mark.parametrize("shard", range(SHARDS))
def test_spoilt_frames(shard: int) -> None:
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


def nulled(description: Any, version: int, values: oracle.Values) -> Iterator[oracle.Values]:
    """Yield ``values`` with one null each, everywhere where the schema has none and the wire could."""
    for field in oracle.fields(description, version):
        value = values[field.name]
        can_say_null = field.is_array() or field.type_str in ("string", "bytes")
        if can_say_null and not field.nullable_for_version_q(version):
            yield {**values, field.name: None}
        if field.is_struct_array():
            for index, element in enumerate(value or ()):
                for changed in nulled(field, version, element):
                    yield {**values, field.name: [*value[:index], changed, *value[index + 1 :]]}
        elif field.is_struct() and value is not None:
            for changed in nulled(field, version, value):
                yield {**values, field.name: changed}


def test_null_is_refused_wherever_the_schema_has_none() -> None:
    tried = 0
    for api, version in oracle.advertised():
        if (api, version) == ("Metadata", 0):
            continue  # kafka-python writes an empty array for None here; tested by hand below
        name = api + "Request"
        values = oracle.sample(random.Random(SEED), name, version)
        for changed in nulled(oracle.kafka_class(name), version, values):
            tried += 1
            with pytest.raises(FormatError):
                decode_request(oracle.api_key(api), version, memoryview(oracle.kafka_bytes(name, version, changed)))
    assert tried > 300


def test_element_counts_are_checked_before_anything_is_made() -> None:
    """Two billion topics, four billion topics, four billion tagged fields: refused at a glance."""
    for version, text in (
        (1, "7fffffff" + "00" * 100),
        (12, "ffffffff0f" + "00" * 100),
        (12, "00 00 00 ffffffff0f"),
    ):
        with pytest.raises(FormatError):
            decode_request(ApiKey.METADATA, version, memoryview(bytes.fromhex(text)))


def test_null_topics_mean_all_of_them_since_version_1_only() -> None:
    assert decode_request(ApiKey.METADATA, 1, memoryview(b"\xff" * 4)).topics is None
    with pytest.raises(FormatError):
        decode_request(ApiKey.METADATA, 0, memoryview(b"\xff" * 4))


def test_array_elements_of_a_request_are_bounded() -> None:
    """DescribeGroups 5 with empty group names: an element is one byte on the wire."""

    def body(count: int) -> memoryview:
        return memoryview(uvarint(count + 1) + b"\x01" * count + b"\x00\x00")

    limit = elements_max(ApiKey.DESCRIBE_GROUPS)
    assert len(decode_request(ApiKey.DESCRIBE_GROUPS, 5, body(limit)).groups) == limit
    with pytest.raises(FormatError):
        decode_request(ApiKey.DESCRIBE_GROUPS, 5, body(limit + 1))


def test_what_kafkas_tools_send_is_within_the_bounds() -> None:
    """Allow a request about 10,000 topics, or 100,000 partitions in them, with three nodes each where nodes are
    named."""
    topics, partitions = 10_000, 100_000
    for key in (
        ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ELECT_LEADERS, ApiKey.OFFSET_DELETE,
        ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_PRODUCERS,
    ):  # fmt: skip
        assert elements_max(key) > topics + partitions
    for key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_PARTITION_REASSIGNMENTS):
        assert elements_max(key) > topics + 4 * partitions
    for key in (ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS):
        assert elements_max(key) > 3 * topics
    for key in ApiKey:
        assert elements_max(key) > topics


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


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, (1 << 28) - 1, 1 << 28, (1 << 31) - 1])
def test_varints(value: int) -> None:
    data = uvarint(value)
    assert read_uvarint(data + b"\xff", 0) == (value, len(data))
    for size in range(len(data)):
        with pytest.raises(IndexError):
            read_uvarint(data[:size], 0)
    with pytest.raises(FormatError):
        read_uvarint(b"\x80" * 5 + b"\x01", 0)
