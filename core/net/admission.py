"""The seam between a listener and what bounds its connections.

Their rates are in ``proxy.quotas.connection_rates``, their numbers by user in ``proxy.quotas.connection_bounds``.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from bmq.core.net.request import Client


class Admission(NamedTuple):
    """Outcome for a new connection."""

    wait_s: float = 0.0
    """Seconds for which nothing is read from it."""
    refusal: str = ""
    """Why it is closed after that time; "" for one that is served."""


class ConnectionRates(Protocol):
    """The rates of all addresses and listeners of a process."""

    @property
    def is_active(self) -> bool:
        """False if there is no rate: ``admit`` need not be called then."""

    def admit(self, host: str, listener: str) -> Admission:
        """Count a connection from an address to a listener, and return what becomes of it."""


class _NoRates:
    """The rates of the internal port, and of tests."""

    is_active = False

    def admit(self, host: str, listener: str) -> Admission:
        return Admission()


NO_RATES: ConnectionRates = _NoRates()


class ConnectionBounds(Protocol):
    """The numbers of connections that principals may have."""

    def admit(self, connection: Client) -> str:
        """Count a connection, whose session has its principal, until its close.  Return why it is refused, or ""."""


class _NoBounds:
    """The bounds of the internal port, and of tests."""

    def admit(self, connection: Client) -> str:
        return ""


NO_BOUNDS: ConnectionBounds = _NoBounds()
