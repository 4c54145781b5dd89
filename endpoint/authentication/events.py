"""The events and effects of a connection's authentication (``endpoint.authentication.machine``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bmq.core.errors import ErrorCode
from bmq.core.security.principal import Principal


class Outcome(Enum):
    """Kafka's metrics of authentication, by the names that they have in `/metrics`."""

    SUCCESS = "successful_authentication"
    SUCCESS_NO_REAUTH = "successful_authentication_no_reauth"
    FAILURE = "failed_authentication"
    AGAIN_SUCCESS = "successful_reauthentication"
    AGAIN_FAILURE = "failed_reauthentication"
    EXPIRED = "expired_connections_killed_count"


# ------------------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class VersionsRequested:
    """An ApiVersions request."""


@dataclass(frozen=True, slots=True)
class VersionsGiven:
    """The success of an ApiVersions request: the client knows the versions."""


@dataclass(frozen=True, slots=True)
class HandshakeRequested:
    """A SaslHandshake request of a supported version."""

    version: int
    mechanism: str


@dataclass(frozen=True, slots=True, repr=False)
class TokenReceived:
    """A token: in a SaslAuthenticate request of a supported version, or raw (``version`` None)."""

    token: bytes
    version: int | None


@dataclass(frozen=True, slots=True)
class OtherRequested:
    """Any other request, or bytes that are not one; ``what`` names it."""

    what: str


@dataclass(frozen=True, slots=True, repr=False)
class Challenged:
    """A result of the mechanism: the client must go on."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Proven:
    """A result of the mechanism: the client is this principal, for ``lifetime_ms`` at most if that is not None."""

    principal: Principal
    token: bytes
    lifetime_ms: int | None
    by_token: bool
    requester: Principal | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A result of the mechanism: the client has not shown who it is."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The end of the time for one authentication."""


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The end of the connection, whoever closed it."""


Event = (
    VersionsRequested
    | VersionsGiven
    | HandshakeRequested
    | TokenReceived
    | OtherRequested
    | Challenged
    | Proven
    | Refused
    | TimedOut
    | ConnectionClosed
)


# ----------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class PassOn:
    """Let the endpoint handle the request."""


@dataclass(frozen=True, slots=True)
class ServeVersions:
    """Let the endpoint handle the request, and report whether it succeeded."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Let the session end at once, and the time for one authentication begin: the client authenticates again."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin an exchange of this mechanism."""

    mechanism: str
    is_again: bool


@dataclass(frozen=True, slots=True)
class AnswerHandshake:
    """Send the response to SaslHandshake: the mechanism is taken."""


@dataclass(frozen=True, slots=True, repr=False)
class Evaluate:
    """Let the mechanism evaluate a token, and report its result."""

    token: bytes


@dataclass(frozen=True, slots=True, repr=False)
class AnswerToken:
    """Send the mechanism's token; ``is_raw``: without Kafka's header."""

    token: bytes
    lifetime_ms: int
    is_raw: bool


@dataclass(frozen=True, slots=True)
class StartSession:
    """Give the connection a session, which ends the exchange and its time."""

    principal: Principal
    mechanism: str
    expires_at: float | None
    by_token: bool
    requester: Principal | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Log the reason, wait for the delay, send the response, close the connection.

    ``code`` tells which response: UNSUPPORTED_SASL_MECHANISM is one to SaslHandshake, SASL_AUTHENTICATION_FAILED one
    to SaslAuthenticate.  A raw token's failure has no response.
    """

    reason: str
    code: ErrorCode
    text: str
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection at once, with a log line."""

    why: str


@dataclass(frozen=True, slots=True)
class Dispose:
    """Free the exchange."""


@dataclass(frozen=True, slots=True)
class Count:
    """Count an outcome, by mechanism; "" if none was chosen."""

    outcome: Outcome
    mechanism: str


Effect = (
    PassOn
    | ServeVersions
    | Suspend
    | Begin
    | AnswerHandshake
    | Evaluate
    | AnswerToken
    | StartSession
    | Fail
    | Close
    | Dispose
    | Count
)
