"""DescribeCluster in every version."""

from __future__ import annotations

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.security.acls import RESOURCE_OPERATIONS, ResourceType
from bmq.core.wire.messages import DescribeClusterRequest
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.proxy.handlers import describe_cluster
from tests.unit.proxy.handlers.admin_requests import versions
from tests.unit.proxy.handlers.admin_serving import Spread, serving

CLUSTER = describe_cluster.APIS[0]


@pytest.mark.parametrize("version", versions(CLUSTER))
async def test_the_cluster_is_described_in_every_version(version: int) -> None:
    proxies = Spread([ProxyAddress(4, "a", 1, "x"), ProxyAddress(5, "b", 2)])
    async with serving(proxies=proxies) as w:
        found = await w.ask(CLUSTER, version, DescribeClusterRequest(include_cluster_authorized_operations=True))
        assert (found.error_code, found.cluster_id, found.controller_id) == (0, w.catalog.cluster_id, 4)
        assert [(b.broker_id, b.host, b.port, b.rack) for b in found.brokers] == [
            (4, "a", 1, "x"),
            (5, "b", 2, None),
        ]
        assert found.authorized_operations == set(RESOURCE_OPERATIONS[ResourceType.CLUSTER])
        found = await w.ask(CLUSTER, version, DescribeClusterRequest(include_cluster_authorized_operations=False))
        assert found.authorized_operations is None
        if version >= 1:
            for kind, code in ((2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)):
                asked = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=kind)
                assert (await w.ask(CLUSTER, version, asked)).error_code == code
