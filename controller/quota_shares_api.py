"""QuotaShares, an internal API: the leader's answer to a proxy's report of demand (``controller.quota_shares``)."""

from __future__ import annotations

import math

from bmq.controller.quota_shares import Demand, ShareAllocator
from bmq.controller.service import Controller
from bmq.controller.term import Term
from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, FormatError
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.controller import QuotaSharesRequest, QuotaSharesResponse
from bmq.core.rpc.server import InternalCall
from bmq.meta.cluster.member import PROXY
from bmq.meta.cluster.view import ClusterView


class QuotaSharesApi:
    """The API; register ``handle`` for ``QuotaSharesRequest``.  Each term begins without knowledge of shares."""

    def __init__(self, controller: Controller, view: ClusterView, clock: Clock) -> None:
        self._controller = controller
        self._view = view
        self._clock = clock
        self._term: Term | None = None
        self._shares: ShareAllocator | None = None

    def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded response.  Raises FormatError if ``body`` is not a QuotaSharesRequest."""
        request = QuotaSharesRequest.decode(body)
        # The debt of an earlier version's holder is unknown: a holder that was held up may need the whole limit.
        credits_ = request.credits or tuple((-each.limit if each.was_short else 0.0,) for each in request.demands)
        if len(credits_) != len(request.demands):
            raise FormatError(f"{len(credits_)} credits of {len(request.demands)} demands")
        demands = [Demand(*each, credit) for each, (credit,) in zip(request.demands, credits_, strict=True)]
        for each in demands:
            are_amounts = all(0 <= it < math.inf for it in (each.rate, each.share))
            if not (are_amounts and 0 < each.limit < math.inf and math.isfinite(each.credit)):
                raise FormatError(f"not a demand: {each!r:.200}")
        term, now = self._controller.leading, self._clock.monotonic()
        if term is None:
            return QuotaSharesResponse(ErrorCode.NOT_CONTROLLER).encode()
        if self._shares is None or term is not self._term:
            self._term, self._shares = term, ShareAllocator(now)
        members = self._view.members.values()
        proxies = frozenset(each.incarnation for each in members if each.has(PROXY) and not each.is_starting)
        given = self._shares.allot(call.caller or self._view.own, demands, proxies, now)
        return QuotaSharesResponse(
            shares=tuple((each.share,) for each in given), credits=tuple((each.credit,) for each in given)
        ).encode()
