"""Load of partitions: members' responses to Load become smoothed rates, and loads that last.  Pure.

The smoothed rate says which partitions are in use now: they are placed first, and operators see them.  Balancing goes
by the loads that last (``lasting_loads``).

A partition keeps its rate over a move, whichever member measured it.  A partition that is missing in a response counts
as idle only if the member is its owner.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import NamedTuple

from bmq.controller.planning.lasting_loads import FORGET, LastingLoads
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.rates import NO_RATE, Rate
from bmq.core.model import PartitionKey

SMOOTH_S = 15.0
"""Time constant of smoothing, about three requests: ten times the load is seen in half a minute."""
RATES_PER_STEP = 1_000
"""Rates changed in one step."""
LOOKS_PER_STEP = 5_000
"""Partitions of a response, or of a member, read in one step."""


class Measured(NamedTuple):
    """One partition's traffic since the member was last asked."""

    key: PartitionKey
    bytes_in: int
    bytes_out: int
    requests: int


class Loads:
    """The rates of a term, written to the planner's table."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table
        self._lasting = LastingLoads(table)
        self._asked_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Loads partitions={self._table.rated_count} members={len(self._asked_at)}>"

    def update(self, member: str, measured: Sequence[Measured], now: float) -> Generator[None, None, bool]:
        """Take a member's response, in steps of bounded work.  Returns whether any rate may have changed.

        A partition of the member without an entry in the response had no traffic.  A member's first response only
        starts its clock: its period is not known.  ``now``: seconds of a monotonic clock.
        """
        asked_at = self._asked_at.get(member)
        self._asked_at[member] = now
        if asked_at is None:
            self._lasting.begin(member, now)
        if asked_at is None or now <= asked_at:
            return False
        seconds = now - asked_at
        fresh = 1 - math.exp(-seconds / SMOOTH_S)
        known = list(self._table.rates_of(member))
        carried: dict[PartitionKey, tuple[int, int]] = {}  # bytes and requests
        for each in measured:
            carried[each.key] = each.bytes_in + each.bytes_out, each.requests
            if len(carried) % LOOKS_PER_STEP == 0:
                yield
        done = 0
        for key, (size, requests) in carried.items():
            self._blend(key, Rate(size / seconds, requests / seconds), fresh)
            done += 1
            if done % RATES_PER_STEP == 0:
                yield
        for looked, key in enumerate(known, 1):
            if key not in carried:
                self._blend(key, NO_RATE, fresh)
                done += 1
                if done % RATES_PER_STEP == 0:
                    yield
            elif looked % LOOKS_PER_STEP == 0:
                yield
        yield from self._lasting.add(member, carried, now)
        return done > 0

    def forget(self, member: str) -> None:
        """Forget a member that is gone.  Its partitions' rates stay, since their load moves to other members."""
        self._asked_at.pop(member, None)
        self._lasting.forget(member)

    def _blend(self, key: PartitionKey, rate: Rate, fresh: float) -> None:
        old = self._table.rate(key)
        blended = Rate(
            old.bytes_s + fresh * (rate.bytes_s - old.bytes_s),
            old.requests_s + fresh * (rate.requests_s - old.requests_s),
        )
        is_idle = blended.bytes_s < FORGET and blended.requests_s < FORGET
        self._table.set_rate(key, NO_RATE if is_idle else blended)
