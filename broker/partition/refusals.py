"""Refusals that only the present owner may give: proven by the store before a client gets them.

An owner that another broker has taken a partition from learns it from the store, or from its next flush.  Until then
its table of producers may lack what that one has acknowledged, so that the next batch of a producer seems to leave a
gap.  OUT_OF_ORDER_SEQUENCE_NUMBER ends an idempotent producer (librdkafka), or fails its batch (Java), while
NOT_LEADER_OR_FOLLOWER has the batch sent again, to the right broker.
"""

from __future__ import annotations

import asyncio
from typing import Any

from bmq.broker.partition.driver import PartitionDriver
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import KvError


class Refusals:
    """One partition's.  The store is read once for all that wait when it is asked."""

    __slots__ = ("_task", "_waiting", "_writer")

    def __init__(self, writer: PartitionDriver) -> None:
        self._writer = writer
        self._waiting: list[tuple[asyncio.Future[Any], RequestError]] = []
        self._task: asyncio.Task[None] | None = None

    def prove(self, error: RequestError) -> asyncio.Future[Any]:
        """Return a future that fails: with ``error`` if the partition is ours still, else so that the client tries
        again."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((future, error))
        if self._task is None:
            self._task = self._writer.spawn(self._prove())
            self._task.add_done_callback(self._ended)
        return future

    async def _prove(self) -> None:
        """Ask the store until nobody waits: a question that began before a refusal does not prove it."""
        while self._waiting:
            asked, self._waiting = self._waiting, []
            outcome: RequestError | None = None
            try:
                await self._writer.prove()
            except KvError as error:
                outcome = _not_leader(f"nobody can say who owns it: {error}")
            except RequestError as error:
                outcome = error
            except BaseException:
                self._waiting = asked + self._waiting
                raise
            _refuse(asked, outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Refuse what is left if the partition has ended meanwhile, and the question with it."""
        self._task = None
        left, self._waiting = self._waiting, []
        _refuse(left, _not_leader("its ownership has ended"))


def _not_leader(why: str) -> RequestError:
    return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)


def _refuse(waiting: list[tuple[asyncio.Future[Any], RequestError]], outcome: RequestError | None) -> None:
    for future, error in waiting:
        if not future.done():
            future.set_exception(outcome or error)
