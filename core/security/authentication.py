"""The words that every authentication has, whatever its port: its context, and its results.

SASL mechanisms (``endpoint.authentication``), the HTTP port (``console.access``) and the proof of the cluster's secret
between processes (``core.security.shared_secret``) share these types.  docs/design/security.md has the whole
vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from bmq.core.security.principal import Principal


class AuthenticationContext(NamedTuple):
    """Facts about a connection whose client authenticates (Kafka's ``AuthenticationContext``)."""

    host: str
    """The client's address."""
    protocol: str
    """Security protocol of the connection: SASL_PLAINTEXT or SASL_SSL."""
    is_again: bool = False
    """True if the connection re-authenticates."""


@dataclass(frozen=True, slots=True, repr=False)
class Challenge:
    """A message to a client that has yet to authenticate: its next response is awaited (RFC 4422)."""

    token: bytes


class Authenticated(NamedTuple):
    """The end of an authentication that has shown who the client is."""

    principal: Principal
    token: bytes = b""
    """The last token for the client."""
    expires_at_ms: int | None = None
    """Wall time, in milliseconds since 1970 UTC, at which the credential expires; None: never."""
    by_token: bool = False
    """True if the client authenticated with a delegation token."""
    requester: Principal | None = None
    """The principal that made this token."""


@dataclass(frozen=True, slots=True)
class AuthenticationFailure:
    """The end of an authentication that did not show who the client is."""

    reason: str
    """The reason for the log of this process, without secrets."""
    text: str = ""
    """The text for the client; empty: Kafka's general text, which does not say whether the user exists."""


AuthenticationResult = Challenge | Authenticated | AuthenticationFailure
"""The result of a response of the client: the next challenge, or the end."""
