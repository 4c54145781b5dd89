"""DescribeCluster, versions 0 to 2.

Behaviour: the response lists the proxies in this process's view, without a request to another process.  The controller
is one of them, the same for all clients (``controller_of``).

Version notes: 1 may ask for controllers instead of brokers; there is no such endpoint (MISMATCHED_ENDPOINT_TYPE, as
from Kafka's brokers). 2 may ask for fenced brokers, too; a fenced proxy is not a member at all.

Not implemented: nothing.
"""

from __future__ import annotations

from typing import Any

from bmq.core.errors import ErrorCode
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeClusterResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.proxy.metadata_cache import controller_of
from bmq.proxy.scopes import ProxyScopes

BROKERS, CONTROLLERS = 1, 2


def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    code, text = ErrorCode.NONE, None
    if message.endpoint_type == CONTROLLERS:
        code, text = ErrorCode.MISMATCHED_ENDPOINT_TYPE, "This is the brokers' endpoint; there is none for controllers."
    elif message.endpoint_type != BROKERS:
        code, text = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {message.endpoint_type}."
    proxies, rights = scopes.view.proxies, scopes.caller.rights(request)
    return DescribeClusterResponse(
        throttle_time_ms=0,
        error_code=code,
        error_message=text,
        endpoint_type=BROKERS,
        cluster_id=scopes.process.catalog.cluster_id,
        controller_id=-1 if code else controller_of(proxies),
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(
                broker_id=proxy.node_id, host=proxy.host, port=proxy.port, rack=proxy.zone or None, is_fenced=False
            )
            for proxy in (() if code else proxies.addresses)
        ],
        authorized_operations=rights.cluster_operations() if message.include_cluster_authorized_operations else None,
    )


NEEDS = (Need(AclOperation.DESCRIBE, ResourceType.CLUSTER, "for the cluster's operations"),)
APIS = (Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, handle, needs=NEEDS),)
