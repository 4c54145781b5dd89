"""The check of a member that is cut off from the store: other members report whether its key is gone.

A process whose lease has ended is not a member any more: the controller has assigned its work to others.  The store
shows that, but the process may not reach the store, while clients and the other processes reach it.  Without this check
it would consider itself the owner as long as it is cut off, and respond to consumers that there is nothing new.

So once its lease must have ended by its own clock it says Hello to other members, one after another.  A member that
finds no key of it refuses the connection and names a revision of the store (``meta.cluster.admission``).  The revision
is the store's statement, passed on.  A key that was written at revision 7 and is absent at 9 was deleted, whether a
former leader or a process with an old view reports it.  A process that every member still shows, as in an outage of the
store, gets no such refusal and goes on (rule 7).

A process also goes on if its work cannot have been assigned to any other: brokers that have all lost the store while
one controller reaches it go on serving.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Iterator, Set
from enum import Enum

from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.logging.fields import fields
from bmq.core.rpc.messages.member import Unregistered
from bmq.core.rpc.peer import PeerLost
from bmq.meta.cluster.member import BROKER, CONTROLLER, COORDINATOR, PROXY, Member
from bmq.meta.cluster.view import ClusterView

_log = logging.getLogger(__name__)

ASK_S = 1.0
"""Seconds between two rounds, and the time-out of one member: a small frame in each direction."""
DECISIVE = (BROKER, COORDINATOR, PROXY, CONTROLLER)
"""Roles, the one that has most to lose first.  A process goes by the first of these that it has."""


class FindingVerdict(Enum):
    """A judgement of another member's finding."""

    NOTHING = "the finding is older than this process's key, or its work cannot have been assigned to another"
    ASK_STORE = "the lease may still hold: the store decides"
    LOST = "the key is gone, and the store cannot have renewed the lease"


def judge(found: Unregistered, *, revision: int, lease_age_s: float, ttl_s: float, roles: Set[str]) -> FindingVerdict:
    """Judge another member's finding about this process.

    ``revision``: of this process's key as it wrote it last; 0 if it is not a member, and has noticed.  ``lease_age_s``:
    seconds since the store last renewed its lease.  ``roles``: its own.
    """
    decisive = next((role for role in DECISIVE if role in roles), "")
    if not revision or found.revision < revision or decisive not in found.roles:
        return FindingVerdict.NOTHING
    return FindingVerdict.LOST if lease_age_s >= ttl_s else FindingVerdict.ASK_STORE


def others_to_ask(view: ClusterView) -> list[Member]:
    """Return the other members that can be queried, in an order that differs from process to process."""
    found = [member for member in view.members.values() if member.incarnation != view.own and member.internal.port]
    return sorted(found, key=lambda member: zlib.crc32(f"{view.own} {member.incarnation}".encode()))


class RegistrationCheck:
    """A task that queries others while the lease is overdue: in every round the last known leader, and one more member.

    ``overdue_s`` returns for how many seconds the lease has been over, negative while it cannot be; ``greet`` says
    Hello to a member within a time-out.
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
        """Begin to check, in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="registration check")
        self._task.add_done_callback(_ended)

    async def close(self) -> None:
        """End the task.  Idempotent."""
        await cancel_and_wait(self._task)

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
        """Say Hello to a member.

        Its refusal reaches the subscribers for refusals; an unreachable member is skipped.
        """
        try:
            await self._greet(member, ASK_S)
        except PeerLost:
            return


def _ended(task: asyncio.Task[None]) -> None:
    """Log the end of the task, if it failed: it should run until ``close``."""
    if not task.cancelled() and task.exception() is not None:
        _log.error(
            "bug: the registration check has ended, other members are not queried any more",
            exc_info=task.exception(),
            extra=fields(error=repr(task.exception())),
        )
