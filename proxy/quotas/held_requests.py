"""Produces that wait before they are served: a holder's debt is known, and their connection has not waited for it yet.

Without that wait, a client with a new connection for each request would never wait at all.  A request that waits is
counted when it arrives, so that requests of all connections stand in one line::

    debt                       the request
    none                       is served at once
    up to HELD_MAX_S seconds   waits for that long, and is served
    more                       is not counted and not served: its connection is closed after REFUSED_S

So a debt that new connections make has HELD_MAX_S seconds at most.  A change of the quotas ends all waits: what was
counted is given back, and each request is looked at again.
"""

from __future__ import annotations

import asyncio

from bmq.proxy.quotas.holdings import Holding

HELD_MAX_S = 10.0
"""A third of what Kafka's clients wait for a response (``request.timeout.ms``)."""
REFUSED_S = 1.0
"""Time before a connection is closed, so that its client does not come again at once."""


class HeldRequests:
    """The requests of one process that wait."""

    def __init__(self) -> None:
        self._all: dict[asyncio.Future[bool], tuple[Holding, float]] = {}

    def __repr__(self) -> str:
        return f"<HeldRequests {len(self._all)}>"

    def __len__(self) -> int:
        return len(self._all)

    async def wait(self, seconds: float, holding: Holding, counted: float) -> bool:
        """Wait so many seconds.  Return True if a change of the quotas came first.

        ``counted`` is the request's amount in ``holding``, which the caller gives back if the wait is cancelled.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, _end, future, False)
        self._all[future] = (holding, counted)
        try:
            return await future
        finally:
            timer.cancel()
            self._all.pop(future, None)

    def give_back(self, now: float) -> None:
        """Give back what was counted for all requests that wait; `look_again` follows."""
        for holding, counted in self._all.values():
            holding.give_back(counted, now)

    def look_again(self) -> None:
        """End all waits, the oldest first."""
        for future in tuple(self._all):
            _end(future, True)
        self._all.clear()


def _end(future: asyncio.Future[bool], is_changed: bool) -> None:
    if not future.done():
        future.set_result(is_changed)
