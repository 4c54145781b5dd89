"""The audit log of a process: events in, lines out, by one task.

``write`` never waits and never fails: what finds no room is counted (``core.audit.queue``).  When lines cannot be
written, requests go on: the lines wait as far as there is room, the writer tries again, one log line and the metrics
say so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from bmq.core.aio.tasks import OwnedTasks
from bmq.core.audit.event import AuditEvent, left_out_line, line_of
from bmq.core.audit.queue import AuditQueue
from bmq.core.clock import Clock
from bmq.core.logging.fields import fields

_log = logging.getLogger("bmq.audit")
GATHER_S = 0.05
"""Time for which lines are gathered before they are written together."""
RETRY_S = 1.0
CLOSE_S = 5.0
"""Time that the end of the process waits for the last lines."""


class Audit(Protocol):
    """Receiver of the audit log's events."""

    is_on: bool
    """False if nobody wants events, so that none need be made."""

    def write(self, event: AuditEvent) -> None:
        """Take an event.  Returns at once."""


class _NoAudit:
    """The audit log of a process without the setting, and of internal ports."""

    is_on = False

    def __repr__(self) -> str:
        return "NO_AUDIT"

    def write(self, event: AuditEvent) -> None:
        """Do nothing."""


NO_AUDIT: Audit = _NoAudit()


class NotWritten(Exception):
    """Lines that could not be written, but for the first ``written``; ``str`` says why."""

    def __init__(self, why: str, written: int = 0) -> None:
        super().__init__(why)
        self.written = written


class Sink(Protocol):
    """The place that lines are written to."""

    async def write(self, lines: Sequence[bytes]) -> None:
        """Write whole lines.  Raises NotWritten."""

    async def close(self) -> None:
        """Close it.  Idempotent."""


class AuditLog:
    """The audit log of one process.  All methods are called on the event loop."""

    is_on = True

    def __init__(self, sink: Sink, lines_per_s: int, clock: Clock, node: Callable[[], int], member: str) -> None:
        """``node`` returns the proxy's id; ``member`` is the process's incarnation."""
        self._sink = sink
        self._clock = clock
        self._node = node
        self._member = member
        self.queue = AuditQueue(lines_per_s)
        self._is_ending = False
        self._wake = asyncio.Event()
        self._tasks = OwnedTasks(self._on_bug)
        self._batch: Sequence[bytes] = ()
        self.written = 0
        """Lines written."""
        self.failures = 0
        """Writes that failed."""
        self.is_failing = False
        """True while the last write has failed."""
        self._trouble = ""

    def __repr__(self) -> str:
        return f"<AuditLog waiting={len(self.queue)} written={self.written}{' failing' if self.is_failing else ''}>"

    @property
    def waiting(self) -> int:
        """Lines that wait, or are being written."""
        return len(self.queue) + len(self._batch)

    @property
    def left_out(self) -> Mapping[str, int]:
        """Lines that found no room, by priority."""
        return self.queue.left_out

    def start(self) -> None:
        """Begin to write."""
        self._tasks.start(self._run(), "audit log")

    async def close(self) -> None:
        """Write what waits, for ``CLOSE_S`` at most, and end.  Idempotent."""
        if self._is_ending:
            return
        self._is_ending = True
        self._wake.set()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._tasks.finish()
        except TimeoutError:
            why = f"{self.waiting} lines: {self._trouble or f'not written within {CLOSE_S:g} s'}"
            _log.error("audit lines are lost: the process ends, and they cannot be written", extra=fields(error=why))
        await self._sink.close()

    def write(self, event: AuditEvent) -> None:
        """Let the event's line be written, or count it if there is no room."""
        if self.queue.has_room(event):
            self.queue.put(event, line_of(event, self._clock.now_ms(), self._node(), self._member))
        self._wake.set()

    async def _run(self) -> None:
        while not self._is_ending:
            await self._wake.wait()
            if not self._is_ending:
                await asyncio.sleep(GATHER_S)
            self._wake.clear()
            if await self._write_next():
                self._wake.set()
        while await self._write_next():
            pass

    async def _write_next(self) -> bool:
        """Write a batch.  Return whether more is to be written, now or when the rate allows it."""
        now, is_last = self._clock.monotonic(), self._is_ending
        lines = self.queue.take(now, is_last=is_last)
        if counts := self.queue.take_left_out(now, is_last=is_last):
            lines.insert(0, left_out_line(counts, self._clock.now_ms(), self._node(), self._member))
        self._batch = lines
        while self._batch:
            try:
                await self._sink.write(self._batch)
            except NotWritten as error:
                self._on_failure(error)
                await asyncio.sleep(RETRY_S)
            else:
                self._on_written()
        return bool(len(self.queue)) or self.queue.has_left_out

    def _on_bug(self, error: BaseException) -> None:
        """Show that nothing is written any more."""
        self.failures += 1
        self.is_failing, self._trouble = True, f"{type(error).__name__}: {error}"

    def _on_failure(self, error: NotWritten) -> None:
        self.failures += 1
        self.written += error.written
        self._batch = self._batch[error.written :]
        self._trouble = str(error)
        if not self.is_failing:
            self.is_failing = True
            _log.error("audit lines cannot be written, and wait as far as there is room", extra=fields(error=error))

    def _on_written(self) -> None:
        self.written += len(self._batch)
        self._batch = ()
        if self.is_failing:
            _log.info("audit lines are written again", extra=fields(error=self._trouble))
            self.is_failing, self._trouble = False, ""
