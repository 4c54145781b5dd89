"""GSSAPI (RFC 4752): a client shows a Kerberos ticket for this service, whose key is in a keytab.

::

    client: AP-REQ                           server: AP-REP                          until the context stands
    client: (empty)                          server: wrap(1, 0)                      no security layer, as in Kafka
    client: wrap(1, 0, authorization id)     the session: the ticket's principal, by the listener's rules

The authorization id is ignored, as in Kafka: clients send the service's name there.  The library may block (keytab,
replay cache), so its calls run in ``THREADS`` threads of the mechanism.  Needs the extra ``kerberos``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import gssapi
from gssapi.raw.misc import GSSError

from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
    Challenge,
)
from bmq.core.security.kerberos_names import KerberosNameError, ShortNamer
from bmq.core.security.principal import user

GSSAPI = "GSSAPI"
THREADS = 4
"""Calls of the library at a time; further clients wait."""
TOKEN_BYTES_MAX = 64 << 10
"""Longest token: tickets with the groups of a user of Active Directory have up to 48 KB."""
STEPS_MAX = 10
"""Most messages of an exchange: Kerberos needs three, and one more with DCE style."""
NO_LAYER = 1
_OFFER = bytes((NO_LAYER, 0, 0, 0))  # the largest message of a layer is 0, as there is none
T = TypeVar("T")


class GssapiSaslMechanism:
    """The service of one listener."""

    name = GSSAPI

    def __init__(self, credentials: gssapi.Credentials, namer: ShortNamer) -> None:
        self.credentials = credentials
        self.namer = namer
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="gssapi")

    def __repr__(self) -> str:
        return f"<GssapiSaslMechanism {self.namer!r}>"

    def create_server(self, context: AuthenticationContext) -> GssapiSaslServer:
        """Return the server of a new attempt."""
        return GssapiSaslServer(self)

    async def start(self) -> None:
        """Do nothing: the keytab was read when this was made."""

    async def close(self) -> None:
        """End the threads, once their calls are over.  Idempotent."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)

    async def run(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


class GssapiSaslServer:
    """One client's attempt."""

    __slots__ = ("_context", "_is_offered", "_mechanism", "_steps")

    def __init__(self, mechanism: GssapiSaslMechanism) -> None:
        self._mechanism = mechanism
        self._context: gssapi.SecurityContext | None = None
        self._is_offered = False  # the client has been told the layers
        self._steps = 0

    def dispose(self) -> None:
        """Drop the context."""
        self._context = None

    def evaluate(self, token: bytes) -> AuthenticationResult | Awaitable[AuthenticationResult]:
        """Evaluate the client's next token, in a thread."""
        self._steps += 1
        if len(token) > TOKEN_BYTES_MAX or self._steps > STEPS_MAX:
            return AuthenticationFailure(
                f"a GSSAPI exchange of {self._steps} messages, the last one of {len(token)} bytes"
            )
        return self._mechanism.run(lambda: self._evaluate(token))

    def _evaluate(self, token: bytes) -> AuthenticationResult:
        try:
            return self._next(token)
        except GSSError as error:
            return AuthenticationFailure(f"GSSAPI: {' '.join(str(error).split())[:500]}")
        except KerberosNameError as error:
            return AuthenticationFailure(str(error))

    def _next(self, token: bytes) -> AuthenticationResult:
        context = self._context
        if context is None:
            context = self._context = gssapi.SecurityContext(creds=self._mechanism.credentials, usage="accept")
        if self._is_offered:
            return self._end(context, token)
        if not context.complete:
            challenge = context.step(token)
            if not context.complete or challenge:
                return Challenge(challenge or b"")
        elif token:
            return AuthenticationFailure("GSSAPI: a message that should be empty is not")
        self._is_offered = True
        return Challenge(context.wrap(_OFFER, False).message)

    def _end(self, context: gssapi.SecurityContext, token: bytes) -> AuthenticationResult:
        chosen = context.unwrap(token).message
        if len(chosen) < len(_OFFER) or chosen[0] != NO_LAYER:
            return AuthenticationFailure(
                "GSSAPI: the client wants a security layer; there is none here, as in Kafka: use SASL_SSL"
            )
        return Authenticated(user(self._mechanism.namer.short_name(str(context.initiator_name))))
