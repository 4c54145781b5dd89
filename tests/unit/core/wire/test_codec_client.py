"""Forwarded messages: what goes through ``codec_client`` and ``codec`` comes out as it went in, in every version."""

from __future__ import annotations

import random

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.codec_client import decode_response, encode_request, encode_response_body
from tests.unit.core.wire import oracle
from tests.unit.core.wire.profile import with_random

pytestmark = pytest.mark.slow

GROUP_APIS = (
    "DeleteGroups", "DescribeGroups", "FindCoordinator", "Heartbeat", "JoinGroup", "LeaveGroup", "ListGroups",
    "OffsetCommit", "OffsetDelete", "OffsetFetch", "SyncGroup",
)  # fmt: skip


@pytest.mark.parametrize("api", GROUP_APIS)
def test_a_decoded_request_is_encoded_as_it_came(api: str) -> None:
    @with_random(few=60, many=2_000)
    def check(rng: random.Random) -> None:
        for version in oracle.versions(api):
            key = oracle.api_key(api)
            came = oracle.kio_bytes(f"{api}Request", version, oracle.sample(rng, f"{api}Request", version))
            message = decode_request(key, version, memoryview(came))
            assert bytes(encode_request(key, version, message)) == came

    check()


@pytest.mark.parametrize("api", GROUP_APIS)
def test_responses_are_read_as_another_codec_wrote_them(api: str) -> None:
    @with_random(few=60, many=2_000)
    def check(rng: random.Random) -> None:
        for version in oracle.versions(api):
            name, key = f"{api}Response", oracle.api_key(api)
            theirs = oracle.kio_bytes(name, version, oracle.sample(rng, name, version))
            message = decode_response(key, version, memoryview(theirs))
            assert message == oracle.kafka_class(name).decode(theirs, version=version)
            assert bytes(encode_response_body(message, version)) == theirs
            assert bytes(encode_response(key, version, 7, message)[1]) == theirs

    check()


@pytest.mark.parametrize("api", GROUP_APIS)
def test_a_response_that_is_cut_short_is_refused(api: str) -> None:
    name, key = f"{api}Response", oracle.api_key(api)
    rng = random.Random(3)
    for version in oracle.versions(api):
        theirs = oracle.kio_bytes(name, version, oracle.sample(rng, name, version))
        for size in range(len(theirs)):
            with pytest.raises(FormatError):
                decode_response(key, version, memoryview(theirs)[:size])


@pytest.mark.parametrize(("key", "version"), [(9_999, 0), (ApiKey.HEARTBEAT, 5), (ApiKey.PRODUCE, 9), (18, -1)])
def test_what_has_no_schema_here_is_refused(key: int, version: int) -> None:
    with pytest.raises(FormatError):
        decode_response(key, version, memoryview(b"\0" * 100))
