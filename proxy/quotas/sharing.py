"""Shares of the cluster's byte rates: each proxy enforces a part of a limit, so that one proxy more does not raise it.

A proxy's share is the limit by the number of proxies.
"""

from __future__ import annotations

from collections.abc import Callable

from bmq.core.clock import Clock
from bmq.meta.cluster.member import PROXY
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.proxy.quotas.holdings import Holdings


class QuotaShares:
    """The shares of one proxy in the cluster's limits."""

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._proxies = self._count()

    def __repr__(self) -> str:
        return f"<QuotaShares proxies={self._proxies}>"

    def of(self, limit: float) -> float:
        """Return the share of a limit for a holder that nothing is known of yet."""
        return limit / self._proxies

    def follow(self, holdings: Holdings) -> Callable[[], None]:
        """Keep the holders' shares up to date.  Return a function that ends it."""

        def changed(change: ViewChange) -> None:
            if change.members and self._count() != self._proxies:
                self._proxies = self._count()
                now = self._clock.monotonic()
                for holding in holdings:
                    holding.allowance.set_limit(self.of(holding.limit), now)

        return self._view.subscribe(changed)

    def _count(self) -> int:
        return max(1, sum(1 for each in self._view.members.values() if each.has(PROXY) and not each.is_starting))
