"""Brokers' shares of the open files that storage has room for.  Pure.

Storage refuses a file when it has no room for another, and does not report how many it has room for.  A broker knows of
its own refusals only: a broker with files keeps them, and a broker that comes late is refused all the time.  All
brokers report their refusals to the controller.  So it keeps a single bound for all of them (``room``), and lowers and
raises it as a broker does with its own (``broker.files.open_file_limit``).  It divides the bound in proportion to the
files that the brokers' partitions need: then a partition waits about as long on any broker.

==========  ============================  =========================================================================
state       event                         next
==========  ============================  =========================================================================
ROOMY       a broker was refused a file   DIVIDED, ``room`` = 3/4 of what is open
DIVIDED     refused, a broker is above    DIVIDED as it is: that broker will give back what was refused.
            its share                     For ``SETTLE_S`` at most; then as in the next line
DIVIDED     refused                       DIVIDED, ``room`` = 3/4 of what is open or of itself, whichever is less,
                                          but at least half of itself; once in ``LOWER_EVERY_S``
DIVIDED     no file refused               DIVIDED, ``room`` a sixteenth larger; ROOMY when that is all that the
                                          brokers' own bounds allow
any         fewer than two brokers        ROOMY: one broker's own bound is enough
==========  ============================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

LOWER_EVERY_S = 3.0
"""Least time between two lowerings: datanodes report freed room to the NameNode with their next heartbeat
(dfs.heartbeat.interval, 3 s), and it refuses files until then."""
SETTLE_S = 10.0
"""Time that brokers have to close files above their share: a segment that is written all the time keeps its file for
its turn (crowded_turn_ms, 3 s), then it is closed."""
STALE_S = 30.0
"""A broker that has not reported for this long counts no more: its files are closed, or it takes no shares."""


class OpenFileReport(NamedTuple):
    """One broker's segment files, as it reports them."""

    held: int
    """Files that are open and not being closed."""
    closing: int
    waiting: int
    """Partitions that wait to open a file, or whose file is just being opened."""
    refused: int
    """Files that storage had no room for, since the process began."""
    limit_max: int
    """The broker's ``open_pipelines_max``."""


class _Broker:
    __slots__ = ("is_refused", "reported", "reported_at")

    def __init__(self, reported: OpenFileReport, now: float) -> None:
        self.reported = reported
        self.reported_at = now
        self.is_refused = False  # since the last division


class FileShares:
    """The shares of one term: ``update`` with brokers' reports, ``divide`` about once a second while ``is_divided``.

    All times are in seconds of a monotonic clock.  Bounded by the brokers that report.
    """

    def __init__(self) -> None:
        self._brokers: dict[str, _Broker] = {}
        self._room = 0  # for all brokers together; 0: not known to be scarce
        self._lowered_at = float("-inf")
        self._over_since: float | None = None
        self._shares: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<FileShares room={self._room or 'enough'} brokers={len(self._brokers)}>"

    @property
    def room(self) -> int:
        """Files that all brokers together may have open; 0 while storage is not known to lack room."""
        return self._room

    @property
    def is_divided(self) -> bool:
        """True while storage lacks room, so that brokers are sent their shares."""
        return self._room > 0

    def share(self, broker: str) -> int | None:
        """Return how many files ``broker`` may have open; None if its own bound applies."""
        return self._shares.get(broker)

    def update(self, broker: str, reported: OpenFileReport, now: float) -> None:
        """Take a broker's report.  Refusals in its first one are not counted: they may be from any time before."""
        known = self._brokers.get(broker)
        if known is None:
            self._brokers[broker] = _Broker(reported, now)
            return
        known.is_refused |= reported.refused > known.reported.refused
        known.reported, known.reported_at = reported, now

    def forget(self, broker: str) -> None:
        """Forget a broker that is not a member any more."""
        self._brokers.pop(broker, None)
        self._shares.pop(broker, None)

    def divide(self, now: float) -> Mapping[str, int]:
        """Return each broker's share, computed from the reports since the last division; empty if storage has room."""
        for name in [name for name, each in self._brokers.items() if now - each.reported_at > STALE_S]:
            self.forget(name)
        is_refused = any(each.is_refused for each in self._brokers.values())
        for each in self._brokers.values():
            each.is_refused = False
        self._room = self._next_room(is_refused, now)
        self._shares = self._divided() if self._room else {}
        return self._shares

    # ------------------------------------------------------------------------------------------------------- the room

    def _next_room(self, is_refused: bool, now: float) -> int:
        if len(self._brokers) < 2:
            self._over_since = None
            return 0
        if not self._room:
            return self._lowered(now) if is_refused else 0
        if is_refused:
            may_lower = now - self._lowered_at >= LOWER_EVERY_S and not self._is_settling(now)
            return self._lowered(now) if may_lower else self._room
        self._over_since = None
        room = self._room + self._room // 16 + 1
        return 0 if room >= sum(each.reported.limit_max for each in self._brokers.values()) else room

    def _lowered(self, now: float) -> int:
        self._lowered_at, self._over_since = now, None
        open_files = sum(each.reported.held + each.reported.closing for each in self._brokers.values())
        return max(len(self._brokers), self._room // 2, min(self._room or open_files, open_files) * 3 // 4)

    def _is_settling(self, now: float) -> bool:
        """Return whether a broker is above its share and still within its time (``SETTLE_S``) to close files."""
        is_over = any(
            each.reported.held > share + share // 16 + 1
            for name, each in self._brokers.items()
            if (share := self._shares.get(name)) is not None
        )
        if not is_over:
            self._over_since = None
            return False
        if self._over_since is None:
            self._over_since = now
        return now - self._over_since < SETTLE_S

    # ----------------------------------------------------------------------------------------------------- the shares

    def _divided(self) -> dict[str, int]:
        wanted = {name: each.reported.held + each.reported.waiting for name, each in self._brokers.items()}
        limits = {name: max(1, each.reported.limit_max) for name, each in self._brokers.items()}
        spare = self._room - sum(wanted.values())
        if spare >= 0:
            return {name: max(1, min(limits[name], count + spare // len(wanted))) for name, count in wanted.items()}
        return divide_by_weight(self._room, wanted, limits)


def divide_by_weight(room: int, weights: Mapping[str, int], limits: Mapping[str, int]) -> dict[str, int]:
    """Return ``room`` divided in proportion to ``weights``, each part at least 1 and at most its limit.

    Weighted max-min fairness: room that a broker cannot use goes to the other brokers.  The sum is ``room`` if limits
    allow it; it is larger only if there is less room than parts, since each gets at least 1.
    """
    parts: dict[str, int] = {}
    left, open_weights = room, dict(weights)
    while open_weights:
        total = sum(open_weights.values())
        capped = [name for name, weight in open_weights.items() if total and left * weight >= limits[name] * total]
        if not capped:
            break
        for name in capped:
            parts[name] = limits[name]
            left -= limits[name]
            del open_weights[name]
    total = sum(open_weights.values())
    exact = {name: max(0, left) * weight / total if total else 0.0 for name, weight in open_weights.items()}
    for name, part in exact.items():
        parts[name] = max(1, int(part))
    rest = room - sum(parts.values())
    for name in sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name)):
        if rest <= 0:
            break
        if exact[name] >= 1 and parts[name] < limits[name]:
            parts[name] += 1
            rest -= 1
    return parts
