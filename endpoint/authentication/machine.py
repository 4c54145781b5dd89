"""The authentication of a connection: its legal steps, and their outcomes.  Pure.

Events go into ``AuthenticationMachine.handle``, effects come out; time is an argument.  ``State`` describes the states;
``TABLE`` has a function for each (state, event) pair (``core.transitions``).  As in Kafka (``SaslServerAuthenticator``,
``KafkaChannel``)::

    NEW ── ApiVersions ──> VERSIONED ── SaslHandshake ──> TOKEN ── token ──> EVALUATE ─ complete ─> READY
     └────────────── SaslHandshake ───────────────────────^ └── challenge ──────┘ └─ failure ─> FAILED

    READY ── SaslHandshake, if its session ends some time ──> TOKEN ... (KIP-368)

* A SaslHandshake of version 0 is followed by raw tokens: frames without Kafka's headers, also in responses.
* A connection whose session is over is closed at its next request, unless that is a SaslHandshake.
* Re-authentication keeps the principal and the mechanism.  It may begin once in ``AGAIN_S`` seconds; a SaslHandshake
  before that, or in a session without an end, gets ILLEGAL_SASL_STATE from the endpoint.

Other than Kafka: a change of the mechanism gets a response with the reason; a client of Kafka 0.9 without SaslHandshake
is not understood, since no API of it is served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from bmq.core.errors import ErrorCode
from bmq.core.security.authentication import AuthenticationFailure, Challenge
from bmq.core.security.principal import Principal
from bmq.core.transitions import Cell
from bmq.endpoint.authentication.events import (
    AuthenticationMetric,
    Close,
    ConnectionClosed,
    CountAuthentication,
    CreateSaslServer,
    Dispose,
    Effect,
    Evaluate,
    Event,
    FailAuthentication,
    HandshakeRequested,
    OtherRequested,
    PassOn,
    RespondToHandshake,
    RespondToToken,
    SaslCompleted,
    ServeVersions,
    StartSession,
    Suspend,
    TimedOut,
    TokenReceived,
    VersionsGiven,
    VersionsRequested,
)

AGAIN_S = 1.0
"""Least time between the beginnings of two re-authentications (KIP-368)."""


class State(Enum):
    """The state of a connection's authentication."""

    NEW = "nothing has come: ApiVersions or SaslHandshake may"
    VERSIONED = "ApiVersions has its response: SaslHandshake may come"
    TOKEN = "the mechanism is chosen: the client's next token may come"
    EVALUATE = "the mechanism evaluates a token: nothing may come"
    READY = "a session stands: every request may come until it ends"
    FAILED = "a failure's response waits for its time: nothing may come"
    CLOSED = "over"


class AuthenticationMachine:
    """One connection's authentication.

    ``reauth_ms`` has the enabled mechanisms, each with its connections.max.reauth.ms: 0 for no limit.
    """

    __slots__ = (
        "_again_since", "_changed_to", "_expires_at", "_is_again", "_is_raw", "_knows_reauth", "_mechanism",
        "_principal", "_reauth_ms", "_state",
    )  # fmt: skip

    def __init__(self, reauth_ms: Mapping[str, int]) -> None:
        self._reauth_ms = reauth_ms
        self._state = State.NEW
        self._mechanism = ""
        self._is_raw = False
        self._is_again = False
        self._principal: Principal | None = None
        self._expires_at: float | None = None
        self._changed_to = ""  # the mechanism that a re-authentication asked for, if it is another one
        self._again_since = float("-inf")
        self._knows_reauth = False

    def __repr__(self) -> str:
        return f"<AuthenticationMachine {self._state.name} {self._mechanism}{' again' if self._is_again else ''}>"

    @property
    def state(self) -> State:
        """The state of the authentication."""
        return self._state

    @property
    def mechanism(self) -> str:
        """The mechanism of the first handshake; empty before."""
        return self._mechanism

    @property
    def is_raw(self) -> bool:
        """True if tokens come without Kafka's headers."""
        return self._is_raw

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Return the effects of an event at the time ``now``, in seconds of the clock that sessions end by."""
        cell = TABLE[self._state, type(event)]
        if isinstance(cell, Cell):
            assert cell is Cell.LATE, f"{event} in {self._state.name}"
            return []
        return cell(self, event, now)

    def count(self, first: AuthenticationMetric, again: AuthenticationMetric) -> CountAuthentication:
        return CountAuthentication(again if self._is_again else first, self._mechanism)


Machine = AuthenticationMachine
E_ = TypeVar("E_", bound=Event)
Handler = Callable[[Machine, E_, float], list[Effect]]


def on_versions(machine: Machine, event: VersionsRequested, now: float) -> list[Effect]:
    return [ServeVersions()]


def on_versions_given(machine: Machine, event: VersionsGiven, now: float) -> list[Effect]:
    machine._state = State.VERSIONED
    return []


def on_handshake(machine: Machine, event: HandshakeRequested, now: float) -> list[Effect]:
    machine._is_raw = event.version == 0
    if event.mechanism not in machine._reauth_ms:
        machine._state = State.FAILED
        reason = f"the mechanism {event.mechanism[:64]!r} is not enabled"
        return [
            machine.count(AuthenticationMetric.FAILURE, AuthenticationMetric.REAUTH_FAILURE),
            FailAuthentication(reason, ErrorCode.UNSUPPORTED_SASL_MECHANISM, ""),
        ]
    if machine._is_again and event.mechanism != machine._mechanism:
        machine._changed_to = event.mechanism
    machine._mechanism = machine._mechanism or event.mechanism
    machine._state = State.TOKEN
    return [CreateSaslServer(machine._mechanism, machine._is_again), RespondToHandshake()]


def on_handshake_again(machine: Machine, event: HandshakeRequested, now: float) -> list[Effect]:
    if machine._expires_at is None or now - machine._again_since < AGAIN_S:
        return on_request(machine, event, now)
    machine._again_since = now
    machine._is_again = True
    return [Suspend(), *on_handshake(machine, event, now)]


def on_token(machine: Machine, event: TokenReceived, now: float) -> list[Effect]:
    machine._knows_reauth = machine._knows_reauth or bool(event.version)
    if machine._changed_to:
        text = (
            f"SASL mechanism '{machine._changed_to}' requested by client is not supported for re-authentication of"
            f" mechanism '{machine._mechanism}'"
        )
        return _fail(machine, text, text)
    machine._state = State.EVALUATE
    return [Evaluate(event.token)]


def on_challenge(machine: Machine, event: Challenge, now: float) -> list[Effect]:
    machine._state = State.TOKEN
    return [RespondToToken(event.token, 0, machine._is_raw)]


def on_completed(machine: Machine, event: SaslCompleted, now: float) -> list[Effect]:
    result = event.result
    if machine._is_again and result.principal != machine._principal:
        before, after = machine._principal, result.principal
        text = f"Cannot change principals during re-authentication from {_dotted(before)}: {_dotted(after)}"
        return _fail(machine, text, text)
    limits = [each for each in (event.lifetime_ms, machine._reauth_ms[machine._mechanism] or None) if each is not None]
    lifetime_ms = max(0, min(limits)) if limits else 0
    machine._principal = result.principal
    machine._expires_at = now + lifetime_ms / 1000 if limits else None
    effects: list[Effect] = [machine.count(AuthenticationMetric.SUCCESS, AuthenticationMetric.REAUTH_SUCCESS)]
    if not machine._is_again and not machine._knows_reauth:
        effects.append(CountAuthentication(AuthenticationMetric.SUCCESS_NO_REAUTH, machine._mechanism))
    machine._state = State.READY
    return [
        *effects,
        StartSession(result, machine._mechanism, machine._expires_at),
        Dispose(),
        RespondToToken(result.token, lifetime_ms, machine._is_raw),
    ]


def on_failure(machine: Machine, event: AuthenticationFailure, now: float) -> list[Effect]:
    which = "re-authentication" if machine._is_again else "authentication"
    text = event.text or (
        f"Authentication failed during {which} due to invalid credentials with SASL mechanism {machine._mechanism}"
    )
    return _fail(machine, f"{machine._mechanism}: {event.reason}", text)


def on_early(machine: Machine, event: Event, now: float) -> list[Effect]:
    return _close(machine, f"{_what(event)} before authentication was complete")


def on_request(machine: Machine, event: Event, now: float) -> list[Effect]:
    return _pass_on(machine, _what(event), now)


def on_timed_out(machine: Machine, event: TimedOut, now: float) -> list[Effect]:
    return _close(machine, "it did not authenticate in time")


def on_failure_timed_out(machine: Machine, event: TimedOut, now: float) -> list[Effect]:
    machine._state = State.CLOSED
    return [Close("its authentication failed, and it does not read the response")]


def on_closed(machine: Machine, event: ConnectionClosed, now: float) -> list[Effect]:
    machine._state = State.CLOSED
    return [Dispose()]


def _fail(machine: Machine, reason: str, text: str) -> list[Effect]:
    machine._state = State.FAILED
    return [
        machine.count(AuthenticationMetric.FAILURE, AuthenticationMetric.REAUTH_FAILURE),
        Dispose(),
        FailAuthentication(reason, ErrorCode.SASL_AUTHENTICATION_FAILED, text, machine._is_raw),
    ]


def _close(machine: Machine, why: str) -> list[Effect]:
    count = machine.count(AuthenticationMetric.FAILURE, AuthenticationMetric.REAUTH_FAILURE)
    machine._state = State.CLOSED
    return [count, Dispose(), Close(why)]


def _pass_on(machine: Machine, what: str, now: float) -> list[Effect]:
    """Pass a request of a connection that has a session on, unless that is over."""
    if machine._expires_at is None or now < machine._expires_at:
        return [PassOn()]
    machine._state = State.CLOSED
    return [
        CountAuthentication(AuthenticationMetric.EXPIRED, machine._mechanism),
        Close(f"{what} after its session was over"),
    ]


def _what(event: Event) -> str:
    """Return the name of a request, for log lines."""
    if isinstance(event, OtherRequested):
        return event.what
    if isinstance(event, TokenReceived):
        return "SaslAuthenticate" if event.version is not None else "a token"
    return "ApiVersions" if isinstance(event, VersionsRequested) else "SaslHandshake"


def _dotted(principal: Principal | None) -> str:
    return f"{principal.type}.{principal.name}" if principal is not None else ""


LATE, NEVER = Cell.LATE, Cell.NEVER
_Row = tuple[type[Any], tuple[Handler[Any] | Cell, ...]]
_AFTER_A_FAILURE: Mapping[type[Any], Handler[Any]] = {ConnectionClosed: on_closed, TimedOut: on_failure_timed_out}


def _on(
    event: type[E_],
    new: Handler[E_] | Cell,
    versioned: Handler[E_] | Cell,
    token: Handler[E_] | Cell,
    evaluate: Handler[E_] | Cell,
    ready: Handler[E_] | Cell,
) -> _Row:
    """Return an event's row: a cell for each state but the last two, in which only an end of the connection counts."""
    failed = _AFTER_A_FAILURE.get(event, LATE)
    return event, (new, versioned, token, evaluate, ready, failed, LATE)


# fmt: off
_ROWS = (
    # event                  NEW                VERSIONED     TOKEN         EVALUATE       READY
    _on(VersionsRequested,   on_versions,       on_early,     on_early,     on_early,      on_request),
    _on(VersionsGiven,       on_versions_given, NEVER,        NEVER,        NEVER,         NEVER),
    _on(HandshakeRequested,  on_handshake,      on_handshake, on_early,     on_early,      on_handshake_again),
    _on(TokenReceived,       on_early,          on_early,     on_token,     on_early,      on_request),
    _on(OtherRequested,      on_early,          on_early,     on_early,     on_early,      on_request),
    _on(Challenge,          NEVER,             NEVER,        NEVER,        on_challenge, NEVER),
    _on(SaslCompleted,              NEVER,             NEVER,        NEVER,        on_completed,     NEVER),
    _on(AuthenticationFailure,             NEVER,             NEVER,        NEVER,        on_failure,    NEVER),
    _on(TimedOut,            on_timed_out,      on_timed_out, on_timed_out, on_timed_out,  LATE),
    _on(ConnectionClosed,    on_closed,         on_closed,    on_closed,    on_closed,     on_closed),
)
# fmt: on
TABLE: Mapping[tuple[State, type[Event]], Handler[Any] | Cell] = {
    (state, event): cell for event, cells in _ROWS for state, cell in zip(State, cells, strict=True)
}
"""The function, or the reason for none, of each (state, event type)."""
