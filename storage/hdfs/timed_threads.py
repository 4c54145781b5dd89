"""Threads for the calls of a library without time-outs: a call that does not end costs its thread and no other call.

A call waits on the event loop until a thread is free.  So no call is behind a call that does not end, and a call
leaves the queue with its caller.  A call under way cannot be ended.  Its age decides, whether or not a caller still
waits: once the call is as old as its time-out, another thread takes the place of the call's thread.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from bmq.core.aio.subscribers import no_op
from bmq.storage.hdfs.library_thread import LibraryThread
from bmq.storage.overdue_calls import OVERDUE_CALLS, OverdueCalls

T = TypeVar("T")


class NoOutcome(Exception):
    """The call has neither a result nor an error yet, or it never began.  Never leaves this package."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """A call that waits for a thread.  ``outcome`` is cancelled when the caller leaves."""

    call: Callable[[], Any]
    timeout_s: float
    outcome: asyncio.Future[Any]


@dataclass(slots=True, eq=False)
class _UnderWay:
    """A call in its thread.  ``end`` is done when the call has ended, ``outcome`` when its caller needs it no more."""

    thread: LibraryThread
    outcome: asyncio.Future[Any]
    end: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None


class TimedThreads:
    """Threads for the calls of an event loop: ``usable`` threads, at most ``most`` with the threads of overdue calls.

    ``on_overdue`` is called on the loop when a call is as old as its time-out.  ``counter`` counts the overdue calls
    until they end, or this is closed.
    """

    def __init__(
        self,
        name: str,
        *,
        usable: int,
        most: int,
        on_overdue: Callable[[], None] = no_op,
        counter: OverdueCalls = OVERDUE_CALLS,
    ) -> None:
        self._name = name
        self._counter = counter
        self._usable = usable
        self._most = most
        self._on_overdue = on_overdue
        self._numbers = itertools.count()
        self._idle: list[LibraryThread] = []
        self._in_time: set[_UnderWay] = set()
        self._overdue: set[_UnderWay] = set()
        self._waiting: dict[_Waiting, None] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        return (
            f"TimedThreads({self._name}, running={len(self._in_time)}, overdue={self.overdue}, waiting={self.waiting})"
        )

    @property
    def overdue(self) -> int:
        """The number of calls that are older than their time-outs and have not ended."""
        return len(self._overdue)

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return len(self._waiting)

    async def run(self, call: Callable[[], T], timeout_s: float) -> T:
        """Return the result of ``call`` from a thread, or raise its error.

        Raises NoOutcome after ``timeout_s``, the wait for a thread included; at once if the calls of all threads are
        overdue, and if this is closed.
        """
        if self._is_closed:
            raise NoOutcome(f"{self._name} is closed")
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(call, timeout_s, outcome)
        self._waiting[waiting] = None
        self._begin()
        try:
            done, _ = await asyncio.wait([outcome], timeout=timeout_s)
            if not done:
                raise NoOutcome(f"no response within {timeout_s:g} s")
            return outcome.result()
        finally:
            self._waiting.pop(waiting, None)
            outcome.cancel()

    def close(self) -> None:
        """End the threads after their present calls, without waiting.  Calls raise NoOutcome.  Idempotent."""
        self._is_closed = True
        for under_way in (*self._in_time, *self._overdue):
            if under_way.timer is not None:
                under_way.timer.cancel()
            under_way.end.cancel()  # the call may end after the loop
            under_way.thread.close()
            self._refuse(under_way.outcome, f"{self._name} is closed")
        for thread in self._idle:
            thread.close()
        self._refuse_waiting(f"{self._name} is closed")
        self._in_time.clear()
        self._counter.add(-self.overdue)
        self._overdue.clear()
        self._idle.clear()

    # ---- within

    @property
    def _room(self) -> int:
        """The number of threads for calls that are in time."""
        return min(self._usable, self._most - len(self._overdue))

    def _begin(self) -> None:
        """Begin as many waiting calls as there are threads for.  Refuse the others if all calls are overdue."""
        while self._waiting and len(self._in_time) < self._room:
            waiting = next(iter(self._waiting))
            del self._waiting[waiting]
            thread = self._idle.pop() if self._idle else LibraryThread(f"{self._name}-{next(self._numbers)}")
            end = asyncio.wrap_future(thread.submit(waiting.call))
            under_way = _UnderWay(thread, waiting.outcome, end)
            self._in_time.add(under_way)
            under_way.timer = end.get_loop().call_later(waiting.timeout_s, self._give_up, under_way)
            end.add_done_callback(partial(self._has_ended, under_way))
        if self._room == 0:
            self._refuse_waiting(f"the calls of all {self._most} threads do not end")

    def _give_up(self, under_way: _UnderWay) -> None:
        """Note that a call is overdue: its thread ends with the call, and another thread may begin."""
        if under_way.end.done():
            return  # the end is noted in this turn of the loop
        self._in_time.discard(under_way)
        self._overdue.add(under_way)
        self._counter.add(1)
        under_way.thread.close()
        self._on_overdue()
        self._begin()

    def _has_ended(self, under_way: _UnderWay, end: asyncio.Future[Any]) -> None:
        if self._is_closed:
            return
        assert under_way.timer is not None
        under_way.timer.cancel()
        if under_way in self._in_time:
            self._in_time.discard(under_way)
            self._idle.append(under_way.thread)
        else:
            self._overdue.discard(under_way)
            self._counter.add(-1)
        self._settle(under_way.outcome, end)
        self._begin()

    def _settle(self, outcome: asyncio.Future[Any], end: asyncio.Future[Any]) -> None:
        """Give the caller the result or the error of its call, if the caller still waits."""
        if end.cancelled():  # its time was over before its thread began it, as after a standstill of the process
            self._refuse(outcome, "the call's time was over before its thread began it")
        elif (error := end.exception()) is not None:  # retrieved, also if the caller has left
            if not outcome.done():
                outcome.set_exception(error)
                outcome.exception()  # as if it was read: the caller may leave in this turn
        elif not outcome.done():
            outcome.set_result(end.result())

    def _refuse_waiting(self, reason: str) -> None:
        for waiting in self._waiting:
            self._refuse(waiting.outcome, reason)
        self._waiting.clear()

    @staticmethod
    def _refuse(outcome: asyncio.Future[Any], reason: str) -> None:
        if not outcome.done():
            outcome.set_exception(NoOutcome(reason))
            outcome.exception()  # as above
