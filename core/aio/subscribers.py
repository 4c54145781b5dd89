"""Callbacks for events, one that does nothing, and waiting for an event no longer than a time-out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


def no_op(*_: object) -> None:
    """Do nothing: a callback that nobody needs, or the end of a subscription that never began."""


class Subscribers(Generic[P]):
    """Callbacks, called in the order in which they were added; the same one added twice is called twice."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[object, Callable[P, None]] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Callable[P, None]) -> Callable[[], None]:
        """Call ``call`` at each event from now on.  Return an idempotent function that removes it."""
        token = object()
        self._calls[token] = call

        def forget() -> None:
            self._calls.pop(token, None)

        return forget

    def notify(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Call every callback with these arguments.

        Callbacks added or removed meanwhile count from the next event on.
        """
        for call in tuple(self._calls.values()):
            call(*args, **kwargs)

    def notify_last(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Remove every callback and call it once with these arguments: the last event.

        Every callback is called, whatever earlier callbacks raise: it may give back memory that no later event would.
        Raises the exception of the last callback that failed.
        """
        calls, self._calls = self._calls, {}
        with contextlib.ExitStack() as stack:
            for call in reversed(calls.values()):
                stack.callback(call, *args, **kwargs)


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait for ``event``, ``timeout_s`` seconds at most (None: without end).  Return whether it was set in time."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
