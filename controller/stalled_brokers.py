"""Brokers that are alive and do not serve, by their responses to Ping: stalled brokers are emptied, others rest.  Pure.

A stalled broker reports that it serves again once it has written to storage.  The recovery may last for a moment only,
so the broker rests before it is given any partitions.  It rests longer every time if it stalls again soon after.
"""

from __future__ import annotations

from bmq.core.aio.backoff import Backoff

REST_S = 60.0
"""Time for which a broker is given no partitions after its first stall."""
REST_MAX_S = 960.0
"""The longest rest: a broker that stalls again and again costs its partitions a stall and a move every quarter of an
hour.  A stall within this time after a rest doubles the next one."""
_RESTS_S = Backoff(REST_S, REST_MAX_S)


class _Stall:
    __slots__ = ("is_over", "rests_until", "times")

    def __init__(self, times: int) -> None:
        self.times = times  # this one, and those before it without a long time between them
        self.is_over = False
        self.rests_until = float("inf")


class StalledBrokers:
    """The brokers of one term that have stalled.

    Call ``update`` with every response, and ``forget`` with a lost member.  Bounded by the members that have ever
    stalled.
    """

    def __init__(self) -> None:
        self._stalls: dict[str, _Stall] = {}

    def __repr__(self) -> str:
        stalled = sorted(name for name, stall in self._stalls.items() if not stall.is_over)
        return f"<StalledBrokers stalled={stalled} of {len(self._stalls)}>"

    @property
    def stalled(self) -> frozenset[str]:
        """The brokers whose last report says that they do not serve."""
        return frozenset(name for name, stall in self._stalls.items() if not stall.is_over)

    def resting(self, now: float) -> frozenset[str]:
        """Return the brokers that serve again, and whose rest is not over."""
        return frozenset(name for name, stall in self._stalls.items() if stall.is_over and now < stall.rests_until)

    def update(self, member: str, is_serving: bool, now: float) -> bool:
        """Update with a member's report whether it serves.  Returns whether that has changed."""
        stall = self._stalls.get(member)
        if is_serving:
            if stall is None or stall.is_over:
                return False
            stall.is_over, stall.rests_until = True, now + _RESTS_S.pause(stall.times)
            return True
        if stall is not None and not stall.is_over:
            return False
        is_soon = stall is not None and now < stall.rests_until + REST_MAX_S
        self._stalls[member] = _Stall(stall.times + 1 if stall is not None and is_soon else 1)
        return True

    def forget(self, member: str) -> None:
        """Forget a member that is gone, with its stalls."""
        self._stalls.pop(member, None)
