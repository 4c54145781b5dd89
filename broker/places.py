"""Places for open files: who may open one where there are not places for all.

An open file is dear, however little is written to it: it costs two threads on each datanode of its pipeline, and HDFS
reserves a whole block of room for each replica.  So a broker has a bound on them.  Storage may have room for fewer, is
shared with others and does not say how many: when it refuses a file for want of room the bound is lowered below what
is open, and rises again step by step while nothing is refused.

Whoever finds no place waits in line, first come, first served.  Meanwhile the broker is asked to close segments that
others have open (``make_room``).  Nobody who holds a place needs a second one to give it back, so each in line has its
turn.  After a refusal nobody is let in for a while: thousands that wait must not ask storage all the time.

Costs nothing while there are places for all: the one timer runs while somebody waits or the bound is lowered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

BEAT_S = 0.1
"""Between requests to make room: closing a segment takes about 20 ms."""
BEATS_A_LOOK = 10
"""After so many the line moves on again after a refusal, or the bound rises by a sixteenth."""
LOOKS_A_LOWERING = 3
"""The bound is not lowered sooner again: the NameNode hears of room that was freed with a datanode's next heartbeat
(dfs.heartbeat.interval, 3 s), and would refuse until then."""


class Places:
    """One broker's."""

    __slots__ = (
        "_beats",
        "_held",
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
        "_report",
        "_timer",
    )

    def __init__(
        self, most: int, opening_max: int, make_room: Callable[[int], None], report: Callable[[str], None]
    ) -> None:
        self._most = most
        self._opening_max = opening_max
        self._make_room = make_room
        self._report = report
        self._limit = most
        self._opening = 0
        self._held = 0
        self._leaving = 0
        self._line: deque[asyncio.Future[None]] = deque()  # one of each partition at most
        self._refusal = ""  # lately, and why: nobody is let in
        self._is_told = False  # the operator, of this lowering of the bound
        self._beats = 0
        self._looks = LOOKS_A_LOWERING  # since the bound was lowered
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        counts = f"opening={self._opening} held={self._held} leaving={self._leaving} waiting={len(self._line)}"
        return f"<Places {counts} limit={self._limit}/{self._most}{' refused' if self._refusal else ''}>"

    @property
    def limit(self) -> int:
        """Files that may be open now."""
        return self._limit

    @property
    def waiting(self) -> int:
        """Who waits in line."""
        return len(self._line)

    @property
    def is_crowded(self) -> bool:
        """Whoever came now would wait: nothing is to be opened ahead of its time."""
        return bool(self._line) or not self._has_place

    # ------------------------------------------------------------------------------------------------ one file's life

    async def enter(self) -> None:
        """Until a file may be opened.  ``opened``, ``failed`` or ``refused`` follows, whatever happens."""
        if not self._line and self._has_place:
            self._opening += 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(future)
        self._arm()
        try:
            await future
        except asyncio.CancelledError:
            if future in self._line:
                self._line.remove(future)
            elif not future.cancelled():  # its turn had come
                self.failed()
            raise

    def opened(self) -> None:
        self._opening -= 1
        self._held += 1
        self._admit()

    def failed(self) -> None:
        """For any reason but room."""
        self._opening -= 1
        self._admit()

    def refused(self, why: str) -> None:
        """Storage has no room for the file.  What that means is seen when it has answered all that were asked for."""
        self._opening -= 1
        self._refusal = why
        self._arm()

    def lacks_room(self, why: str) -> None:
        """Storage has none for a file that needs no place, the journal: segments are closed for it, and nobody is let
        in before it."""
        self._refusal = why
        self._arm()

    def leaves(self) -> None:
        """An open file is being closed."""
        self._held -= 1
        self._leaving += 1

    def left(self) -> None:
        """It is closed, or was given up: storage is asked for it no more."""
        self._leaving -= 1
        self._admit()

    def close(self) -> None:
        """No more beats; who still waits is cancelled by its owner."""
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

    def _admit(self) -> None:
        while self._line and self._has_place:
            future = self._line.popleft()
            if not future.done():  # else cancelled
                self._opening += 1
                future.set_result(None)

    def _arm(self) -> None:
        if self._timer is None:
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
        if self._refusal:
            self._lower()
            self._refusal = ""
            return
        self._limit = min(self._most, self._limit + self._limit // 16 + 1)
        if self._limit == self._most:
            self._is_told = False

    def _lower(self) -> None:
        if self._looks < LOOKS_A_LOWERING:
            return
        self._looks = 0
        self._limit = min(self._limit, max(1, self._held * 3 // 4))
        if not self._is_told:
            self._is_told = True
            self._report(
                f"storage has no room for another file beside the {self._held} that are open, partitions take turns: "
                f"{self._refusal}; unless a quota is the cause, add datanodes or free room (each open file reserves its"
                " block on each of its datanodes: a smaller block_bytes or open_pipelines_max needs less)"
            )
