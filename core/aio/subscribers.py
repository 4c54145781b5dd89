"""Telling those who want to know, and waiting for news no longer than a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Subscribers(Generic[P]):
    """Calls, in the order in which they came; the same one twice is two."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[object, Callable[P, None]] = {}

    def add(self, call: Callable[P, None]) -> Callable[[], None]:
        """The answer forgets it again.  Idempotent."""
        token = object()
        self._calls[token] = call

        def forget() -> None:
            self._calls.pop(token, None)

        return forget

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Who comes or goes meanwhile counts from the next time on."""
        for call in tuple(self._calls.values()):
            call(*args, **kwargs)

    def tell_last(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Nobody is told of anything after it."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call(*args, **kwargs)


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether it was set before the time was over; None waits without end."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
