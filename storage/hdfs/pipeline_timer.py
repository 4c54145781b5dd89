"""One timer for all pipelines of a process: late acknowledgements, and heartbeats on quiet ones.

Ten thousand idle pipelines cost one callback a quarter of a second, which looks at the pipelines that wait for an
acknowledgement (none) and at one slot of a wheel of the others (every pipeline once in ``heartbeat_s``).

Lateness is counted in ticks of this clock, not in seconds of another: a process that was stopped, or whose loop was
busy, has not read its acknowledgements yet and must not blame a datanode for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.storage.filesystem import PipelineFailed
from bmq.storage.hdfs.pipeline import Pipeline
from bmq.storage.hdfs.settings import HdfsSettings

TICK_S = 0.25


class PipelineClock:
    """``on_late`` is called once for a packet that has waited half of its time; after all of it the pipeline fails."""

    def __init__(self, settings: HdfsSettings, on_late: Callable[[Pipeline], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_late = on_late
        self._ack_timeout_s = settings.ack_timeout_s
        self._fail_ticks = max(2, round(settings.ack_timeout_s / TICK_S))
        self._late_ticks = self._fail_ticks // 2
        self._waiting: dict[Pipeline, tuple[int, int]] = {}  # the oldest packet, ticks it has been that
        slots = max(1, round(settings.heartbeat_s / TICK_S))
        self._wheel: list[set[Pipeline]] = [set() for _ in range(slots)]
        self._slot_of: dict[Pipeline, int] = {}
        self._next_slot = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    def add(self, pipeline: Pipeline) -> None:
        """Into the slot looked at last, so that a full turn passes before its first heartbeat."""
        slot = (self._next_slot - 1) % len(self._wheel)
        self._wheel[slot].add(pipeline)
        self._slot_of[pipeline] = slot
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def remove(self, pipeline: Pipeline) -> None:
        slot = self._slot_of.pop(pipeline, None)
        if slot is not None:
            self._wheel[slot].discard(pipeline)
        self._waiting.pop(pipeline, None)

    def busy(self, pipeline: Pipeline) -> None:
        self._waiting[pipeline] = (-1, 0)

    def quiet(self, pipeline: Pipeline) -> None:
        self._waiting.pop(pipeline, None)

    def close(self) -> None:
        """Drop every pipeline."""
        for pipeline in list(self._slot_of):
            pipeline.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick) if self._slot_of else None
        for pipeline in list(self._waiting):
            self._look_at_waiting(pipeline)
        for pipeline in list(self._wheel[self._next_slot]):
            if not pipeline.has_sent_since_look:
                pipeline.heartbeat()
            pipeline.has_sent_since_look = False
        self._next_slot = (self._next_slot + 1) % len(self._wheel)

    def _look_at_waiting(self, pipeline: Pipeline) -> None:
        seqno, ticks = self._waiting[pipeline]
        if seqno != pipeline.oldest_seqno:
            self._waiting[pipeline] = (pipeline.oldest_seqno, 0)
            return
        ticks += 1
        self._waiting[pipeline] = (seqno, ticks)
        if ticks >= self._fail_ticks:
            names = ", ".join(pipeline.suspects) or "nobody known"
            message = f"no acknowledgement within {self._ack_timeout_s:g} s; silent: {names}"
            pipeline.fail(PipelineFailed(message, suspects=pipeline.suspects))
        elif ticks == self._late_ticks:
            self._on_late(pipeline)
