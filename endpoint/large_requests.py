"""Large requests: read and answered by a thread of their own, few at a time.

A body of some kilobytes may hold tens of thousands of elements.  To make objects of them, and bytes of the objects of
the response, takes longer than the event loop may stand still, and a hundred times the memory of the body.  So one
thread does it for all of them, and no more bodies are worked on at once than ``BODIES_MAX`` bytes: the others wait in
the order in which they came.  What a handler does between the two goes on in turns (``core.aio.turns``).

The cyclic collector would go through all these objects while they live, in 100 ms in which nothing else runs; they have
no cycles and go as soon as the response is there.  So it makes no full collection meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from bmq.core.aio.gate import Gate
from bmq.core.net.request import Buffer
from bmq.core.wire.codec import decode_request, encode_response
from bmq.core.wire.limits import PARTITIONS

INLINE_BYTES = 8 << 10
"""A smaller body is read on the loop: at three bytes an element some milliseconds."""
BODIES_MAX = 4 << 20
"""Of all bodies that are worked on; one is always, whatever its size."""
PARTITIONS_MAX = 2 * PARTITIONS
"""Of all large produces, or parked fetches without a session, under way: at up to a kilobyte each.  One is always."""
FULL_COLLECTION_AFTER = 1_000
"""Large requests, one upon the other: then a full collection may come between two of them."""
_NEVER = 1 << 30
T = TypeVar("T")


class LargeRequests:
    """One process's.  Its thread begins with the first large request."""

    def __init__(self) -> None:
        self._produced = Gate(PARTITIONS_MAX)
        self._thread: ThreadPoolExecutor | None = None
        self._bodies = Gate(BODIES_MAX)

    def __repr__(self) -> str:
        return f"<LargeRequests bodies={self._bodies} produced={self._produced}>"

    @asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[Callable[[], None]]:
        """Work on a body of ``size`` bytes, in turn.  Gives what ends that early; twice does no harm."""
        async with self._bodies.admitted(size) as leave:
            with _collector.spared():
                yield leave

    @asynccontextmanager
    async def produced(self, partitions: int) -> AsyncIterator[None]:
        """Have a produce to so many partitions under way, in turn: from before it is read until it is answered."""
        async with self._produced.admitted(partitions):
            with _collector.spared():
                yield

    async def decode(self, api_key: int, version: int, body: memoryview) -> Any:
        """Return ``core.wire.codec.decode_request``'s message.  Raises FormatError."""
        return await self.run(decode_request, api_key, version, body)

    async def encode(self, api_key: int, version: int, correlation_id: int, box: list[Any]) -> list[Buffer]:
        """Encode the message that is alone in ``box``, which is empty then: the thread frees what it is made of."""
        return await self.run(_encode_and_free, api_key, version, correlation_id, box)

    async def free(self, box: list[Any]) -> None:
        """Empty ``box``.  To free a hundred thousand objects takes long, too."""
        await self.run(box.clear)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return what ``work`` returns, called by the thread.  It may use nothing that the loop uses meanwhile."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "bmq-large-requests")
        with _collector.spared():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


class _Collector:
    """The process's collector; ``spared`` may be entered any number of times."""

    def __init__(self) -> None:
        self._inside = 0
        self._in_a_row = 0
        self._thresholds: tuple[int, int, int] | None = None

    @contextmanager
    def spared(self) -> Iterator[None]:
        self._inside += 1
        self._in_a_row += 1
        self._set()
        try:
            yield
        finally:
            self._inside -= 1
            self._set()

    def _set(self) -> None:
        if not self._inside or self._in_a_row > FULL_COLLECTION_AFTER:
            self._in_a_row = 0
            if self._thresholds is not None:
                gc.set_threshold(*self._thresholds)
                self._thresholds = None
        elif self._thresholds is None:
            self._thresholds = gc.get_threshold()
            gc.set_threshold(*self._thresholds[:2], _NEVER)


_collector = _Collector()


def _encode_and_free(api_key: int, version: int, correlation_id: int, box: list[Any]) -> list[Buffer]:
    message = box.pop()
    return encode_response(api_key, version, correlation_id, message)
