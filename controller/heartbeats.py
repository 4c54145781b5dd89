"""The leader's heartbeats: a ping to every member several times a second, to notice a silent member within a moment.

A process that is killed closes its connections, and is noticed at once.  A stopped process, or a process whose cable is
pulled, breaks none.  Without heartbeats it is noticed when a connection to it has been silent for three seconds
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
"""Most heartbeats a second to all members together, evenly spread: beyond a hundred members each gets them less often.
All at once, those to a thousand members would hold up the leader's loop for longer than it waits for a response."""


class Heartbeats:
    """The heartbeats of one term.  ``run`` it.

    ``names`` returns the members to ping, ``find`` one of them, None if it is none any more.  ``suspect`` is called
    with the incarnation of a member that does not respond, again and again until it responds.
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
        self._responded_at: dict[str, float] = {}  # of those that have responded
        self._next_at = 0.0  # by the loop's clock: when the next heartbeat may go out

    def __repr__(self) -> str:
        return f"<Heartbeats to {len(self._beating)} members>"

    def has_responded(self, name: str, since: float) -> bool:
        """Return whether a member has responded to a heartbeat since this monotonic time."""
        return self._responded_at.get(name, float("-inf")) >= since

    async def run(self) -> None:
        """Ping members until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for name in sorted(self._names() - self._beating.keys() - {self._own}):
                    task = self._beating[name] = tasks.create_task(self._beat(name), name=f"heartbeats to {name}")
                    task.add_done_callback(partial(self._ended, name))
                await asyncio.sleep(BEAT_S)

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._beating[name]
        self._responded_at.pop(name, None)

    async def _beat(self, name: str) -> None:
        """Ping one member again and again, until it is none any more."""
        silent_since: float | None = None
        while True:
            await self._wait_turn()
            member = self._find(name)
            if member is None:
                return
            silent_since = await self._ping(member, silent_since)
            await asyncio.sleep(BEAT_S)

    async def _wait_turn(self) -> None:
        """Wait until a heartbeat may go out; waiting heartbeats go out in the order in which they came."""
        now = asyncio.get_running_loop().time()
        at, self._next_at = self._next_at, max(now, self._next_at) + 1 / BEATS_PER_S
        await asyncio.sleep(at - now)

    async def _ping(self, member: Member, silent_since: float | None) -> float | None:
        """Ping a member.  Suspect it while it does not respond, and learn from a response that comes late.

        Takes and returns the time, by the loop's clock, since which the member has been silent.  A connection without a
        response is given up before patience ends, and the response comes on the next connection.  A time in which this
        process itself was held up says nothing of the member.
        """
        loop = asyncio.get_running_loop()
        began, held_up = loop.time(), HeldUp(SUSPECT_S / TICKS)
        since = began if silent_since is None else silent_since
        ping = asyncio.ensure_future(self._client.ping(member, MOST_S))
        try:
            held_up_s = 0.0
            while not (await asyncio.wait([ping], timeout=SUSPECT_S))[0]:
                if held_up.seconds == held_up_s:
                    self._suspect(member.incarnation)
                held_up_s = held_up.seconds
            since += held_up.seconds
            if ping.result():
                now = self._responded_at[member.incarnation] = self._clock.monotonic()
                self._patience.responded(loop.time() - since, now)
                return None
            is_silence = silent_since is not None or loop.time() - began > SUSPECT_S
            return since if is_silence else None
        finally:
            held_up.close()
            await cancel_and_wait(ping)
