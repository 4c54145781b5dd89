"""The flushes of one partition that are on their way: each is counted once, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bmq.broker.context import BrokerContext
from bmq.broker.files.flush_scheduler import Flusher
from bmq.broker.partition import events as ev
from bmq.broker.partition.events import Event, Pending
from bmq.core.model import SegmentName
from bmq.storage.filesystem import Appender, OutOfSpace, PipelineFailed, StorageError

JOIN_BYTES = 8192  # batches smaller than this on average are joined: a copy costs less than a call for each


class Flush:
    """One flush."""

    __slots__ = ("is_over", "name", "nodes", "sent_ms", "size")

    def __init__(self, name: SegmentName, nodes: tuple[str, ...], sent_ms: int, size: int) -> None:
        self.name = name
        self.nodes = nodes
        self.sent_ms = sent_ms
        self.size = size
        self.is_over = False


class InFlightFlushes:
    """``post`` hears ``Flushed`` or ``PipelineFailed`` of each that was not given up before."""

    __slots__ = ("_all", "_flusher", "_post", "_shared", "bytes")

    def __init__(self, shared: BrokerContext, flusher: Flusher, post: Callable[[Event], None]) -> None:
        self._shared = shared
        self._flusher = flusher
        self._post = post
        self._all: set[Flush] = set()
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Flights {len(self._all)} bytes={self.bytes}>"

    def send(self, name: SegmentName, appender: Appender, taken: list[Pending], now_ms: int, *, sync: bool) -> None:
        """One write and one flush of consecutive batches."""
        size = taken[-1].end_position - taken[0].start_position
        flight = Flush(name, appender.nodes, now_ms, size)
        self._all.add(flight)
        self.bytes += size
        try:
            data = [pending.batch.data for pending in taken]
            if len(data) > 1 and size < len(data) * JOIN_BYTES:
                data = [memoryview(b"".join(data))]
            for piece in data:
                appender.write(piece)
            future = appender.flush(sync=sync)
        except StorageError as error:
            asyncio.get_running_loop().call_soon(self._failed, flight, error)
            return
        future.add_done_callback(lambda done: self._landed(flight, done))

    def give_up(self, name: SegmentName | None = None) -> None:
        """What is still heard of those to the segment (None: of all) is late."""
        for flight in [flight for flight in self._all if name is None or flight.name == name]:
            self._release(flight)
            self._shared.scheduler.landed(self._flusher)

    def _landed(self, flight: Flush, future: asyncio.Future[int]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._failed(flight, error)
            return
        if flight.is_over:
            return  # given up before this ack
        shared = self._shared
        self._release(flight)
        flushed_ms = shared.now_ms() - flight.sent_ms
        shared.health.flushed(flight.nodes, flushed_ms)
        shared.flush_ms.observe(flushed_ms)
        shared.trouble = ""
        self._post(ev.Flushed(flight.name, future.result()))
        shared.scheduler.landed(self._flusher)

    def _failed(self, flight: Flush, error: BaseException) -> None:
        if flight.is_over:
            return
        self._release(flight)
        if isinstance(error, PipelineFailed):
            self._shared.health.failed(error.suspects, self._shared.now_ms())
        elif isinstance(error, OutOfSpace):
            self._shared.places.lacks_room(str(error))
        self._shared.trouble = str(error)
        self._post(ev.SegmentFailed(flight.name, repr(error)))
        self._shared.scheduler.landed(self._flusher)

    def _release(self, flight: Flush) -> None:
        flight.is_over = True
        self._all.discard(flight)
        self.bytes -= flight.size
