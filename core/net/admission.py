"""The seam between a listener and the rates at which connections may come (``proxy.quotas.connection_rates``)."""

from __future__ import annotations

from typing import NamedTuple, Protocol


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
