"""Moves that are written and not finished: the new owner has not yet taken the partition over.

The partitions' own records name their owners (``meta.ownership``); they are read only while a move is pending.  A move
that takes too long is not waited for any more: it goes on, but does not hold up others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from bmq.controller.planning.planner_view import Move, Why
from bmq.core.clock import Clock
from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.ownership import partition_key, read
from bmq.meta.shard_kinds import planned_kind

POLL_S = 0.1
"""Time between two reads of the records of pending moves."""
WAIT_MAX_S = 10.0
"""Time that a move is waited for: a hand-over is tens of milliseconds, a takeover from a dead datanode a second; past
this something is wrong with this partition alone."""


PAST_MAX = 50
"""Moves remembered after their end, to be shown to operators: 10 kB of each status."""


class PendingMove(NamedTuple):
    """A move that is waited for, and the beginning of the wait in seconds of the monotonic clock."""

    move: Move
    since: float


class PastMove(NamedTuple):
    """A move that is not waited for any more."""

    move: Move
    ended_ms: int
    """Wall time of its end."""
    took_ms: int | None
    """Time from the new assignment until its owner was seen to have the partition, which was not served for a part of
    that; None if the move was not finished within WAIT_MAX_S."""


class _Outcome(Enum):
    TAKEN_OVER = auto()
    LATE = auto()
    DELETED = auto()


class PendingMoves:
    """The pending and past moves of one term: ``add`` written moves; ``run`` calls ``done`` when any is finished."""

    def __init__(self, kv: KeyValue, cluster: str, clock: Clock, done: Callable[[], None]) -> None:
        self._kv = kv
        self._cluster = cluster
        self._clock = clock
        self._done = done
        self._pending: dict[PartitionKey, PendingMove] = {}
        self._past: deque[PastMove] = deque(maxlen=PAST_MAX)
        self._news = asyncio.Event()
        self.moves: Counter[Why] = Counter(dict.fromkeys(Why, 0))
        """Number of partitions and shards that were given another owner in this term, by reason."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def pending(self) -> Mapping[PartitionKey, PendingMove]:
        """The moves that are waited for, by partition."""
        return self._pending

    @property
    def past(self) -> Sequence[PastMove]:
        """The last PAST_MAX moves of this term that were waited for, newest first."""
        return tuple(reversed(self._past))

    def add(self, move: Move) -> None:
        """Count a move that was written, and wait for it if a live owner has to give the partition up.

        Moves of shards are not waited for: a shard is opened by replay, and no record names its owner.
        """
        self.moves[move.why] += 1
        is_of_shard = planned_kind(move.key.topic_id) is not None
        if is_of_shard or move.why in (Why.UNASSIGNED, Why.DEAD) or not move.source:
            self._pending.pop(move.key, None)
            return
        self._pending[move.key] = PendingMove(move, self._clock.monotonic())
        self._news.set()

    async def run(self) -> None:
        """Check the pending moves every ``POLL_S``, and call ``done`` when any has ended.  Runs until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(POLL_S)
            if await self._check():
                self._done()
            if not self._pending:
                self._news.clear()

    async def _check(self) -> bool:
        """Read the records of all pending moves.  Returns whether any move has ended."""
        pending = list(self._pending.values())
        outcomes = await asyncio.gather(*(self._outcome(each) for each in pending))
        finished = [(each, outcome) for each, outcome in zip(pending, outcomes, strict=True) if outcome is not None]
        for each, outcome in finished:
            if self._pending.get(each.move.key) is each:
                del self._pending[each.move.key]
                self._remember(each, outcome)
        return bool(finished)

    def _remember(self, pending: PendingMove, outcome: _Outcome) -> None:
        if outcome is _Outcome.DELETED:
            return
        took_ms = None if outcome is _Outcome.LATE else round((self._clock.monotonic() - pending.since) * 1000)
        self._past.append(PastMove(pending.move, self._clock.now_ms(), took_ms))

    async def _outcome(self, pending: PendingMove) -> _Outcome | None:
        """Return the outcome of a move; None while it is pending."""
        move, since = pending
        if self._clock.monotonic() - since > WAIT_MAX_S:
            return _Outcome.LATE
        try:
            record, revision = await read(self._kv, partition_key(self._cluster, move.key))
        except (KvError, FormatError):
            return None  # read again until WAIT_MAX_S is over
        if revision == 0:
            return _Outcome.DELETED
        return _Outcome.TAKEN_OVER if record.owner == move.target else None
