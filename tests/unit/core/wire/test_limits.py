"""Bounds on the elements of a request: above what Kafka's tools send."""

from __future__ import annotations

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request
from bmq.core.wire.limits import elements_max
from bmq.core.wire.primitives import uvarint


def test_array_elements_of_a_request_are_bounded() -> None:
    """DescribeGroups 5 with empty group names: an element is one byte on the wire."""

    def body(count: int) -> memoryview:
        return memoryview(uvarint(count + 1) + b"\x01" * count + b"\x00\x00")

    limit = elements_max(ApiKey.DESCRIBE_GROUPS)
    assert len(decode_request(ApiKey.DESCRIBE_GROUPS, 5, body(limit)).groups) == limit
    with pytest.raises(FormatError):
        decode_request(ApiKey.DESCRIBE_GROUPS, 5, body(limit + 1))


def test_requests_of_kafkas_tools_are_within_the_bounds() -> None:
    """Allow a request about 10,000 topics, or 100,000 partitions in them, with three nodes each where nodes are
    named."""
    topics, partitions = 10_000, 100_000
    for key in (
        ApiKey.LIST_OFFSETS, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.TXN_OFFSET_COMMIT, ApiKey.DELETE_RECORDS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ELECT_LEADERS, ApiKey.OFFSET_DELETE,
        ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_PRODUCERS, ApiKey.WRITE_TXN_MARKERS,
    ):  # fmt: skip
        assert elements_max(key) > topics + partitions
    for key in (ApiKey.CREATE_TOPICS, ApiKey.CREATE_PARTITIONS, ApiKey.ALTER_PARTITION_REASSIGNMENTS):
        assert elements_max(key) > topics + 4 * partitions
    for key in (ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS):
        assert elements_max(key) > 3 * topics
    for key in ApiKey:
        assert elements_max(key) > topics
