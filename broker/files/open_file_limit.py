"""Places for open files: who may open one where there are not places for all.

An open file is dear, however little is written to it: it costs two threads on each datanode of its pipeline, and HDFS
reserves a whole block of room for each replica.  So a broker has a bound on them.  Storage may have room for fewer, is
shared with others and does not say how many: when it refuses a file for want of room the bound is lowered below what
is open, and rises again step by step while nothing is refused.  A broker learns of its own refusals only, so where
there are several the controller divides what there is room for: while a share is in force it is the bound (``share``).

Whoever finds no place waits in line, first come, first served.  Meanwhile the broker is asked to close segments that
others have open (``make_room``).  Nobody who holds a place needs a second one to give it back, so each in line has its
turn.  After a refusal nobody is let in for a while: thousands that wait must not ask storage all the time.

Costs nothing while there are places for all: the one timer runs while somebody waits or the bound is lowered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from bmq.core.logging.fields import Report

BEAT_S = 0.1
"""Between requests to make room: closing a segment takes about 20 ms."""
BEATS_A_LOOK = 10
"""After so many the line moves on again after a refusal, or the bound rises by a sixteenth."""
LOOKS_A_LOWERING = 3
"""The bound is not lowered sooner again: the NameNode hears of room that was freed with a datanode's next heartbeat
(dfs.heartbeat.interval, 3 s), and would refuse until then."""


class Waiter(NamedTuple):
    """One that waits in line, and since when by the loop's clock."""

    future: asyncio.Future[None]
    since: float


class OpenFileLimit:
    """One broker's."""

    __slots__ = (
        "_beats",
        "_behind",
        "_held",
        "_is_closed",
        "_is_refused",
        "_is_told",
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
        self._line: deque[Waiter] = deque()  # one of each partition at most
        self._behind: set[asyncio.Future[None]] = set()  # wait until no file is being opened
        self._refusal = ""  # lately, and why: nobody is let in
        self._refusals = 0
        self._is_refused = False  # the last one that was asked for
        self._shared_until: float | None = None  # on the loop's clock: so long the bound is the controller's
        self._is_told = False  # the operator, of this lowering of the bound
        self._beats = 0
        self._looks = LOOKS_A_LOWERING  # since the bound was lowered
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        counts = f"opening={self._opening} held={self._held} leaving={self._leaving} waiting={len(self._line)}"
        shared = " shared" if self._shared_until is not None else ""
        return f"<Places {counts} limit={self._limit}/{self._most}{shared}{' refused' if self._refusal else ''}>"

    @property
    def limit(self) -> int:
        """Files that may be open now."""
        return self._limit

    @property
    def limit_max(self) -> int:
        """The bound where storage has room: ``open_pipelines_max``."""
        return self._most

    @property
    def held(self) -> int:
        """Files that are open and not being closed."""
        return self._held

    @property
    def closing(self) -> int:
        """Files that are being closed: storage keeps their room until they are."""
        return self._leaving

    @property
    def opening(self) -> int:
        """Files that storage is being asked for."""
        return self._opening

    @property
    def refusals(self) -> int:
        """Files, journals among them, that storage had no room for, since the start."""
        return self._refusals

    @property
    def is_refused(self) -> bool:
        """Whether storage had no room for the last file that it was asked for."""
        return self._is_refused

    @property
    def waiting(self) -> int:
        """Who waits in line."""
        return len(self._line)

    @property
    def longest_wait_s(self) -> float:
        """Seconds that the first in line has waited; 0 when nobody waits."""
        return asyncio.get_running_loop().time() - self._line[0].since if self._line else 0.0

    # ------------------------------------------------------------------------------------------------ one file's life

    async def enter(self, since: float | None = None) -> float:
        """Wait until a file may be opened.  ``opened``, ``failed`` or ``refused`` follows, whatever happens.

        `since`: when an attempt that was refused began to wait, by the loop's clock: it has not lost its turn.  Returns
        when this one began to.
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

    def try_enter(self) -> bool:
        """Take a place for a file that is opened ahead of its time, if nobody waits for one; then as after `enter`."""
        if self._line or not self._has_place:
            return False
        self._opening += 1
        return True

    def opened(self) -> None:
        self._opening -= 1
        self._held += 1
        self._is_refused = False
        self._admit()
        self._wake()

    def failed(self) -> None:
        """For any reason but room."""
        self._opening -= 1
        self._is_refused = False
        self._admit()
        self._wake()

    def refused(self, why: str) -> None:
        """Storage has no room for the file.  What that means is seen when it has answered all that were asked for."""
        self._opening -= 1
        self.lacks_room(why)

    def lacks_room(self, why: str) -> None:
        """Storage has none for a file that needs no place, the journal: segments are closed for it, and nobody is let
        in before it."""
        self._refusal = why
        self._refusals += 1
        self._is_refused = True
        self._arm()
        self._wake()

    async def until_opened(self) -> None:
        """Wait until no file is being opened, or storage has refused one.

        For work that frees storage's room and can wait: when a datanode dies under a thousand open files, as many are
        opened elsewhere, and produces wait for these.
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
        """An open file is being closed."""
        self._held -= 1
        self._leaving += 1

    def left(self) -> None:
        """It is closed, or was given up: storage is asked for it no more."""
        self._leaving -= 1
        self._admit()

    # -------------------------------------------------------------------------------------------------------- a share

    def share(self, limit: int, seconds: float) -> None:
        """Let `limit` be the bound for `seconds`: this broker's share of what storage has room for, at least one file.

        If no other share comes in time the broker raises and lowers the bound again by itself, from where it stands.
        """
        self._limit = max(1, min(limit, self._most))
        self._shared_until = asyncio.get_running_loop().time() + seconds
        self._admit()
        if self._limit < self._most:
            self._arm()

    def close(self) -> None:
        """No more beats; who still waits is cancelled by its owner."""
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
        """Put it behind those that have waited for as long: at the end, unless it was refused."""
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
            self._look()
        self._admit()
        wanted = self._opening + self._held + self._turns - self._limit
        if wanted > 0:
            self._make_room(wanted)
        if self._line or self._refusal or self._limit < self._most:
            self._arm()

    @property
    def _turns(self) -> int:
        """How many in line are to get a place at once: not so many that those who have one lose it before its use."""
        return 0 if self._refusal else min(len(self._line), self._limit // 4 + 1)

    def _look(self) -> None:
        self._looks += 1
        if self._refusal and self._opening:
            return  # more may be refused, or not
        is_shared = self._has_share()
        if self._refusal:
            self._tell()
            if not is_shared:
                self._lower()
            self._refusal = ""
            return
        if is_shared:
            return
        self._limit = min(self._most, self._limit + self._limit // 16 + 1)
        if self._limit == self._most:
            self._is_told = False

    def _has_share(self) -> bool:
        """Whether a share is in force; one whose time is over is forgotten."""
        if self._shared_until is not None and asyncio.get_running_loop().time() >= self._shared_until:
            self._shared_until = None
        return self._shared_until is not None

    def _lower(self) -> None:
        if self._looks < LOOKS_A_LOWERING:
            return
        self._looks = 0
        self._limit = min(self._limit, max(1, self._held * 3 // 4))

    def _tell(self) -> None:
        if not self._is_told:
            self._is_told = True
            self._report(
                "storage has no room for another file beside the %d that are open, partitions take turns; unless a"
                " quota is the cause, add datanodes or free room (each open file reserves its block on each of its"
                " datanodes: a smaller block_bytes or open_pipelines_max needs less)",
                self._held,
                error=self._refusal,
            )
