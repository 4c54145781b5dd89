"""Users of the HTTP port by the SASL mechanisms of the Kafka endpoint: one message of the mechanism for each log-in."""

from __future__ import annotations

import asyncio
import hmac
import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial

from bmq.console.access.schemes import AuthenticatedClient, PasswordCheck, TokenCheck
from bmq.core.security.authentication import Authenticated, AuthenticationContext
from bmq.core.security.principal import user
from bmq.core.security.scram import ScramCredential, ScramMechanism, credential_of_password
from bmq.core.security.session import Session
from bmq.endpoint.authentication.accounts import ScramUsers
from bmq.endpoint.authentication.mechanism import SaslMechanism

_NO_SALT = bytes(16)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""A token's form in ``Authorization`` (RFC 6750): nothing in it can end a field of OAUTHBEARER's message."""


def passwords_of_plain(mechanism: SaslMechanism, now_ms: Callable[[], int]) -> PasswordCheck:
    """Return the check of the users of a PLAIN mechanism."""

    async def check(name: str, password: str, context: AuthenticationContext) -> AuthenticatedClient | None:
        if "\0" in name or "\0" in password:
            return None
        return await _log_in(mechanism, f"\0{name}\0{password}".encode(), context, now_ms)

    return check


def passwords_of_scram(mechanisms: Sequence[ScramMechanism], users: ScramUsers) -> PasswordCheck:
    """Return the check of the cluster's SCRAM users, by any of the mechanisms.

    Each check is a PBKDF2 for each mechanism, in a thread: ten milliseconds.  A user that does not exist costs as much:
    the delay of failed log-ins may be 0, and hides nothing when many wait.
    """

    async def check(name: str, password: str, context: AuthenticationContext) -> AuthenticatedClient | None:
        for mechanism in mechanisms:
            credential = users.find(mechanism, name)
            judged = credential or ScramCredential(_NO_SALT, users.usual_iterations(mechanism), b"", b"")
            if await asyncio.to_thread(_is_password, mechanism, judged, password) and credential is not None:
                session = Session(principal=user(name), protocol=context.protocol, mechanism=mechanism.name)
                return AuthenticatedClient(session, partial(_is_current, users, mechanism, name, credential))
        return None

    return check


def _is_password(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    made = credential_of_password(mechanism, password, credential.iterations, credential.salt)
    return hmac.compare_digest(made.stored_key, credential.stored_key)


def _is_current(users: ScramUsers, mechanism: ScramMechanism, name: str, credential: ScramCredential) -> bool:
    return users.find(mechanism, name) == credential


def tokens_of_oauthbearer(mechanism: SaslMechanism, now_ms: Callable[[], int]) -> TokenCheck:
    """Return the check of the tokens that an OAUTHBEARER mechanism accepts."""

    async def check(token: str, context: AuthenticationContext) -> AuthenticatedClient | None:
        if not _TOKEN.fullmatch(token):
            return None
        return await _log_in(mechanism, f"n,,\1auth=Bearer {token}\1\1".encode(), context, now_ms)

    return check


async def _log_in(
    mechanism: SaslMechanism, message: bytes, context: AuthenticationContext, now_ms: Callable[[], int]
) -> AuthenticatedClient | None:
    """Return the client of a one-message mechanism; None if the mechanism refuses the message."""
    server = mechanism.create_server(context)
    try:
        result = server.evaluate(message)
        if inspect.isawaitable(result):
            result = await result
    finally:
        server.dispose()
    if not isinstance(result, Authenticated):
        return None
    expires_at = None
    if result.expires_at_ms is not None:
        expires_at = asyncio.get_running_loop().time() + (result.expires_at_ms - now_ms()) / 1000
    session = Session(
        principal=result.principal,
        protocol=context.protocol,
        mechanism=mechanism.name,
        expires_at=expires_at,
        by_token=result.by_token,
    )
    return AuthenticatedClient(session)
