"""Waits for conditions, on the running loop's time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def now() -> float:
    """Return the running loop's time, in seconds."""
    return asyncio.get_running_loop().time()


async def until(is_met: Callable[[], bool], limit_s: float = 600.0, *, every_s: float = 0.01) -> None:
    """Return once the condition holds, which is checked `every_s`.  Raises AssertionError after `limit_s`."""
    end = now() + limit_s
    while not is_met():  # what is waited for announces itself to nobody
        assert now() < end, "the condition never came to hold"
        await asyncio.sleep(every_s)
