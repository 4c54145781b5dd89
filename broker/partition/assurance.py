"""Proof of ownership after a standstill: the owner's view of its log may be outdated.

While this process stood still, another broker may have taken the partition over and acknowledged records.  Storage
refuses this broker's writes then, but its memory still has the old end, start and index of the log.  A response from
that memory, "no record at or after this time", makes a consumer skip acknowledged records.  So after a doubt
(``core.aio.standstill``) each response about the log waits for one read of the metadata store.  Without a doubt the
broker reads nothing: consumers can start while the store is away.
"""

from __future__ import annotations

import asyncio

from bmq.broker.partition.driver import PartitionDriver
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import KvError


class Assurance:
    """The proofs of one partition.  A single read of the store serves all answers that wait when it begins.

    Reads for many partitions share calls to the store (``meta.record_groups``).
    """

    __slots__ = ("_driver", "_proven", "_task", "_waiting")

    def __init__(self, driver: PartitionDriver) -> None:
        self._driver = driver
        self._proven = driver.doubts_before  # the number of the last doubt that a proof has answered
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_sure(self) -> bool:
        """True if the ownership was proven after the last doubt."""
        return self._proven >= self._driver.context.standstill.standing

    async def renew(self) -> None:
        """Return once ``is_sure``.  A result that the caller computed before the call is then right.

        Raises RequestError NOT_LEADER_OR_FOLLOWER if this broker is not the owner any more, or the store does not
        respond.
        """
        while not self.is_sure:
            proven = asyncio.get_running_loop().create_future()
            self._waiting.append(proven)
            self._start()
            await proven

    def ask(self) -> bool:
        """Return ``is_sure``, for a caller that does not wait; if it is False, start a proof for later calls."""
        if self._driver.context.standstill.is_unnoticed:
            return False  # the doubt begins with ``look``, in the next turn of the loop
        if not self.is_sure:
            self._start()
        return self.is_sure

    def _start(self) -> None:
        if self._task is None:
            self._task = self._driver.spawn(self._prove())
            self._task.add_done_callback(self._ended)

    async def _prove(self) -> None:
        """Read the store until no caller waits.  A read proves nothing to callers that came after its begin."""
        is_asked = True
        while is_asked:
            asked, self._waiting = self._waiting, []
            doubts, failure = self._driver.context.standstill.doubts, None
            try:
                await self._driver.prove()
                self._proven = doubts
            except KvError as error:
                failure = _not_leader(f"the process stood still, and the store did not confirm the owner: {error}")
            except RequestError as error:
                failure = error
            except BaseException:
                self._waiting = asked + self._waiting
                raise
            _settle(asked, failure)
            is_asked = bool(self._waiting)
        self._task = None

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Refuse the callers that still wait if the partition, and the read of the store with it, has ended."""
        if task is self._task:
            self._task = None
            left, self._waiting = self._waiting, []
            _settle(left, _not_leader("the partition has left this broker"))


def _not_leader(why: str) -> RequestError:
    return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)


def _settle(asked: list[asyncio.Future[None]], failure: RequestError | None) -> None:
    for each in asked:
        if each.done():
            continue
        if failure is None:
            each.set_result(None)
        else:
            each.set_exception(RequestError(failure.code, failure.message))
