"""Traffic of a broker's partitions: bytes in, bytes out and requests, for the controller's balancing.

Only partitions with traffic cost anything: traffic is counted in one window, and each request for the load ends the
window.  Nothing is counted before the first request.  Every caller has its own account of traffic that was not yet sent
to it.  So a controller that takes over does not shorten the account of another controller.
"""

from __future__ import annotations

import asyncio

from bmq.core.aio.lru import LruCache
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.model import PartitionKey

CALLERS_MAX = 4
"""Accounts at once: of a leader, its predecessor that does not know yet that it was replaced, and an operator's
command."""
PARTITIONS_MAX = 50_000
"""Partitions in one account: more than one process serves between two requests.  A caller that has stopped asking loses
its account."""

KEYS_A_TURN = 10_000
"""Partitions added to an account in one turn of the loop, in some milliseconds."""


class Traffic:
    """Bytes and requests of one partition over some time."""

    __slots__ = ("bytes_in", "bytes_out", "requests")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.requests = 0

    def __repr__(self) -> str:
        return f"<Traffic in={self.bytes_in} out={self.bytes_out} requests={self.requests}>"

    def add(self, other: Traffic) -> None:
        """Add the other's counters to these."""
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.requests += other.requests


class TrafficCounters:
    """Traffic counters of one process.  Bounded by ``PARTITIONS_MAX`` counters for each caller, and for the window."""

    def __init__(self) -> None:
        self._discarded = Traffic()  # counts while no caller has an account
        self._window: dict[PartitionKey, Traffic] = {}
        self._accounts: LruCache[str, dict[PartitionKey, Traffic]] = LruCache(CALLERS_MAX)
        self._taking = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<TrafficCounters partitions={len(self._window)} callers={len(self._accounts)}>"

    def wrote(self, key: PartitionKey, size: int) -> None:
        """Count a produce of ``size`` bytes."""
        traffic = self._window.get(key) or self._begin(key)
        traffic.bytes_in += size
        traffic.requests += 1

    def read(self, key: PartitionKey, size: int) -> None:
        """Count a fetch of ``size`` bytes."""
        traffic = self._window.get(key) or self._begin(key)
        traffic.bytes_out += size
        traffic.requests += 1

    def _begin(self, key: PartitionKey) -> Traffic:
        if len(self._window) >= PARTITIONS_MAX:  # none of the callers asks any more
            self._window.clear()
            self._accounts.clear()
        if not self._accounts:
            return self._discarded
        traffic = self._window[key] = Traffic()
        return traffic

    def knows(self, caller: str) -> bool:
        """Return whether the caller has an account: callers that have not asked for longest lose theirs."""
        return caller in self._accounts

    async def take(self, caller: str) -> dict[PartitionKey, Traffic]:
        """Return the traffic since ``caller`` last asked; empty the first time, when the period is not known.

        A window is added to all accounts before the next one is ended, in turns of the event loop; all at once if the
        call is cancelled meanwhile.
        """
        async with self._taking:
            window, self._window = self._window, {}
            accounts = list(self._accounts.items())
            rest = ((account, *each) for _, account in accounts for each in window.items())
            turns = Turns(KEYS_A_TURN)
            try:
                for account, key, traffic in rest:
                    _add(account, key, traffic)
                    if turns.is_over():
                        await next_turn()
            finally:
                for account, key, traffic in rest:
                    _add(account, key, traffic)
            for other, account in accounts:
                if len(account) > PARTITIONS_MAX:
                    self._accounts.pop(other)
            taken = self._accounts.pop(caller) or {}
            self._accounts.put(caller, {})
            return taken


def _add(account: dict[PartitionKey, Traffic], key: PartitionKey, traffic: Traffic) -> None:
    known = account.get(key)
    if known is None:
        known = account[key] = Traffic()
    known.add(traffic)
