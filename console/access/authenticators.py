"""The ways in which a client of the HTTP port shows who it is: a password (Basic), or a token (Bearer).

Passwords and tokens are those of the Kafka endpoint; the server wires in what knows them.  RFC 7617 has Basic's form,
RFC 6750 Bearer's.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

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


class Login(NamedTuple):
    """A client that has shown who it is."""

    session: Session
    is_current: Callable[[], bool] = always
    """Returns False once the password or token is no longer what it was, or its user is gone."""


class Client(NamedTuple):
    """The client of a log-in."""

    host: str
    """Its address."""
    is_secure: bool
    """True if it came over TLS."""

    @property
    def protocol(self) -> str:
        """The security protocol of its session, in Kafka's words."""
        return "SASL_SSL" if self.is_secure else "SASL_PLAINTEXT"


PasswordCheck = Callable[[str, str, Client], Awaitable[Login | None]]
"""Returns the login of a user's name and password; None if it does not know the user, or the password is wrong."""
TokenCheck = Callable[[str, Client], Awaitable[Login | None]]
"""Returns the login of a token; None if it does not accept the token."""


class HttpAuthenticator(Protocol):
    """One way for a client to show who it is."""

    scheme: str
    """One of `SCHEMES`."""

    async def check(self, credentials: str, client: Client) -> Login | None:
        """Return the login for what follows the scheme in `Authorization`; None if it is wrong.

        The caller bounds how many are checked at once.
        """


class Basic:
    """Users with a password."""

    scheme = BASIC

    def __init__(self, checks: Sequence[PasswordCheck]) -> None:
        """Ask `checks` one after the other."""
        self._checks = checks

    async def check(self, credentials: str, client: Client) -> Login | None:
        parsed = parse_basic(credentials)
        if parsed is None:
            return None
        for check in self._checks:
            if (login := await check(*parsed, client)) is not None:
                return login
        return None


class Bearer:
    """Tokens of an identity provider."""

    scheme = BEARER

    def __init__(self, check: TokenCheck) -> None:
        self._check = check

    async def check(self, credentials: str, client: Client) -> Login | None:
        return await self._check(credentials, client) if len(credentials) <= TOKEN_BYTES_MAX else None


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
    """Return what follows `Basic` in `Authorization`."""
    return base64.b64encode(f"{name}:{password}".encode()).decode()
