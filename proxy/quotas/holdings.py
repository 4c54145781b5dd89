"""Holders of quotas, as far as this process serves them: what each has used, may use, and was held up for.

A byte rate is the cluster's.  This process enforces its *share* of it (``proxy.quotas.sharing``); the shares of all
proxies are the limit together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from bmq.meta.security.client_quotas import Holder
from bmq.proxy.quotas.rates import BURST_S, Allowance, Rate

HOLDERS_MAX = 10_000
"""Holders that are counted at a time, about 1 KB each; past them, the one unused for longest begins again."""
IDLE_S = 3_600.0
"""Kafka's time after which an unused sensor is removed."""
FIRST_CREDIT_S = 0.25
"""Credit of a holder that is new here, if other proxies may serve it as well: theirs is not known yet."""


class Holding:
    """One holder's quota of one kind."""

    __slots__ = ("allowance", "holder", "kind", "limit", "rate", "throttle_ms", "throttles", "used_at", "was_short")

    def __init__(self, kind: str, holder: Holder, limit: float, share: float, now: float) -> None:
        self.kind = kind
        self.holder = holder
        self.limit = limit
        """The cluster's limit."""
        credit_s = BURST_S if share >= limit else FIRST_CREDIT_S
        self.allowance = Allowance(share, now, credit_s=credit_s)
        self.rate = Rate()
        self.used_at = now
        self.was_short = False
        """True if it was held up since the last report of demand."""
        self.throttles = 0
        self.throttle_ms = 0.0

    def __repr__(self) -> str:
        return f"<Holding {self.kind} {self.holder} {self.allowance!r} of {self.limit:.0f}/s>"

    def take(self, amount: float, now: float) -> float:
        """Count an amount.  Return the seconds that its client must wait for."""
        self.take_quietly(amount, now)
        return self.held_up(self.allowance.wait_s(now))

    def take_quietly(self, amount: float, now: float) -> None:
        """Count an amount for which nobody waits now."""
        self.used_at = now
        self.rate.record(amount, now)
        self.allowance.take(amount, now)

    def held_up(self, seconds: float) -> float:
        """Count a time for which a client waits, and return it."""
        if seconds > 0:
            self.was_short = True
            self.throttles += 1
            self.throttle_ms += seconds * 1000
        return seconds


class Holdings:
    """All holders that have used something lately."""

    def __init__(self, share_of: Callable[[float], float]) -> None:
        """``share_of`` returns the part of a limit that a holder has here at first."""
        self._share_of = share_of
        self._all: OrderedDict[tuple[str, Holder], Holding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Holding]:
        return iter(tuple(self._all.values()))

    def get(self, kind: str, holder: Holder, limit: float, now: float) -> Holding:
        """Return the holder's counts, which begin now if it has none."""
        key = (kind, holder)
        found = self._all.get(key)
        if found is None:
            if len(self._all) >= HOLDERS_MAX:
                self._all.popitem(last=False)
            found = self._all[key] = Holding(kind, holder, limit, self._share_of(limit), now)
        self._all.move_to_end(key)
        if found.limit != limit:
            self.set_limit(found, limit, now)
        return found

    def set_limit(self, holding: Holding, limit: float, now: float) -> None:
        """Change the cluster's limit of a holder; its share changes with it."""
        holding.allowance.set_limit(holding.allowance.limit * limit / holding.limit, now)
        holding.limit = limit

    def forget_idle(self, now: float) -> None:
        """Remove holders that were not used for IDLE_S."""
        for key, holding in tuple(self._all.items()):
            if now - holding.used_at >= IDLE_S:
                del self._all[key]
