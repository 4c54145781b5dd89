"""The bound on a broker's open segment files, and the queue for them.

An open file is expensive, however little is written to it. It costs two threads on each datanode of its pipeline, and
HDFS reserves a whole block of room for each replica. So a broker has a bound on its open files. Storage may have room
for fewer, is shared with others, and does not say how many. When it refuses a file for want of room, the bound is
lowered below the number that is open, and rises again step by step while nothing is refused. A broker sees only its own
refusals. So where there are several brokers, the controller divides the room among them: while such a share is in
force, it is the bound (``share``).

A file that may not be opened waits in a queue, in the order of arrival. Meanwhile the broker is asked to close segments
that other partitions have open (``make_room``). Closing a file never needs a second one, so each waiter gets its turn.
After a refusal no waiter is admitted for a while: thousands of them must not ask storage all the time.

While all files fit under the bound this costs nothing: the one timer runs only while a file waits or the bound is
lowered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, TypeVar

from bmq.core.logging.fields import Report
from bmq.storage.filesystem import OutOfSpace

F = TypeVar("F")

BEAT_S = 0.1
"""Seconds between two calls of ``make_room``: closing a segment takes about 20 ms."""
BEATS_A_LOOK = 10
"""Beats between two checks: then waiters are admitted again after a refusal, or the bound rises by a sixteenth."""
LOOKS_A_LOWERING = 3
"""Checks before the bound is lowered again: the NameNode learns of freed room with a datanode's next heartbeat
(dfs.heartbeat.interval, 3 s), and refuses until then.
"""


class Waiter(NamedTuple):
    """One file that waits, and since when by the loop's clock."""

    future: asyncio.Future[None]
    since: float


class OpenFileLimit:
    """The bound on the open segment files of one broker.

    | in the life of a file          | call                                        |
    | ------------------------------ | ------------------------------------------- |
    | wait until it may be opened    | ``enter``, or ``try_enter`` without waiting |
    | storage created it             | ``opened``                                  |
    | storage had no room for it     | ``refused``                                 |
    | it failed for any other reason | ``failed``                                  |
    | its close begins               | ``leaves``                                  |
    | it is closed, or was given up  | ``left``                                    |
    """

    __slots__ = (
        "_beats",
        "_behind",
        "_held",
        "_is_closed",
        "_is_refused",
        "_is_reported",
        "_leaving",
        "_limit",
        "_line",
        "_looks",
        "_make_room",
        "_most",
        "_opening",
        "_opening_max",
        "_refusal",
        "_refusals",
        "_report",
        "_shared_until",
        "_timer",
    )

    def __init__(self, most: int, opening_max: int, make_room: Callable[[int], None], report: Report) -> None:
        self._most = most
        self._opening_max = opening_max
        self._make_room = make_room
        self._report = report
        self._limit = most
        self._opening = 0
        self._held = 0
        self._leaving = 0
        self._line: deque[Waiter] = deque()  # at most one of each partition
        self._behind: set[asyncio.Future[None]] = set()  # those in `until_opened`
        self._refusal = ""  # storage's last error for want of room; no waiter is admitted until it is cleared
        self._refusals = 0
        self._is_refused = False  # whether the last file that storage was asked for was refused
        self._shared_until: float | None = None  # end of the controller's share, by the loop's clock
        self._is_reported = False  # this shortage was logged
        self._beats = 0
        self._looks = LOOKS_A_LOWERING  # since the bound was lowered
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        counts = f"opening={self._opening} held={self._held} leaving={self._leaving} waiting={len(self._line)}"
        shared = " shared" if self._shared_until is not None else ""
        return f"<OpenFileLimit {counts} limit={self._limit}/{self._most}{shared}{' refused' if self._refusal else ''}>"

    @property
    def limit(self) -> int:
        """The present bound: files that may be open now."""
        return self._limit

    @property
    def limit_max(self) -> int:
        """The bound while storage has room for all: ``open_pipelines_max``."""
        return self._most

    @property
    def held(self) -> int:
        """Files that are open and not being closed."""
        return self._held

    @property
    def closing(self) -> int:
        """Files that are being closed: storage keeps their room until that is done."""
        return self._leaving

    @property
    def opening(self) -> int:
        """Files whose creation is under way."""
        return self._opening

    @property
    def refusals(self) -> int:
        """Number of times that storage had no room for a file or a write, journals included; counted from the start."""
        return self._refusals

    @property
    def is_refused(self) -> bool:
        """True if storage had no room for the last file that it was asked for."""
        return self._is_refused

    @property
    def waiting(self) -> int:
        """Files that wait in the queue."""
        return len(self._line)

    @property
    def longest_wait_s(self) -> float:
        """Seconds that the first file in the queue has waited; 0 if none waits."""
        return asyncio.get_running_loop().time() - self._line[0].since if self._line else 0.0

    # ------------------------------------------------------------------------------------------------ one file's life

    async def enter(self, since: float | None = None) -> float:
        """Wait until a file may be opened; return when the wait began, by the loop's clock.

        The caller then reports ``opened``, ``failed`` or ``refused``, whatever happens. ``since``: the time at which
        the wait of an earlier attempt began, if storage refused the attempt. The new attempt keeps its place in the
        queue.
        """
        loop = asyncio.get_running_loop()
        since = loop.time() if since is None else since
        if not self._line and self._has_place:
            self._opening += 1
            return since
        future: asyncio.Future[None] = loop.create_future()
        self._insert(waiter := Waiter(future, since))
        self._arm()
        try:
            await future
        except asyncio.CancelledError:
            if waiter in self._line:
                self._line.remove(waiter)
            elif not future.cancelled():  # its turn had come
                self.failed()
            raise
        return since

    @asynccontextmanager
    async def place(self, create: Callable[[], Awaitable[F]]) -> AsyncIterator[F]:
        """Create a file once it may be opened, and hold its place; the caller closes the file, or gives it up, inside.

        Raises what ``create`` raises.
        """
        await self.enter()
        try:
            file = await create()
        except OutOfSpace as error:
            self.refused(str(error))
            raise
        except BaseException:
            self.failed()
            raise
        self.opened()
        try:
            yield file
        finally:
            self.leaves()
            self.left()

    def try_enter(self) -> bool:
        """Reserve a place for a file that is opened ahead of its time, unless a file waits for one.

        Returns whether that was done; then the caller reports the outcome as after ``enter``.
        """
        if self._line or not self._has_place:
            return False
        self._opening += 1
        return True

    def opened(self) -> None:
        """Count a file as open, after ``enter``."""
        self._opening -= 1
        self._held += 1
        self._is_refused = False
        self._admit()
        self._wake()

    def failed(self) -> None:
        """Count an opening as ended without a file, for any reason but want of room."""
        self._opening -= 1
        self._is_refused = False
        self._admit()
        self._wake()

    def refused(self, why: str) -> None:
        """Count an opening as refused for want of room; the bound follows once all openings under way have ended."""
        self._opening -= 1
        self.lacks_room(why)

    def lacks_room(self, why: str) -> None:
        """Note that storage had no room for a file without a place here (a journal), or for a write to an open file.

        Segments are closed to free room, and no waiter is admitted before that.
        """
        self._refusal = why
        self._refusals += 1
        self._is_refused = True
        self._arm()
        self._wake()

    async def until_opened(self) -> None:
        """Wait until no file is being opened, or storage has refused one.

        For work that frees room on storage and can wait: if a datanode dies under a thousand open files, as many are
        opened elsewhere, and produces wait for those.
        """
        if not self._is_opening:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._behind.add(future)
        try:
            await future
        finally:
            self._behind.discard(future)

    def leaves(self) -> None:
        """Count an open file as being closed."""
        self._held -= 1
        self._leaving += 1

    def left(self) -> None:
        """Count a file as closed or given up: the client makes no more calls to storage for it."""
        self._leaving -= 1
        self._admit()

    # -------------------------------------------------------------------------------------------------------- a share

    def share(self, limit: int, seconds: float) -> None:
        """Let ``limit`` (1 at least) be the bound for ``seconds``: this broker's share of storage's room.

        If no other share comes in that time, the broker raises and lowers the bound by itself again, from where it is.
        """
        self._limit = max(1, min(limit, self._most))
        self._shared_until = asyncio.get_running_loop().time() + seconds
        self._admit()
        if self._limit < self._most:
            self._arm()

    def close(self) -> None:
        """Stop the timer. Tasks that still wait are cancelled by their owners."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --------------------------------------------------------------------------------------------------------- within

    @property
    def _taken(self) -> int:
        return self._opening + self._held + self._leaving

    @property
    def _has_place(self) -> bool:
        return not self._refusal and self._opening < self._opening_max and self._taken < self._limit

    @property
    def _is_opening(self) -> bool:
        return self._opening > 0 and not self._is_refused

    def _wake(self) -> None:
        if self._behind and not self._is_opening:
            for future in self._behind:
                if not future.done():
                    future.set_result(None)

    def _insert(self, waiter: Waiter) -> None:
        """Queue a waiter behind those that have waited as long or longer: at the end, unless it was refused before."""
        behind = len(self._line)
        if behind and self._line[-1].since > waiter.since:
            behind = next(at for at, other in enumerate(self._line) if other.since > waiter.since)
        self._line.insert(behind, waiter)

    def _admit(self) -> None:
        while self._line and self._has_place:
            future = self._line.popleft().future
            if not future.done():  # else cancelled
                self._opening += 1
                future.set_result(None)

    def _arm(self) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def _beat(self) -> None:
        self._timer = None
        self._beats += 1
        if self._beats % BEATS_A_LOOK == 0:
            self._check()
        self._admit()
        wanted = self._opening + self._held + self._turns_due - self._limit
        if wanted > 0:
            self._make_room(wanted)
        if self._line or self._refusal or self._limit < self._most:
            self._arm()

    @property
    def _turns_due(self) -> int:
        """Waiters to be admitted at once: few enough that an open segment is not closed before it was of use."""
        return 0 if self._refusal else min(len(self._line), self._limit // 4 + 1)

    def _check(self) -> None:
        self._looks += 1
        if self._refusal and self._opening:
            return  # openings are under way: whether they are refused is not yet known
        is_shared = self._has_share()
        if self._refusal:
            self._report_shortage()
            if not is_shared:
                self._lower()
            self._refusal = ""
            return
        if is_shared:
            return
        self._limit = min(self._most, self._limit + self._limit // 16 + 1)
        if self._limit == self._most:
            self._is_reported = False

    def _has_share(self) -> bool:
        """Return whether the controller's share is in force; forgets one whose time is over."""
        if self._shared_until is not None and asyncio.get_running_loop().time() >= self._shared_until:
            self._shared_until = None
        return self._shared_until is not None

    def _lower(self) -> None:
        if self._looks < LOOKS_A_LOWERING:
            return
        self._looks = 0
        self._limit = min(self._limit, max(1, self._held * 3 // 4))

    def _report_shortage(self) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._report(
                "storage has no room for another file beside the %d that are open, partitions take turns; unless a"
                " quota is the cause, free room on the disks, or add datanodes (on HDFS an open file reserves its block"
                " on each of its datanodes: a smaller block_bytes or open_pipelines_max needs less)",
                self._held,
                error=self._refusal,
            )
