"""The session of a client's connection: who it is, how that was shown, and by which listener it came.

A connection has one session at a time.  It is replaced, never changed, when the client authenticates, and again when it
re-authenticates (KIP-368): a request keeps the session that it began with.
"""

from __future__ import annotations

from dataclasses import dataclass

from bmq.core.security.principal import ANONYMOUS, Principal

NOT_BEGUN = float("-inf")
"""End of the session of a client that has yet to log in, or to log in again: it is over at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Facts about the client of a connection."""

    principal: Principal = ANONYMOUS
    listener: str = ""
    """Name of the listener; "" for requests that this process sends to itself."""
    protocol: str = "PLAINTEXT"
    """Security protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
    mechanism: str = ""
    """SASL mechanism by which the client authenticated; "" without SASL."""
    expires_at: float | None = None
    """Time, in seconds of ``Clock.monotonic``, after which the client must have re-authenticated; None: never."""
    by_token: bool = False
    """True if the client authenticated with a delegation token: it may then neither make nor describe tokens."""
    requester: Principal | None = None
    """The principal that made this delegation token; None without one."""

    @property
    def has_begun(self) -> bool:
        """False before the log-in of a client that has to log in, and while it logs in again."""
        return self.expires_at != NOT_BEGUN


ANONYMOUS_SESSION = Session()
"""The session of connections whose listener says nothing else: internal ports, and requests to oneself."""
