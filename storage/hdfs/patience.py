"""Waiting for several datanodes at once: a short time for all of them, a longer one for as many as are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from bmq.core.aio.tasks import cancel_and_wait

T = TypeVar("T")


async def wait_for_enough(
    attempts: Sequence[asyncio.Task[T]], is_success: Callable[[T], bool], *, enough: int, soon_s: float, late_s: float
) -> list[T | None]:
    """Return the result of each attempt, None for one that is late and was cancelled.

    Wait ``soon_s`` for all of them; if fewer than ``enough`` have succeeded by then, wait until so many have, no longer
    than ``late_s`` in all.  Raises what an attempt raises, at once.  All attempts have ended in any case: the others
    are cancelled, also if the caller is.
    """

    def successes() -> int:
        return sum(attempt.done() and is_success(attempt.result()) for attempt in attempts)

    loop = asyncio.get_running_loop()
    latest = loop.time() + late_s
    try:
        _, pending = await asyncio.wait(attempts, timeout=soon_s, return_when=asyncio.FIRST_EXCEPTION)
        while pending and successes() < enough and (left_s := latest - loop.time()) > 0:
            _, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        successes()  # raises what an attempt has raised
    finally:
        await cancel_and_wait(*attempts)
    return [None if attempt.cancelled() else attempt.result() for attempt in attempts]
