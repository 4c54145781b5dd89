"""Pauses of a computing thread, so that the event loop's thread gets the interpreter."""

from __future__ import annotations

import time

WORK_S = 0.002
"""Time of work between two pauses; the loop waits no longer for the interpreter, but for one large batch."""
REST_S = 0.006
"""Time of a pause: the thread takes a quarter of the interpreter's time at most."""


def no_pause() -> None:
    """Return at once: for computations on the loop, as in the simulation."""


class Pace:
    """A function to be called after each small piece of work of a thread: it sleeps when ``WORK_S`` are over."""

    __slots__ = ("_began_s",)

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._began_s >= WORK_S:
            time.sleep(REST_S)
            self._began_s = time.perf_counter()
