"""What a broker's partitions are used for: bytes in, bytes out and requests, for the controller's balance.

Only partitions with traffic cost anything: what happens goes into one window of counters, and a question takes the
window away.  Nothing is counted while nobody has asked.  Each caller has its own account of what it has not been told
yet, so that a controller that takes over begins with a question of its own and spoils nobody's.
"""

from __future__ import annotations

from collections import OrderedDict

from bmq.core.model import PartitionKey

CALLERS_MAX = 4
"""A leader, its predecessor that does not know it yet, and an operator's command."""
PARTITIONS_MAX = 50_000
"""Of one account: more than one process serves between two questions.  Who has stopped asking loses the account."""


class Traffic:
    """One partition's, over some time."""

    __slots__ = ("bytes_in", "bytes_out", "requests")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.requests = 0

    def __repr__(self) -> str:
        return f"<Traffic in={self.bytes_in} out={self.bytes_out} requests={self.requests}>"

    def add(self, other: Traffic) -> None:
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.requests += other.requests


class TrafficCounters:
    """One process's.  Bounded by ``PARTITIONS_MAX`` counters for each caller, and for the window."""

    def __init__(self) -> None:
        self._unheard = Traffic()  # what nobody will be told
        self._window: dict[PartitionKey, Traffic] = {}
        self._untold: OrderedDict[str, dict[PartitionKey, Traffic]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Load partitions={len(self._window)} callers={len(self._untold)}>"

    def wrote(self, key: PartitionKey, size: int) -> None:
        """A produce brought ``size`` bytes."""
        traffic = self._window.get(key) or self._begin(key)
        traffic.bytes_in += size
        traffic.requests += 1

    def read(self, key: PartitionKey, size: int) -> None:
        """A fetch took ``size`` bytes away."""
        traffic = self._window.get(key) or self._begin(key)
        traffic.bytes_out += size
        traffic.requests += 1

    def _begin(self, key: PartitionKey) -> Traffic:
        if len(self._window) >= PARTITIONS_MAX:  # none of the callers asks any more
            self._window.clear()
            self._untold.clear()
        if not self._untold:
            return self._unheard
        traffic = self._window[key] = Traffic()
        return traffic

    def knows(self, caller: str) -> bool:
        """Whether the caller has an account: those that have not asked for longest lose theirs."""
        return caller in self._untold

    def take(self, caller: str) -> dict[PartitionKey, Traffic]:
        """What happened since ``caller`` asked last; nothing the first time, since nobody knows how long that is."""
        window, self._window = self._window, {}
        for other, untold in list(self._untold.items()):
            _merge(untold, window)
            if len(untold) > PARTITIONS_MAX:
                del self._untold[other]
        told = self._untold.pop(caller, {})
        self._untold[caller] = {}
        while len(self._untold) > CALLERS_MAX:
            self._untold.popitem(last=False)
        return told


def _merge(into: dict[PartitionKey, Traffic], window: dict[PartitionKey, Traffic]) -> None:
    for key, traffic in window.items():
        known = into.get(key)
        if known is None:
            known = into[key] = Traffic()
        known.add(traffic)
