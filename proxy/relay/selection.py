"""The choice of a relay to a member that this process does not reach.  Pure: ``now`` is an argument, in seconds.

A proxy that lists the member as unreachable is left out.  Proxies in this process's zone come first.  Within a zone,
each pair of processes has an order of its own (rendezvous hashing), so many processes with the same problem do not all
burden one relay.  A relay that could not help is not tried again for a while, longer each time.  If ``AT_ONCE`` relays
could not help, the member is more likely dead than cut off from this process.  Then no relay is tried for a while, so
that a dead member does not cause a storm of requests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set

from bmq.core.aio.backoff import Backoff
from bmq.meta.cluster.member import PROXY, Member

PAUSE_S = Backoff(1.0, 30.0)
"""Pause of a relay that could not help."""
REMEMBERED_S = 120.0
"""Time after that pause until a relay's failures are forgotten."""
AT_ONCE = 2
"""Failures, of any relays, from which no relay to a member is tried for a while."""
MEMBER_PAUSE_S = Backoff(1.0, 5.0)
"""Pause in which no relay to a member is tried, from that failure on."""


class RelayChoice:
    """The choices of one process: ``own`` is its incarnation, ``zone`` its zone."""

    __slots__ = ("_failed", "_own", "_paused", "_zone")

    def __init__(self, own: str, zone: str) -> None:
        self._own = own
        self._zone = zone
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}  # (to, via): failures, end of the pause
        self._paused: dict[str, tuple[int, float]] = {}  # to: failures of any relays, end of the pause

    def __len__(self) -> int:
        """Return the number of relays, counted for each member, that could not help."""
        return len(self._failed)

    def pick(
        self, to: str, members: Iterable[Member], unreachable: Mapping[str, Set[str]], now: float
    ) -> Member | None:
        """Return the relay to try next for member ``to``; None if there is none, or none yet.

        ``unreachable`` has, for each proxy, the members that it does not reach.
        """
        if now < self._paused.get(to, (0, now))[1]:
            return None
        fit = [
            member
            for member in members
            if member.has(PROXY)
            and member.incarnation not in (self._own, to)
            and member.internal.port
            and not member.is_draining
            and to not in unreachable.get(member.incarnation, ())
            and now >= self._failed.get((to, member.incarnation), (0, now))[1]
        ]
        return min(fit, key=lambda member: self._rank(to, member), default=None)

    def _rank(self, to: str, via: Member) -> tuple[bool, bytes]:
        text = f"{self._own}/{to}/{via.incarnation}".encode()
        return via.zone != self._zone, hashlib.blake2b(text, digest_size=8).digest()

    def failed(self, to: str, via: str, now: float) -> None:
        """Note that relay ``via`` could not reach ``to``, or no longer does.

        Failures of several connections at the same time count once.
        """
        self._failed = {pair: past for pair, past in self._failed.items() if now - past[1] < REMEMBERED_S}
        self._paused = {name: past for name, past in self._paused.items() if now - past[1] < REMEMBERED_S}
        times, not_before = self._failed.get((to, via), (0, now))
        if now < not_before:
            return
        self._failed[to, via] = times + 1, now + PAUSE_S.pause(times + 1)
        failures = self._paused.get(to, (0, 0.0))[0] + 1
        self._paused[to] = failures, now + MEMBER_PAUSE_S.pause(failures + 1 - AT_ONCE)

    def helped(self, to: str) -> None:
        """Note that member ``to`` is reached through a relay."""
        self._paused.pop(to, None)

    def forget(self, incarnation: str) -> None:
        """Forget a process that is not a member any more."""
        self._failed = {pair: past for pair, past in self._failed.items() if incarnation not in pair}
        self._paused.pop(incarnation, None)
