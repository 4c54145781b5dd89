"""The flushes of a partition that are in flight; a flush is counted once, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.broker import events as ev
from bmq.broker.context import BrokerContext
from bmq.broker.events import Event
from bmq.broker.files.flush_scheduler import Flusher
from bmq.broker.pending import Pending
from bmq.core.model import SegmentName
from bmq.storage.filesystem import Appender, LeaseLost, OutOfSpace, PipelineFailed, StorageError

JOIN_BYTES = 8192
"""Batches smaller than this on average are joined before the write: a copy costs less than a call for each."""


class Flush:
    """One flush in flight, of ``size`` bytes."""

    __slots__ = ("is_over", "name", "nodes", "sent_ms", "size")

    def __init__(self, name: SegmentName, nodes: tuple[str, ...], sent_ms: int, size: int) -> None:
        self.name = name
        self.nodes = nodes
        self.sent_ms = sent_ms
        self.size = size
        self.is_over = False


class InFlightFlushes:
    """Flushes in flight of one partition; ``post`` gets ``Flushed`` or ``SegmentFailed``, unless they are given up."""

    __slots__ = ("_all", "_context", "_flusher", "_post", "bytes")

    def __init__(self, context: BrokerContext, flusher: Flusher, post: Callable[[Event], None]) -> None:
        self._context = context
        self._flusher = flusher
        self._post = post
        self._all: set[Flush] = set()
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<InFlightFlushes {len(self._all)} bytes={self.bytes}>"

    def send(self, name: SegmentName, appender: Appender, taken: list[Pending], now_ms: int, *, sync: bool) -> None:
        """Write consecutive batches to the open file, and flush once."""
        size = taken[-1].end_position - taken[0].start_position
        flush = Flush(name, appender.nodes, now_ms, size)
        self._all.add(flush)
        self.bytes += size
        try:
            data = [pending.batch.data for pending in taken]
            if len(data) > 1 and size < len(data) * JOIN_BYTES:
                data = [memoryview(b"".join(data))]
            for piece in data:
                appender.write(piece)
            future = appender.flush(sync=sync)
        except StorageError as error:
            asyncio.get_running_loop().call_soon(self._failed, flush, error)
            return
        future.add_done_callback(lambda done: self._on_flushed(flush, done))

    def give_up(self, name: SegmentName | None = None) -> None:
        """Count the flushes to the segment ``name`` (None: all) as over; their results are late and are ignored."""
        for flush in [flush for flush in self._all if name is None or flush.name == name]:
            self._release(flush)
            self._context.scheduler.on_flush_ended(self._flusher)

    def _on_flushed(self, flush: Flush, future: asyncio.Future[int]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._failed(flush, error)
            return
        if flush.is_over:
            return  # given up before this ack
        context = self._context
        self._release(flush)
        flushed_ms = context.now_ms() - flush.sent_ms
        context.health.flushed(flush.nodes, flushed_ms)
        context.flush_ms.observe(flushed_ms)
        context.state.trouble = ""
        self._post(ev.Flushed(flush.name, future.result()))
        context.scheduler.on_flush_ended(self._flusher)

    def _failed(self, flush: Flush, error: BaseException) -> None:
        if flush.is_over:
            return
        self._release(flush)
        if isinstance(error, PipelineFailed):
            self._context.health.failed(error.suspects, self._context.now_ms())
        elif isinstance(error, OutOfSpace):
            self._context.open_files.lacks_room(str(error))
        self._context.state.trouble = str(error)
        self._post(ev.SegmentFailed(flush.name, repr(error), isinstance(error, LeaseLost)))
        self._context.scheduler.on_flush_ended(self._flusher)

    def _release(self, flush: Flush) -> None:
        flush.is_over = True
        self._all.discard(flush)
        self.bytes -= flush.size
