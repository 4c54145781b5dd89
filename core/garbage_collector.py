"""Tuning of Python's cyclic garbage collector, so that it does not stop a process that holds many objects.

A full collection visits every object that may be part of a cycle: 100,000 topics are a million objects, and 100 ms in
which nothing else runs.  CPython begins a full collection whenever a quarter has been added, so a process that loads
its views makes one after another.  Objects that a long collection found alive are therefore set aside (``gc.freeze``):
the next collection visits only newer objects.  And full collections are made more often than CPython makes them by
itself, so that fewer objects are new.  The longest collection visits the objects that are not worth setting aside, and
``NEW_MAX`` objects more.

The price: a cycle of objects that were set aside is not collected when it becomes garbage.  Long collections are few,
after some hundred thousand new objects that stayed.  Here, objects that stay are views and caches.  They have no cycles
and are freed when they are replaced.  After every ``THAW_EVERY`` long collections, one visits everything.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Mapping

LIMIT_S = 0.002
"""CPU time of a full collection, in seconds, from which on what it found is set aside: some 10,000 objects."""
THRESHOLDS = (700, 10, 2)
"""``gc.set_threshold``: a full collection after three of the middle generation.  CPython's own, (700, 10, 10), lets
85,000 objects come between two, which is 40 ms on a machine whose caches others use."""
NEW_MAX = 25_000
"""Objects that come between two full collections: three times 11 young generations, and some that are made meanwhile.
CPython skips a full collection while less than a quarter is new; of more than ``LIMIT_S`` worth that is never so."""
THAW_EVERY = 4_000
"""Long collections after which one visits everything: it takes as long as without this class, and bounds the cycles
left."""
_FULL = 2


class LongCollections:
    """A watch over full collections, between ``start`` and ``stop``, on the running loop."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.set_aside = 0
        """Number of times that objects were set aside."""
        self._limit_s = limit_s
        self._began = 0.0
        self._is_freezing = False
        self._thresholds_before = gc.get_threshold()
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        """Set aside all objects that exist, lower the thresholds, and watch collections.

        The objects that exist live as long as the process.
        """
        self._thresholds_before = gc.get_threshold()
        gc.set_threshold(*THRESHOLDS)
        gc.collect()
        gc.freeze()
        # A collection of nothing: the next one is due after a quarter of its size, not of what was set aside.
        gc.collect()
        gc.callbacks.append(self._called)

    def stop(self) -> None:
        """Restore the thresholds and collect as usual from here on.  Idempotent."""
        if self._called in gc.callbacks:
            gc.callbacks.remove(self._called)
            gc.set_threshold(*self._thresholds_before)

    def _called(self, phase: str, info: Mapping[str, int]) -> None:
        """Time a full collection.  The collector calls this, in the thread in which it began."""
        if info["generation"] != _FULL or self._is_freezing:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began >= self._limit_s:
            self._loop.call_soon_threadsafe(self._freeze)

    def _freeze(self) -> None:
        self.set_aside += 1
        self._is_freezing = True
        if self.set_aside % THAW_EVERY == 0:
            gc.unfreeze()
            gc.collect()
        gc.freeze()
        gc.collect()  # of next to nothing: a quarter of that is added soon, so the next full one is short
        self._is_freezing = False
