"""FindCoordinator, versions 0 to 6: the proxy to which a client sends requests about its group or transactional id.

Behaviour: the response is sent once the key's shard is loaded, so that it can serve the client's next request.  If the
load takes long, the response is COORDINATOR_NOT_AVAILABLE: every client tries again.  ``__consumer_offsets`` or
``__transaction_state`` is created if missing.

Version notes: 0 groups only; 1 key types; 4 several keys; 6 share groups' keys.

While the cluster has no transactions yet, transactional ids (key type 1) get COORDINATOR_NOT_AVAILABLE too.

Not implemented: share groups (2): INVALID_REQUEST.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from bmq.coordinator.api import GroupCoordinator, TransactionCoordinator
from bmq.coordinator.routing import KEY_TYPE as GROUP
from bmq.coordinator.transaction_routing import KEY_TYPE as TRANSACTION
from bmq.core.aio.turns import Turns, map_in_turns, next_turn
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need, Rights, not_authorized
from bmq.meta.group_placement import elements_of
from bmq.proxy.handlers._transactions import NOT_YET, are_served
from bmq.proxy.scopes import ProxyScopes

_Coordinator = GroupCoordinator | TransactionCoordinator


class _Found(NamedTuple):
    error: ErrorCode
    message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1


async def handle(scopes: ProxyScopes, request: Request, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
    key_type = message.key_type if request.api_version >= 1 else GROUP
    if request.api_version >= 4:
        keys = list(dict.fromkeys(message.coordinator_keys))
        found = await _find_allowed(scopes, scopes.caller.rights(request), key_type, keys)
        return FindCoordinatorResponse(
            coordinators=await map_in_turns(
                lambda each: FindCoordinatorResponse.Coordinator(key=each[0], **_fields(each[1])),
                zip(keys, found, strict=True),
            )
        )
    (single,) = await _find_allowed(scopes, scopes.caller.rights(request), key_type, [message.key])
    return FindCoordinatorResponse(**_fields(single))


async def _find_allowed(scopes: ProxyScopes, rights: Rights, key_type: int, keys: list[str]) -> list[_Found]:
    """Return the coordinator of each key; an error if the client may not describe the key."""
    coordinator, resource = _coordinator_of(scopes, key_type)
    if coordinator is None or not rights.is_checked:
        return await _find_each(scopes, coordinator, key_type, keys)
    allowed = await map_in_turns(lambda key: rights.allow(AclOperation.DESCRIBE, resource, key), keys)
    asked = [key for key, is_in in zip(keys, allowed, strict=True) if is_in]
    found = iter(await _find_each(scopes, coordinator, key_type, asked) if asked else ())
    error = not_authorized(resource)
    refused = _Found(error.code, error.message)
    return [next(found) if is_in else refused for is_in in allowed]


def _coordinator_of(scopes: ProxyScopes, key_type: int) -> tuple[_Coordinator | None, ResourceType]:
    """Return the coordinator of keys of a type, None if it is not served, and the resource that a key is."""
    if key_type == GROUP:
        return scopes.process.coordinator, ResourceType.GROUP
    is_served = key_type == TRANSACTION and are_served(scopes)
    return (scopes.process.transactions if is_served else None), ResourceType.TRANSACTIONAL_ID


async def _find_each(
    scopes: ProxyScopes, coordinator: _Coordinator | None, key_type: int, keys: list[str]
) -> list[_Found]:
    """Return the coordinator of each key.  Keys of a shard have the same coordinator: a shard is found once."""
    if coordinator is None:
        return [_not_served(key_type)] * len(keys)
    shard_of, turns = coordinator.shard_of, Turns()
    while True:
        shards = []
        for each in keys:
            if turns.is_over(elements_of(each)):
                await next_turn()
            shards.append(shard_of(each))
        first = dict(zip(reversed(shards), reversed(keys), strict=True))
        found = await asyncio.gather(*(_find(scopes, coordinator, key) for key in first.values()))
        if all(shard_of(key) == shard for shard, key in first.items()):
            by_shard = dict(zip(first, found, strict=True))
            return [by_shard[shard] for shard in shards]
        # The topic was created meanwhile, with more or fewer shards than this process's setting says.


def _not_served(key_type: int) -> _Found:
    if key_type == TRANSACTION:
        return _Found(NOT_YET, "the cluster has no transactions yet: transaction.version is at level 0")
    return _Found(ErrorCode.INVALID_REQUEST, f"key type {key_type} is not served")


async def _find(scopes: ProxyScopes, coordinator: _Coordinator, key: str) -> _Found:
    try:
        await coordinator.ready(key)
    except RequestError as error:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
    node_id = scopes.view.proxies.coordinator_of(coordinator.shard_of(key))
    proxy = next((each for each in scopes.view.proxies.addresses if each.node_id == node_id), None)
    if proxy is None:
        return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"node {node_id} is not among the proxies")
    return _Found(ErrorCode.NONE, None, proxy.node_id, proxy.host, proxy.port)


def _fields(found: _Found) -> dict[str, Any]:
    return {
        "error_code": found.error,
        "error_message": found.message,
        "node_id": found.node_id,
        "host": found.host,
        "port": found.port,
    }


NEEDS = (
    Need(AclOperation.DESCRIBE, ResourceType.GROUP, "each"),
    Need(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "each"),
)
APIS = (Api(ApiKey.FIND_COORDINATOR, 0, 6, handle, needs=NEEDS),)
