"""Refusals that only the present owner may send: the metadata store proves the ownership before a client gets one.

An owner from which another broker has taken the partition learns that from the store, or from its next flush. Until
then its table of producers may lack batches that the new owner acknowledged, so that a producer's next batch seems to
leave a gap. OUT_OF_ORDER_SEQUENCE_NUMBER ends an idempotent producer (librdkafka), or fails its batch (Java). With
NOT_LEADER_OR_FOLLOWER the batch is sent again, to the right broker. INVALID_TXN_STATE is of the same kind: the marker
that ended the transaction may be in the new owner's log.
"""

from __future__ import annotations

import asyncio

from bmq.broker.partition.driver import PartitionDriver
from bmq.core.errors import ErrorCode, RequestError
from bmq.endpoint.partitions import AppendCallback
from bmq.meta.kv import KvError

UNPROVEN = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_TXN_STATE})


class Refusals:
    """The unproven refusals of a partition. A read of the store serves all refusals that wait when it begins."""

    __slots__ = ("_driver", "_task", "_waiting")

    def __init__(self, driver: PartitionDriver) -> None:
        self._driver = driver
        self._waiting: list[tuple[AppendCallback, RequestError]] = []
        self._task: asyncio.Task[None] | None = None

    def prove(self, error: RequestError, callback: AppendCallback) -> None:
        """Fail an append once the store was asked who owns the partition.

        It fails with ``error`` if this broker still does, else with a retriable error.
        """
        self._waiting.append((callback, error))
        if self._task is None:
            self._task = self._driver.spawn(self._prove())
            self._task.add_done_callback(self._ended)

    async def _prove(self) -> None:
        """Ask the store until no refusal waits: a question that began before a refusal does not prove it."""
        while self._waiting:
            asked, self._waiting = self._waiting, []
            outcome: RequestError | None = None
            try:
                await self._driver.prove()
            except KvError as error:
                outcome = _not_leader(f"the metadata store did not confirm the owner: {error}")
            except RequestError as error:
                outcome = error
            except BaseException:
                self._waiting = asked + self._waiting
                raise
            _refuse(asked, outcome)
        self._task = None  # not later: the next refusal may come in this turn of the loop, and begins a task of its own

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Refuse those that are left if the partition has ended meanwhile, and the question with it."""
        if task is not self._task:
            return
        self._task = None
        left, self._waiting = self._waiting, []
        _refuse(left, _not_leader("the partition has left this broker"))


def _not_leader(why: str) -> RequestError:
    return RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, why)


def _refuse(waiting: list[tuple[AppendCallback, RequestError]], outcome: RequestError | None) -> None:
    for callback, error in waiting:
        callback.on_failed(outcome or error)
