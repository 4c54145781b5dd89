"""The time for which this process's own event loop was held up, to be subtracted from other processes' delays."""

from __future__ import annotations

import asyncio


class HeldUp:
    """A counter of the seconds for which the loop, or the whole process, stood still; from its creation to ``close``.

    A timer that is late by more than its own period of ``tick_s`` seconds shows a stop.
    """

    def __init__(self, tick_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._tick_s = tick_s
        self._total_s = 0.0
        self._ticked = self._loop.time()
        self._timer = self._loop.call_later(tick_s, self._tick)

    @property
    def seconds(self) -> float:
        """Seconds in all, including a stop that has just ended."""
        return self._total_s + self._late_s()

    def close(self) -> None:
        """Stop counting."""
        self._timer.cancel()

    def _tick(self) -> None:
        self._total_s += self._late_s()
        self._ticked = self._loop.time()
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    def _late_s(self) -> float:
        late_s = self._loop.time() - self._ticked - self._tick_s
        return late_s if late_s > self._tick_s else 0.0
