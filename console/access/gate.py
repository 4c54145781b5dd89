"""The gate of the HTTP port: who sent a request, and whether he may.

    Authorization: Basic ... / Bearer ...    programs, by ``console.access.logins``
    a cookie                                 the console's page, by ``console.access.sessions``
    neither                                  User:ANONYMOUS where nobody has to log in; else 401

A process that starts does not know all users and ACLs.  Until it does, the gate lets health and open metrics through,
and nothing else: 503.

With a cookie, a request that changes something must have the session's text in ``X-CSRF-Token``.  Browsers send cookies
with the requests of other sites' pages, too, but only this server's page can read the text.  ``console.origins`` checks
the page's origin besides, and browsers are told to send the cookie to requests of this site alone.

The page sends this header with every request.  The 401 to such a request names a scheme for which browsers open no
password dialog.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from aiohttp import web
from aiohttp.typedefs import Middleware

from bmq.console.access.access import ACCESS, NotAuthorised, RequestAccess
from bmq.console.access.audit import HttpAudit
from bmq.console.access.logins import Logins, NotAuthenticated
from bmq.console.access.rights import METRICS, USER, Right, Who, right_of
from bmq.console.access.schemes import BEARER
from bmq.console.access.sessions import ConsoleSession, ConsoleSessions
from bmq.console.kafka import Requests
from bmq.console.operations import NotPossible
from bmq.console.state import Own, OwnMetric
from bmq.core.audit.event import AuditOutcome
from bmq.core.errors import RequestError
from bmq.core.security.acls import AUTHORIZATION_FAILED, ResourceType
from bmq.core.security.authentication import AuthenticationContext
from bmq.endpoint.authorization.authorizer import Authorizer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
CSRF_HEADER = "X-CSRF-Token"
HEALTH = ("/healthz", "/readyz")
RETRY_AFTER_S = 1
"""Pause of a client before its next request to a process that is starting."""
DENIALS = frozenset(AUTHORIZATION_FAILED.values())
"""Errors of Kafka's handlers that refuse a user."""
_READING = ("GET", "HEAD")


class NotOpen(NotPossible):
    """Refusal of a request to a process that is starting, or is closing its roles."""

    def __init__(self) -> None:
        text = "this process is starting or ending, and serves health and metrics alone; try again in a moment"
        super().__init__(503, "starting", text)
        self.headers = {"Retry-After": str(RETRY_AFTER_S)}


class RefusalCounts:
    """Numbers of requests that the gate refused."""

    __slots__ = ("denied", "forged", "unauthenticated")

    def __init__(self) -> None:
        self.unauthenticated = 0
        """Requests without a log-in, where one is needed."""
        self.denied = 0
        """Requests of users who lack the right."""
        self.forged = 0
        """Requests with a cookie, but without the session's text."""


class AccessGate(NamedTuple):
    """Everything that the gate looks at."""

    is_open: Callable[[], bool]
    """Returns False while users, ACLs and topics are not known: see ``ConsoleState``."""
    logins: Logins
    sessions: ConsoleSessions
    authorizer: Authorizer
    kafka: Requests
    metrics_ask: bool
    """False if anyone may read ``/metrics``."""
    counts: RefusalCounts
    audit: HttpAudit

    @property
    def asks(self) -> bool:
        """True if clients have to log in."""
        return bool(self.logins.scheme_names)

    def right(self, request: web.Request) -> Right:
        """Return what the request needs."""
        resource = request.match_info.route.resource
        if resource is None:  # no such path, or no such method: the router's own handler refuses it
            return USER
        is_metrics = request.method in _READING and resource.canonical == METRICS[1]
        if is_metrics and not self.metrics_ask:
            return Right(Who.ANYONE)
        return right_of(request.method, resource.canonical)

    def open_early(self, request: web.Request) -> RequestAccess:
        """Return the access of a request to a process that is not open yet: nobody logs in there.

        Raises NotOpen unless the request asks for health, or for metrics that everybody may read.
        """
        may_read = self.right(request).who is Who.ANYONE or not (self.asks or self.authorizer.is_on)
        if request.path not in HEALTH and not (request.path == METRICS[1] and may_read):
            raise NotOpen
        return RequestAccess(self.authorizer, self.kafka, context_of(request), is_known=not self.asks)

    async def identify(self, request: web.Request) -> RequestAccess:
        """Return the access of the request's client; that of nobody if it shows nothing and has to.

        Raises NotPossible (401, 403 or 429) if what it shows is wrong.
        """
        context = context_of(request)
        if not self.asks:
            return RequestAccess(self.authorizer, self.kafka, context)
        scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
        if scheme:
            authenticated = await self.logins.check(context, scheme.lower(), credentials.strip())
            return RequestAccess(self.authorizer, self.kafka, context, authenticated.session)
        found = self.session_of(request)
        if found is None:
            return RequestAccess(self.authorizer, self.kafka, context, is_known=False)
        if request.method not in _READING and not found.is_csrf(request.headers.get(CSRF_HEADER, "")):
            self.counts.forged += 1
            self.audit.denied(request, found.authenticated.session, reason=f"no {CSRF_HEADER} of the session")
            text = f"the console's session needs its text in {CSRF_HEADER}; reload the page"
            raise NotPossible(403, "forged_request", text)
        return RequestAccess(self.authorizer, self.kafka, context, found.authenticated.session, cookie=found)

    def session_of(self, request: web.Request) -> ConsoleSession | None:
        """Return the session whose cookie the request has; None if it has none."""
        cookie = request.cookies.get(cookie_name(request))
        return self.sessions.find(cookie) if cookie else None

    async def identify_for_health(self, request: web.Request) -> RequestAccess:
        """Return the access of a health check's client: one that shows something wrong is nobody, and not refused."""
        try:
            return await self.identify(request)
        except NotPossible:
            return RequestAccess(self.authorizer, self.kafka, context_of(request), is_known=False)

    def metrics(self) -> Sequence[Own]:
        """Return the numbers of the HTTP port, for ``/metrics``."""
        text, counts = "HTTP requests refused, by reason", self.counts
        denied = {"no_login": counts.unauthenticated, "not_authorised": counts.denied, "forged": counts.forged}
        found = [OwnMetric("http_denied", text, count, True, "reason", why) for why, count in denied.items()]
        if not self.asks:
            return found
        logins = self.logins
        right, wrong = "HTTP log-ins checked and right, by scheme", "HTTP log-ins checked and wrong, by scheme"
        return [
            *found,
            *(OwnMetric("http_logins", right, n, True, "scheme", name) for name, n in logins.succeeded.items()),
            *(OwnMetric("http_logins_failed", wrong, n, True, "scheme", name) for name, n in logins.failed.items()),
            OwnMetric("http_logins_refused", "HTTP log-ins not checked: too many waited", self.logins.refused, True),
            OwnMetric("http_console_sessions", "Sessions of the console's users", len(self.sessions)),
        ]

    def challenge(self, request: web.Request) -> str:
        """Return how to log in, for ``WWW-Authenticate``."""
        if CSRF_HEADER in request.headers:
            return 'Session realm="BMQ"'
        return ", ".join(
            'Bearer realm="BMQ"' if scheme == BEARER else 'Basic realm="BMQ", charset="UTF-8"'
            for scheme in self.logins.scheme_names
        )


def gate(rules: AccessGate) -> Middleware:
    """Return the middleware that lets requests through whose client may make them."""

    @web.middleware
    async def check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not rules.is_open():
            request[ACCESS] = rules.open_early(request)
            return await handler(request)
        right = rules.right(request)
        if right.who is Who.ANYONE:
            if request.path in HEALTH:
                request[ACCESS] = await rules.identify_for_health(request)
            return await handler(request)
        try:
            access = await rules.identify(request)
            if not access.is_known:
                rules.counts.unauthenticated += 1
                rules.audit.nobody(request, context_of(request))
                raise NotAuthenticated("log in first")
        except NotAuthenticated as error:
            error.headers = {"WWW-Authenticate": rules.challenge(request)}
            raise
        request[ACCESS] = access
        audit, outcome, why = rules.audit, AuditOutcome.UNKNOWN, ""
        try:
            if right.operation is not None and right.resource is not None:
                access.require(right.operation, right.resource, *_name(request, right.resource))
            response = await handler(request)
            outcome = AuditOutcome.ALLOWED
            return response
        except NotAuthorised as error:
            rules.counts.denied += 1
            outcome = AuditOutcome.DENIED
            audit.denied(request, access.session, error.operation, error.resource_type, error.name)
            raise
        except NotPossible as error:
            outcome, why = AuditOutcome.FAILED, error.error
            raise
        except RequestError as error:
            is_denial = error.code in DENIALS
            rules.counts.denied += is_denial
            outcome, why = AuditOutcome.DENIED if is_denial else AuditOutcome.FAILED, error.code.name
            raise
        finally:
            if audit.is_on and outcome is not AuditOutcome.DENIED:
                audit.act(request, access.session, outcome, why)

    return check_access


def _name(request: web.Request, resource: ResourceType) -> Collection[str]:
    """Return the name of the topic, group or transactional id of the request; nothing for the cluster."""
    if resource is ResourceType.CLUSTER:
        return ()
    named: Mapping[str, str] = request.match_info
    if resource is ResourceType.TOPIC:
        return (named["name"],)
    return (named["id"] if "id" in named else request.query.get("id", ""),)


def context_of(request: web.Request) -> AuthenticationContext:
    """Return the facts about a request's connection."""
    return AuthenticationContext(request.remote or "", "SASL_SSL" if request.secure else "SASL_PLAINTEXT")


def cookie_name(request: web.Request) -> str:
    """Return the cookie's name: of the port, since the cookies of a machine go to all of its ports.

    By ``__Host-`` a browser takes it from this very host alone, and by TLS alone.
    """
    transport = request.transport
    address = transport.get_extra_info("sockname") if transport is not None else None
    return f"{'__Host-' if request.secure else ''}bmq-{address[1] if address else 0}"
