"""Proof that this process is still the shard's only coordinator, without which it must not respond from memory.

A coordinator that is cut off from the metadata store is not notified that the shard has a new owner.  The log refuses
its writes.  Reads and heartbeats write nothing, so they need a recent proof: an acknowledged batch, or the log's
confirmation that it would accept a batch.  A proof counts from the moment when the batch or the question was sent.

A process that stood still (``core.aio.standstill``) needs a proof since then, however recent the last proof is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from bmq.core.clock import Clock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields

FRESH_S = 3.0
"""A proof is good for this long.  A member must learn within the shortest session, 6 s, that its group has moved."""
_log = logging.getLogger(__name__)


class Freshness:
    """The last proof of one shard.  ``confirm`` asks the log; one call is under way at a time, for all that wait."""

    def __init__(self, clock: Clock, confirm: Callable[[], Awaitable[None]]) -> None:
        """Count the first batch, a barrier, as a proof: make the object before the batch is sent."""
        self._clock = clock
        self._confirm = confirm
        self._proven_s = clock.monotonic()
        self._doubted_s = -math.inf
        self._asked = 0  # questions to the log
        self._confirmed_last = 0  # the number of the last question that was confirmed
        self._confirmed: asyncio.Future[None] | None = None  # result of the call under way
        self._confirming: asyncio.Task[None] | None = None

    @property
    def is_fresh(self) -> bool:
        """True if the last proof is less than ``FRESH_S`` old."""
        return self._clock.monotonic() - self._proven_s < FRESH_S

    def prove(self, sent_s: float) -> None:
        """Record the acknowledgement of a batch, sent at ``sent_s`` by the clock.

        For a batch from before a doubt it proves nothing: the acknowledgement may be as old.
        """
        if sent_s >= self._doubted_s:
            self._proven_s = max(self._proven_s, sent_s)

    def doubt(self) -> None:
        """Forget the last proof, and count none that is under way: another process may own the shard by now."""
        self._proven_s = -math.inf
        self._doubted_s = self._clock.monotonic()

    async def renew(self) -> None:
        """Return once the shard may respond from memory; ask the log if the last proof is too old.

        Raises RequestError: NOT_COORDINATOR if the log has another owner or cannot be reached,
        COORDINATOR_NOT_AVAILABLE if it does not respond in time.
        """
        if not self.is_fresh:
            await self._renewed()

    async def prove_again(self) -> None:
        """Return once the log has confirmed the ownership by a question of after this call.

        For a response that would do harm if it was outdated.  Other requests go on with the proof that they have.
        Raises RequestError as ``renew`` does.
        """
        wanted = self._asked + 1
        while self._confirmed_last < wanted:  # twice at most: the question under way is of before this call
            await self._renewed()

    def ask(self) -> bool:
        """Return whether the shard was proven after the last doubt; if not, start a proof for later calls.

        Nothing waits here.  The result is for numbers that may be some seconds old.
        """
        if self._proven_s < self._doubted_s and self._confirmed is None:
            self._start().add_done_callback(_log_bug)
        return self._proven_s >= self._doubted_s

    async def _renewed(self) -> None:
        await asyncio.shield(self._confirmed or self._start())

    def _start(self) -> asyncio.Future[None]:
        """Begin a question to the log; return the future of its result."""
        self._confirmed = confirmed = asyncio.get_running_loop().create_future()
        confirmed.add_done_callback(_retrieve)
        self._confirming = asyncio.get_running_loop().create_task(self._ask(confirmed))
        return confirmed

    def close(self) -> None:
        """End ``renew`` calls that wait with NOT_COORDINATOR: the shard is closed in this process."""
        if self._confirming is not None:
            self._confirming.cancel()
        if self._confirmed is not None and not self._confirmed.done():
            self._confirmed.set_exception(
                RequestError(ErrorCode.NOT_COORDINATOR, "the shard is closed in this process")
            )

    async def _ask(self, confirmed: asyncio.Future[None]) -> None:
        try:
            began = await self._confirm_once()
            while began < self._doubted_s:
                began = await self._confirm_once()
        except RequestError as error:
            is_late = error.code is ErrorCode.REQUEST_TIMED_OUT
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE if is_late else ErrorCode.NOT_COORDINATOR
            if not confirmed.done():
                confirmed.set_exception(RequestError(code, error.message))
        except Exception as error:  # noqa: BLE001  # a bug fails the requests that wait, which log it
            if not confirmed.done():
                confirmed.set_exception(error)
        else:
            self.prove(began)
            if not confirmed.done():
                confirmed.set_result(None)
        finally:
            self._confirmed = self._confirming = None

    async def _confirm_once(self) -> float:
        """Have the log confirm the ownership; return the time of the question."""
        began = self._clock.monotonic()
        self._asked += 1
        number = self._asked
        await self._confirm()
        self._confirmed_last = number
        return began


def _retrieve(confirmed: asyncio.Future[None]) -> None:
    """Mark the exception as retrieved: the requests that waited for it may have been cancelled."""
    if not confirmed.cancelled():
        confirmed.exception()


def _log_bug(confirmed: asyncio.Future[None]) -> None:
    """Log the exception of a proof for which no request may wait."""
    error = None if confirmed.cancelled() else confirmed.exception()
    if error is not None and not isinstance(error, RequestError):
        _log.error("the proof of a shard's ownership failed", exc_info=error, extra=fields(error=error))
