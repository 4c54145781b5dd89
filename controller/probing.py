"""Probes of members by a leader; if it does not reach most of them, it presumes itself cut off."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from bmq.controller.member_client import MemberClient
from bmq.controller.patience import Patience
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import Clock
from bmq.core.logging.fields import fields
from bmq.core.rpc.peers import Evidence
from bmq.meta.cluster.member import Member

_log = logging.getLogger(__name__)

WITNESSES = 9
"""Other members probed at once, at most, before a silent member is declared dead."""
LAST_RESORT_S = 30.0
"""Time for which a cut-off leader leads as the last resort, before it makes room for another leader again."""


class Verdict(Enum):
    """The result of a probe."""

    RESPONDED = auto()
    UNKNOWN = auto()
    """Nothing shows that the member is dead, and it has not responded."""
    DEAD = auto()


class Isolated(Exception):
    """A leader that does not reach most of the members: it is presumed to be cut off itself, and must not lead."""


class Prober:
    """The probes of one term.

    ``members`` returns the members that count as alive, by incarnation.  ``has_responded`` returns whether a member has
    responded to anything else since a monotonic time.
    """

    def __init__(
        self,
        own: str,
        client: MemberClient,
        clock: Clock,
        members: Callable[[], Mapping[str, Member]],
        patience: Patience,
        *,
        has_responded: Callable[[str, float], bool],
        is_last_resort: bool = False,
    ) -> None:
        self._own = own
        self._client = client
        self._clock = clock
        self._members = members
        self._patience = patience
        self._has_responded = has_responded
        self._last_resort_until = clock.monotonic() + LAST_RESORT_S if is_last_resort else float("-inf")
        self._polling = asyncio.Lock()
        self._polled_at = float("-inf")
        self._was_isolated = False
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<Prober of {self._own} polled_at={self._polled_at:.3f}{' isolated' if self._was_isolated else ''}>"

    async def judge(self, member: Member) -> Verdict:
        """Probe the member.

        Raises Isolated if the leader seems to be cut off.  As the last resort, since no other process leads, it goes on
        instead: a silent member is then declared dead by the end of its lease alone.
        """
        if member.incarnation == self._own:
            return Verdict.RESPONDED
        began = self._clock.monotonic()
        evidence = await self._probe(member)
        if evidence is Evidence.LIFE:
            return Verdict.RESPONDED
        if evidence is Evidence.NONE:
            return Verdict.UNKNOWN
        if not await self._is_isolated(member, evidence, began):
            return Verdict.DEAD
        if self._clock.monotonic() < self._last_resort_until:
            self._warn()
            return Verdict.UNKNOWN if evidence is Evidence.SILENCE else Verdict.DEAD
        raise Isolated(f"{member.incarnation} does not respond, and neither do most of the others that were probed")

    async def _probe(self, member: Member) -> Evidence:
        """Probe the member, and return the evidence.

        A process whose loop turns slowly needs several turns to accept a connection, and a single turn for a heartbeat.
        A process that responds to a heartbeat while it is probed is alive.
        """
        began = self._clock.monotonic()
        evidence = await self._client.probe(member, self._patience.seconds(began))
        is_slow = evidence is Evidence.SILENCE and self._has_responded(member.incarnation, began)
        return Evidence.LIFE if is_slow else evidence

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "this process is cut off and leads as no other does: silent members are dead when their leases end",
                extra=fields(member=self._own),
            )

    async def _is_isolated(self, suspect: Member, evidence: Evidence, since: float) -> bool:
        """Return whether this leader is cut off, by a poll that ended after ``since``: of many suspects, one asks."""
        async with self._polling:
            if self._polled_at < since:
                self._was_isolated = await self._poll(suspect, evidence)
                self._polled_at = self._clock.monotonic()
            return self._was_isolated

    async def _poll(self, suspect: Member, evidence: Evidence) -> bool:
        """Return whether other members than the suspect do not respond either.

        A leader whose own network is broken would declare every member dead, one after the other.  It is to reach more
        than half of the members, counting itself: a leader that was cut off together with a few members reaches these
        members.  A host that refuses a connection is reached, but a firewall refuses too, so some process must have
        responded.  With a single other member, its probe decides.
        """
        members = self._members()
        others = [members[name] for name in members.keys() - {suspect.incarnation, self._own}]
        if not others:
            return False
        witnesses = _spread(random.sample(sorted(others, key=_name), len(others)), WITNESSES)
        found = [Evidence.LIFE, evidence]  # its own, and the suspect's
        probes = [asyncio.ensure_future(self._probe(each)) for each in witnesses]
        try:
            for probe in asyncio.as_completed(probes):
                found.append(await probe)
                if _is_connected(found, 2 + len(witnesses)):
                    return False
        finally:
            await cancel_and_wait(*probes)
        return not _is_connected(found, len(found) - found.count(Evidence.NONE))


def _is_connected(found: Sequence[Evidence], asked: int) -> bool:
    """Return whether a process that found this, itself first, is connected to most of ``asked`` processes."""
    counts = Counter(found)
    responded = counts[Evidence.LIFE] + counts[Evidence.REPLACED]
    return responded > 1 and 2 * (responded + counts[Evidence.REFUSED]) > asked


def _name(member: Member) -> str:
    return member.incarnation


def _spread(members: Sequence[Member], count: int) -> list[Member]:
    """Return up to ``count`` of the members, of as many hosts as possible."""
    rounds: dict[tuple[int, int], Member] = {}
    seen: Counter[str] = Counter()
    for number, member in enumerate(members):
        rounds[seen[member.internal.host], number] = member
        seen[member.internal.host] += 1
    return [rounds[key] for key in sorted(rounds)[:count]]
