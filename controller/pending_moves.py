"""Moves that are written and not done: the new owner has not yet taken the partition over.

Known from the partitions' own records, which say who owns (``meta.ownership``); they are read only while something is
under way.  A move that takes too long is not waited for any more: it goes on, but holds nothing else up.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from bmq.controller.planning.planner_view import SHARDS, Move, Why
from bmq.core.clock import Clock
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.ownership import partition_key, read

LOOK_S = 0.1
WAIT_MAX_S = 10.0
"""A hand-over is tens of milliseconds, a takeover from a dead datanode a second; past this something is wrong with
this partition alone."""


PAST_MAX = 50
"""Moves remembered after their end, for operators who come to look: 10 kB of each status."""


class Pending(NamedTuple):
    move: Move
    since: float


class PastMove(NamedTuple):
    """A move that is waited for no more."""

    move: Move
    ended_ms: int
    """Wall time."""
    took_ms: int | None
    """From the new assignment until its owner was seen to have the partition, which stood still for a part of that;
    None of a move that was not over within WAIT_MAX_S."""


class _Outcome(Enum):
    TAKEN_OVER = auto()
    LATE = auto()
    DELETED = auto()


class PendingMoves:
    """``add`` what was written; ``run`` finds what is done and calls ``done``."""

    def __init__(self, kv: KeyValue, cluster: str, clock: Clock, done: Callable[[], None]) -> None:
        self._kv = kv
        self._cluster = cluster
        self._clock = clock
        self._done = done
        self._pending: dict[PartitionKey, Pending] = {}
        self._past: deque[PastMove] = deque(maxlen=PAST_MAX)
        self._news = asyncio.Event()
        self.moves: Counter[Why] = Counter(dict.fromkeys(Why, 0))
        """Partitions and shards that were given another owner in this term, by the reason."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def pending(self) -> Mapping[PartitionKey, Pending]:
        return self._pending

    @property
    def past(self) -> Sequence[PastMove]:
        """Return the last PAST_MAX moves of this term that were waited for, the newest first."""
        return tuple(reversed(self._past))

    def add(self, move: Move) -> None:
        """Only what takes an owner something away is waited for; shards are opened by replay, which nobody watches."""
        self.moves[move.why] += 1
        if move.key.topic_id == SHARDS or move.why in (Why.UNASSIGNED, Why.DEAD) or not move.source:
            self._pending.pop(move.key, None)
            return
        self._pending[move.key] = Pending(move, self._clock.monotonic())
        self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(LOOK_S)
            if await self._look():
                self._done()
            if not self._pending:
                self._news.clear()

    async def _look(self) -> bool:
        """Whether something is done that was not."""
        pending = list(self._pending.values())
        outcomes = await asyncio.gather(*(self._outcome(each) for each in pending))
        finished = [(each, outcome) for each, outcome in zip(pending, outcomes, strict=True) if outcome is not None]
        for each, outcome in finished:
            if self._pending.get(each.move.key) is each:
                del self._pending[each.move.key]
                self._remember(each, outcome)
        return bool(finished)

    def _remember(self, pending: Pending, outcome: _Outcome) -> None:
        if outcome is _Outcome.DELETED:
            return
        took_ms = None if outcome is _Outcome.LATE else round((self._clock.monotonic() - pending.since) * 1000)
        self._past.append(PastMove(pending.move, self._clock.now_ms(), took_ms))

    async def _outcome(self, pending: Pending) -> _Outcome | None:
        """Return how a move ended, None while it goes on."""
        move, since = pending
        if self._clock.monotonic() - since > WAIT_MAX_S:
            return _Outcome.LATE
        try:
            record, revision = await read(self._kv, partition_key(self._cluster, move.key))
        except (KvError, FormatError):
            return None  # looked at again until its time is over
        if revision == 0:
            return _Outcome.DELETED
        return _Outcome.TAKEN_OVER if record.owner == move.target else None
