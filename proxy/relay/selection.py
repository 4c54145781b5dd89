"""Through whom a member is reached that we do not reach ourselves.  Pure: ``now`` in seconds.

A proxy that says itself that it does not reach the member is left out.  Of the others those in our zone come first, and
then each pair of processes has an order of its own (rendezvous hashing), so that many in the same trouble do not all
burden one.  Who could not help is not asked again for a while, longer each time.  And where ``AT_ONCE`` could not, the
member is more likely dead than cut off from us: nobody is asked for a while, so that a death is no storm of questions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Set

from bmq.meta.cluster.member import PROXY, Member

PAUSE_S = 1.0
PAUSE_MAX_S = 30.0
"""Who could not help is not asked again for the first, doubled each time up to the second."""
REMEMBERED_S = 120.0
"""So long after that its failures are forgotten."""
AT_ONCE = 2
MEMBER_PAUSE_MAX_S = 5.0
"""The pause of all, in which nobody is asked, ends with this."""


class RelayChoice:
    """One process's: ``own`` in ``zone``."""

    __slots__ = ("_failed", "_own", "_paused", "_zone")

    def __init__(self, own: str, zone: str) -> None:
        self._own = own
        self._zone = zone
        self._failed: dict[tuple[str, str], tuple[int, float]] = {}  # (to, via): how often, not before
        self._paused: dict[str, tuple[int, float]] = {}  # to: how often, by whomever, and not before

    def __len__(self) -> int:
        return len(self._failed)

    def pick(
        self, to: str, members: Iterable[Member], unreachable: Mapping[str, Set[str]], now: float
    ) -> Member | None:
        """Whom to ask next; None when there is nobody, or nobody yet.  ``unreachable``: by proxy, whom it says that it
        does not reach."""
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
        """``via`` could not help, or does no longer.  Several who asked it at the same time count once."""
        self._failed = {pair: past for pair, past in self._failed.items() if now - past[1] < REMEMBERED_S}
        self._paused = {name: past for name, past in self._paused.items() if now - past[1] < REMEMBERED_S}
        times, not_before = self._failed.get((to, via), (0, now))
        if now < not_before:
            return
        self._failed[to, via] = times + 1, now + min(PAUSE_S * 2.0**times, PAUSE_MAX_S)
        failures = self._paused.get(to, (0, 0.0))[0] + 1
        pause_s = min(PAUSE_S * 2.0 ** (failures - AT_ONCE), MEMBER_PAUSE_MAX_S) if failures >= AT_ONCE else 0.0
        self._paused[to] = failures, now + pause_s

    def helped(self, to: str) -> None:
        """It is reached through somebody."""
        self._paused.pop(to, None)

    def forget(self, incarnation: str) -> None:
        """It is no member any more."""
        self._failed = {pair: past for pair, past in self._failed.items() if incarnation not in pair}
        self._paused.pop(incarnation, None)
