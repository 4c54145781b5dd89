"""APIs whose administrative requests are written into the audit log, after their handlers.

The audit is in a single place, so that no handler can forget it: a process with an audit log registers these APIs in
place of the handlers' own.  A denial is not written again: ``endpoint.authorization`` has written which right was
needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any

from bmq.core.aio.turns import Turns, next_turn
from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import Audit
from bmq.core.errors import ErrorCode
from bmq.core.net.request import CloseConnection, Request
from bmq.core.security.acls import AUTHORIZATION_FAILED, AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.api import Api
from bmq.proxy.audit.acts import ACTS, BEFORE, WANTED, Act
from bmq.proxy.scopes import ProxyScopes

_WRITTEN = frozenset(AUTHORIZATION_FAILED.values())
"""Errors of which ``endpoint.authorization`` has written the denial."""
_DENIED = frozenset({ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH, ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED})
"""Denials without an ACL's right."""


def audited(apis: Sequence[Api[ProxyScopes]]) -> tuple[Api[ProxyScopes], ...]:
    """Return the APIs; the administrative ones with their acts in the audit log of ``scopes``."""
    return tuple(api._replace(handle=partial(_handle, api)) if api.key in ACTS else api for api in apis)


def write_created(scopes: ProxyScopes, request: Request, names: Iterable[str]) -> None:
    """Write the acts of a Metadata request that has created topics."""
    for name in names:
        act = Act(AclOperation.CREATE, ResourceType.TOPIC.name, name)
        scopes.caller.audit.write(_event(request, ApiKey.METADATA, act))


async def _handle(api: Api[ProxyScopes], scopes: ProxyScopes, request: Request, message: Any) -> Any:
    """Handle an administrative request, and write its acts."""
    look = BEFORE.get(api.key)
    before = look(scopes, message) if look is not None else None
    try:
        response = api.handle(scopes, request, message)
        if isawaitable(response):
            response = await response
    except CloseConnection:
        raise  # refused before anything was done
    except BaseException:
        for act in WANTED[api.key](message):
            scopes.caller.audit.write(_event(request, api.key, _of_token(act, before), AuditOutcome.UNKNOWN))
        raise
    await _write(scopes.caller.audit, ACTS[api.key](message, response, before), partial(_event, request, api.key))
    return response


async def _write(audit: Audit, acts: Iterable[Act], event_of: Callable[[Act], AuditEvent]) -> None:
    """Write the acts in turns of the loop; all of them, also if the client leaves meanwhile."""
    turns, wanted = Turns(), (act for act in acts if act.error not in _WRITTEN)
    try:
        for act in wanted:
            audit.write(event_of(act))
            if turns.is_over():
                await next_turn()
    except asyncio.CancelledError:
        for act in wanted:
            audit.write(event_of(act))
        raise


def _of_token(act: Act, before: object) -> Act:
    """Return the act with the token that was looked up before it."""
    return act._replace(resource=str(before[0])) if isinstance(before, tuple) else act


def _event(request: Request, key: ApiKey, act: Act, outcome: AuditOutcome = AuditOutcome.ALLOWED) -> AuditEvent:
    """Return the event of an act that was done, if its error does not say otherwise."""
    client, error = request.client, ""
    if act.error:
        error = ErrorCode(act.error).name
        outcome = AuditOutcome.DENIED if act.error in _DENIED else AuditOutcome.FAILED
    elif act.changed and act.changed.get("validate_only"):
        outcome = AuditOutcome.CHECKED
    return AuditEvent(
        Kind.ACT, key.name, outcome, client.session, client.host, request.client_id, act.operation.name,
        act.resource_type, act.resource, act.pattern, error, changed=act.changed,
    )  # fmt: skip
