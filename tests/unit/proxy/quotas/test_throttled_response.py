"""Throttle times in encoded responses, read back with kafka-python's decoders: every API, every version."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceResponse

from bmq.core.net.request import NO_RESPONSE, Response
from bmq.core.wire import messages
from bmq.core.wire.codec import encode_response
from bmq.core.wire.fetch import FetchedPartition, FetchedTopic, encode_fetch
from bmq.core.wire.header import response_is_flexible
from bmq.core.wire.primitives import NodeEndpoint
from bmq.core.wire.produce import PartitionAnswer, TopicAnswer, encode_produce
from bmq.proxy.apis import ALL_APIS
from bmq.proxy.quotas.throttled_response import set_throttle_ms
from tests.unit.core.wire import oracle

APIS = [(api, version) for api in ALL_APIS if api.key > 1 for version in range(api.min_version, api.max_version + 1)]
TOKENS = {f"{each}DelegationToken" for each in ("Create", "Renew", "Expire", "Describe")}
ELSEWHERE = {"ApiVersions", "OffsetDelete", *TOKENS}
"""APIs whose throttle time is not their first field, and is left as it is: their clients are muted all the same."""


def joined(response: Response) -> bytes:
    assert response.size == sum(map(len, response.buffers))
    return b"".join(response.buffers)


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version"), APIS, ids=lambda each: str(getattr(each, "key", each)))
def test_the_first_field_of_kafkas_responses_is_set(api: Any, version: int) -> None:
    request = messages.request_class(api.key)
    assert request is not None
    name = request.__name__.removesuffix("Request")
    kind = getattr(messages, name + "Response")
    values = oracle.sample(random.Random(version), name + "Response", version)
    response = Response(encode_response(api.key, version, 7, oracle.to_kafka(name + "Response", version, values)))
    before = joined(response)
    set_throttle_ms(api.key, version, response, 1_234)
    start = 5 if response_is_flexible(api.key, version) else 4
    has_field = any(field.name == "throttle_time_ms" and field.for_version_q(version) for field in kind.fields.values())
    if not has_field or name in ELSEWHERE:
        assert joined(response) == before
    else:
        assert before[start : start + 4] == values["throttle_time_ms"].to_bytes(4, "big", signed=True)
        assert joined(response) == before[:start] + (1_234).to_bytes(4, "big") + before[start + 4 :]


@pytest.mark.parametrize("version", range(3, 14))
def test_produce(version: int) -> None:
    topic_id = UUID(int=5)
    topic = TopicAnswer("t", topic_id, [PartitionAnswer(3, 0)])
    response = encode_produce(version, 7, [topic])
    set_throttle_ms(0, version, response, 1 << 40)
    found = ProduceResponse.decode(joined(response)[5 if version >= 9 else 4 :], version=version)
    assert found.throttle_time_ms == (1 << 31) - 1
    assert found.responses[0].partition_responses[0].index == 3


@pytest.mark.parametrize("version", range(3, 14))
def test_produce_with_the_address_of_a_new_leader(version: int) -> None:
    topic = TopicAnswer("t", UUID(int=5), [PartitionAnswer(3, 6, current_leader=(2, 9))])
    response = encode_produce(version, 7, [topic], endpoints=[NodeEndpoint(2, "there", 9092, "zone")])
    set_throttle_ms(0, version, response, 50)
    found = ProduceResponse.decode(joined(response)[5 if version >= 9 else 4 :], version=version)
    assert found.throttle_time_ms == 50
    if version >= 10:
        assert [(node.node_id, node.host, node.rack) for node in found.node_endpoints] == [(2, "there", "zone")]
        assert found.responses[0].partition_responses[0].current_leader.leader_epoch == 9


@pytest.mark.parametrize("version", range(4, 19))
def test_fetch(version: int) -> None:
    by_id = version >= 13
    topic = FetchedTopic(
        None if by_id else "t",
        UUID(int=5) if by_id else None,
        [FetchedPartition(1, 0, 9, 9, 0, (memoryview(b"records"),), 7)],
    )
    response = encode_fetch(version, 7, [topic], session_id=77)
    set_throttle_ms(1, version, response, 50)
    found = FetchResponse.decode(joined(response)[5 if version >= 12 else 4 :], version=version)
    assert found.throttle_time_ms == 50
    if version >= 7:
        assert found.session_id == 77
    assert bytes(found.responses[0].partitions[0].records) == b"records"


def test_no_response_stays_none() -> None:
    set_throttle_ms(0, 9, NO_RESPONSE, 50)
    assert NO_RESPONSE.size == 0
    assert not NO_RESPONSE.buffers
