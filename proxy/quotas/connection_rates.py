"""Rates of new connections in this process, by address, by listener and in all (KIP-612, ``ConnectionQuotas``).

========================================== ===========================================================================
rate                                       a connection over it
========================================== ===========================================================================
connection_creation_rate of an ip          is not read from until another may come, a second at most, and then closed.
                                           It does not count: the client that comes again gets in
max.connection.creation.rate, of the       waits for its turn.  If that is more than ``TURN_S`` away, it is closed at
process and of each of its listeners       once, and does not count
========================================== ===========================================================================

Each is an allowance of ``BURST_S`` seconds' worth at once: no window of eleven seconds has a tenth more than the rate.
Kafka lets ten seconds' worth come at once, and again as soon as its window forgets them.  The rates are this process's
alone, as Kafka's are a broker's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from bmq.core.clock import Clock
from bmq.core.net.admission import Admission
from bmq.core.options import INT_MAX
from bmq.meta.security.client_quotas import CONNECTION_CREATION_RATE
from bmq.meta.security.quotas_view import QuotasView
from bmq.proxy.quotas.rates import Allowance

BURST_S = 1.0
"""So that the least rate, 1, lets one come at once."""
ROUNDING = 1e-6
TURN_S = 5.0
"""Longest wait for a turn: half of what a TLS handshake has, which begins after it."""
ADDRESSES_MAX = 10_000
"""Addresses that are counted at a time, about 300 bytes each. Past them, the address unused for longest begins
again."""


class ConnectionRates:
    """The rates of one process.  Implements ``core.net.admission.ConnectionRates``."""

    def __init__(self, view: QuotasView, clock: Clock, most: int, listeners: Mapping[str, int]) -> None:
        """``most`` is the rate of the process, ``listeners`` those of its listeners; INT_MAX is no rate."""
        self.is_active = False
        self._view = view
        self._clock = clock
        now = clock.monotonic()
        self._all = _allowance(most, now) if most < INT_MAX else None
        self._listeners = {name: _allowance(limit, now) for name, limit in listeners.items() if limit < INT_MAX}
        self._addresses: OrderedDict[str, Allowance] = OrderedDict()
        view.subscribe(self._changed)
        self._changed()

    def __repr__(self) -> str:
        return f"<ConnectionRates addresses={len(self._addresses)} {'active' if self.is_active else 'none'}>"

    def _changed(self) -> None:
        is_by_address = self._view.has(CONNECTION_CREATION_RATE)
        self.is_active = is_by_address or self._all is not None or bool(self._listeners)
        if not is_by_address:
            self._addresses.clear()

    def admit(self, host: str, listener: str) -> Admission:
        """Count a connection from an address to a listener, and return what becomes of it."""
        now = self._clock.monotonic()
        address: Allowance | None = None
        limit = self._view.find_ip(CONNECTION_CREATION_RATE, host)
        if limit is not None:
            address = self._of_address(host, limit, now)
            lacks = 1 - address.credit(now)
            if lacks > ROUNDING:
                return Admission(lacks / limit, f"{CONNECTION_CREATION_RATE} ({limit:g}) of its address")
        asked = [each for each in (self._all, self._listeners.get(listener)) if each is not None]
        for each in asked:
            wait_s = (1 - each.credit(now)) / each.limit
            if wait_s > TURN_S:
                rate = f"max.connection.creation.rate ({each.limit:g})"
                return Admission(0.0, f"{rate}: its turn is more than {TURN_S:g} s away")
        for each in asked if address is None else (address, *asked):
            each.take(1, now)
        return Admission(max((each.wait_s(now) for each in asked), default=0.0))

    def _of_address(self, host: str, limit: float, now: float) -> Allowance:
        found = self._addresses.get(host)
        if found is None:
            if len(self._addresses) >= ADDRESSES_MAX:
                self._addresses.popitem(last=False)
            found = self._addresses[host] = _allowance(limit, now)
        self._addresses.move_to_end(host)
        if found.limit != limit:
            found.set_limit(limit, now)
        return found


def _allowance(limit: float, now: float) -> Allowance:
    return Allowance(limit, now, burst_s=BURST_S, credit_s=BURST_S)
