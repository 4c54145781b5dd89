"""A member that is cut off from the store learns from other members that its key is gone.

A process whose lease has ended is a member no more: the controller has given to others what it had.  It reads that in
the store, which it may not reach, while clients and the other processes reach it.  Without more it would take itself
for the owner as long as it is cut off, and answer readers that there is nothing new.

So once its lease must have ended by its own clock it says Hello to other members, one after another.  A member that
finds no key of it refuses the connection and names a revision of the store (``meta.cluster.admission``).  That is the
store's word, passed on: a key that was written at revision 7 and is absent at 9 was deleted, whoever says so, a former
leader or a process with an old view.  A process that every member still shows, as in an outage of the store, hears
nothing of the kind and goes on (rule 7).

Nor does one go on the word alone where nobody could have been given what it had: brokers that have all lost the store
while one controller reaches it go on serving.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator, Set
from enum import Enum

from bmq.core.logging.fields import fields
from bmq.core.rpc.message_fields import Unregistered
from bmq.core.rpc.peer import PeerLost
from bmq.meta.cluster.member import BROKER, CONTROLLER, COORDINATOR, PROXY, Member
from bmq.meta.cluster.view import ClusterView

_log = logging.getLogger(__name__)

ASK_S = 1.0
"""Between two rounds of questions, and as long as one member may take: a small frame in each direction."""
DECISIVE = (BROKER, COORDINATOR, PROXY, CONTROLLER)
"""Roles, the one that has most to lose first.  A process goes by the first of these that it has."""


class Verdict(Enum):
    NOTHING = "the finding is older than our key, or nobody could have been given what we had"
    ASK_STORE = "our lease may still hold: the store decides"
    LOST = "our key is gone, and the store cannot have renewed our lease"


def judge(found: Unregistered, *, revision: int, lease_age_s: float, ttl_s: float, roles: Set[str]) -> Verdict:
    """Judge another member's finding about this process.

    ``revision``: of our key as we wrote it last; 0 if we are no member, and know it.  ``lease_age_s``: since the store
    last renewed our lease.  ``roles``: ours.
    """
    decisive = next((role for role in DECISIVE if role in roles), "")
    if not revision or found.revision < revision or decisive not in found.roles:
        return Verdict.NOTHING
    return Verdict.LOST if lease_age_s >= ttl_s else Verdict.ASK_STORE


def others_to_ask(view: ClusterView) -> list[Member]:
    """Return the other members that can be asked, in an order that differs from process to process."""
    found = [member for member in view.members.values() if member.incarnation != view.own and member.internal.port]
    return sorted(found, key=lambda member: zlib.crc32(f"{view.own} {member.incarnation}".encode()))


class RegistrationCheck:
    """A task that asks others while the lease is overdue: the leader that was known last, and one more, each round.

    ``overdue_s`` returns for how long the lease has been over, negative while it cannot be; ``greet`` says Hello to a
    member within a time.
    """

    def __init__(
        self,
        view: ClusterView,
        overdue_s: Callable[[], float],
        greet: Callable[[Member, float], Awaitable[None]],
    ) -> None:
        self._view = view
        self._overdue_s = overdue_s
        self._greet = greet
        self._asked = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="registration check")
        self._task.add_done_callback(_ended)

    async def close(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            overdue_s = self._overdue_s()
            if overdue_s < 0:
                await asyncio.sleep(max(ASK_S, -overdue_s))
                continue
            await asyncio.gather(*map(self._ask, self._next_asked()), asyncio.sleep(ASK_S))

    def _next_asked(self) -> Iterator[Member]:
        others = others_to_ask(self._view)
        leader = self._view.controller
        if leader is not None and leader in others:
            others.remove(leader)
            yield leader
        if others:
            yield others[self._asked % len(others)]
            self._asked += 1

    async def _ask(self, member: Member) -> None:
        """What it finds goes to whoever subscribed for refusals; one that is not reached is passed over."""
        try:
            await self._greet(member, ASK_S)
        except PeerLost:
            return


def _ended(task: asyncio.Task[None]) -> None:
    """It runs until ``close``: anything else is a bug."""
    if not task.cancelled() and task.exception() is not None:
        _log.error(
            "bug: others are not asked any more whether this process is registered",
            exc_info=task.exception(),
            extra=fields(error=repr(task.exception())),
        )
