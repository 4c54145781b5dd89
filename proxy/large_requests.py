"""Large requests: read and answered by a thread of their own, few at a time.

A body of some kilobytes may hold tens of thousands of elements.  To make objects of them, and bytes of the objects of
the response, takes longer than the event loop may stand still, and a hundred times the memory of the body.  So one
thread does it for all of them, and no more bodies are worked on at once than ``BODIES_MAX`` bytes: the others wait in
the order in which they came.  What a handler does between the two goes on in turns (``core.turns``).

The cyclic collector would go through all these objects while they live, in 100 ms in which nothing else runs; they have
no cycles and go as soon as the response is there.  So it makes no full collection meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from bmq.core.call import Buffer
from bmq.core.wire.codec import decode_request, encode_response

INLINE_BYTES = 8 << 10
"""A smaller body is read on the loop: at three bytes an element some milliseconds."""
BODIES_MAX = 4 << 20
"""Of all bodies that are worked on; one is always, whatever its size."""
FULL_COLLECTION_AFTER = 1_000
"""Large requests, one upon the other: then a full collection may come between two of them."""
_NEVER = 1 << 30
T = TypeVar("T")


class LargeRequests:
    """One process's.  Its thread begins with the first large request."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._under_way = 0  # bytes
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # at most one for each connection

    def __repr__(self) -> str:
        return f"<LargeRequests {self._under_way} bytes, {len(self._waiting)} waiting>"

    @asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[Callable[[], None]]:
        """Work on a body of ``size`` bytes, in turn.  Gives what ends that early; twice does no harm."""
        await self._enter(size)
        is_inside = True

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                self._leave(size)

        try:
            with _collector.spared():
                yield leave
        finally:
            leave()

    async def decode(self, api_key: int, version: int, body: memoryview) -> Any:
        """Return ``core.wire.codec.decode_request``'s message.  Raises FormatError."""
        return await self._run(decode_request, api_key, version, body)

    async def encode(self, api_key: int, version: int, correlation_id: int, box: list[Any]) -> list[Buffer]:
        """Encode the message that is alone in ``box``, which is empty then: the thread frees what it is made of."""
        with _collector.spared():
            return await self._run(_encode_and_free, api_key, version, correlation_id, box)

    async def free(self, box: list[Any]) -> None:
        """Empty ``box``.  To free a hundred thousand objects takes long, too."""
        await self._run(box.clear)

    async def _run(self, work: Callable[..., T], *arguments: Any) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "bmq-large-requests")
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    async def _enter(self, size: int) -> None:
        if not self._waiting and self._fits(size):
            self._under_way += size
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._let_in()
            else:  # admitted in the same moment
                self._leave(size)
            raise

    def _leave(self, size: int) -> None:
        self._under_way -= size
        self._let_in()

    def _fits(self, size: int) -> bool:
        return not self._under_way or self._under_way + size <= BODIES_MAX

    def _let_in(self) -> None:
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            size, turn = self._waiting.popleft()
            if not turn.done():  # else cancelled
                self._under_way += size
                turn.set_result(None)


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
