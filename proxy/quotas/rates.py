"""Rates and allowances.  Pure: times are arguments, in seconds of one clock.

``Rate`` is Kafka's (``SampledStat``, ``Rate``): a sum over samples of ``SAMPLE_S``.  It measures, and bounds what need
not be smooth.  Its throttle time assumes that the rate is smooth: if a hundred connections all wait for this time, they
pass twice the limit together.

``Allowance`` bounds bytes: a credit that grows at the limit, up to ``burst_s`` seconds of it.  A client that takes more
is in debt, and waits until it is paid.  Whatever the number of connections, in any window of W seconds no more than W +
``burst_s`` seconds of the limit are taken, and the last request.  The limit may change at any time, since bytes are
paid at the limit of their time.  So the sum over processes stays within the limit, as long as the sum of their limits
does.
"""

from __future__ import annotations

import sys
from collections import deque

SAMPLES = 11
"""Kafka's quota.window.num: ten whole samples, and the present one."""
SAMPLE_S = 1.0
"""Kafka's quota.window.size.seconds."""
WAIT_MAX_S = 2_147_483.0
"""Longest wait for an allowance: the largest throttle time of a response, 24 days.  A rate may be any number above 0,
and no timer and no response takes an endless wait."""
BURST_S = 0.5
"""Credit of an allowance: 5 % of what a window of eleven seconds may have.  As much is left for the last requests: a
connection may have one of them.  Kafka's rate would let an idle client have ten seconds' worth at once."""


class Rate:
    """Amounts a second, over the last SAMPLES samples."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[list[float]] = deque(maxlen=SAMPLES)  # [start, sum], oldest first

    def record(self, amount: float, now: float) -> None:
        """Add an amount."""
        if not self._samples or now - self._samples[-1][0] >= SAMPLE_S:
            self._samples.append([now, 0.0])
        self._samples[-1][1] += amount

    def per_second(self, now: float) -> float:
        """Return the rate."""
        self._forget(now)
        return sum(amount for _, amount in self._samples) / self._window_s(now)

    def wait_s(self, limit: float, now: float) -> float:
        """Return the seconds after which the rate is at the limit if nothing is added: Kafka's throttle time."""
        rate = self.per_second(now)
        return max(0.0, (rate - limit) / limit * self._window_s(now))

    def _forget(self, now: float) -> None:
        while self._samples and now - self._samples[0][0] >= SAMPLES * SAMPLE_S:
            self._samples.popleft()

    def _window_s(self, now: float) -> float:
        """Return the time since the first sample, which counts as all but one whole samples at least."""
        elapsed = now - self._samples[0][0] if self._samples else 0.0
        whole = int(elapsed / SAMPLE_S)
        return elapsed + max(0, SAMPLES - 1 - whole) * SAMPLE_S


class Allowance:
    """Credit that grows with time, and is taken."""

    __slots__ = ("_at", "_credit", "burst_s", "limit")

    def __init__(self, limit: float, now: float, *, burst_s: float = BURST_S, credit_s: float = BURST_S) -> None:
        """``credit_s`` is the credit to begin with, in seconds of the limit."""
        self.limit = limit
        self.burst_s = burst_s
        self._credit = limit * min(credit_s, burst_s)
        self._at = now

    def __repr__(self) -> str:
        return f"<Allowance {self._credit:.0f} of {self.limit:.0f}/s>"

    def credit(self, now: float) -> float:
        """Return what may be taken now; a debt is below 0."""
        self._credit = min(self.limit * self.burst_s, self._credit + self.limit * max(0.0, now - self._at))
        self._at = max(now, self._at)
        return self._credit

    def take(self, amount: float, now: float) -> None:
        """Take an amount, be it more than the credit."""
        self.credit(now)
        self._credit -= amount

    def forgive(self, now: float) -> None:
        """End a debt."""
        self._credit = max(0.0, self.credit(now))

    def wait_s(self, now: float, least: float = 0.0) -> float:
        """Return the seconds until no debt is left, if the limit is ``least`` or more by then.

        The result is ``WAIT_MAX_S`` at most.
        """
        debt = max(0.0, -self.credit(now))
        return min(debt / max(self.limit, least, sys.float_info.min), WAIT_MAX_S)

    def set_limit(self, limit: float, now: float, credit: float = 0.0) -> None:
        """Change the limit from now on, and the credit by ``credit``."""
        self.credit(now)
        self.limit = limit
        self._credit = min(self._credit + credit, limit * self.burst_s)
