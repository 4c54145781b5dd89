"""A client process of the memory HDFS, which can crash and pause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from bmq.storage.filesystem import StorageError, StorageUnavailable
from bmq.storage.memory.storage import MemoryStorage, OpenWriter

T = TypeVar("T")


class MemoryProcess:
    """The state of a process named ``holder``, and its calls to the servers.

    A call is a request under way, not a step of its caller: it may still be done if the caller is cancelled or its
    process dies.
    """

    def __init__(self, storage: MemoryStorage, holder: str) -> None:
        self.storage = storage
        self.is_crashed = False
        self._holder = holder
        self._is_paused = False
        self._resumed = asyncio.Event()
        self._never = asyncio.Event()

    @property
    def holder(self) -> str:
        return self._holder

    def __repr__(self) -> str:
        state = "crashed" if self.is_crashed else "paused" if self._is_paused else "running"
        return f"<{type(self).__name__} {self._holder} {state}>"

    @property
    def is_running(self) -> bool:
        """False once the process has crashed, and while it is paused."""
        return not (self.is_crashed or self._is_paused)

    def crash(self) -> None:
        """Kill the process (``kill -9``): none of its calls ever returns, but requests under way may arrive.

        Its files stay open.
        """
        self.is_crashed = True
        for appender in self.appenders():
            appender.process_died()

    def pause(self) -> None:
        """Stop the process (SIGSTOP): storage serves the requests under way; responses and new calls wait."""
        self._is_paused = True
        self._resumed.clear()

    def resume(self) -> None:
        """Continue the paused process (SIGCONT)."""
        self._is_paused = False
        self._resumed.set()
        if not self.is_crashed:
            for appender in self.appenders():
                appender.process_resumed()

    async def awake(self) -> None:
        """Wait until the process runs; never return once it has crashed."""
        while self._is_paused and not self.is_crashed:
            await self._resumed.wait()
        if self.is_crashed:
            await self._never.wait()

    def appenders(self) -> list[OpenWriter]:
        """Return the writers of the files that the process has open."""
        return [appender for appender in self.storage.appenders if appender.process is self]

    # Calls

    async def call(self, operation: Callable[[], T], *, writes: bool = True) -> T:
        """Send ``operation`` to the NameNode and return its response.  ``writes``: it is refused in safe mode."""
        await self.awake()
        loop = asyncio.get_running_loop()
        response: asyncio.Future[T] = loop.create_future()

        def arrive(*, waited: bool = False) -> None:
            if stalled_s := self.storage.stalled_s:
                loop.call_later(stalled_s, arrive)
                return
            wait_s = self.storage.wait_s(writes=writes)
            if wait_s > 0 and (waited or self.storage.chance(self.storage.faults.waits_for_namenode)):
                loop.call_later(wait_s, lambda: arrive(waited=True))
                return
            outcome: T | Exception
            try:
                if self.is_crashed and self.storage.chance(0.5):
                    raise StorageUnavailable("the request was lost with its sender")
                if wait_s > 0:
                    raise StorageUnavailable(f"the NameNode is down or in safe mode for {wait_s:.1f} s")
                outcome = self.storage.serve(operation)
            except Exception as error:  # noqa: BLE001  # the caller gets it
                outcome = error
            self._later(lambda: _settle(response, outcome))

        self._later(arrive)
        try:
            outcome = await response
        except StorageError:
            await self.awake()
            raise
        await self.awake()
        return outcome

    def _later(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after one leg of a call; in the next turn of the loop at the earliest."""
        loop = asyncio.get_running_loop()
        delay_s = self.storage.draw(self.storage.faults.call_s)
        if delay_s > 0:
            loop.call_later(delay_s, callback)
        else:
            loop.call_soon(callback)

    async def hop(self) -> None:
        """Wait for one leg to a datanode."""
        await asyncio.sleep(self.storage.draw(self.storage.faults.call_s))
        await self.awake()


def _settle(response: asyncio.Future[T], outcome: T | Exception) -> None:
    if response.done():
        return  # its caller was cancelled
    if isinstance(outcome, Exception):
        response.set_exception(outcome)
    else:
        response.set_result(outcome)
