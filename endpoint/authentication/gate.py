"""The authentication gate of one SASL listener: a ``Dispatch`` around the endpoint.

It performs what ``endpoint.authentication.machine`` decides.  A connection without a session counts as a connection
whose session is over, so a frame costs a single comparison.  Within the session, a frame goes to the endpoint
untouched.  After it, and for the two APIs of SASL, the connection's machine decides.

Bounds of a connection that has not authenticated: ``receive_max`` bytes of requests at a time, ``AUTHENTICATION_S`` in
all.  All such connections together: ``core.net.login_budget``.  Failures wait for the delay, one timer each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bmq.core.aio.eager import start
from bmq.core.aio.timers import Deadlines
from bmq.core.audit.event import AuditEvent, AuditOutcome, Kind
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.logging.fields import fields
from bmq.core.metrics.counters import PortCounters
from bmq.core.net.frames import SIZE_LEAST
from bmq.core.net.request import NO_RESPONSE, Client, CloseConnection, Dispatch, Response
from bmq.core.security.authentication import Authenticated, AuthenticationContext, AuthenticationResult
from bmq.core.security.principal import ANONYMOUS
from bmq.core.security.session import NOT_BEGUN, Session
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.header import Header, parse_header
from bmq.core.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse, stable_range
from bmq.endpoint.authentication import events as ev
from bmq.endpoint.authentication.machine import AuthenticationMachine, State
from bmq.endpoint.authentication.mechanism import SaslMechanism, SaslServer
from bmq.endpoint.large_requests import INLINE_BYTES

AUTHENTICATION_S = 30.0
"""Time in which a connection must authenticate.  Kafka has only connections.max.idle.ms, 10 minutes."""
_GRAIN_S = 1.0
_RECEIVE_MAX = "sasl.server.max.receive.size"
_SASL_KEYS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
_log = logging.getLogger(__name__)


class GatedClient(Client, Protocol):
    """A connection, as the gate sees it (``core.net.client_connection``)."""

    def limit_frames(self, size_max: int, bound: str, size_least: int) -> None:
        """Bound the requests that arrive before a log-in, and count them among those of strangers."""

    def unlimit_frames(self) -> None:
        """Take these bounds away: the client has logged in."""

    def identified(self) -> None:
        """Count the connection for the principal of its session, or refuse it if that has too many."""

    def drain(self) -> None:
        """Read no more; close once everything that was read has its response."""

    def close(self) -> None:
        """Close at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateSettings:
    """The settings of one listener's gate."""

    listener: str
    protocol: str
    receive_max: int
    """sasl.server.max.receive.size, in bytes."""
    delay_s: float
    """connection.failed.authentication.delay.ms, in seconds."""
    reauth_ms: Mapping[str, int]
    """Enabled mechanisms, each with its connections.max.reauth.ms."""


class AuthenticationGate:
    """The gate of one listener."""

    def __init__(
        self,
        inner: Dispatch,
        settings: GateSettings,
        mechanisms: Mapping[str, SaslMechanism],
        clock: Clock,
        metrics: PortCounters,
        audit: Audit = NO_AUDIT,
    ) -> None:
        """``inner`` handles the requests of connections that have authenticated; ``audit`` gets each log-in."""
        assert mechanisms.keys() == settings.reauth_ms.keys()
        self.inner = inner
        self.settings = settings
        self.mechanisms = mechanisms
        self.clock = clock
        self.metrics = metrics
        self.audit = audit
        self.deadlines = Deadlines(_GRAIN_S)
        self.is_pipelined = inner.is_pipelined
        self.expects_response = inner.expects_response
        self.may_park = inner.may_park
        self._connections: dict[Client, _Connection] = {}
        self._now = clock.monotonic
        for metric in ev.AuthenticationMetric:
            for mechanism in mechanisms:
                metrics.authentications.setdefault((metric.value, settings.listener, mechanism), 0)
        self._nobody = Session(listener=settings.listener, protocol=settings.protocol, expires_at=NOT_BEGUN)

    def __repr__(self) -> str:
        return f"<AuthenticationGate {self.settings.listener} connections={len(self._connections)}>"

    async def start(self) -> None:
        """Start the mechanisms."""
        for mechanism in self.mechanisms.values():
            await mechanism.start()

    async def close(self) -> None:
        """Close the mechanisms.  Idempotent."""
        for mechanism in self.mechanisms.values():
            await mechanism.close()

    def opened(self, client: GatedClient) -> None:
        """Take a new connection: it has no session."""
        client.session = self._nobody
        client.limit_frames(self.settings.receive_max, _RECEIVE_MAX, SIZE_LEAST)
        self._connections[client] = connection = _Connection(self, client)
        client.on_close(connection.closed)

    def forget(self, client: Client) -> None:
        """Remove a connection that is closed."""
        del self._connections[client]

    def __call__(self, frame: memoryview, client: Client) -> Response | Awaitable[Response]:
        """Handle a frame, or let the endpoint do so.  Raises CloseConnection as ``core.net.request.Dispatch``."""
        expires_at = client.session.expires_at
        if (expires_at is None or self._now() < expires_at) and (len(frame) < 2 or frame[1] not in _SASL_KEYS):
            return self.inner(frame, client)  # which refuses one without a header: it came together with a raw token
        return self._connections[client].on_frame(frame)


@dataclass(slots=True)
class _Request:
    """The frame that effects respond to."""

    frame: memoryview
    header: Header | None = None


class _Connection:
    """One connection's machine, and what its effects need."""

    __slots__ = ("_client", "_due", "_gate", "_has_failed", "_machine", "_server", "_work")

    def __init__(self, gate: AuthenticationGate, client: GatedClient) -> None:
        self._gate = gate
        self._client = client
        self._machine = AuthenticationMachine(gate.settings.reauth_ms)
        self._server: SaslServer | None = None
        self._has_failed = False
        self._due: int | None = gate.deadlines.add(self, AUTHENTICATION_S)

    def __repr__(self) -> str:
        return f"<{self._client.peer} {self._machine}>"

    # ------------------------------------------------------------------------------------------------------ events

    def on_frame(self, frame: memoryview) -> Response | Awaitable[Response]:
        request = _Request(frame)
        return self._handle(self._event_of(request), request)

    def expire(self) -> None:
        """Handle the end of the time for an authentication."""
        self._due = None
        for effect in self._machine.handle(ev.TimedOut(), self._gate.clock.monotonic()):
            if isinstance(effect, ev.Close):
                _log.warning("closing a connection: it is not authenticated", extra=self._about(effect.why))
                if not self._has_failed:
                    self._refused(effect.why)
                self._client.close()
            else:
                self._perform(effect)

    def closed(self) -> None:
        """Handle the end of the connection."""
        for effect in self._machine.handle(ev.ConnectionClosed(), self._gate.clock.monotonic()):
            self._perform(effect)
        self._stop_time()
        self._gate.forget(self._client)

    def _event_of(self, request: _Request) -> ev.Event:
        """Return the event of a frame."""
        frame, state = request.frame, self._machine.state
        if self._machine.is_raw and state in (State.TOKEN, State.EVALUATE):
            return ev.TokenReceived(bytes(frame), None)
        try:
            header = request.header = parse_header(frame)
        except FormatError as error:
            return ev.OtherRequested(f"a malformed request ({error})")
        key, version, body = header.api_key, header.api_version, frame[header.body_start :]
        if key == ApiKey.API_VERSIONS:
            if len(body) > INLINE_BYTES:  # clients' large requests share memory and a thread, which no stranger gets
                return ev.OtherRequested(f"an ApiVersions request of {len(body)} bytes")
            return ev.VersionsRequested()
        if key not in _SASL_KEYS:
            return ev.OtherRequested(f"a request for API {key}")
        least, most = stable_range(key)
        if not least <= version <= most:
            return ev.OtherRequested(f"{ApiKey(key).name} version {version}, which is not supported,")
        try:
            message = decode_request(key, version, body)
        except FormatError as error:
            return ev.OtherRequested(f"a malformed request ({error})")
        if key == ApiKey.SASL_HANDSHAKE:
            return ev.HandshakeRequested(version, message.mechanism)
        return ev.TokenReceived(message.auth_bytes, version)

    # ----------------------------------------------------------------------------------------------------- effects

    def _handle(self, event: ev.Event, request: _Request) -> Response | Awaitable[Response]:
        """Handle an event of a request.  Return its response; raises CloseConnection."""
        response: Response | Awaitable[Response] = NO_RESPONSE
        for effect in self._machine.handle(event, self._gate.clock.monotonic()):
            if isinstance(effect, ev.PassOn):
                response = self._gate.inner(request.frame, self._client)
            elif isinstance(effect, ev.ServeVersions):
                response = self._serve_versions(request)
            elif isinstance(effect, ev.RespondToHandshake):
                response = self._handshake_response(request, ErrorCode.NONE)
            elif isinstance(effect, ev.Evaluate):
                response = self._evaluate(effect.token, request)
            elif isinstance(effect, ev.RespondToToken):
                response = self._token_response(request, effect)
            elif isinstance(effect, ev.FailAuthentication):
                _log.warning("authentication failed", extra=self._about(effect.reason))
                self._refused(effect.reason)
                response = self._fail(effect, request)
            elif isinstance(effect, ev.Close):
                self._refused(effect.why)
                raise CloseConnection(effect.why)
            else:
                self._perform(effect)
        return response

    def _perform(self, effect: ev.Effect) -> None:
        """Perform an effect that is not a response."""
        gate, client = self._gate, self._client
        if isinstance(effect, ev.CountAuthentication):
            gate.metrics.count_authentication(effect.metric.value, gate.settings.listener, effect.mechanism)
        elif isinstance(effect, ev.Dispose):
            server, self._server = self._server, None
            if server is not None:
                server.dispose()
        elif isinstance(effect, ev.Suspend):
            client.session = replace(client.session, expires_at=NOT_BEGUN)
            self._due = gate.deadlines.add(self, AUTHENTICATION_S)
        elif isinstance(effect, ev.CreateSaslServer):
            context = AuthenticationContext(client.host, gate.settings.protocol, effect.is_again)
            self._server = gate.mechanisms[effect.mechanism].create_server(context)
            if self._machine.is_raw:
                client.limit_frames(gate.settings.receive_max, _RECEIVE_MAX, 0)
        else:
            assert isinstance(effect, ev.StartSession)
            is_again = client.session.principal != ANONYMOUS
            client.session = Session(
                principal=effect.result.principal,
                listener=gate.settings.listener,
                protocol=gate.settings.protocol,
                mechanism=effect.mechanism,
                expires_at=effect.expires_at,
                by_token=effect.result.by_token,
                requester=effect.result.requester,
            )
            client.unlimit_frames()
            self._stop_time()
            self._write(AuditOutcome.ALLOWED, is_again=is_again)
            if not is_again:
                client.identified()

    def _serve_versions(self, request: _Request) -> Response | Awaitable[Response]:
        response = self._gate.inner(request.frame, self._client)
        if not isinstance(response, Response):
            return self._versions_served(response)
        self._on_versions(response)
        return response

    async def _versions_served(self, work: Awaitable[Response]) -> Response:
        response = await work
        self._on_versions(response)
        return response

    def _on_versions(self, response: Response) -> None:
        """Report success: the error code follows the correlation id, in all versions."""
        if b"".join(response.buffers)[4:6] == b"\0\0":
            self._machine.handle(ev.VersionsGiven(), self._gate.clock.monotonic())

    def _evaluate(self, token: bytes, request: _Request) -> Response | Awaitable[Response]:
        assert self._server is not None
        result = self._server.evaluate(token)
        if isinstance(result, Awaitable):
            return start(self._evaluated(result, request))
        return self._handle(self._event_of_result(result), request)

    async def _evaluated(self, work: Awaitable[AuthenticationResult], request: _Request) -> Response:
        response = self._handle(self._event_of_result(await work), request)
        return response if isinstance(response, Response) else await response

    def _event_of_result(self, result: AuthenticationResult) -> ev.Event:
        if not isinstance(result, Authenticated):
            return result
        expires_at_ms = result.expires_at_ms
        lifetime_ms = None if expires_at_ms is None else expires_at_ms - self._gate.clock.now_ms()
        return ev.SaslCompleted(result, lifetime_ms)

    async def _fail(self, effect: ev.FailAuthentication, request: _Request) -> Response:
        await asyncio.sleep(self._gate.settings.delay_s)
        self._client.drain()
        if effect.is_raw:
            return NO_RESPONSE
        if effect.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            return self._handshake_response(request, effect.code)
        return self._authenticate_response(request, code=effect.code, text=effect.text)

    # --------------------------------------------------------------------------------------------------- responses

    def _handshake_response(self, request: _Request, code: ErrorCode) -> Response:
        message = SaslHandshakeResponse(error_code=code, mechanisms=list(self._gate.mechanisms))
        return _encoded(request, message)

    def _token_response(self, request: _Request, effect: ev.RespondToToken) -> Response:
        if effect.is_raw:
            return Response([effect.token])
        return self._authenticate_response(request, token=effect.token, lifetime_ms=effect.lifetime_ms)

    def _authenticate_response(
        self,
        request: _Request,
        *,
        code: ErrorCode = ErrorCode.NONE,
        text: str | None = None,
        token: bytes = b"",
        lifetime_ms: int = 0,
    ) -> Response:
        message = SaslAuthenticateResponse(
            error_code=code, error_message=text, auth_bytes=token, session_lifetime_ms=lifetime_ms
        )
        return _encoded(request, message)

    # ------------------------------------------------------------------------------------------------------ helpers

    def _refused(self, why: str) -> None:
        """Write into the audit log that the client did not show who it is."""
        self._has_failed = True
        self._write(AuditOutcome.DENIED, is_again=self._client.session.principal != ANONYMOUS, reason=why)

    def _write(self, outcome: AuditOutcome, *, is_again: bool, reason: str = "") -> None:
        """Write a log-in into the audit log."""
        audit, client = self._gate.audit, self._client
        if audit.is_on:
            session = client.session
            if not session.mechanism:
                session = replace(session, mechanism=self._machine.mechanism)
            act = "REAUTHENTICATION" if is_again else "LOGIN"
            audit.write(AuditEvent(Kind.LOGIN, act, outcome, session, client.host, client.client_id, reason=reason))

    def _stop_time(self) -> None:
        if self._due is not None:
            self._gate.deadlines.remove(self, self._due)
            self._due = None

    def _about(self, why: str) -> dict[str, object]:
        return fields(connection=self._client.peer, listener=self._gate.settings.listener, error=why)


def _encoded(request: _Request, message: Any) -> Response:
    header = request.header
    assert header is not None
    return Response(encode_response(header.api_key, header.api_version, header.correlation_id, message))
