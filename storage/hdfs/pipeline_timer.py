"""One timer for all pipelines of a process: late acknowledgements, and heartbeats on quiet ones.

Ten thousand idle pipelines cost one callback a quarter of a second.  The callback checks the pipelines with an
acknowledgement outstanding (none) and one slot of a wheel of all pipelines (every pipeline once in ``heartbeat_s``).

Lateness is counted in ticks of this timer, not in seconds of a clock. A process that was stopped, or whose loop was
busy, has not read its acknowledgements yet, and its datanodes are not at fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.storage.filesystem import PipelineFailed
from bmq.storage.hdfs.pipeline import Pipeline
from bmq.storage.hdfs.settings import HdfsSettings

TICK_S = 0.25


class PipelineClock:
    """The timer of a process's pipelines.

    ``on_late`` is called once for a packet that has waited for half of ``ack_timeout_s``; after all of it the pipeline
    fails.
    """

    def __init__(self, settings: HdfsSettings, on_late: Callable[[Pipeline], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_late = on_late
        self._ack_timeout_s = settings.ack_timeout_s
        self._fail_ticks = max(2, round(settings.ack_timeout_s / TICK_S))
        self._late_ticks = self._fail_ticks // 2
        self._waiting: dict[Pipeline, tuple[int, int]] = {}  # the oldest packet, and for how many ticks it has been
        slots = max(1, round(settings.heartbeat_s / TICK_S))
        self._wheel: list[set[Pipeline]] = [set() for _ in range(slots)]
        self._slot_of: dict[Pipeline, int] = {}
        self._next_slot = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._slot_of)

    def add(self, pipeline: Pipeline) -> None:
        """Watch a pipeline, in the slot checked last, so that a full turn passes before its first heartbeat."""
        slot = (self._next_slot - 1) % len(self._wheel)
        self._wheel[slot].add(pipeline)
        self._slot_of[pipeline] = slot
        if self._timer is None:
            self._timer = self._loop.call_later(TICK_S, self._tick)

    def remove(self, pipeline: Pipeline) -> None:
        """Stop watching a pipeline.  Idempotent."""
        slot = self._slot_of.pop(pipeline, None)
        if slot is not None:
            self._wheel[slot].discard(pipeline)
        self._waiting.pop(pipeline, None)

    def busy(self, pipeline: Pipeline) -> None:
        """Note that the pipeline now waits for an acknowledgement."""
        self._waiting[pipeline] = (-1, 0)

    def quiet(self, pipeline: Pipeline) -> None:
        """Note that all packets of the pipeline are acknowledged."""
        self._waiting.pop(pipeline, None)

    def close(self) -> None:
        """Abort every pipeline, and stop the timer."""
        for pipeline in list(self._slot_of):
            pipeline.abort()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._tick) if self._slot_of else None
        for pipeline in list(self._waiting):
            self._check_waiting(pipeline)
        for pipeline in list(self._wheel[self._next_slot]):
            if not pipeline.has_sent_since_check:
                pipeline.heartbeat()
            pipeline.has_sent_since_check = False
        self._next_slot = (self._next_slot + 1) % len(self._wheel)

    def _check_waiting(self, pipeline: Pipeline) -> None:
        seqno, ticks = self._waiting[pipeline]
        if seqno != pipeline.oldest_seqno:
            self._waiting[pipeline] = (pipeline.oldest_seqno, 0)
            return
        ticks += 1
        self._waiting[pipeline] = (seqno, ticks)
        if ticks >= self._fail_ticks:
            names = ", ".join(pipeline.suspects) or "none of its datanodes"
            message = f"no acknowledgement within {self._ack_timeout_s:g} s; silent: {names}"
            pipeline.fail(PipelineFailed(message, suspects=pipeline.suspects))
        elif ticks == self._late_ticks:
            self._on_late(pipeline)
