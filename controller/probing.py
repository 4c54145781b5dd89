"""Probes of members by one leader, which presumes that it is cut off itself if none of several members responds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from bmq.controller.member_client import MemberClient
from bmq.core.clock import Clock
from bmq.meta.cluster.member import Member

WITNESSES = 5
"""Other members that are probed at once before one that does not respond is declared dead."""


class Isolated(Exception):
    """A leader that reaches none of several members: it is presumed to be cut off itself, and must not lead."""


class Prober:
    """The probes of one term.  ``members`` returns those that count as alive, by incarnation."""

    def __init__(
        self,
        own: str,
        client: MemberClient,
        clock: Clock,
        members: Callable[[], Mapping[str, Member]],
        *,
        is_last_resort: bool = False,
    ) -> None:
        self._own = own
        self._client = client
        self._clock = clock
        self._members = members
        self._is_last_resort = is_last_resort
        self._witnessed_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Prober of {self._own}{' last resort' if self._is_last_resort else ''}>"

    async def is_alive(self, member: Member) -> bool:
        """Probe the member.  Raises Isolated if neither it nor any other member that was probed responds."""
        began = self._clock.monotonic()
        is_own = member.incarnation == self._own
        is_alive = is_own or await self._client.is_alive(member)
        if is_alive and not is_own:
            self._is_last_resort = False  # from here on its network may break like any other leader's
        if not is_alive and await self._is_isolated(member.incarnation, began):
            raise Isolated(f"{member.incarnation} does not respond, and neither does any other member that was probed")
        return is_alive

    async def _is_isolated(self, suspect: str, since: float) -> bool:
        """Return whether the other members do not respond either, after a probe that began at ``since`` has failed.

        A leader whose own network is broken would declare every member dead, one after the other.  With one other
        member, or as the last resort (no other process would lead), its probes count as they are.
        """
        others = [member for name, member in self._members().items() if name not in (suspect, self._own)]
        if self._is_last_resort or not others or self._witnessed_at >= since:
            return False
        probes = [asyncio.ensure_future(self._client.is_alive(each)) for each in _spread(others, WITNESSES)]
        try:
            for probe in asyncio.as_completed(probes):
                if await probe:
                    self._witnessed_at = self._clock.monotonic()
                    return False
        finally:
            for each in probes:
                each.cancel()
            await asyncio.gather(*probes, return_exceptions=True)
        return True


def _spread(members: Sequence[Member], count: int) -> list[Member]:
    """Return up to ``count`` of the members, of as many hosts as possible."""
    rounds: dict[tuple[int, int], Member] = {}
    seen: Counter[str] = Counter()
    for number, member in enumerate(members):
        rounds[seen[member.internal.host], number] = member
        seen[member.internal.host] += 1
    return [rounds[key] for key in sorted(rounds)[:count]]
