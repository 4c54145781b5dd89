"""Partitions' traffic, with its sum for each owner.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bmq.core.model import PartitionKey


class Rate(NamedTuple):
    """One partition's traffic."""

    bytes_s: float
    requests_s: float


class Rates(NamedTuple):
    """A sum of rates, in whole bytes and thousandths of requests per second: exact in any order of adding."""

    bytes_s: int
    millirequests_s: int

    def plus(self, rate: Rate, sign: int) -> Rates:
        """Return the sum with the rate added (``sign`` 1) or subtracted (-1)."""
        return Rates(
            self.bytes_s + sign * round(rate.bytes_s), self.millirequests_s + sign * round(rate.requests_s * 1000)
        )


NO_RATE = Rate(0.0, 0.0)
NO_TRAFFIC = Rates(0, 0)
_NONE: Mapping[PartitionKey, Rate] = {}


class OwnedRates:
    """The rates of partitions by owner, and their sums.  A partition without a rate costs no memory."""

    __slots__ = ("_rates", "_sums", "total")

    def __init__(self) -> None:
        self.total = NO_TRAFFIC
        """The sum of all rates."""
        self._sums: dict[str, Rates] = {}
        self._rates: dict[str, dict[PartitionKey, Rate]] = {}  # by owner; never an empty one

    def __repr__(self) -> str:
        return f"<OwnedRates partitions={len(self)} {self.total}>"

    def __len__(self) -> int:
        return sum(len(rates) for rates in self._rates.values())

    def __bool__(self) -> bool:
        """Return whether any partition has a rate."""
        return bool(self._rates)

    def __contains__(self, owner: str) -> bool:
        """Return whether a partition of the owner has a rate."""
        return owner in self._rates

    def of(self, owner: str) -> Mapping[PartitionKey, Rate]:
        """Return the rates of the owner's partitions that have one."""
        return self._rates.get(owner, _NONE)

    def sum_of(self, owner: str) -> Rates:
        """Return the sum of the owner's rates."""
        return self._sums.get(owner, NO_TRAFFIC)

    def set(self, owner: str, key: PartitionKey, rate: Rate) -> None:
        """Set the rate of a partition of this owner; ``NO_RATE`` removes it."""
        self._drop(owner, key)
        if rate != NO_RATE:
            self._rates.setdefault(owner, {})[key] = rate
            self._add(owner, rate, 1)

    def carry(self, key: PartitionKey, source: str, target: str) -> None:
        """Give a partition's rate, if any, from its former owner to its new owner."""
        rate = self._drop(source, key)
        if rate is not None:
            self.set(target, key, rate)

    def _drop(self, owner: str, key: PartitionKey) -> Rate | None:
        of_owner = self._rates.get(owner)
        if of_owner is None or key not in of_owner:
            return None
        rate = of_owner.pop(key)
        if not of_owner:
            del self._rates[owner]
        self._add(owner, rate, -1)
        return rate

    def _add(self, owner: str, rate: Rate, sign: int) -> None:
        self.total = self.total.plus(rate, sign)
        left = self.sum_of(owner).plus(rate, sign)
        if left == NO_TRAFFIC:
            self._sums.pop(owner, None)
        else:
            self._sums[owner] = left
