"""The leader's heartbeats: a ping to each member several times a second, to notice within a moment that one is silent.

A process that is killed closes its connections, and is noticed at once.  One that is stopped, or whose cable is pulled,
does not: without heartbeats it is noticed when a connection to it has been silent for three seconds
(``core.rpc.liveness``).  A heartbeat without a response is a suspicion only, and makes the leader probe the member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from functools import partial

from bmq.controller.member_client import TICKS, MemberClient
from bmq.controller.patience import MOST_S, Patience
from bmq.core.aio.held_up import HeldUp
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import Clock
from bmq.meta.cluster.member import Member

BEAT_S = 0.25
"""Time between a member's response and its next heartbeat."""
SUSPECT_S = 0.4
"""Time without a response after which a member is suspected."""
BEATS_PER_S = 400.0
"""Most heartbeats a second to all members together: beyond a hundred members each gets them less often."""


class Heartbeats:
    """The heartbeats of one term.  ``run`` it.

    ``names`` returns the members to ping, ``find`` one of them, None if it is none any more.  ``suspect`` is called
    with the incarnation of one that does not respond, again and again for as long as it does not.
    """

    def __init__(
        self,
        own: str,
        client: MemberClient,
        clock: Clock,
        patience: Patience,
        *,
        names: Callable[[], Set[str]],
        find: Callable[[str], Member | None],
        suspect: Callable[[str], None],
    ) -> None:
        self._own = own
        self._client = client
        self._clock = clock
        self._names = names
        self._find = find
        self._patience = patience
        self._suspect = suspect
        self._beating: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Heartbeats to {len(self._beating)} members>"

    async def run(self) -> None:
        """Ping members until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for name in self._names() - self._beating.keys() - {self._own}:
                    task = self._beating[name] = tasks.create_task(self._beat(name), name=f"heartbeats to {name}")
                    task.add_done_callback(partial(self._ended, name))
                await asyncio.sleep(BEAT_S)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._beating[name]

    async def _beat(self, name: str) -> None:
        """Ping one member again and again, until it is none any more."""
        while (member := self._find(name)) is not None:
            await self._ping(member)
            await asyncio.sleep(max(BEAT_S, len(self._beating) / BEATS_PER_S))

    async def _ping(self, member: Member) -> None:
        """Ping a member.  Suspect it while it does not respond, and learn from a response that comes late.

        A time in which this process itself was held up says nothing of the member.
        """
        began, held_up = self._clock.monotonic(), HeldUp(SUSPECT_S / TICKS)
        ping = asyncio.ensure_future(self._client.ping(member, MOST_S))
        try:
            held_up_s = 0.0
            while not (await asyncio.wait([ping], timeout=SUSPECT_S))[0]:
                if held_up.seconds == held_up_s:
                    self._suspect(member.incarnation)
                held_up_s = held_up.seconds
            if ping.result():
                now = self._clock.monotonic()
                self._patience.responded(now - began - held_up.seconds, now)
        finally:
            held_up.close()
            await cancel_and_wait(ping)
