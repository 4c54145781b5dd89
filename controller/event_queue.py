"""The leader's queue of events: those about the liveness of members before all others.

An event is queued once, so the number of members bounds the queue, however often they are reported.  An event that is
queued already:

=====================================  =================================================================================
MemberNews                             keeps its place: the handler reads the facts from the view
reports, results of probes, StoreBack  moves to the end: a report may be newer than an answer that is queued before it
StoreAway                              keeps its place and removes a StoreBack: a probe that failed since then proves
                                       nothing (rule 7)
=====================================  =================================================================================

So the events of the store end with the newest event of the store.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from bmq.controller.failures import (
    ConnectionBroken,
    ProbeAnswered,
    ProbeFailed,
    Reported,
    StoreAway,
    StoreBack,
)
from bmq.core.aio.subscribers import wait_for


@dataclass(frozen=True, slots=True)
class MemberNews:
    """A member has joined, left or changed its registration: the view shows which."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class PlanNeeded:
    """Topics, loads, reachability or requested moves have changed: a new plan is needed."""


PLAN_NEEDED: Final = PlanNeeded()

Urgent = MemberNews | Reported | ConnectionBroken | ProbeAnswered | ProbeFailed | StoreAway | StoreBack
Queued = Urgent | PlanNeeded


class EventQueue:
    """A queue with many producers on the loop and one consumer."""

    def __init__(self) -> None:
        self._urgent: dict[Urgent, None] = {}  # ordered sets
        self._others: dict[PlanNeeded, None] = {}
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<EventQueue urgent={len(self._urgent)} others={len(self._others)}>"

    def put(self, event: Queued) -> None:
        """Queue the event.  If it is queued already, it moves to the end or keeps its place."""
        if isinstance(event, PlanNeeded):
            self._others[event] = None
        elif isinstance(event, StoreAway) and event in self._urgent:
            self._urgent.pop(StoreBack(), None)
        else:
            if not isinstance(event, MemberNews):
                self._urgent.pop(event, None)
            self._urgent[event] = None
        self._news.set()

    def withdraw(self, event: Urgent) -> None:
        """Remove the event if it is queued: something else has outdated it."""
        self._urgent.pop(event, None)

    @property
    def has_urgent(self) -> bool:
        """True if an event about a member's liveness is queued."""
        return bool(self._urgent)

    def take(self) -> Queued | None:
        """Remove and return the next event; None if the queue is empty."""
        if self._urgent:
            urgent = next(iter(self._urgent))
            del self._urgent[urgent]
            return urgent
        if self._others:
            other = next(iter(self._others))
            del self._others[other]
            return other
        self._news.clear()
        return None

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until an event is queued, for ``timeout_s`` at most; None: without limit."""
        await wait_for(self._news, timeout_s)
