"""Stops of an event loop, as processor time of its own thread: a noisy machine makes none.

A stop is what the loop's thread computes in one turn: between two looks for what has happened, nobody else is served.
Time that the thread waits (for the processor, for another thread's lock) is not counted.

A noisy machine still makes the same work cost up to three times its processor time: cores share caches and a clock.
So a stop over the bound is compared with a known piece of work, done on the same core at once (`slowness`).
"""

from __future__ import annotations

import asyncio
import gc
import struct
import time
from collections.abc import Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

STOP_MAX_S = 0.050
"""No request that the limits allow may stop the loop for longer, on a processor as fast as `PIECE_S` says."""
PIECE_S = 0.0065
"""Processor time of `_piece_of_work` on an idle core of 2.8 GHz with CPython 3.11."""
_PIECES = 30
"""Pieces of work that are measured beside a stop over its bound."""


def is_short(stop_s: float, most_s: float = STOP_MAX_S) -> bool:
    """Return whether a stop is within ``most_s``, at the pace that this machine has now."""
    return stop_s < most_s or stop_s < most_s * slowness()


def slowness() -> float:
    """Return how many times its processor time on an idle core the same work costs here and now; 1 at least.

    The slowest of some pieces counts, as the longest of many turns does: a test has a hundred turns and more.
    """
    with without_collector():
        return max(1.0, max(_piece_of_work() for _ in range(_PIECES)) / PIECE_S)


def _piece_of_work() -> float:
    """Do what a turn of the loop does (objects, a table, bytes, an order); return its processor time in seconds."""
    began = time.thread_time()
    held = {}
    for number in range(10_000):
        name = f"member-{number}"
        held[name] = (number, struct.pack(">h", len(name)) + name.encode())
    b"".join(packed for _, packed in sorted(held.values(), key=lambda entry: -entry[0]))
    return time.thread_time() - began


class MeasuredLoop(asyncio.SelectorEventLoop):
    """A loop that knows its longest turn.  ``stops`` are seconds of the thread's processor time, one of each turn that
    took over a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[float] = []

    def _run_once(self) -> None:
        begin = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        took_s = time.thread_time() - begin
        if took_s > 0.001:
            self.stops.append(took_s)

    @property
    def longest_stop_s(self) -> float:
        return max(self.stops, default=0.0)


def run_measured(main: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """Run ``main`` like ``asyncio.run``; return its result and the longest stop in seconds.

    To measure only a part, let ``main`` clear ``asyncio.get_running_loop().stops`` where that begins.
    """
    loop = MeasuredLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        result = runner.run(main)
        longest_s = loop.longest_stop_s
    return result, longest_s


class TurnCounter:
    """A count of what is done in each turn of the running loop, also of one with virtual time."""

    def __init__(self) -> None:
        self._counts = [0]
        loop: Any = asyncio.get_running_loop()
        run_once = loop._run_once  # the virtual loop looks at its selector only when nothing is ready

        def counted() -> None:
            self._counts.append(0)
            run_once()

        loop._run_once = counted

    def count(self, *_args: object, **_options: object) -> None:
        """One thing is done."""
        self._counts[-1] += 1

    def take(self) -> list[int]:
        """Return how much was done in each turn since the last call, without the turns that did nothing."""
        taken = [count for count in self._counts if count]
        self._counts = [0]
        return taken


def longest_step_s(steps: Iterable[object]) -> float:
    """Run all of ``steps``.  Return the longest one, in seconds of processor time."""
    longest_s, began = 0.0, time.thread_time()
    for _ in steps:
        longest_s = max(longest_s, time.thread_time() - began)
        began = time.thread_time()
    return max(longest_s, time.thread_time() - began)


@contextmanager
def without_collector() -> Iterator[None]:
    """Keep the cyclic collector still: what a test itself has allocated is no part of a stop."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def forget_stops() -> None:
    """Begin to measure here, on the running ``MeasuredLoop``."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MeasuredLoop)
    loop.stops.clear()


class LoopStops:
    """The longest turn, in seconds of processor time."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.turns = 0


@contextmanager
def loop_stops() -> Iterator[LoopStops]:
    """Measure the turns of the running loop, whichever it is: that of a simulation has virtual time.

    What the caller does before its first await belongs to the first turn.  The collector is kept still meanwhile.
    """
    loop: Any = asyncio.get_running_loop()
    run_once, found = loop._run_once, LoopStops()
    began = time.thread_time()

    def measured() -> None:
        nonlocal began
        found.longest_s = max(found.longest_s, time.thread_time() - began)
        found.turns += 1
        began = time.thread_time()
        run_once()

    loop._run_once = measured
    try:
        with without_collector():
            began = time.thread_time()
            yield found
            found.longest_s = max(found.longest_s, time.thread_time() - began)
    finally:
        loop._run_once = run_once
