"""AlterClientQuotas, versions 0 to 1 (KIP-546).

Behaviour: each entity gets a result of its own.  The proxy writes the valid entities, compared with the store's
earlier values.  The response goes out once this process's view shows them; other proxies follow within a message of the
store.  Errors are those of Kafka's ``ClientQuotaControlManager``.

Version notes: 1 is flexible.

Not implemented: names of hosts as ips, which Kafka would resolve once, in each of its brokers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bmq.core.aio.turns import Turns, next_turn
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import AlterClientQuotasResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.kv import KvError
from bmq.meta.security.client_quotas import Entity, InvalidQuota, check_value, make_entity
from bmq.proxy.scopes import ProxyScopes

_log = logging.getLogger("bmq.proxy")
ALTER_S = 30.0
"""Time-out of a request, which carries none: Kafka's request.timeout.ms, also the clients' default."""
Ops = dict[str, float | None]


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    turns = Turns()
    if not scopes.caller.rights(request).allow_on_cluster(AclOperation.ALTER_CONFIGS):
        refused = RequestError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
        return await _response(message, [refused] * len(message.entries), turns)
    errors: list[RequestError | None] = [None] * len(message.entries)
    changes: dict[Entity, Ops] = {}
    places: list[int] = []
    counts: Counter[frozenset[tuple[str, str | None]]] = Counter()
    for entry in message.entries:
        if turns.is_over(1 + len(entry.entity)):
            await next_turn()
        counts[frozenset(_pairs(entry))] += 1
    for place, entry in enumerate(message.entries):
        if turns.is_over(1 + len(entry.entity) + len(entry.ops)):
            await next_turn()
        try:
            entity, ops = _parse(entry)
            if counts[frozenset(_pairs(entry))] > 1:
                raise InvalidQuota("Ignoring duplicate entity")
        except InvalidQuota as error:
            errors[place] = RequestError(ErrorCode.INVALID_REQUEST, str(error))
        else:
            changes[entity] = ops
            places.append(place)
    if changes and not message.validate_only:
        failed = await _write(scopes, changes)
        for place in places if failed is not None else ():
            errors[place] = failed
    return await _response(message, errors, turns)


def _pairs(entry: Any) -> list[tuple[str, str | None]]:
    return [(each.entity_type, each.entity_name) for each in entry.entity]


def _parse(entry: Any) -> tuple[Entity, Ops]:
    """Return an entity with its changes.  Raises InvalidQuota."""
    entity = make_entity(_pairs(entry))
    ops: Ops = {}
    for op in entry.ops:
        if op.key in ops:
            raise InvalidQuota(f"Duplicate quota key {op.key} not updating quota for this entity")
        if not op.remove:
            check_value(entity, op.key, op.value)
        ops[op.key] = None if op.remove else op.value
    return entity, ops


async def _write(scopes: ProxyScopes, changes: dict[Entity, Ops]) -> RequestError | None:
    """Write the changes.  Return the error of all of them, some of which may have been written."""
    try:
        async with asyncio.timeout(ALTER_S):
            await scopes.process.client_quotas.alter(changes)
    except InvalidQuota as error:
        return RequestError(ErrorCode.POLICY_VIOLATION, str(error))
    except (TimeoutError, KvError) as error:
        _log.warning("quotas cannot be written: the metadata store does not answer", extra=fields(error=error))
        return RequestError(ErrorCode.REQUEST_TIMED_OUT, "the metadata store does not answer; it may still be done")
    except FormatError as error:
        _log.error("quotas are not written: a later version has written them", extra=fields(error=error))
        return RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, "a later version of BMQ has written these quotas")
    return None


async def _response(message: Any, errors: Sequence[RequestError | None], turns: Turns) -> Any:
    """Return the response with an error, or none, for each entry of a request."""
    kind = AlterClientQuotasResponse.EntryData
    entries = []
    for entry, error in zip(message.entries, errors, strict=True):
        if turns.is_over():
            await next_turn()
        entries.append(
            kind(
                error_code=error.code if error is not None else ErrorCode.NONE,
                error_message=error.message if error is not None else None,
                entity=await turns.map(_entity, entry.entity),
            )
        )
    return AlterClientQuotasResponse(throttle_time_ms=0, entries=entries)


def _entity(asked: Any) -> Any:
    kind = AlterClientQuotasResponse.EntryData.EntityData
    return kind(entity_type=asked.entity_type, entity_name=asked.entity_name)


NEEDS = (Need(AclOperation.ALTER_CONFIGS, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, handle, needs=NEEDS),)
