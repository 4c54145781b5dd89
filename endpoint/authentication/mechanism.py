"""The interface between the authentication gate and a SASL mechanism.

``create_server`` makes one ``SaslServer`` for each attempt of a connection.  The gate passes the client's tokens to the
server, one at a time, and acts on each result::

    client's token ──> evaluate ──> Challenge               its token goes to the client, whose next token is awaited
                                    Authenticated           the connection gets its session, and the client the token
                                    AuthenticationFailure   SASL_AUTHENTICATION_FAILED after a delay, then the end

After ``Authenticated`` or ``AuthenticationFailure`` the server gets no more tokens.  ``dispose`` is called once: after
the last token, or when the connection closes before.  The gate checks that re-authentication keeps the principal,
shortens the session to connections.max.reauth.ms, counts and logs.

A mechanism has a ``MechanismFactory`` in ``endpoint.authentication.mechanisms``.  It is called once for every listener
that enables the mechanism.  Raises ConfigError, from there, if a setting is wrong: a process then does not start.

A mechanism must keep to the following:

* ``evaluate`` raises nothing for any bytes of a client.  An exception is a bug, and closes the connection.
* It costs microseconds, or awaits (GSSAPI in a thread, keys from a server).  Nobody has shown who he is yet: no cost
  may grow by what a client chose, beyond the size of its token (sasl.server.max.receive.size at most).
* Unknown names and wrong passwords have the same ``AuthenticationFailure.text``, and take the same steps.
* Secrets are compared by ``hmac.compare_digest``, and are in no reason, text or ``repr``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bmq.core.clock import Clock
from bmq.core.security.authentication import AuthenticationContext, AuthenticationResult
from bmq.endpoint.authentication.accounts import ScramTokens, ScramUsers


class SaslServer(Protocol):
    """One client's attempt to authenticate (``javax.security.sasl.SaslServer``)."""

    def evaluate(self, token: bytes) -> AuthenticationResult | Awaitable[AuthenticationResult]:
        """Evaluate the client's next token.

        An awaitable is cancelled if the connection closes; no other token comes before it is done.
        """

    def dispose(self) -> None:
        """Free what the server holds."""


class SaslMechanism(Protocol):
    """One mechanism on one listener."""

    @property
    def name(self) -> str:
        """The name, as in sasl.enabled.mechanisms."""

    def create_server(self, context: AuthenticationContext) -> SaslServer:
        """Return the server of a new attempt."""

    async def start(self) -> None:
        """Begin what the mechanism does in the background, before the listener listens."""

    async def close(self) -> None:
        """End that.  Idempotent."""


class Stateless:
    """The life of a mechanism that does nothing in the background, and of a server that holds nothing."""

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
        """Return a setting; ``default`` if it is not given."""
        return self.settings.get(name, default)


MechanismFactory = Callable[[MechanismContext], SaslMechanism]
"""Makes the mechanism of one listener.  Raises ConfigError if its settings are wrong."""
