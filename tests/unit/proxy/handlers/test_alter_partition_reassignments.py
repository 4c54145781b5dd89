"""AlterPartitionReassignments and its list: replicas are fixed, so none is ever under way."""

from __future__ import annotations

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import AlterPartitionReassignmentsRequest, ListPartitionReassignmentsRequest
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import alter_partition_reassignments, list_partition_reassignments
from tests.unit.proxy.handlers.admin_requests import CREATE, create, new, versions
from tests.unit.proxy.handlers.admin_serving import Spread, serving

REASSIGN = alter_partition_reassignments.APIS[0]


REASSIGNMENTS = list_partition_reassignments.APIS[0]


@pytest.mark.parametrize("version", versions(REASSIGN))
@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, [4], ErrorCode.NONE),
        (0, [5], ErrorCode.POLICY_VIOLATION),
        (0, [4, 4], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [9], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (1, [4], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_a_reassignment_is_refused_unless_it_changes_nothing(
    version: int, partition: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    proxies = Spread([ProxyAddress(4, "a", 1), ProxyAddress(5, "b", 2)])
    async with serving(proxies=proxies) as w:
        await w.ask(CREATE, 7, create(new("t", 1)))
        Asked = AlterPartitionReassignmentsRequest.ReassignableTopic
        one = Asked.ReassignablePartition(partition_index=partition, replicas=replicas)
        asked = AlterPartitionReassignmentsRequest(topics=[Asked(name="t", partitions=[one])])
        found = await w.ask(REASSIGN, version, asked)
        assert [each.error_code for each in found.responses[0].partitions] == [code]
        found = await w.ask(REASSIGNMENTS, 0, ListPartitionReassignmentsRequest(topics=None))
        assert (found.error_code, found.topics) == (0, [])
