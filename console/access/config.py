"""Settings of the HTTP port's gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bmq.console.access.audit import HttpAudit
from bmq.console.access.gate import AccessGate, RefusalCounts
from bmq.console.access.logins import Logins
from bmq.console.access.schemes import AuthenticationScheme
from bmq.console.access.sessions import ConsoleSessions
from bmq.console.kafka import Requests
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.endpoint.authorization.authorizer import Authorizer

SESSION_S = 8 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Settings of the gate."""

    schemes: Sequence[AuthenticationScheme] = ()
    """Empty: nobody has to log in, and every client is User:ANONYMOUS."""
    failed_login_delay_s: float = 0.1
    """Time that an address's first failed log-in takes at least."""
    session_s: float = SESSION_S
    """Longest session of the console."""
    metrics_ask: bool = True
    """False if anyone may read ``/metrics``."""

    def gate(
        self, is_open: Callable[[], bool], authorizer: Authorizer, kafka: Requests, audit: Audit = NO_AUDIT
    ) -> AccessGate:
        """Return a gate with these settings, and with no session and no count yet."""
        events = HttpAudit(audit)
        return AccessGate(
            is_open,
            Logins(self.schemes, self.failed_login_delay_s, events.login),
            ConsoleSessions(self.session_s),
            authorizer,
            kafka,
            self.metrics_ask,
            RefusalCounts(),
            events,
        )


NOBODY_ASKED = AccessConfig()
"""The settings of a port without authentication."""
