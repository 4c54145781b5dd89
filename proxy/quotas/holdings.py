"""Holders of quotas, as far as this process serves them: use, credit, and the times of being held up.

A byte rate is the cluster's.  A process enforces its *share* of it (``proxy.quotas.sharing``); the shares of all
proxies are the limit together.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator

from bmq.core.aio.subscribers import no_op
from bmq.meta.security.client_quotas import CONTROLLER_MUTATION_RATE, Holder
from bmq.proxy.quotas.rates import BURST_S, SAMPLE_S, SAMPLES, Allowance, Rate

HOLDERS_MAX = 10_000
"""Most holders that are counted at a time, about 1 KB a holder, with 1 KB at most for its names (``core.client_text``
bounds long texts).  Past this number, the holder unused for longest begins again.  """
IDLE_S = 3_600.0
"""Kafka's time after which an unused sensor is removed."""
MUTATIONS_BURST_S = SAMPLES * SAMPLE_S
"""Burst of ``controller_mutation_rate``: that of Kafka's token bucket."""
USED_S = SAMPLES * SAMPLE_S
"""Time after its last use for which a holder is reported, if it has no debt."""
REPORT_LEAST_S = 0.1
"""Time that a report's rate is taken over, at least."""
RECOVERED_S = 0.25
"""Credit, in seconds of its share, of a holder that was held up: it needs less than its share now."""
WATCHED_S = 2.0
"""Time after it was held up for which less use of a holder is reported at once."""
LARGE_PART = 0.25
"""Part of a limit whose fall is reported at once, whether or not the holder was held up."""
LITTLE_PART = 0.01
"""Part of a limit that is not worth a report before its time."""
SLOW_S = 1.0
"""Time between two requests of a holder whose rate is not taken from the time between them."""
SLOW_PART = 0.05
"""Part of a limit up to which the rate of a slow holder is taken from the last seconds."""
FAIR_PART = 0.9
"""Part of an equal share.  A held-up holder with less waits for other proxies to give up their shares."""
FIRST_CREDIT_S = 0.25
"""Credit of a holder that is new here, if other proxies may serve it as well: theirs is not known yet."""


class Throttles:
    """Times that clients were held up by the quotas of a kind, and the seconds of their waits."""

    __slots__ = ("seconds", "times")

    def __init__(self) -> None:
        self.times = 0
        self.seconds = 0.0


class Holding:
    """A holder's quota of a kind."""

    __slots__ = ("_before", "_held_at", "_is_large", "_reported_at", "_reported_short", "_short_at", "_since",
                 "_since_held", "_was_short", "allowance", "equal", "holder", "kind", "limit", "on_due", "rate",
                 "throttles", "used_at")  # fmt: skip

    def __init__(
        self, kind: str, holder: Holder, limit: float, share: float, now: float, throttles: Throttles | None = None
    ) -> None:
        """``throttles`` counts for all holders of the kind."""
        self.kind = kind
        self.holder = holder
        self.limit = limit
        """The cluster's limit."""
        burst_s = MUTATIONS_BURST_S if kind == CONTROLLER_MUTATION_RATE else BURST_S
        credit_s = burst_s if share >= limit else FIRST_CREDIT_S
        self.allowance = Allowance(share, now, burst_s=burst_s, credit_s=credit_s)
        self.equal = share
        """The limit by the number of proxies: what it can hope for, at least, wherever it needs it."""
        self.rate = Rate()
        self.used_at = now
        self.throttles = throttles or Throttles()
        self.on_due: Callable[[], None] = no_op
        """Called when a report is due at once: it is held up for the first time since its last report, or is used again
        after a time without reports."""
        self._since = self._before = 0.0  # amount since the last report; rate before that
        self._reported_at = now
        self._was_short = self._reported_short = self._is_large = False
        self._short_at = now - WATCHED_S
        self._held_at, self._since_held = now, 0.0  # when it was held up last; amount since then

    def __repr__(self) -> str:
        return f"<Holding {self.kind} {self.holder} {self.allowance!r} of {self.limit:.0f}/s>"

    def take(self, amount: float, now: float) -> float:
        """Count an amount.  Return the seconds that its client must wait for."""
        self.take_quietly(amount, now)
        return self.held_up(self.wait_s(now), now)

    def wait_s(self, now: float) -> float:
        """Return the seconds until its debt is paid, of which a small share here says nothing: shares follow demand."""
        return self.allowance.wait_s(now, self.equal)

    def take_quietly(self, amount: float, now: float) -> None:
        """Count an amount for which nobody waits now."""
        was_unused, self.used_at = now - self.used_at >= USED_S, now
        if was_unused:
            self.on_due()
        self._since += amount
        self._since_held += amount
        self.rate.record(amount, now)
        self.allowance.take(amount, now)

    def give_back(self, amount: float, now: float) -> None:
        """Take back the counted amount of a request that was not served."""
        self._since = max(0.0, self._since - amount)
        self._since_held = max(0.0, self._since_held - amount)
        self.rate.record(-amount, now)
        self.allowance.take(-amount, now)

    def held_up(self, seconds: float, now: float) -> float:
        """Count a time for which a client waits, and return it."""
        if seconds > 0:
            self._held_at, self._since_held, self._short_at = now, 0.0, now
            self.throttles.times += 1
            self.throttles.seconds += seconds
            if not self._was_short:
                self._was_short = True
                self.on_due()
        return seconds

    def is_reported(self, now: float) -> bool:
        """Return whether the holder needs its share: it has used something lately, or has a debt to pay."""
        return now - self.used_at < USED_S or self.allowance.credit(now) < 0

    def is_watched(self, now: float) -> bool:
        """Return whether others may lack what the holder needs no more: it was held up lately, or uses much."""
        return self._is_large or self._reported_short or now - self._short_at < WATCHED_S

    def is_due(self, now: float) -> bool:
        """Return whether a watched holder's report is due before its time.

        It is due in two cases.  The holder was held up at its last report, and has recovered since or still waits for
        the shares of other proxies.  Or it uses less than half of its last reported rate.
        """
        if self._reported_short:
            return self._has_recovered(now) or self.allowance.limit < self.equal * FAIR_PART
        return self._before > self.limit * LITTLE_PART and self._rate(now) < self._before / 2

    def _has_recovered(self, now: float) -> bool:
        return self.allowance.credit(now) >= self.allowance.limit * RECOVERED_S

    def _rate(self, now: float) -> float:
        return self._since / max(now - self._reported_at, REPORT_LEAST_S)

    def report(self, now: float) -> tuple[float, bool]:
        """Return a rate, and whether the holder was held up since the last report.

        The rate is the use since the last report, half of the last reported rate at least.  A holder that was held up,
        and has credit again, counts as not held up.  Its first rate then is the use since it was held up.
        """
        rate, before, is_watched = self._rate(now), self._before, self.is_watched(now)
        is_short = self._was_short or self._reported_short or self.allowance.credit(now) < 0
        if is_short:
            self._short_at = now
            if self._has_recovered(now):
                is_short = False
                if self._held_at > self._reported_at:
                    rate = self._since_held / max(now - self._held_at, REPORT_LEAST_S)
        if now - self.used_at < SLOW_S:
            rate = max(rate, min(self.rate.per_second(now), self.limit * SLOW_PART))
        self._is_large = rate >= self.limit * LARGE_PART and now - self._reported_at > REPORT_LEAST_S
        self._since, self._before, self._reported_at = 0.0, rate, now
        self._was_short, self._reported_short = False, is_short
        return rate if is_watched else max(rate, before / 2), is_short

    def set_share(self, share: float, now: float, credit: float = 0.0) -> None:
        """Change its share of the limit here, and its credit by ``credit``."""
        self.allowance.set_limit(share, now, credit)


class Holdings:
    """All holders that have used something lately."""

    def __init__(self, share_of: Callable[[float], float]) -> None:
        """``share_of`` returns the part of a limit that a holder has here at first."""
        self._share_of = share_of
        self._all: OrderedDict[tuple[str, Holder], Holding] = OrderedDict()
        self.throttles: defaultdict[str, Throttles] = defaultdict(Throttles)
        """Throttles by kind of quota, of forgotten holders as well."""
        self.on_new: Callable[[Holding], None] = no_op
        """Called with each holder that is counted from now on."""

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
            share = self._share_of(limit)
            found = self._all[key] = Holding(kind, holder, limit, share, now, self.throttles[kind])
            self.on_new(found)
        self._all.move_to_end(key)
        if found.limit != limit:
            self.set_limit(found, limit, now)
        return found

    def set_limit(self, holding: Holding, limit: float, now: float) -> None:
        """Change the cluster's limit of a holder; its share changes with it.  A limit that is raised ends a debt."""
        holding.set_share(holding.allowance.limit / holding.limit * limit, now)  # the product may be infinite
        if limit > holding.limit:
            holding.allowance.forgive(now)
        holding.limit, holding.equal = limit, self._share_of(limit)

    def forget_unlimited(self, is_limited: Callable[[str, Holder], bool]) -> None:
        """Remove holders without a quota, whose debt ends with it; ``is_limited`` returns whether one has a quota."""
        for kind, holder in tuple(self._all):
            if not is_limited(kind, holder):
                del self._all[kind, holder]

    def forget_idle(self, now: float) -> None:
        """Remove holders that were not used for IDLE_S."""
        for key, holding in tuple(self._all.items()):
            if now - holding.used_at >= IDLE_S:
                del self._all[key]
