"""Names of servers' addresses by reverse DNS, in daemon threads of their own.

The system's resolver blocks for its own time-outs while DNS is silent: ten seconds with one name server.  The event
loop's look-up would be awaited by the end of the loop, with uvloop as with asyncio's executor.
"""

from __future__ import annotations

import socket
from functools import partial

from bmq.core.descriptors import FAILURES
from bmq.storage.hdfs.timed_threads import NoOutcome, TimedThreads
from bmq.storage.overdue_calls import OverdueCalls

THREADS = 2
"""Look-ups at once: an address without a response delays no look-up of another one."""
THREADS_MAX = 8
"""Threads with those of look-ups past their time-outs.  While all of these hang, look-ups fail at once."""


class ReverseNames:
    """Look-ups of the full names of addresses, as Hadoop's clients make them."""

    def __init__(self) -> None:
        counter = OverdueCalls()  # of its own: the process's count is for libraries that read and write
        self._threads = TimedThreads("hdfs-names", usable=THREADS, most=THREADS_MAX, counter=counter)

    def __repr__(self) -> str:
        return f"ReverseNames({self._threads})"

    async def look_up(self, peer: tuple[str, int], timeout_s: float) -> tuple[str, ...]:
        """Return the name of the address in a connection's ``peer``; nothing if the address has none.

        Raises TimeoutError after ``timeout_s``; at once after ``close``, and if the look-ups of all threads hang.
        """
        try:
            name, _ = await self._threads.run(partial(socket.getnameinfo, peer, socket.NI_NAMEREQD), timeout_s)
        except NoOutcome as error:
            raise TimeoutError(str(error)) from error
        except OSError as error:
            FAILURES.note(error)
            return ()
        return (name,)

    def close(self) -> None:
        """End the threads after their present look-ups, without waiting.  Idempotent."""
        self._threads.close()
