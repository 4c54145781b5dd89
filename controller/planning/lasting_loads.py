"""The load of partitions that lasts: the least of the last windows' means.  Pure.

Balancing must not follow bursts: a move costs the clients of a partition its tail and a hand-over, and a burst is over
before the move has helped.  A smoothed rate is no measure for that.  It falls, but the shares of the brokers in it stay
as uneven as the burst was.  So a partition counts as loaded by what it had in each of ``WINDOWS`` windows, at least.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Set
from itertools import chain

from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.rates import NO_RATE, Rate
from bmq.core.model import PartitionKey

WINDOW_S = 60.0
"""Least seconds of a window: twelve responses of a member."""
WINDOWS = 3
"""Windows for which traffic must last to count as a load.  With two, a burst across the end of a window would count."""
FORGET = 1.0
"""Bytes and requests per second below which a partition counts as idle, and costs no memory here."""
RATES_PER_STEP = 1_000
"""Partitions whose window is closed in one step."""
_Sum = tuple[int, int]
"""Bytes and requests."""


class _Window:
    """The open window of one member."""

    __slots__ = ("arrived", "began", "counted", "sums")

    def __init__(self, began: float) -> None:
        self.began = began
        self.counted: Set[PartitionKey] = frozenset()
        """The partitions that this member owned, and that had a load, in its window before."""
        self.arrived: set[PartitionKey] = set()
        """Partitions with a load that other members had before."""
        self.sums: dict[PartitionKey, _Sum] = {}


class LastingLoads:
    """The windows of one term.  Their result is ``PartitionTable.lasting``."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._windows: dict[str, _Window] = {}
        self._history: dict[PartitionKey, tuple[Rate, ...]] = {}  # of loads without a gap, the newest window last
        self._orphans: set[PartitionKey] = set()  # partitions with a load whose member is gone

    def __repr__(self) -> str:
        return f"<LastingLoads partitions={len(self._history)} members={len(self._windows)}>"

    def begin(self, member: str, now: float) -> None:
        """Begin the first window of a member.  ``now``: seconds of a monotonic clock."""
        self._windows[member] = _Window(now)

    def forget(self, member: str) -> None:
        """Forget a member that is gone.  The loads of its partitions stay: they are other members' now."""
        window = self._windows.pop(member, None)
        if window is not None:
            self._orphans |= window.counted | window.arrived

    def add(self, member: str, measured: Mapping[PartitionKey, _Sum], now: float) -> Generator[None, None, None]:
        """Take the bytes and requests of one response; close the member's window, in steps, if it is long enough."""
        window = self._windows[member]
        for number, (key, (size, requests)) in enumerate(measured.items(), 1):
            before = window.sums.get(key, (0, 0))
            window.sums[key] = (before[0] + size, before[1] + requests)
            if number % RATES_PER_STEP == 0:
                yield
        if now - window.began >= WINDOW_S:
            self._windows[member] = following = _Window(now)
            following.counted = yield from self._close(member, window, now - window.began)

    def _close(self, member: str, window: _Window, seconds: float) -> Generator[None, None, Set[PartitionKey]]:
        """Add a window to the history of the member's partitions.  Returns the partitions that had a load in it."""
        yield from self._give_orphans()
        loaded: set[PartitionKey] = set()
        looked: set[PartitionKey] = set()
        for number, key in enumerate(chain(window.sums, window.counted, window.arrived), 1):
            if number % RATES_PER_STEP == 0:
                yield
            if key in looked:
                continue
            looked.add(key)
            size, requests = window.sums.get(key, (0, 0))
            owner = self._table.get(key)
            if owner == member:
                if self._add_window(key, Rate(size / seconds, requests / seconds), has_moved=key not in window.counted):
                    loaded.add(key)
            elif owner in self._windows:
                self._windows[owner].arrived.add(key)
            else:
                self._history.pop(key, None)
        return loaded

    def _give_orphans(self) -> Generator[None, None, None]:
        """Give the partitions of members that are gone to the windows of their new owners, in steps."""
        for number, key in enumerate(list(self._orphans), 1):
            if number % RATES_PER_STEP == 0:
                yield
            owner = self._table.get(key)
            if owner in self._windows:
                self._windows[owner].arrived.add(key)
            elif owner is None:
                self._history.pop(key, None)
            if owner is None or owner in self._windows:
                self._orphans.discard(key)

    def _add_window(self, key: PartitionKey, rate: Rate, *, has_moved: bool) -> bool:
        """Add one window; return whether the partition had a load in it."""
        history = self._history.get(key, ())
        if has_moved and history:
            return True  # it came within this window, which has a part of its load only: its history stays as it is
        if rate.bytes_s < FORGET and rate.requests_s < FORGET:
            self._history.pop(key, None)
            self._table.set_lasting(key, NO_RATE)
            return False
        history = self._history[key] = (*history, rate)[-WINDOWS:]
        if len(history) == WINDOWS:
            least = Rate(min(each.bytes_s for each in history), min(each.requests_s for each in history))
            self._table.set_lasting(key, least)
        return True
