"""Audit lines of creations that are refused since the user owns as many as it may."""

from __future__ import annotations

from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.net.request import Request
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.scopes import ProxyScopes


def write_past_bound(
    scopes: ProxyScopes, request: Request, bound: str, operation: AclOperation, resource_type: ResourceType, name: str
) -> None:
    """Write into the audit log that the client may not create the resource: its user owns as many as ``bound`` says."""
    if scopes.caller.audit.is_on:
        client = request.client
        event = AuditEvent(
            Kind.DENIAL, ApiKey(request.api_key).name, AuditOutcome.DENIED, client.session, client.host,
            request.client_id, operation.name, resource_type.name, name,
            reason=f"{bound} of the user is reached",
        )  # fmt: skip
        scopes.caller.audit.write(event)
