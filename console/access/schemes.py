"""The authentication schemes of the HTTP port (RFC 9110): a password (Basic), or a token (Bearer).

Passwords and tokens are those of the Kafka endpoint; the server wires in what knows them.  RFC 7617 has Basic's form,
RFC 6750 Bearer's.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from bmq.core.security.authentication import AuthenticationContext
from bmq.core.security.session import Session

BASIC, BEARER = "basic", "bearer"
SCHEMES = (BASIC, BEARER)
"""Schemes that a server may accept, in lower case."""
USER_BYTES_MAX = 256
PASSWORD_BYTES_MAX = 1_024
"""Longest password that is looked at: a longer one is nobody's, and not worth its hash."""
TOKEN_BYTES_MAX = 6 << 10
"""Longest token that is looked at: it comes in a header, all of which have 8 KiB."""


def always() -> bool:
    """Return True: what is known of the client stays true."""
    return True


class AuthenticatedClient(NamedTuple):
    """An authenticated client of the HTTP port."""

    session: Session
    is_current: Callable[[], bool] = always
    """Returns False once the password or token is no longer what it was, or its user is gone."""


PasswordCheck = Callable[[str, str, AuthenticationContext], Awaitable[AuthenticatedClient | None]]
"""Returns the client with this user name and password; None if the user is unknown, or the password is wrong."""
TokenCheck = Callable[[str, AuthenticationContext], Awaitable[AuthenticatedClient | None]]
"""Returns the client with this token; None if the token is not accepted."""


class AuthenticationScheme(Protocol):
    """One way to authenticate: Basic or Bearer."""

    scheme: str
    """One of ``SCHEMES``."""

    async def check(self, credentials: str, context: AuthenticationContext) -> AuthenticatedClient | None:
        """Return the client with these credentials (the rest of ``Authorization``); None if they are wrong.

        The caller bounds how many are checked at once.
        """


class BasicScheme:
    """Users with a password."""

    scheme = BASIC

    def __init__(self, checks: Sequence[PasswordCheck]) -> None:
        """Ask ``checks`` one after the other."""
        self._checks = checks

    async def check(self, credentials: str, context: AuthenticationContext) -> AuthenticatedClient | None:
        parsed = parse_basic(credentials)
        if parsed is None:
            return None
        for check in self._checks:
            if (authenticated := await check(*parsed, context)) is not None:
                return authenticated
        return None


class BearerScheme:
    """Tokens of an identity provider."""

    scheme = BEARER

    def __init__(self, check: TokenCheck) -> None:
        self._check = check

    async def check(self, credentials: str, context: AuthenticationContext) -> AuthenticatedClient | None:
        return await self._check(credentials, context) if len(credentials) <= TOKEN_BYTES_MAX else None


def parse_basic(credentials: str) -> tuple[str, str] | None:
    """Return user and password; None if the text is not Basic's, or longer than any user's.

    The user's name ends at the first colon, so it has none; the password may have some.
    """
    if len(credentials) > 2 * (USER_BYTES_MAX + PASSWORD_BYTES_MAX):
        return None
    try:
        name, colon, password = base64.b64decode(credentials, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    is_bounded = len(name.encode()) <= USER_BYTES_MAX and len(password.encode()) <= PASSWORD_BYTES_MAX
    return (name, password) if colon and name and is_bounded else None


def basic_credentials(name: str, password: str) -> str:
    """Return what follows ``Basic`` in ``Authorization``."""
    return base64.b64encode(f"{name}:{password}".encode()).decode()
