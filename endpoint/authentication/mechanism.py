"""The interface between the authentication gate and a SASL mechanism.

``begin`` makes one ``Exchange`` for each attempt of a connection.  The gate passes it the client's tokens, one at a
time, and acts on each result::

    client's token ──> evaluate ──> Challenge       the token goes to the client, whose next one is awaited
                                    Authenticated   the connection gets its session; the token goes to the client
                                    Failure         SASL_AUTHENTICATION_FAILED after a delay, then the end

After ``Authenticated`` or ``Failure`` the exchange gets no more tokens; ``dispose`` is called once, at its end or when
the connection closes before.  The gate checks that re-authentication keeps the principal, shortens the session to
connections.max.reauth.ms, counts and logs.

A mechanism has a ``Factory`` in ``endpoint.authentication.mechanisms``, which is called once for each listener that
enables it.  Raises ConfigError, from there, if a setting is wrong: a process then does not start.

What a mechanism must keep to:

* ``evaluate`` raises nothing for any bytes of a client.  An exception is a bug, and closes the connection.
* It costs microseconds, or awaits (GSSAPI in a thread, keys from a server).  Nobody has shown who he is yet: no cost
  may grow by what a client chose, beyond the size of its token (sasl.server.max.receive.size at most).
* Unknown names and wrong passwords have the same ``Failure.text``, and take the same steps.
* Secrets are compared by ``hmac.compare_digest``, and are in no reason, text or ``repr``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bmq.core.clock import Clock
from bmq.core.security.principal import Principal
from bmq.endpoint.authentication.accounts import ScramTokens, ScramUsers


class Challenge(NamedTuple):
    """A step of an exchange that is not over: the token for the client, which is expected to respond."""

    token: bytes


class Authenticated(NamedTuple):
    """The end of an exchange that has shown who the client is."""

    principal: Principal
    token: bytes = b""
    """The last token for the client."""
    expires_at_ms: int | None = None
    """Wall time, in milliseconds since 1970 UTC, at which the credential expires; None: never."""
    by_token: bool = False
    """True if the client authenticated with a delegation token."""
    requester: Principal | None = None
    """The principal that made this token."""


class Failure(NamedTuple):
    """The end of an exchange that has not shown it."""

    reason: str
    """The reason, for the log of the server: without secrets."""
    text: str = ""
    """The text for the client; empty: Kafka's general one, which does not say whether the user exists."""


Result = Challenge | Authenticated | Failure


class Peer(NamedTuple):
    """Facts about a connection that a mechanism may need."""

    host: str
    """The client's address."""
    is_again: bool = False
    """True if the connection re-authenticates."""


class Exchange(Protocol):
    """One client's attempt to authenticate (``javax.security.sasl.SaslServer``)."""

    def evaluate(self, token: bytes) -> Result | Awaitable[Result]:
        """Evaluate the client's next token.

        An awaitable is cancelled if the connection closes; no other token comes before it is done.
        """

    def dispose(self) -> None:
        """Free what the exchange holds."""


class Mechanism(Protocol):
    """One mechanism on one listener."""

    @property
    def name(self) -> str:
        """The name, as in sasl.enabled.mechanisms."""

    def begin(self, peer: Peer) -> Exchange:
        """Return a new exchange."""

    async def start(self) -> None:
        """Begin what the mechanism does in the background, before the listener listens."""

    async def close(self) -> None:
        """End that.  Idempotent."""


class Stateless:
    """The life of a mechanism that does nothing in the background, and of an exchange that holds nothing."""

    __slots__ = ()

    async def start(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    def dispose(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MechanismContext:
    """Everything that a mechanism's factory may use."""

    mechanism: str
    """Name of the mechanism: one factory may make several."""
    listener: str
    protocol: str
    """SASL_PLAINTEXT or SASL_SSL."""
    settings: Mapping[str, str] = field(repr=False)
    """The settings of this mechanism on this listener, by Kafka's names without a prefix, like sasl.jaas.config."""
    clock: Clock
    users: ScramUsers | None = None
    """The cluster's SCRAM users."""
    tokens: ScramTokens | None = None
    """The cluster's delegation tokens; None if it has none."""

    def setting(self, name: str, default: str = "") -> str:
        """Return a setting; `default` if it is not given."""
        return self.settings.get(name, default)


Factory = Callable[[MechanismContext], Mechanism]
"""Makes the mechanism of one listener.  Raises ConfigError if its settings are wrong."""
