"""Every message of every advertised version says the same, byte for byte, as kio's."""

from __future__ import annotations

import random
import struct

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire import messages
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.header import is_flexible, response_is_flexible
from bmq.core.wire.messages import stable_range
from tests.unit.core.wire import oracle
from tests.unit.core.wire.profile import with_random

pytestmark = pytest.mark.slow

# What Apache Kafka 4.2 answers to ApiVersions, unstable versions left out.
KAFKA_RANGES = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
}


def test_advertised_ranges_are_kafkas() -> None:
    assert {oracle.api_key(api) for api in (*oracle.SERVED, *oracle.HAND_WRITTEN)} == set(KAFKA_RANGES)
    assert {key: stable_range(key) for key in KAFKA_RANGES} == KAFKA_RANGES
    with pytest.raises(KeyError):
        stable_range(9_999)


def test_kio_has_every_advertised_version() -> None:
    for api in (*oracle.SERVED, *oracle.HAND_WRITTEN):
        for version in oracle.versions(api):
            assert (api, version) not in oracle.KIO_LACKS
            assert oracle.kio_class(api + "Request", version).__flexible__ == is_flexible(oracle.api_key(api), version)


@pytest.mark.parametrize("api", oracle.SERVED)
def test_requests_equal_kios(api: str) -> None:
    @with_random(few=60, many=2_000)
    def check(rng: random.Random) -> None:
        for version in oracle.versions(api):
            _check_request(api, version, rng)

    check()


@pytest.mark.parametrize("api", oracle.SERVED)
def test_responses_equal_kios(api: str) -> None:
    @with_random(few=60, many=2_000)
    def check(rng: random.Random) -> None:
        for version in oracle.versions(api):
            _check_response(api, version, rng)

    check()


def _check_request(api: str, version: int, rng: random.Random) -> None:
    name = api + "Request"
    values = oracle.sample(rng, name, version)
    theirs = oracle.kio_bytes(name, version, values)
    body = memoryview(bytearray(theirs))
    message = decode_request(oracle.api_key(api), version, body)
    body[:] = bytes(len(body))  # the message may not look into it any more
    assert oracle.of_kafka(oracle.kafka_class(name), version, message) == values
    assert type(message) is oracle.kafka_class(name)
    assert version == message.API_VERSION
    assert bytes(message.encode(version=version)) == theirs
    assert message == oracle.kafka_class(name).decode(theirs, version=version)


def _check_response(api: str, version: int, rng: random.Random) -> None:
    name = api + "Response"
    key = oracle.api_key(api)
    values = oracle.sample(rng, name, version)
    correlation_id = rng.randint(-(1 << 31), (1 << 31) - 1)
    header, body = encode_response(key, version, correlation_id, oracle.to_kafka(name, version, values))
    assert bytes(header) == struct.pack(">i", correlation_id) + b"\0" * response_is_flexible(key, version)
    assert bytes(body) == oracle.kio_bytes(name, version, values)
    assert oracle.kio_read(name, version, bytes(body)) == oracle.to_kio(name, version, values)


def test_unknown_tags_are_passed_over() -> None:
    """A newer client's tagged fields: (tag 0, 2 bytes), (tag 300, 3 bytes)."""
    values = oracle.sample(random.Random(1), "HeartbeatRequest", 4)
    plain = oracle.kio_bytes("HeartbeatRequest", 4, values)
    tagged = plain[:-1] + b"\x02" + b"\x00\x02ab" + b"\xac\x02\x03cde"
    message = decode_request(ApiKey.HEARTBEAT, 4, memoryview(tagged))
    assert oracle.of_kafka(messages.HeartbeatRequest, 4, message) == values


def test_fields_of_later_versions_read_as_their_defaults() -> None:
    body = oracle.kio_bytes("JoinGroupRequest", 0, oracle.sample(random.Random(1), "JoinGroupRequest", 0))
    message = decode_request(ApiKey.JOIN_GROUP, 0, memoryview(body))
    assert (message.rebalance_timeout_ms, message.group_instance_id, message.reason) == (-1, None, None)


def test_a_decoded_message_may_be_given_to_another_version() -> None:
    body = oracle.kio_bytes("HeartbeatRequest", 4, oracle.sample(random.Random(1), "HeartbeatRequest", 4))
    message = decode_request(ApiKey.HEARTBEAT, 4, memoryview(body))
    message.API_VERSION = 3
    assert message.header is None


@pytest.mark.parametrize(("key", "version"), [(9_999, 0), (ApiKey.HEARTBEAT, 5), (ApiKey.PRODUCE, 9), (18, -1)])
def test_what_has_no_schema_here_is_refused(key: int, version: int) -> None:
    with pytest.raises(FormatError):
        decode_request(key, version, memoryview(b"\0" * 100))


# From the protocol guide (https://kafka.apache.org/protocol), written out by hand.
GOLDEN_REQUESTS = [
    pytest.param(
        ApiKey.HEARTBEAT,
        0,
        "0001 67"  # group_id STRING "g"
        "00000005"  # generation_id INT32
        "0002 6d31",  # member_id STRING "m1"
        {"group_id": "g", "generation_id": 5, "member_id": "m1"},
        id="Heartbeat 0",
    ),
    pytest.param(
        ApiKey.HEARTBEAT,
        4,
        "02 67"  # group_id COMPACT_STRING
        "00000005"
        "03 6d31"  # member_id
        "00"  # group_instance_id COMPACT_NULLABLE_STRING: null
        "00",  # tagged fields
        {"group_id": "g", "generation_id": 5, "member_id": "m1", "group_instance_id": None},
        id="Heartbeat 4",
    ),
    pytest.param(
        ApiKey.METADATA,
        12,
        "02"  # topics COMPACT_ARRAY: one
        "00000000000000000000000000000000"  # topic_id UUID: none
        "02 74"  # name COMPACT_NULLABLE_STRING "t"
        "00"  # tagged fields of the topic
        "01"  # allow_auto_topic_creation
        "00"  # include_topic_authorized_operations
        "00",
        {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False},
        id="Metadata 12",
    ),
    pytest.param(ApiKey.METADATA, 1, "ffffffff", {"topics": None}, id="Metadata 1, all topics"),
    pytest.param(
        ApiKey.API_VERSIONS,
        3,
        "0b 6c696272646b61666b61"  # client_software_name COMPACT_STRING "librdkafka"
        "06 322e312e30"  # client_software_version "2.1.0"
        "00",
        {"client_software_name": "librdkafka", "client_software_version": "2.1.0"},
        id="ApiVersions 3",
    ),
    pytest.param(
        ApiKey.SYNC_GROUP,
        0,
        "0001 67 00000001 0001 6d"  # group_id, generation_id, member_id
        "00000001"  # assignments ARRAY: one
        "0001 6d"  # member_id
        "00000002 abcd",  # assignment BYTES
        {"group_id": "g", "generation_id": 1, "member_id": "m"},
        id="SyncGroup 0",
    ),
]


@pytest.mark.parametrize(("key", "version", "text", "expected"), GOLDEN_REQUESTS)
def test_golden_requests(key: ApiKey, version: int, text: str, expected: dict[str, object]) -> None:
    message = decode_request(key, version, memoryview(bytes.fromhex(text)))
    assert {name: getattr(message, name) for name in expected} == expected
    if key is ApiKey.METADATA and version == 12:
        assert [(topic.topic_id, topic.name) for topic in message.topics] == [(None, "t")]
    if key is ApiKey.SYNC_GROUP:
        assert [(each.member_id, each.assignment) for each in message.assignments] == [("m", b"\xab\xcd")]


def test_golden_api_versions_response_has_header_0() -> None:
    """Flexible body, header without tags: a client that asks knows no version of ours yet (KIP-511)."""
    ranges = [messages.ApiVersionsResponse.ApiVersion(api_key=18, min_version=0, max_version=4)]
    message = messages.ApiVersionsResponse(error_code=0, api_keys=ranges, throttle_time_ms=0)
    golden = bytes.fromhex(
        "00000007"  # correlation id, and no tagged fields
        "0000"  # error_code
        "02 0012 0000 0004 00"  # api_keys COMPACT_ARRAY: one, with tagged fields
        "00000000"  # throttle_time_ms
        "00"
    )
    assert b"".join(encode_response(ApiKey.API_VERSIONS, 3, 7, message)) == golden


def test_api_versions_can_say_unsupported_version_in_version_0() -> None:
    message = messages.ApiVersionsResponse(error_code=35, api_keys=[])
    assert b"".join(encode_response(ApiKey.API_VERSIONS, 0, 7, message)) == bytes.fromhex("00000007 0023 00000000")
