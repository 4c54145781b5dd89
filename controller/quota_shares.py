"""Shares of the cluster's quotas, allotted by the leader to the proxies by their needs.  Pure.

Each proxy reports, about once a second, the use of its holders of quotas, whether they were held up, and their
shares.  The response has its new shares::

    need       of a holder that was held up: four times its rate, and what pays its debt in a tenth of a second;
               of another holder: its rate and a quarter
    target     the limit, filled like water: nobody gets more than it needs while another gets less than it needs; what
               is left over is given to all by what they need, or alike if nobody needs anything
    share      the target, but no more than the others' shares leave of the limit

So the sum of the shares is the limit at all times: a proxy's share grows after the others have shrunk.  The change
takes a report of both proxies.  Between the two reports the leader keeps the free share and its credit
(``proxy.quotas.rates``).  The credit grows as it would at a proxy, to ``BURST_S`` seconds at most.  The next proxy
that is held up gets it with the share::

    report of a         leader                                    report of b
    needs less ───────▶ free share, and its credit, grows ──────▶ was held up: gets both

A share that is not reported for ``LEASE_S`` is free again, since its proxy has ended or the holder is
idle there.  A proxy without a leader goes back to the limit by the number of proxies after the same time.

A new leader knows no shares.  It confirms the reported shares, and allots nothing new, for ``CONFIRM_S``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

LEASE_S = 5.0
CONFIRM_S = 2.5
"""Two reports, and a half."""
HEADROOM = 1.25
"""Need by the rate of a holder that was not held up."""
GROWTH = 4.0
"""Need by the rate of a holder that was held up.  Its clients sent less than they would, by an unknown factor."""
DEBT_S = 0.1
"""Seconds in which the needed share would pay a debt.  Many clients are far in debt together, and need the whole limit.
A slow client owes a single request: if it needed the whole limit then, fast clients would lose half of their share."""
BURST_S = 0.5
"""Most credit of a free share, in seconds of it, as at a proxy: all credits together are the credit of the limit."""
LEAST_PART = 0.01
"""Least part of an equal share for a proxy, so that it can pay debts."""
QUOTAS_MAX = 20_000
"""Holders with shares; further holders have equal shares."""


class Demand(NamedTuple):
    """A proxy's report on one holder.  ``quota`` names kind and holder; rates and shares are a second's.

    ``credit`` is what the holder may use there at once, below 0 its debt; 0 if the proxy does not report it.
    """

    quota: str
    limit: float
    rate: float
    share: float
    was_short: bool
    credit: float = 0.0

    @property
    def need(self) -> float:
        """The share that the holder could use at this proxy."""
        if self.was_short:
            return min(self.limit, self.rate * GROWTH + max(0.0, -self.credit) / DEBT_S)
        return min(self.limit, self.rate * HEADROOM)


class Allotment(NamedTuple):
    """A proxy's new share of one limit, and the change of its credit."""

    share: float
    credit: float = 0.0


class _Claim:
    __slots__ = ("need", "share", "until")

    def __init__(self, need: float, share: float, until: float) -> None:
        self.need = need
        self.share = share
        self.until = until


class _Quota:
    """The claims on a limit by proxy, and the credit of its free share."""

    __slots__ = ("at", "claims", "credit")

    def __init__(self, now: float) -> None:
        self.claims: dict[str, _Claim] = {}
        self.credit = 0.0
        self.at = now

    def free(self, limit: float) -> float:
        """Return the share that no proxy has."""
        return max(0.0, limit - sum(claim.share for claim in self.claims.values()))

    def grow(self, limit: float, now: float) -> None:
        """Let the credit of the free share grow until ``now``."""
        free = self.free(limit)
        self.credit = min(free * BURST_S, self.credit + free * max(0.0, now - self.at))
        self.at = now

    def exchange(self, demand: Demand, share: float, limit: float) -> float:
        """Return what a proxy's credit changes by with its new share, and take it from the free share's credit."""
        change = 0.0
        if share < demand.share:
            change = -max(0.0, demand.credit - share * BURST_S)
        elif demand.was_short:
            change = min(self.credit, (share - demand.share) * BURST_S)
        self.credit = min(self.free(limit) * BURST_S, self.credit - change)
        return change


class ShareAllocator:
    """The shares of one leader's term.  Times are seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._confirms_until = now + CONFIRM_S
        self._quotas: dict[str, _Quota] = {}
        self._swept = now

    def __repr__(self) -> str:
        return f"<ShareAllocator quotas={len(self._quotas)}>"

    def __len__(self) -> int:
        return len(self._quotas)

    def allot(self, proxy: str, demands: Sequence[Demand], proxies: Collection[str], now: float) -> list[Allotment]:
        """Return the proxy's share of each limit.  ``proxies`` are the members."""
        if now - self._swept >= LEASE_S:
            self._sweep(proxies, now)
        return [self._allot_one(proxy, each, proxies, now) for each in demands]

    def _allot_one(self, proxy: str, demand: Demand, proxies: Collection[str], now: float) -> Allotment:
        equal = demand.limit / max(1, len(proxies))
        quota = self._quotas.get(demand.quota)
        if quota is None:
            if len(self._quotas) >= QUOTAS_MAX:
                return Allotment(equal)
            quota = self._quotas[demand.quota] = _Quota(now)
        quota.grow(demand.limit, now)
        claims = quota.claims
        for other in [each for each, claim in claims.items() if claim.until <= now or each not in proxies]:
            del claims[other]
        mine = claims[proxy] = _Claim(demand.need, demand.share, now + LEASE_S)
        if now < self._confirms_until:
            quota.credit = 0.0
            return Allotment(mine.share)
        others = sum(claim.share for each, claim in claims.items() if each != proxy)
        target = _fill(demand.limit, claims, proxy)
        mine.share = max(min(target, demand.limit - others), equal * LEAST_PART)
        return Allotment(mine.share, quota.exchange(demand, mine.share, demand.limit))

    def _sweep(self, proxies: Collection[str], now: float) -> None:
        """Remove the quotas that no proxy reports any more."""
        self._swept = now
        for name, quota in tuple(self._quotas.items()):
            if all(claim.until <= now or each not in proxies for each, claim in quota.claims.items()):
                del self._quotas[name]


def _fill(limit: float, claims: dict[str, _Claim], proxy: str) -> float:
    """Return the proxy's part of a limit, filled like water."""
    left, waiting = limit, sorted((claim.need, each) for each, claim in claims.items())
    parts: dict[str, float] = {}
    for place, (need, each) in enumerate(waiting):
        parts[each] = min(need, left / (len(waiting) - place))
        left -= parts[each]
    needs = sum(parts.values())
    return parts[proxy] + left * (parts[proxy] / needs if needs > limit * LEAST_PART else 1 / len(claims))
