"""Events of the audit log that come from the HTTP port: log-ins, denials, and administrative requests.

Most requests that change something go through Kafka's handlers, which write the act with its details (``proxy.audit``).
``BY_ROUTE`` has the routes that do not.  Every other route with a change is in ``BY_KAFKA``, or in
``NOT_ADMINISTRATIVE``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from bmq.console.access.rights import right_of
from bmq.console.access.schemes import AuthenticatedClient
from bmq.console.queries import BODY
from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import Audit
from bmq.core.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from bmq.core.security.authentication import AuthenticationContext
from bmq.core.security.session import Session

Route = tuple[str, str]
_RESETS = {("POST", "/api/v1/group/reset"), ("POST", "/api/v1/groups/{id}/reset")}
BY_ROUTE: frozenset[Route] = frozenset(
    {
        ("POST", "/api/v1/cluster/drain"),
        ("POST", "/api/v1/cluster/balance"),
        ("POST", "/api/v1/cluster/move"),
        ("POST", "/api/v1/cluster/repair"),
        ("PUT", "/api/v1/members/{member}/log-level"),
        *((method, "/api/v1/topics/{name}/partitions/{partition}/cleaning") for method in ("POST", "PUT", "DELETE")),
        *_RESETS,
    }
)
"""Administrative requests whose act is written here."""
BY_KAFKA: frozenset[Route] = frozenset(
    {
        ("POST", "/api/v1/topics"),
        ("DELETE", "/api/v1/topics/{name}"),
        ("POST", "/api/v1/topics/{name}/configs"),
        ("POST", "/api/v1/topics/{name}/partitions"),
        ("DELETE", "/api/v1/group"),
        ("DELETE", "/api/v1/groups/{id}"),
    }
)
"""Administrative requests whose act is written by ``proxy.audit``, as that of a Kafka request."""
NOT_ADMINISTRATIVE: frozenset[Route] = frozenset(
    {("POST", "/api/v1/login"), ("DELETE", "/api/v1/login"), ("POST", "/api/v1/topics/{name}/records")}
)
"""Log-ins and log-outs, which are events of their own, and records, which are never in the audit log."""
_TOLD = (
    "member", "topic", "partition", "logger", "level", "choice", "records", "all", "unreadable_is_lost",
    "abort_hanging", "apply", "to", "dry_run", "topics", "job", "end",
)  # fmt: skip
"""Fields of a request's body that the act has: names and numbers, all of them."""


class HttpAudit:
    """Writer of the HTTP port's events."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self.is_on = audit.is_on

    def login(self, context: AuthenticationContext, authenticated: AuthenticatedClient | None, reason: str) -> None:
        """Write a log-in that was checked; refused, for the reason, without a client."""
        if self.is_on:
            session = authenticated.session if authenticated is not None else Session(protocol=context.protocol)
            outcome = AuditOutcome.ALLOWED if authenticated is not None else AuditOutcome.DENIED
            self._audit.write(AuditEvent(Kind.LOGIN, "LOGIN", outcome, session, context.host, reason=reason))

    def session(self, request: web.Request, session: Session) -> None:
        """Write that a console's session has begun, or ended, by this request."""
        if self.is_on:
            act = "LOGOUT" if request.method == "DELETE" else act_of(request)
            self._audit.write(AuditEvent(Kind.LOGIN, act, AuditOutcome.ALLOWED, session, request.remote or ""))

    def nobody(self, request: web.Request, context: AuthenticationContext) -> None:
        """Write that a request without a log-in was refused."""
        if self.is_on:
            session = Session(protocol=context.protocol)
            self._audit.write(
                AuditEvent(Kind.LOGIN, act_of(request), AuditOutcome.DENIED, session, context.host, reason="no log-in")
            )

    def denied(
        self,
        request: web.Request,
        session: Session,
        operation: AclOperation | None = None,
        resource_type: ResourceType | None = None,
        name: str | None = None,
        reason: str = "",
    ) -> None:
        """Write a denial: the right that was needed, or another reason."""
        if self.is_on:
            self._audit.write(
                AuditEvent(
                    Kind.DENIAL, act_of(request), AuditOutcome.DENIED, session, request.remote or "",
                    operation=operation.name if operation is not None else "",
                    resource_type=resource_type.name if resource_type is not None else "",
                    resource=name, reason=reason,
                )
            )  # fmt: skip

    def act(self, request: web.Request, session: Session, outcome: AuditOutcome, error: str = "") -> None:
        """Write an administrative request that Kafka's protocol lacks; do nothing for other requests."""
        route = route_of(request)
        if not self.is_on or route not in BY_ROUTE:
            return
        right = right_of(*route)
        assert right.operation is not None
        assert right.resource is not None
        named = request.match_info.get("name") or request.match_info.get("id") or request.query.get("id")
        name = CLUSTER_NAME if right.resource is ResourceType.CLUSTER else named
        changed = {**_told(request.match_info), **_told(request.get(BODY, {}))}
        if outcome is AuditOutcome.ALLOWED and (changed.get("dry_run") is True or changed.get("apply") is False):
            outcome = AuditOutcome.CHECKED
        self._audit.write(
            AuditEvent(
                Kind.ACT, act_of(request), outcome, session, request.remote or "",
                operation=right.operation.name, resource_type=right.resource.name, resource=name, error=error,
                changed=changed,
            )
        )  # fmt: skip


def route_of(request: web.Request) -> Route:
    """Return the request's method, and its path as the router has it; the path itself if it has none."""
    resource = request.match_info.route.resource
    return request.method, request.path if resource is None else resource.canonical


def act_of(request: web.Request) -> str:
    """Return the request's method and path, for ``AuditEvent.act``."""
    return " ".join(route_of(request))


def _told(values: Mapping[str, Any]) -> dict[str, object]:
    """Return names and numbers among ``values``; of a list of objects their topics' names."""
    found: dict[str, object] = {}
    for name in _TOLD:
        value = values.get(name)
        if isinstance(value, str | int):
            found[name] = value
        elif isinstance(value, list):
            found[name] = [str(each["topic"]) for each in value]
    return found
