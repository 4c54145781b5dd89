"""Bounds on the live connections of one user to this process: ``max_connections`` of a user.

A connection counts from the moment at which its principal is known until its close.  The principal is known after a
log-in by SASL, or after the handshake where the client has a certificate.  On a listener without both it is known at
once (User:ANONYMOUS).  The number is this process's alone, as Kafka's ``max.connections.per.ip`` is a broker's.
"""

from __future__ import annotations

from functools import partial

from bmq.core.net.request import Client
from bmq.meta.security.client_quotas import MAX_CONNECTIONS
from bmq.meta.security.quotas_view import QuotasView


class ConnectionBounds:
    """The connections of one process by principal.  Implements ``core.net.admission.ConnectionBounds``."""

    def __init__(self, view: QuotasView) -> None:
        self._view = view
        self._counts: dict[str, int] = {}  # of principals with a connection

    def __repr__(self) -> str:
        return f"<ConnectionBounds principals={len(self._counts)}>"

    def admit(self, connection: Client) -> str:
        """Count a connection, whose session has its principal, until its close.  Return why it is refused, or ""."""
        principal = str(connection.session.principal)
        count, bound = self._counts.get(principal, 0), self._view.find_bound(MAX_CONNECTIONS, principal)
        if bound is not None and count >= bound:
            return f"{MAX_CONNECTIONS} ({bound}) of {principal:.200} is reached"
        self._counts[principal] = count + 1
        connection.on_close(partial(self._closed, principal))
        return ""

    def _closed(self, principal: str) -> None:
        left = self._counts[principal] - 1
        if left:
            self._counts[principal] = left
        else:
            del self._counts[principal]
