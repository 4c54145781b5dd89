"""The leader's one queue: news of who lives before everything else.

An event that waits already is not queued again, and says "look" rather than what is to be seen, so that the queue is
bounded by the members, however often they are reported.
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
    """It came, went, or says something else of itself: the view shows which."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class Look:
    """Topics, loads, reachability or wishes have changed: plan."""


LOOK: Final = Look()

Urgent = MemberNews | Reported | ConnectionBroken | ProbeAnswered | ProbeFailed | StoreAway | StoreBack
Queued = Urgent | Look


class EventQueue:
    """``put`` from anywhere on the loop; one taker."""

    def __init__(self) -> None:
        self._urgent: dict[Urgent, None] = {}  # ordered sets
        self._others: dict[Look, None] = {}
        self._news = asyncio.Event()

    def __repr__(self) -> str:
        return f"<EventQueue urgent={len(self._urgent)} others={len(self._others)}>"

    def put(self, event: Queued) -> None:
        if isinstance(event, Look):
            self._others[event] = None
        else:
            self._urgent[event] = None
        self._news.set()

    @property
    def has_urgent(self) -> bool:
        return bool(self._urgent)

    def take(self) -> Queued | None:
        """The next one; None when nothing waits."""
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
        """Until something waits, or the time is over."""
        await wait_for(self._news, timeout_s)
