"""The events and effects of a connection's authentication (``endpoint.authentication.machine``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bmq.core.errors import ErrorCode
from bmq.core.security.authentication import Authenticated, AuthenticationFailure, Challenge


class AuthenticationMetric(Enum):
    """Kafka's metrics of authentication, by the names that they have in ``/metrics``."""

    SUCCESS = "successful_authentication"
    SUCCESS_NO_REAUTH = "successful_authentication_no_reauth"
    FAILURE = "failed_authentication"
    REAUTH_SUCCESS = "successful_reauthentication"
    REAUTH_FAILURE = "failed_reauthentication"
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


@dataclass(frozen=True, slots=True)
class SaslCompleted:
    """A success of the mechanism; the credential expires in ``lifetime_ms``, never if None."""

    result: Authenticated
    lifetime_ms: int | None


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
    | Challenge
    | SaslCompleted
    | AuthenticationFailure
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
class CreateSaslServer:
    """Let the mechanism create the server of a new attempt."""

    mechanism: str
    is_again: bool


@dataclass(frozen=True, slots=True)
class RespondToHandshake:
    """Send the response to SaslHandshake: the mechanism is taken."""


@dataclass(frozen=True, slots=True, repr=False)
class Evaluate:
    """Let the mechanism evaluate a token, and report its result."""

    token: bytes


@dataclass(frozen=True, slots=True, repr=False)
class RespondToToken:
    """Send the mechanism's token; ``is_raw``: without Kafka's header."""

    token: bytes
    lifetime_ms: int
    is_raw: bool


@dataclass(frozen=True, slots=True)
class StartSession:
    """Give the connection the session of a success, which ends the attempt and its time."""

    result: Authenticated
    mechanism: str
    expires_at: float | None


@dataclass(frozen=True, slots=True)
class FailAuthentication:
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
    """Free the server of the attempt."""


@dataclass(frozen=True, slots=True)
class CountAuthentication:
    """Count in a metric, by mechanism; "" if none was chosen."""

    metric: AuthenticationMetric
    mechanism: str


Effect = (
    PassOn
    | ServeVersions
    | Suspend
    | CreateSaslServer
    | RespondToHandshake
    | Evaluate
    | RespondToToken
    | StartSession
    | FailAuthentication
    | Close
    | Dispose
    | CountAuthentication
)
