"""Shares of the cluster's byte rates: a proxy enforces a part of a limit, so that a further proxy does not raise it.

The controllers' leader allots the shares by demand (``controller.quota_shares``).  A proxy reports its recently used
holders to the leader about once a second.  It reports sooner if a holder is new here, was held up, needs less since it
was held up, or still waits for the shares of other proxies.  A new holder has an equal share, the limit by the number
of proxies.  So have all holders, if no leader has answered for ``LEASE_S``.  A proxy alone has the limit, and reports
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import nlargest
from operator import attrgetter

from bmq.core.aio.subscribers import no_op, wait_for
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import Clock
from bmq.core.errors import FormatError, RequestError
from bmq.core.logging.fields import fields
from bmq.core.rpc.messages.controller import QuotaDemand, QuotaSharesRequest
from bmq.core.rpc.peers import Peers
from bmq.meta.cluster.member import PROXY
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.proxy.quotas.holdings import Holding, Holdings
from bmq.proxy.routing.batched_queries import ask_member

_log = logging.getLogger(__name__)
REPORT_S = 1.0
SOON_S = 0.25
"""Time between two reports at least."""
LOOK_S = 0.05
"""Time between two looks at the holders that were held up."""
ASK_S = 1.0
"""Time-out of a report."""
LEASE_S = 5.0
"""Time for which shares hold without a leader's answer, as in ``controller.quota_shares``."""
ROWS_MAX = 1_000
"""Holders in a report, the last used; other holders keep their shares."""
LIMIT_MAX = 1e15
"""Bytes a second above which a limit is not shared: nobody reaches it."""


class QuotaShares:
    """The shares of one proxy in the cluster's limits."""

    def __init__(self, view: ClusterView, peers: Peers, clock: Clock) -> None:
        self._view = view
        self._peers = peers
        self._clock = clock
        self._holdings: Holdings | None = None
        self._proxies = self._count()
        self._answered = clock.monotonic()
        self._soon = asyncio.Event()
        self._watched: list[Holding] = []
        """Those that were held up lately, of the last report."""
        self._task: asyncio.Task[None] | None = None
        self._forget: Callable[[], None] = no_op

    def __repr__(self) -> str:
        return f"<QuotaShares proxies={self._proxies}>"

    def of(self, limit: float) -> float:
        """Return the share of a limit for a holder that nothing is known of yet."""
        return limit / self._proxies

    def start(self, holdings: Holdings) -> None:
        """Keep the holders' shares up to date from now on."""
        self._holdings = holdings
        self._forget = self._view.subscribe(self._changed)
        self._proxies = self._count()
        holdings.on_new = self._is_new
        self._task = asyncio.create_task(self._run(holdings), name="shares of quotas")

    async def close(self) -> None:
        """Report nothing more.  Idempotent."""
        self._forget()
        await cancel_and_wait(self._task)

    def _count(self) -> int:
        return max(1, sum(1 for each in self._view.members.values() if each.has(PROXY) and not each.is_starting))

    def _changed(self, change: ViewChange) -> None:
        if not change.members or self._count() == self._proxies or self._holdings is None:
            return
        was_alone, self._proxies = self._proxies == 1, self._count()
        now = self._clock.monotonic()
        self._answered = now if was_alone else self._answered
        for holding in self._holdings:
            holding.equal = self.of(holding.limit)
            if was_alone or self._proxies == 1:
                holding.set_share(holding.equal, now)
        self._soon.set()

    def _is_new(self, holding: Holding) -> None:
        holding.on_due = self._soon.set
        self._soon.set()

    async def _run(self, holdings: Holdings) -> None:
        while True:
            await self._wait(holdings)
            self._soon.clear()
            if self._proxies > 1:
                await self._report(holdings)
            await asyncio.sleep(SOON_S)

    async def _wait(self, holdings: Holdings) -> None:
        """Wait until a report is due."""
        if self._proxies == 1 or not len(holdings):
            await self._soon.wait()
            return
        end = self._clock.monotonic() + REPORT_S
        while not any(each.is_due(self._clock.monotonic()) for each in self._watched):
            left = end - self._clock.monotonic()
            if left <= 0 or await wait_for(self._soon, min(left, LOOK_S) if self._watched else left):
                return

    async def _report(self, holdings: Holdings) -> None:
        now = self._clock.monotonic()
        used = [each for each in holdings if each.is_reported(now) and each.limit <= LIMIT_MAX]
        if len(used) > ROWS_MAX:
            used = nlargest(ROWS_MAX, used, key=attrgetter("used_at"))
        leader = self._view.controller
        self._watched = []
        if used and leader is not None:
            request = QuotaSharesRequest(
                tuple(_demand(each, now) for each in used), tuple(_credit(each, now) for each in used)
            )
            try:
                response = await ask_member(self._peers, leader, request, ASK_S)
            except (RequestError, FormatError) as error:
                _log.debug("no leader allots shares of quotas, they stay for now", extra=fields(error=error))
            else:
                self._answered = now
                self._watched = [each for each in used if each.is_watched(now)]
                changes = response.credits or ((0.0,),) * len(used)
                for holding, (share,), (credit,) in zip(used, response.shares, changes, strict=False):
                    holding.set_share(share, self._clock.monotonic(), credit)
        if not used:
            self._answered = now
        elif now - self._answered >= LEASE_S:
            for holding in holdings:
                holding.set_share(holding.equal, now)


def _demand(holding: Holding, now: float) -> QuotaDemand:
    rate, was_short = holding.report(now)
    user, client_id = holding.holder
    quota = f"{holding.kind}/{len(user)}/{user}/{client_id}"
    return QuotaDemand(quota, holding.limit, rate, holding.allowance.limit, was_short)


def _credit(holding: Holding, now: float) -> tuple[float]:
    return (holding.allowance.credit(now),)
