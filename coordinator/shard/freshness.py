"""Until when a shard may answer from memory: the proof that it is still the shard's one coordinator.

A coordinator that is cut off from the metadata store does not learn that the shard was given to another.  Its writes
are refused by the log; reads and heartbeats need no write, so they need a proof now and then: a batch that was
acknowledged, or the log's confirmation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError

FRESH_S = 3.0
"""Since the last proof.  Members must be told within the shortest session, 6 s, that their group has moved on."""


class Freshness:
    """``confirm`` asks the log.  One question at a time, however many wait for it."""

    def __init__(self, clock: Clock, confirm: Callable[[], Awaitable[None]]) -> None:
        self._clock = clock
        self._confirm = confirm
        self._proven_s = clock.monotonic()
        self._answer: asyncio.Future[None] | None = None  # of the question under way
        self._asking: asyncio.Task[None] | None = None

    @property
    def is_fresh(self) -> bool:
        return self._clock.monotonic() - self._proven_s < FRESH_S

    def prove(self) -> None:
        """A batch was acknowledged."""
        self._proven_s = self._clock.monotonic()

    async def renew(self) -> None:
        """Return once the shard may answer from memory.  RequestError: NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE."""
        if self.is_fresh:
            return
        if self._answer is None:
            self._answer = asyncio.get_running_loop().create_future()
            self._answer.add_done_callback(_retrieve)
            self._asking = asyncio.get_running_loop().create_task(self._ask(self._answer))
        await asyncio.shield(self._answer)

    def close(self) -> None:
        """The shard is another's: whoever waits is told so."""
        if self._asking is not None:
            self._asking.cancel()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RequestError(ErrorCode.NOT_COORDINATOR, "the shard is closed here"))

    async def _ask(self, answer: asyncio.Future[None]) -> None:
        began = self._clock.monotonic()
        try:
            await self._confirm()
        except RequestError as error:
            is_late = error.code is ErrorCode.REQUEST_TIMED_OUT
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_late else ErrorCode.NOT_COORDINATOR
            if not answer.done():
                answer.set_exception(RequestError(code, error.message))
        else:
            self._proven_s = max(self._proven_s, began)
            if not answer.done():
                answer.set_result(None)
        finally:
            self._answer = self._asking = None


def _retrieve(answer: asyncio.Future[None]) -> None:
    """Whoever waited for it may have gone."""
    if not answer.cancelled():
        answer.exception()
