"""DescribeClientQuotas, versions 0 to 1 (KIP-546).

Behaviour: the entities that match every component of the filter, from this process's view; a strict filter matches only
entities without further types.  Errors are those of Kafka's ``ClientQuotasImage.describe``, and the entries are then
null.

Version notes: 1 is flexible.
"""

from __future__ import annotations

from typing import Any

from bmq.core.aio.turns import map_in_turns
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.messages import DescribeClientQuotasResponse
from bmq.endpoint.api import Api
from bmq.endpoint.authorization.authorizer import Need
from bmq.meta.security.client_quotas import CLIENT_ID, IP, TYPES, USER, Entity, Values
from bmq.proxy.scopes import ProxyScopes

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
ENTRY_BYTES = 100
"""Of an entity in a response, without its names."""


async def handle(scopes: ProxyScopes, request: Request, message: Any) -> Any:
    try:
        if not scopes.caller.rights(request).allow_on_cluster(AclOperation.DESCRIBE_CONFIGS):
            raise RequestError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")
        wanted = _Filter(message)
    except RequestError as error:
        return DescribeClientQuotasResponse(
            throttle_time_ms=0, error_code=error.code, error_message=error.message, entries=None
        )
    entities = tuple(scopes.process.client_quotas.entities.items())
    entries = await map_in_turns(lambda each: _entry(*each) if wanted.matches(each[0]) else None, entities)
    return DescribeClientQuotasResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        entries=[entry for entry in entries if entry is not None],
    )


class _Filter:
    """The components of a request: names to be equal, and types that any name satisfies."""

    def __init__(self, message: Any) -> None:
        """Parse a request.  Raises RequestError if its filter is not valid."""
        self._exact: dict[str, str | None] = {}
        self._types: set[str] = set()
        self._is_strict = message.strict
        for component in message.components:
            self._add(component.entity_type, component.match_type, component.match)
        named = self._types.union(self._exact)
        if IP in named and named & {USER, CLIENT_ID}:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                "Invalid entity filter component combination. IP filter component should not be used with user or"
                " clientId filter component.",
            )
        self._count = len(named)

    def _add(self, kind: str, match_type: int, match: str | None) -> None:
        if not kind:
            raise RequestError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in self._exact or kind in self._types:
            raise RequestError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in TYPES:
            raise RequestError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match_type not in (EXACT, DEFAULT, SPECIFIED):
            raise RequestError(ErrorCode.INVALID_REQUEST, f"Unknown match type {match_type}")
        if (match_type == EXACT) != (match is not None):
            text = "null" if match is None else "a string"
            raise RequestError(ErrorCode.INVALID_REQUEST, f"Request specified match type {match_type} with {text}.")
        if match_type == SPECIFIED:
            self._types.add(kind)
        else:
            self._exact[kind] = match

    def matches(self, entity: Entity) -> bool:
        """Return whether the response has the entity."""
        named = dict(entity)
        if self._is_strict and len(named) != self._count:
            return False
        if any(kind not in named for kind in self._types):
            return False
        return all(kind in named and named[kind] == name for kind, name in self._exact.items())


def _entry(entity: Entity, values: Values) -> Any:
    entry = DescribeClientQuotasResponse.EntryData
    return entry(
        entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[entry.ValueData(key=key, value=value) for key, value in sorted(values.items())],
    )


def response_bytes(scopes: ProxyScopes, message: Any) -> int:
    return ENTRY_BYTES * len(scopes.process.client_quotas.entities)


NEEDS = (Need(AclOperation.DESCRIBE_CONFIGS, ResourceType.CLUSTER),)
APIS = (Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, handle, response_bytes=response_bytes, needs=NEEDS),)
