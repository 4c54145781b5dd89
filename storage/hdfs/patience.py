"""Waiting for several datanodes at once: a short time for all of them, a longer one for as many as are needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from bmq.core.aio.tasks import cancel_and_wait

T = TypeVar("T")
DOUBTED_S = 0.05
"""Least time that a doubted one has after the others: it may be as quick as they are."""


async def wait_for_enough(
    attempts: Sequence[asyncio.Task[T]],
    is_success: Callable[[T], bool],
    *,
    enough: int,
    soon_s: float,
    late_s: float,
    doubted: Collection[asyncio.Task[T]] = (),
) -> list[T | None]:
    """Return the results of the attempts, with None for an attempt that was late and was cancelled.

    Wait ``soon_s`` for all of them; if fewer than ``enough`` have succeeded by then, wait until so many have, no longer
    than ``late_s`` in all.  Once enough have, the ``doubted`` get as much time again, and no more.  Raises what an
    attempt raises, at once.  All attempts have ended in any case: the others are cancelled, also if the caller is.
    """

    def successes() -> int:
        return sum(attempt.done() and is_success(attempt.result()) for attempt in attempts)

    loop = asyncio.get_running_loop()
    began = loop.time()
    soon, latest = began + soon_s, began + late_s
    try:
        hopeful = [attempt for attempt in attempts if attempt not in doubted]
        await asyncio.wait(hopeful or attempts, timeout=soon_s, return_when=asyncio.FIRST_EXCEPTION)
        pending = {attempt for attempt in attempts if not attempt.done()}
        while pending and successes() < enough and (left_s := latest - loop.time()) > 0:
            _, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if pending and (left_s := soon - loop.time()) > 0:  # these are doubted: the others have ended
            again_s = max(DOUBTED_S, loop.time() - began)
            await asyncio.wait(pending, timeout=min(again_s, left_s), return_when=asyncio.FIRST_EXCEPTION)
        successes()  # raises what an attempt has raised
    finally:
        await cancel_and_wait(*attempts)
    return [None if attempt.cancelled() else attempt.result() for attempt in attempts]
