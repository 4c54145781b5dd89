"""The log-ins of this process to secure storage, counted where they succeed and fail.  Any thread may use it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

KDC, CLOCK, KEYTAB, PRINCIPAL, TICKET, DNS, SILENT, REFUSED, OTHER = (
    "kdc", "clock", "keytab", "principal", "ticket", "dns", "silent", "refused", "other",
)  # fmt: skip
REASONS = (KDC, CLOCK, KEYTAB, PRINCIPAL, TICKET, DNS, SILENT, REFUSED, OTHER)
"""The reasons of failed log-ins.  The KDC is silent, clocks differ, or the keytab, the principal or the ticket is wrong
or missing.  DNS gives no name of the server's address in time, the server is silent, or it refuses the log-in."""


class StorageLogins:
    """Counts of log-ins and of their failures, and the ends of the ticket and the delegation token.

    ``clock`` is in seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: Counter[str] = Counter()
        self._last_at: float | None = None
        self._ticket_ends_at: float | None = None
        self._token_ends_at: float | None = None
        self.total = 0
        """Log-ins that succeeded."""

    def __repr__(self) -> str:
        return f"<StorageLogins {self.total} failures={dict(self._failures)} {self.since}>"

    @property
    def is_used(self) -> bool:
        """True once this process has tried to log in, or has a delegation token to log in with."""
        return self.total > 0 or bool(self._failures) or self._token_ends_at is not None

    @property
    def failures(self) -> Mapping[str, int]:
        """Failed log-ins and renewals by reason."""
        with self._lock:
            return {reason: self._failures[reason] for reason in REASONS}

    @property
    def ticket_left_s(self) -> float | None:
        """Seconds until the ticket in use ends, 0 after its end; None if no ticket was fetched yet."""
        return self._left_s(self._ticket_ends_at)

    @property
    def token_left_s(self) -> float | None:
        """Seconds until no renewal helps the delegation token in use, 0 from then on; None without a token."""
        return self._left_s(self._token_ends_at)

    def _left_s(self, ends_at: float | None) -> float | None:
        return None if ends_at is None else max(0.0, ends_at - self._clock())

    @property
    def since(self) -> str:
        """The text for an error: the time of the last log-in."""
        if self._last_at is None:
            return "no Kerberos log-in since the start of this process"
        return f"no Kerberos log-in since {datetime.fromtimestamp(self._last_at, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def succeeded(self) -> None:
        """Count a log-in."""
        with self._lock:
            self.total += 1
            self._last_at = self._clock()

    def failed(self, reason: str) -> None:
        """Count a log-in, or a renewal of the ticket, that failed."""
        with self._lock:
            self._failures[reason if reason in REASONS else OTHER] += 1

    def ticket_lives(self, left_s: float) -> None:
        """Note that the ticket in use lives for another ``left_s``."""
        self._ticket_ends_at = self._clock() + left_s

    def token_ends(self, ends_at: float | None) -> None:
        """Note the time (in seconds since 1970) from which on no renewal helps the delegation token in use.

        None if the time is not known.
        """
        self._token_ends_at = ends_at


LOGINS = StorageLogins()
"""This process's log-ins."""
