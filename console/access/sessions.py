"""Sessions of the console's users: a cookie with a random number, and what it stands for, in this process's memory.

A process that starts again, or another one, does not know the cookie: its user logs in again.  Only a hash of the
number is kept, so no copy of the memory is a log-in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from typing import NamedTuple

from bmq.console.access.schemes import AuthenticatedClient
from bmq.core.aio.lru import LruCache

SESSIONS_MAX = 1_000
"""Most sessions; past it the one unused for longest ends."""
OF_USER_MAX = 20
"""Most sessions of one user; past it the user's oldest ends."""
_TOKEN_BYTES = 32


class ConsoleSession(NamedTuple):
    """A user of the console."""

    authenticated: AuthenticatedClient
    csrf: str
    """Text that the console's page sends with every change; no page of another site knows it."""
    until: float
    """End, on the loop's clock in seconds."""

    def is_csrf(self, text: str) -> bool:
        """Return True if ``text`` is the session's own, in a time that does not depend on where it differs."""
        return hmac.compare_digest(self.csrf.encode(), text.encode(errors="replace"))


class ConsoleSessions:
    """All sessions of one process."""

    def __init__(self, lifetime_s: float) -> None:
        self._lifetime_s = lifetime_s
        self._open: LruCache[bytes, ConsoleSession] = LruCache(SESSIONS_MAX)

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, authenticated: AuthenticatedClient) -> tuple[str, ConsoleSession]:
        """Begin a session; return the cookie's value with it."""
        now = asyncio.get_running_loop().time()
        until = now + self._lifetime_s
        if authenticated.session.expires_at is not None:
            until = min(until, authenticated.session.expires_at)
        principal = authenticated.session.principal
        own = [key for key, each in self._open.items() if each.authenticated.session.principal == principal]
        for key in own[: max(0, len(own) + 1 - OF_USER_MAX)]:
            self._open.pop(key)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        begun = ConsoleSession(authenticated, secrets.token_urlsafe(_TOKEN_BYTES), until)
        self._open.put(_hash(token), begun)
        return token, begun

    def find(self, token: str) -> ConsoleSession | None:
        """Return the session of a cookie's value; None if it is over, or never was."""
        found = self._open.get(_hash(token))
        if found is None:
            return None
        if asyncio.get_running_loop().time() >= found.until or not found.authenticated.is_current():
            self._open.pop(_hash(token))
            return None
        return found

    def end(self, token: str) -> None:
        """End the session.  Idempotent."""
        self._open.pop(_hash(token))


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
