"""One fetch: its rounds of checks, the decision that there is enough, and the response.  Nothing here waits.

The fetch service (``endpoint.fetch.service``) waits for the fetch: it reserves bytes, reads from storage, and parks
the fetch.  An operation has rounds.  A round checks the partitions that may have something (``check_changed``).  The
result of the round says what the service does next::

    reads    records that lie on storage: the service reads them (``wanted_reads``), and hands each result to ``take``
    enough   the service reserves ``planned`` bytes, and responds with what there is (``finish``)
    neither  the service parks the fetch until an event comes, and begins the next round

A fetch ends when there are ``min_bytes``, when there is an error that the client must know, when storage was read, or
when its time is up.  A missing owner makes this time a little longer than the client's (``endpoint.fetch.fetch_time``).
But a fetch with records of other partitions does not wait for an owner, and does not report a missing owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from bmq.core.aio.steps import Steps, batched
from bmq.core.errors import ErrorCode
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.fetch_time import FetchTime
from bmq.endpoint.fetch.memory_budget import Reservation
from bmq.endpoint.fetch.partition_checks import PartitionChecks
from bmq.endpoint.fetch.partition_read import PartitionRead
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from bmq.endpoint.fetch.sessions import NO_SESSION, Turn
from bmq.endpoint.leader_hints import LeaderHints
from bmq.storage.log_reader import LogSlice

READS_MAX = 1_000
"""Partitions that one fetch reads from storage; the others come first in its session's next fetch."""
PARTITIONS_A_TURN = 500
"""Partitions that are checked, or put into the response, in a turn of the loop: at 10 us each, 5 ms."""
BATCHES_MAX = 5_000
"""Batches from memory in a response: half a microsecond a batch, and 3 in a process that follows the partition, which
takes a whole response in a turn.  Readers of small batches come again."""
READ_BYTES_MIN = 64 << 10
"""Bytes that a read counts with at least: it returns a whole batch, however little was asked for."""
READ_COPIES = 2
"""Bytes that a read counts with, for each byte of its range, before they are known.  The blocks that it lies in are not
aligned to it: of two blocks about one's worth is used.  Small ranges are copied."""


class FetchOperation:
    """One fetch.  ``owner_patience_s`` is the time for which it waits for a missing owner, past the client's time."""

    __slots__ = (
        "_batches_left",
        "_checks",
        "_follows",
        "_fresh",
        "_has_checked",
        "_hurries",
        "_is_first",
        "_is_late",
        "_kept",
        "_left",
        "_owner_patience_s",
        "_rest",
        "_seen",
        "_stored",
        "params",
        "planned",
        "reads",
        "size",
        "time",
        "turn",
        "watch",
    )  # fmt: skip

    def __init__(self, checks: PartitionChecks, turn: Turn, params: FetchParams, owner_patience_s: float) -> None:
        self._checks = checks
        self._owner_patience_s = owner_patience_s
        self.turn = turn
        self.params = params
        self._fresh: list[PartitionRead] = []  # of the last round: records, or what cannot wait
        # Of any round: nothing to read, and no event since.
        self._rest: dict[SessionPartition, PartitionRead] = {}
        self.size = self._kept = self.planned = self._seen = 0
        # Of the present round: bytes and batches left, and partitions that lie on storage.
        self._left = self._batches_left = self._stored = 0
        self._hurries = self.reads = self._is_first = False
        self.time = FetchTime(0.0, 0.0)  # of ``begin``
        self._has_checked = self._is_late = False
        if turn.session is not None:
            self._follows = True
            self.watch = turn.session.watch
        else:
            assert turn.watch is not None
            self._follows = False  # before it parks
            self.watch = turn.watch
        self.watch.is_committed = params.committed  # a session's next request may have the other isolation level

    # -------------------------------------------------------------------------------------------------------- at once

    def is_ready(self) -> bool:
        """Check the partitions.  Return whether the fetch can respond now, by ``finish_now``.

        It cannot if it needs storage, a wait, or more than one turn of the loop.
        """
        if len(self.watch.changed) + len(self.watch.waiting) > PARTITIONS_A_TURN:
            return False
        self._begin_round()
        self._check(tuple(self.watch.changed))
        is_late = self.params.max_wait_s <= 0
        if self.reads or not (is_late or self.is_enough()):
            return False
        if is_late and self._owner_patience_s and self.lacks_owner():
            if not self.size:
                return False
            is_late = False
        self._is_late = is_late
        return True

    def check_now(self, bytes_max: int | None = None) -> None:
        """Make a round of few partitions.  ``bytes_max``: as in ``check_changed``."""
        self._begin_round(bytes_max)
        self._check(tuple(self.watch.changed))

    def finish_now(self, reservation: Reservation) -> FetchResult:
        """Return the response from what ``is_ready`` has found."""
        results, rest = self._news(is_late=self._is_late)
        results += map(self._rest_of, rest)
        self._note_sent(results)
        if self.turn.session is None:
            self.watch.clear()
        return self._found(results, reservation)

    # ----------------------------------------------------------------------------------------------------------- time

    @property
    def parked_partitions(self) -> int:
        """Number of partitions that the service counts while the fetch waits: of a large fetch without a session."""
        count = len(self.turn.partitions or ()) if self.turn.session is None else 0
        return count if count > PARTITIONS_A_TURN else 0

    def begin(self, now: float, *, may_park: bool) -> None:
        """Begin the fetch's time, and follow its partitions from now on.

        A fetch without a session checks all of its partitions again for that.  ``may_park`` False: its time is up.
        """
        self.time = FetchTime(
            now + (self.params.max_wait_s if may_park else 0.0), self._owner_patience_s if may_park else 0.0
        )
        if self.turn.session is None:
            self._follows = True
            if self._has_checked:  # by ``is_ready``
                for wanted in self.turn.partitions or ():
                    self.watch.touch(wanted)

    @property
    def is_cut_off(self) -> bool:
        """True if the fetch's session has ended, or goes on with a later request."""
        session = self.turn.session
        return session is not None and (session.is_closed or self.turn.is_overtaken)

    @property
    def may_park(self) -> bool:
        """True if no event has come since the last round began, and the fetch is not cut off."""
        return self._seen == self.watch.events and not self.is_cut_off

    def is_over(self, now: float, *, is_draining: bool) -> bool:
        """Return whether the fetch must respond with what there is."""
        return (self.time.is_up(now) and self.size > 0) or self.is_late(now, is_draining=is_draining)

    def is_late(self, now: float, *, is_draining: bool) -> bool:
        """Return whether missing owners are reported, as no time is left to wait for them."""
        if self.is_cut_off or is_draining:
            return True
        if not self.time.is_up(now):
            return False
        return not (self.time.is_patient(now) and (self.time.is_lost or self.lacks_owner()))

    def lacks_owner(self) -> bool:
        """Return whether a partition that waits has no owner; only the first PARTITIONS_A_TURN are checked."""
        waiting = tuple(islice(self.watch.waiting, PARTITIONS_A_TURN))
        return any(self._rest_of(wanted).error is ErrorCode.NOT_LEADER_OR_FOLLOWER for wanted in waiting)

    def needed_bytes(self, now: float) -> int:
        """Return the bytes that must arrive before the next round.

        Once the client's own time has passed, a single byte is enough.
        """
        return 1 if self.time.is_up(now) else self.params.min_bytes - self.size

    @property
    def _may_follow(self) -> bool:
        return self._follows and not self.is_cut_off

    # ------------------------------------------------------------------------------------------------------------ check

    def check_changed(self, bytes_max: int | None = None) -> Steps[None]:
        """Check once the partitions that may have something, with a pause after each PARTITIONS_A_TURN of them.

        ``bytes_max`` is the room for records, if less than the request's limit.
        """
        self._begin_round(bytes_max)
        for number, part in enumerate(batched(tuple(self.watch.changed), PARTITIONS_A_TURN)):
            if number:
                yield
            if self.turn.is_overtaken:
                return  # the events are for the session's later request
            if not self._check(part):
                return

    def _begin_round(self, bytes_max: int | None = None) -> None:
        """Begin a round: forget what the last one has found.

        ``bytes_max`` is the room for records, if less than the request's limit.
        """
        limit = self.params.max_bytes
        self._is_first, self._left = True, (limit if bytes_max is None else min(bytes_max, limit))
        self._has_checked = True
        self._fresh = []
        self._seen = self.watch.events
        self.size = self._kept = self.planned = self._stored = 0
        self._batches_left = BATCHES_MAX
        self._hurries = self.reads = False

    def _check(self, partitions: Sequence[SessionPartition]) -> bool:
        """Check these partitions, in the order of service.

        Return False once all bytes are used, so that the rest need no check.
        """
        check, watch, follows = self._checks.check, self.watch, self._may_follow
        committed, wants_aborted = self.params.committed, self.params.wants_aborted
        is_full, is_first, left = self.turn.partitions is not None, self._is_first, self._left
        nearer, may_read, hints = self.params.nearer, self.params.may_read, self.params.hints
        for wanted in partitions:
            if wanted.watch is not watch:  # forgotten by a later request of the session, in a pause
                continue
            if left <= 0 and not is_first and not is_full:
                return False
            result = check(
                wanted,
                min(left, wanted.max_bytes),
                at_least_one=is_first,
                committed=committed,
                wants_aborted=wants_aborted,
                follows=follows,
                may_read=may_read,
                batches_max=self._batches_left,
            )
            if nearer is not None and not result.error:
                assert result.topic is not None
                node_id = nearer(result.topic, wanted.partition)
                if node_id >= 0:
                    result.prefers(node_id)
            if hints is not None:
                _redirect(result, hints)
            if result.reads:
                self._stored += 1
                if self._stored > READS_MAX:
                    result.reads, result.has_more = False, True
            if result.reads or result.size:
                self._rest.pop(wanted, None)
                self._fresh.append(result)
                is_first = False
                left -= self._plan(result)
                self._batches_left -= result.batches
                if self._batches_left <= 0:
                    left = 0
            else:
                self._sort(result)
        self._left, self._is_first = left, is_first
        return True

    def _plan(self, result: PartitionRead) -> int:
        """Count the partition's records, and return the bytes that they take of the response."""
        if result.reads:
            self.reads = True
            self.planned += read_cost(result)
            return max(0, result.limit)
        self.size += result.size
        self.planned += result.size
        return result.size

    def _sort(self, result: PartitionRead) -> None:
        """Sort a partition without records: an error or a nearer proxy is reported now, the others are the rest."""
        wanted, watch = result.wanted, self.watch
        if result.preferred >= 0 or (result.error and not result.waits and not result.is_unknown):
            self._rest.pop(wanted, None)
            self._fresh.append(result)
            self._hurries = True
            return
        self._rest[wanted] = result
        if result.is_unknown:
            watch.is_quiet(wanted, is_sent=False)
            self._hurries |= result.is_gone
        elif result.waits:
            watch.is_waiting(wanted)
        elif not result.has_more:
            watch.is_quiet(wanted, is_sent=result.marks == wanted.sent_marks)

    def is_enough(self) -> bool:
        is_full = self._batches_left <= 0
        return self.size >= self.params.min_bytes or is_full or self._hurries or self._knows_nothing()

    def _knows_nothing(self) -> bool:
        """Return whether none of the fetch's partitions exists (or it has none): there is nothing to wait for."""
        session, partitions = self.turn.session, self.turn.partitions
        count = len(partitions) if partitions is not None else len(session.partitions) if session is not None else 0
        return len(self.watch.news) == count and all(result.is_unknown for result in self._rest.values())

    # ------------------------------------------------------------------------------------------------------------- read

    @property
    def wanted_reads(self) -> Sequence[PartitionRead]:
        """The partitions whose records the service is to read from storage."""
        return [result for result in self._fresh if result.reads]

    @property
    def is_rich(self) -> bool:
        """True if the records from memory are enough for a response."""
        return 0 < self.size >= self.params.min_bytes

    def forget_found(self) -> None:
        """Forget the records of the last round: the cache may evict them during the next wait."""
        self._fresh = []

    def may_read_storage(self) -> bool:
        """Return False if the client owes its quota: what storage gave for it would not be sent."""
        admit = self.params.admit
        return admit is None or admit(0)

    def is_admitted(self) -> bool:
        """Return whether the client's quota lets it have the records that were found, which count from now on."""
        admit = self.params.admit
        return not self.size or admit is None or admit(self.size)

    def bytes_of(self, reservation: Reservation) -> int:
        """Return the bytes of records that fit into a reservation."""
        return reservation.size // READ_COPIES if self.reads else reservation.size

    def take(self, result: PartitionRead, outcome: LogSlice | ErrorCode) -> None:
        """Take a read's records or its error.  After NOT_LEADER_OR_FOLLOWER the read is repeated while time is left."""
        result.reads = False
        if isinstance(outcome, ErrorCode):
            result.fails(outcome, waits=outcome is ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._hurries |= not result.waits
        elif outcome.size:
            result.buffers, result.size, result.is_stored = outcome.buffers, outcome.size, True
            result.kept_bytes, result.aborted = outcome.kept_bytes, outcome.aborted

    def note_read(self, began: float) -> None:
        """Note the end of the round's reads, from ``began`` on.  Reads without a result so far go on elsewhere."""
        for result in self._fresh:
            result.reads = False
        self.time.on_read(began, is_lost=any(result.waits for result in self._fresh))
        self._fit()

    def _fit(self) -> None:
        """Drop records past the limits.  Only the first partition with records may pass them, by one batch (KIP-74)."""
        self.size = self._kept = 0
        for result in self._fresh:
            size = result.size
            if size and self.size and (size > result.limit or self.size + size > self.params.max_bytes):
                result.buffers, result.size = (), 0
            self.size += result.size
            self._kept += result.kept_bytes if result.size and result.is_stored else result.size

    # --------------------------------------------------------------------------------------------------------- response

    def finish(self, reservation: Reservation, *, is_late: bool) -> Steps[FetchResult]:
        """Build the response from what was found, with a pause after each PARTITIONS_A_TURN partitions."""
        session, watch = self.turn.session, self.watch
        if session is not None and self.turn.is_overtaken:
            reservation.release()
            self.params.metrics.api(ApiKey.FETCH).failed(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            return FetchResult(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.id)
        results, rest = self._news(is_late=is_late)
        for number, part in enumerate(batched(rest, PARTITIONS_A_TURN)):
            if number:
                yield
            results += [self._rest_of(wanted) for wanted in part if wanted.watch is watch]  # not forgotten in a pause
        for number, some in enumerate(batched(results, PARTITIONS_A_TURN)):
            if number:
                yield
            self._note_sent(some)
        return self._found(results, reservation)

    def finish_empty(self, reservation: Reservation, *, is_late: bool) -> Steps[FetchResult]:
        """Build a response without records: the budget had no room for POOL_PATIENCE_S, or the quota is used up."""
        for result in self._fresh:
            result.buffers, result.size, result.reads = (), 0, False
        self.size = self._kept = 0
        return (yield from self.finish(reservation, is_late=is_late))

    def _note_sent(self, results: Sequence[PartitionRead]) -> None:
        """Note that the response carries these."""
        watch, count, metrics = self.watch, self._checks.count, self.params.metrics
        if self.params.hints is not None:
            _note_hints(results, self.params.hints)
        for result in results:
            count(result, metrics)
            result.wanted.sent_marks = result.marks
            if result.size:
                watch.served(result.wanted)
            elif not result.error:
                watch.news.pop(result.wanted, None)

    def _found(self, results: Sequence[PartitionRead], reservation: Reservation) -> FetchResult:
        session = self.turn.session
        reservation.resize(max(self.size, self._kept))
        return FetchResult(
            session_id=session.id if session is not None else NO_SESSION,
            results=results,
            release=reservation.release if self.size else None,
            endpoints=self.params.hints.endpoints if self.params.hints is not None else (),
        )

    def _news(self, *, is_late: bool) -> tuple[list[PartitionRead], Sequence[SessionPartition]]:
        """Return what the response carries so far, and the partitions that ``_rest_of`` is to add to it.

        A full response carries every partition, an incremental one only news.  The partitions in the second result have
        nothing to read.
        """
        if self.turn.partitions is not None:
            results = [*self._fresh, *self._rest.values()]
            if not is_late:
                self._hide_waiting(results)
            return results, ()
        watch = self.watch
        results = [result for result in self._fresh if result.is_news and (is_late or not result.waits)]
        return results, (*watch.news, *watch.waiting) if is_late else tuple(watch.news)

    def _hide_waiting(self, results: Sequence[PartitionRead]) -> None:
        """Clear errors that may still pass, in a full response, which must list these partitions.

        They are sent without records and without a watermark (-1): one from before a move may be too low by now, and
        librdkafka would report the end of the partition there.  A missing owner is reported if ``owner_patience_s`` is
        0: those clients are processes of this cluster, which find the next owner themselves.
        """
        hides_missing = self._owner_patience_s > 0
        for result in results:
            if result.waits and (hides_missing or result.error is ErrorCode.OFFSET_NOT_AVAILABLE):
                result.error = ErrorCode.NONE

    def _rest_of(self, wanted: SessionPartition) -> PartitionRead:
        """Return the partition's last check, or check it now if an earlier request of the session made the last one."""
        result = self._rest.get(wanted)
        if result is None:
            params, follows = self.params, self._may_follow
            result = self._checks.check(
                wanted,
                0,
                at_least_one=False,
                committed=params.committed,
                wants_aborted=False,
                follows=follows,
                batches_max=0,
                may_read=params.may_read,
            )
        return result


def _redirect(result: PartitionRead, hints: LeaderHints) -> None:
    """Send the client to the partition's new leader, if there is one.  An error that a move does not explain stays."""
    may_move = not result.error or result.waits or result.error is ErrorCode.FENCED_LEADER_EPOCH
    if may_move and result.key is not None:
        hint = hints.find(result.key, result.wanted.leader_epoch)
        if hint is not None:
            result.moves_to(hint)


def _note_hints(results: Sequence[PartitionRead], hints: LeaderHints) -> None:
    for result in results:
        if result.hint is not None and result.key is not None:
            hints.sent(result.key, result.hint)


def read_cost(result: PartitionRead) -> int:
    """Return the bytes to reserve for a read from storage."""
    return READ_COPIES * max(READ_BYTES_MIN, result.limit)
