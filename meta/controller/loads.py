"""What partitions carry: members' answers to Load -> smoothed rates.  Pure.

A partition's rate is kept over a move: it is the partition's, whoever measured it.  Silence about one counts only when
it is the owner's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from typing import NamedTuple

from bmq.core.model import PartitionKey
from bmq.meta.controller.planner import Rate

SMOOTH_S = 15.0
"""Three questions or so: a burst of a few seconds moves nothing, ten times the load is seen in half a minute."""
FORGET = 1.0
"""Bytes and requests a second below which a partition counts as idle, and costs no memory here."""


class Measured(NamedTuple):
    """One partition's traffic since the member was last asked."""

    key: PartitionKey
    bytes_in: int
    bytes_out: int
    requests: int


class Loads:
    """``take`` an answer, ``forget`` a topic; ``rates`` are for the planner."""

    def __init__(self) -> None:
        self._rates: dict[PartitionKey, Rate] = {}
        self._asked_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Loads partitions={len(self._rates)} members={len(self._asked_at)}>"

    @property
    def rates(self) -> Mapping[PartitionKey, Rate]:
        return self._rates

    def take(self, member: str, measured: Iterable[Measured], owned: Set[PartitionKey], now: float) -> None:
        """``owned``: what it is to own, so that what it says nothing of has carried nothing.  The first answer of a
        member only starts its clock: since when it counted is not known."""
        asked_at = self._asked_at.get(member)
        self._asked_at[member] = now
        if asked_at is None or now <= asked_at:
            return
        seconds = now - asked_at
        fresh = 1 - math.exp(-seconds / SMOOTH_S)
        carried = {
            each.key: Rate((each.bytes_in + each.bytes_out) / seconds, each.requests / seconds) for each in measured
        }
        silent = [key for key in self._rates if key in owned and key not in carried]
        for key, rate in carried.items():
            self._blend(key, rate, fresh)
        for key in silent:
            self._blend(key, Rate(0.0, 0.0), fresh)

    def leave(self, member: str) -> None:
        """It is gone.  What it carried somebody else will carry: the rates stay as somebody else's."""
        self._asked_at.pop(member, None)

    def keep_only(self, existing: Mapping[PartitionKey, object]) -> None:
        """Forget partitions that are no more."""
        for key in [key for key in self._rates if key not in existing]:
            del self._rates[key]

    def _blend(self, key: PartitionKey, rate: Rate, fresh: float) -> None:
        old = self._rates.get(key, Rate(0.0, 0.0))
        blended = Rate(
            old.bytes_s + fresh * (rate.bytes_s - old.bytes_s),
            old.requests_s + fresh * (rate.requests_s - old.requests_s),
        )
        if blended.bytes_s < FORGET and blended.requests_s < FORGET:
            self._rates.pop(key, None)
        else:
            self._rates[key] = blended
