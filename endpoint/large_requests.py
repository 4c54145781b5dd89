"""Large requests: decoded and encoded by one thread, few at a time.

A body of some kilobytes may hold tens of thousands of elements.  To decode them, and to encode as many elements of the
response, takes longer than the event loop may stand still, and a hundred times the memory of the body.  So a single
thread does this work for all large requests.  The bodies in work at once have at most ``BODIES_MAX`` bytes; other
bodies wait in the order of arrival.  Between decoding and encoding, the handler works in turns of the loop
(``core.aio.turns``).

While these objects live, a full collection of the cyclic garbage collector would visit them all, in 100 ms in which
nothing else runs.  They have no cycles and are freed as soon as the response is there, so full collections are switched
off meanwhile.
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
"""Bytes of a body that is still decoded on the loop: at three bytes an element, some milliseconds."""
BODIES_MAX = 4 << 20
"""Bytes of all bodies that are worked on at once; one body is always admitted, whatever its size."""
PARTITIONS_MAX = 2 * PARTITIONS
"""Partitions, at up to a kilobyte each, of all large produces under way, or of all large parked fetches without a
session; one request is always admitted."""
FULL_COLLECTION_AFTER = 1_000
"""Steps of large requests (a request has several), without a moment in which none is under way, after which a full
collection is possible again."""
_NEVER = 1 << 30
T = TypeVar("T")


class LargeRequests:
    """One process's admission of large requests, and the thread that decodes and encodes them.

    The thread is started by the first large request.
    """

    def __init__(self) -> None:
        self._produced = Gate(PARTITIONS_MAX)
        self._thread: ThreadPoolExecutor | None = None
        self._bodies = Gate(BODIES_MAX)

    def __repr__(self) -> str:
        return f"<LargeRequests bodies={self._bodies} produced={self._produced}>"

    @asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[Callable[[], None]]:
        """Hold room for a body of ``size`` bytes; waits for it, in the order of arrival.

        Yields a function that gives the room back early; a second call has no effect.
        """
        async with self._bodies.admitted(size) as leave:
            with _collector.spared():
                yield leave

    @asynccontextmanager
    async def produced(self, partitions: int) -> AsyncIterator[None]:
        """Hold room for a large produce to so many partitions; waits for it, in the order of arrival.

        To be held from before the request is decoded until its response is encoded.
        """
        async with self._produced.admitted(partitions):
            with _collector.spared():
                yield

    async def decode(self, api_key: int, version: int, body: memoryview) -> Any:
        """Return the message that ``core.wire.codec.decode_request`` reads.  Raises FormatError if it cannot."""
        return await self.run(decode_request, api_key, version, body)

    async def encode(self, api_key: int, version: int, correlation_id: int, box: list[Any]) -> list[Buffer]:
        """Return the encoded message.

        ``box`` holds that message alone, and is emptied, so that the thread frees it.
        """
        return await self.run(_encode_and_free, api_key, version, correlation_id, box)

    async def free(self, box: list[Any]) -> None:
        """Empty ``box`` in the thread: to free a hundred thousand objects takes long, too."""
        await self.run(box.clear)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """Return the result of ``work``, called by the thread.  It must not use what the loop uses meanwhile."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "bmq-large-requests")
        with _collector.spared():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)


class _Collector:
    """The process's cyclic garbage collector, which makes no full collection while anyone is inside ``spared``."""

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
