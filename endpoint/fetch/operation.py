"""One fetch: check its partitions, read from storage, park until something changes, respond.

A fetch that finds enough in memory gets its response in the call that brought it (``try_now``); all others ``run``.  It
ends when there are ``min_bytes``, when there is an error that the client must know, when storage was read, or when its
time is up.  While an owner is missing, that is a little later than the client says (``endpoint.fetch.fetch_time``); but
a fetch that has records of other partitions does not wait for an owner, and does not report one as missing.  Its bytes
are reserved before they are read, and released when the response was sent.

Storage may be slow.  A fetch that has enough in memory waits for storage only a short time.  A read that comes too late
still goes on to its end, and fills the block cache for the next fetch.  Partitions that are left out stay at the front
of their session's order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Protocol

from bmq.core.aio.steps import Steps, batched
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.turns import run_in_turns
from bmq.core.errors import ErrorCode
from bmq.core.metrics.counters import Histogram, Metrics
from bmq.core.tracing import Tracer
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.primitives import NodeEndpoint
from bmq.endpoint.authorization.authorizer import MayRead
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.fetch_time import FetchTime
from bmq.endpoint.fetch.memory_budget import FetchBudget, MemoryPool, Reservation
from bmq.endpoint.fetch.partition_read import PartitionRead
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.fetch.sessions import NO_SESSION, FetchSession, Turn
from bmq.endpoint.large_requests import PARTITIONS_MAX
from bmq.endpoint.leader_hints import LeaderHints
from bmq.storage.log_reader import LogSlice

STORAGE_PATIENCE_S = 10.0
"""Time that a fetch without other records waits for storage (or its max.wait, if longer).  It is below any client's
request time-out: a fetch that never gets a response makes librdkafka and franz-go begin again (nisshi #668)."""
SHORT_PATIENCE_S = 0.5
"""Time that a fetch with enough records from memory waits for storage (Kafka's remote.fetch.max.wait.ms)."""
POOL_PATIENCE_S = 10.0
"""Time that a fetch waits for bytes of the budget; then its response has no records."""
PARALLEL_READS = 8
"""Partitions that one fetch reads from storage at once."""
READS_MAX = 1_000
"""Partitions that one fetch reads from storage; the others come first in its session's next fetch."""
PARTITIONS_A_TURN = 500
"""Partitions that are checked, or put into the response, in one turn of the loop: at 10 us each, 5 ms."""
READ_BYTES_MIN = 64 << 10
"""Bytes that a read counts with at least: it returns a whole batch, however little was asked for."""
READ_COPIES = 2
"""Bytes that a read counts with, for each byte of its range, before they are known.  The blocks that it lies in are not
aligned to it: of two blocks about one's worth is used.  Small ranges are copied."""


class FetchResult:
    """The response, not encoded yet.  ``release`` gives its bytes back to the budget; None if it holds none.

    ``endpoints`` has the addresses of the leaders that ``results`` name.
    """

    __slots__ = ("endpoints", "error", "release", "results", "session_id")

    def __init__(
        self,
        error: ErrorCode = ErrorCode.NONE,
        session_id: int = NO_SESSION,
        results: Sequence[PartitionRead] = (),
        release: Callable[[], None] | None = None,
        endpoints: Sequence[NodeEndpoint] = (),
    ) -> None:
        self.endpoints = endpoints
        self.error = error
        self.session_id = session_id
        self.results = results
        self.release = release


class FetchReads(Protocol):
    """The partitions, the memory and the counters of one process (`FetchService`), as one fetch uses them."""

    budget: FetchBudget
    metrics: Metrics
    """Gauges of the process: each fetch has the counters of its caller (`FetchParams.metrics`)."""
    tracer: Tracer | None
    wait_ms: Histogram
    owner_patience_s: float
    is_draining: bool
    parked: set[asyncio.Future[None]]
    parked_partitions: int
    """Number of partitions of large parked fetches without a session."""

    def check_partition(
        self,
        wanted: SessionPartition,
        limit: int,
        *,
        at_least_one: bool,
        committed: bool,
        follows: bool,
        may_read: MayRead | None = None,
    ) -> PartitionRead:
        """Return what the partition has now, `limit` bytes at most.

        `at_least_one`: the first batch even if it is larger; `committed`: only records below the last stable offset;
        `follows`: the partition's events count for `wanted` from here on; `may_read`: the topics that the client may
        read, None for all.
        """

    async def read(self, result: PartitionRead, gate: asyncio.Semaphore) -> LogSlice | ErrorCode:
        """Return the records that `result` found on storage, or this partition's error."""

    def adopt(self, task: asyncio.Task[LogSlice | ErrorCode], reservation: Reservation) -> None:
        """Let a read, for which its fetch no longer waits, go on and fill the block cache."""

    def count(self, result: PartitionRead, metrics: Metrics) -> None:
        """Count a partition's part of a response in ``metrics``."""

    def leave(self, partitions: Collection[SessionPartition]) -> None:
        """Follow these partitions no longer."""

    def end_session(self, session: FetchSession) -> None:
        """Close a session whose first response could not be sent."""


class FetchOperation:
    """One fetch.  Call ``try_now``; if that returns None, await ``run``."""

    __slots__ = (
        "_follows",
        "_fresh",
        "_has_checked",
        "_hurries",
        "_is_first",
        "_kept",
        "_left",
        "_on_park",
        "_params",
        "_parked_partitions",
        "_planned",
        "_reads",
        "_rest",
        "_seen",
        "_service",
        "_size",
        "_storage_deadline",
        "_stored",
        "_time",
        "_turn",
        "_watch",
    )  # fmt: skip

    def __init__(self, service: FetchReads, turn: Turn, params: FetchParams) -> None:
        self._service = service
        self._turn = turn
        self._params = params
        self._fresh: list[PartitionRead] = []  # of the last round: records, or what cannot wait
        # Of any round: nothing to read, and no event since.
        self._rest: dict[SessionPartition, PartitionRead] = {}
        self._size = self._kept = self._planned = self._seen = 0
        self._left = self._stored = 0  # of the present round: bytes left, and partitions that lie on storage
        self._hurries = self._reads = self._is_first = False
        self._storage_deadline = 0.0
        self._time = FetchTime(0.0, 0.0)  # of ``run``
        self._on_park: Callable[[], None] = no_op
        self._parked_partitions = 0  # that count in ``FetchService.parked_partitions``
        self._has_checked = False
        if turn.session is not None:
            self._follows = True
            self._watch = turn.session.watch
        else:
            assert turn.watch is not None
            self._follows = False  # before it parks
            self._watch = turn.watch

    def try_now(self) -> FetchResult | None:
        """Return the response, if it needs neither storage nor a wait, and no more than one turn of the loop.

        None: ``run`` is needed.
        """
        if len(self._watch.changed) + len(self._watch.waiting) > PARTITIONS_A_TURN:
            return None
        self._begin_round()
        self._check(tuple(self._watch.changed))
        is_late = self._params.max_wait_s <= 0
        if self._reads or not (is_late or self._is_enough()):
            return None
        if is_late and self._service.owner_patience_s and self._lacks_owner():
            if not self._size:
                return None
            is_late = False
        reservation = self._take_now(self._service.budget.memory)
        if reservation is None:
            return None
        if reservation.size < self._planned:
            self._begin_round(self._bytes_of(reservation))
            self._check(tuple(self._watch.changed))
            reservation.resize(self._planned)
        if not self._is_admitted():
            reservation.release()
            return None
        results, rest = self._news(is_late=is_late)
        results += map(self._rest_of, rest)
        self._note_sent(results)
        if self._turn.session is None:
            self._watch.clear()
        return self._found(results, reservation)

    async def run(self, on_park: Callable[[], None] = no_op) -> FetchResult:
        """Return the response, once there is enough or the fetch's time is up.

        To be cancelled when the client has gone.  ``on_park`` is called before each wait for records.  A large fetch
        without a session waits only if all such fetches that wait have PARTITIONS_MAX partitions at most.
        """
        self._on_park = on_park
        now = asyncio.get_running_loop().time
        self._storage_deadline = now() + max(STORAGE_PATIENCE_S, self._params.max_wait_s)
        fetched: FetchResult | None = None
        try:
            may_park = self._may_park()
            self._time = FetchTime(
                now() + (self._params.max_wait_s if may_park else 0.0),
                self._service.owner_patience_s if may_park else 0.0,
            )
            self._follow()
            while fetched is None:
                await run_in_turns(self._check_changed())
                self._time.on_check(now(), waits=bool(self._watch.waiting), reads=self._reads)
                if self._reads or self._is_enough() or self._is_over():
                    fetched = await self._gather()
                if fetched is None and self._seen == self._watch.events and not self._is_cut_off:
                    await self._park(self._time.next_check_at(now()))
            return fetched
        finally:
            self._leave(is_answered=fetched is not None)

    @property
    def _is_cut_off(self) -> bool:
        """True if the fetch's session has ended, or goes on with a later request."""
        session = self._turn.session
        return session is not None and (session.is_closed or self._turn.is_overtaken)

    def _is_over(self) -> bool:
        """Return whether the fetch must respond with what there is."""
        is_up = self._time.is_up(asyncio.get_running_loop().time())
        return (is_up and self._size > 0) or self._is_late()

    def _is_late(self) -> bool:
        """Return whether missing owners are reported, as no time is left to wait for them."""
        if self._is_cut_off or self._service.is_draining:
            return True
        now = asyncio.get_running_loop().time()
        if not self._time.is_up(now):
            return False
        return not (self._time.is_patient(now) and (self._time.is_lost or self._lacks_owner()))

    def _lacks_owner(self) -> bool:
        """Return whether a partition that waits has no owner; only the first PARTITIONS_A_TURN are checked."""
        waiting = tuple(islice(self._watch.waiting, PARTITIONS_A_TURN))
        return any(self._rest_of(wanted).error is ErrorCode.NOT_LEADER_OR_FOLLOWER for wanted in waiting)

    @property
    def _may_follow(self) -> bool:
        return self._follows and not self._is_cut_off

    # ------------------------------------------------------------------------------------------------------------ check

    def _check_changed(self, bytes_max: int | None = None) -> Steps[None]:
        """Check once the partitions that may have something, with a pause after each PARTITIONS_A_TURN of them.

        ``bytes_max`` is the room for records, if less than the request's limit.
        """
        self._begin_round(bytes_max)
        for number, part in enumerate(batched(tuple(self._watch.changed), PARTITIONS_A_TURN)):
            if number:
                yield
            if not self._check(part):
                return

    def _begin_round(self, bytes_max: int | None = None) -> None:
        """Begin a round: forget what the last one has found.

        ``bytes_max`` is the room for records, if less than the request's limit.
        """
        limit = self._params.max_bytes
        self._is_first, self._left = True, (limit if bytes_max is None else min(bytes_max, limit))
        self._has_checked = True
        self._fresh = []
        self._seen = self._watch.events
        self._size = self._kept = self._planned = self._stored = 0
        self._hurries = self._reads = False

    def _check(self, partitions: Sequence[SessionPartition]) -> bool:
        """Check these partitions, in the order of service.

        Return False once all bytes are used, so that the rest need no check.
        """
        check, watch, follows, committed = (
            self._service.check_partition,
            self._watch,
            self._may_follow,
            self._params.committed,
        )
        is_full, is_first, left = self._turn.partitions is not None, self._is_first, self._left
        nearer, may_read, hints = self._params.nearer, self._params.may_read, self._params.hints
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
                follows=follows,
                may_read=may_read,
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
            else:
                self._sort(result)
        self._left, self._is_first = left, is_first
        return True

    def _plan(self, result: PartitionRead) -> int:
        """Count the partition's records, and return the bytes that they take of the response."""
        if result.reads:
            self._reads = True
            self._planned += _cost(result)
            return max(0, result.limit)
        self._size += result.size
        self._planned += result.size
        return result.size

    def _sort(self, result: PartitionRead) -> None:
        """Sort a partition without records: an error or a nearer proxy is reported now, the others are the rest."""
        wanted, watch = result.wanted, self._watch
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

    def _is_enough(self) -> bool:
        return self._size >= self._params.min_bytes or self._hurries or self._knows_nothing()

    def _knows_nothing(self) -> bool:
        """Return whether none of the fetch's partitions exists (or it has none): there is nothing to wait for."""
        session, partitions = self._turn.session, self._turn.partitions
        count = len(partitions) if partitions is not None else len(session.partitions) if session is not None else 0
        return len(self._watch.news) == count and all(result.is_unknown for result in self._rest.values())

    # ------------------------------------------------------------------------------------------------------- read, park

    async def _gather(self) -> FetchResult | None:
        """Reserve bytes, read from storage, respond.  Return None if nothing was found after all and time is left."""
        if self._reads and not self._may_read_storage():
            return await run_in_turns(self._finish_empty())
        reservation = await self._reserve()
        if reservation is None:
            return await run_in_turns(self._finish_empty())
        try:
            if self._reads:
                await self._read(reservation)
            if not (self._size or self._is_enough() or self._is_over()):
                reservation.release()
                return None
            if not self._is_admitted():
                reservation.release()
                return await run_in_turns(self._finish_empty())
            return await run_in_turns(self._finish(reservation, is_late=self._is_late()))
        except BaseException:
            reservation.release()
            raise

    def _may_read_storage(self) -> bool:
        """Return False if the client owes its quota: what storage gave for it would not be sent."""
        admit = self._params.admit
        return admit is None or admit(0)

    def _is_admitted(self) -> bool:
        """Return whether the client's quota lets it have the records that were found, which count from now on."""
        admit = self._params.admit
        return not self._size or admit is None or admit(self._size)

    async def _reserve(self) -> Reservation | None:
        """Reserve bytes for what was found, or for the part of it that there is room for.

        Returns None if there was no room for POOL_PATIENCE_S.  If room must be waited for, drop what was found (it may
        be evicted meanwhile) and check again once room is granted.
        """
        budget = self._service.budget
        pool = budget.storage if self._reads else budget.memory
        reservation = self._take_now(pool)
        if reservation is not None:
            try:
                await run_in_turns(self._fill(reservation))
            except BaseException:
                reservation.release()
                raise
            return reservation
        self._fresh = []
        try:
            async with asyncio.timeout(POOL_PATIENCE_S):
                reservation = await pool.take(self._planned)
        except TimeoutError:
            await run_in_turns(self._check_changed())
            return None
        try:
            await run_in_turns(self._check_changed(self._bytes_of(reservation)))
        except BaseException:
            reservation.release()
            raise
        reservation.resize(self._planned)
        return reservation

    def _fill(self, reservation: Reservation) -> Steps[None]:
        """Fit what was found into ``reservation``: check again, for fewer bytes, if it is less than planned."""
        if reservation.size < self._planned:
            yield from self._check_changed(self._bytes_of(reservation))
            reservation.resize(self._planned)

    def _bytes_of(self, reservation: Reservation) -> int:
        """Return the bytes of records that fit into a reservation."""
        return reservation.size // READ_COPIES if self._reads else reservation.size

    def _take_now(self, pool: MemoryPool) -> Reservation | None:
        """Reserve bytes for what was found; None if there is no room now.  A response without records needs none."""
        return pool.try_take(self._planned) if self._planned else Reservation(pool, 0)

    async def _read(self, reservation: Reservation) -> None:
        """Read what lies on storage, several partitions at once."""
        params = self._params
        gate = asyncio.Semaphore(PARALLEL_READS)
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks = {loop.create_task(self._service.read(result, gate)): result for result in self._fresh if result.reads}
        is_rich = 0 < self._size >= params.min_bytes
        patience = SHORT_PATIENCE_S if is_rich else max(0.0, self._storage_deadline - loop.time())
        try:
            await asyncio.wait(tasks, timeout=patience)
            for task, result in tasks.items():
                if task.done():
                    self._take(result, task.result())
        except BaseException:
            await cancel_and_wait(*tasks)
            raise
        for task, result in tasks.items():
            if result.reads:  # still under way: it goes on without this fetch
                result.reads = False
                self._service.adopt(task, reservation.split(_cost(result)))
        self._time.on_read(began, is_lost=any(result.waits for result in self._fresh))
        self._fit()

    def _take(self, result: PartitionRead, outcome: LogSlice | ErrorCode) -> None:
        """Take a read's records or its error.  After NOT_LEADER_OR_FOLLOWER the read is repeated while time is left."""
        result.reads = False
        if isinstance(outcome, ErrorCode):
            result.fails(outcome, waits=outcome is ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._hurries |= not result.waits
        elif outcome.size:
            result.buffers, result.size, result.is_stored = outcome.buffers, outcome.size, True
            result.kept_bytes = outcome.kept_bytes

    def _fit(self) -> None:
        """Drop records past the limits.  Only the first partition with records may pass them, by one batch (KIP-74)."""
        self._size = self._kept = 0
        for result in self._fresh:
            size = result.size
            if size and self._size and (size > result.limit or self._size + size > self._params.max_bytes):
                result.buffers, result.size = (), 0
            self._size += result.size
            self._kept += result.kept_bytes if result.size and result.is_stored else result.size

    async def _park(self, until: float) -> None:
        """Wait until enough has been flushed, something has changed, or the loop's clock reaches ``until``.

        Once the client's own time has passed, a single byte is enough.
        """
        self._on_park()
        loop, service, watch = asyncio.get_running_loop(), self._service, self._watch
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(until, _wake, future)
        watch.token = future
        began = loop.time()
        watch.park(1 if self._time.is_up(began) else self._params.min_bytes - self._size)
        self._fresh = []  # the cache may evict these meanwhile: they are read again after the wait
        service.metrics.parked_fetches += 1
        service.parked.add(future)
        try:
            await future
        finally:
            timer.cancel()
            service.metrics.parked_fetches -= 1
            service.wait_ms.observe((loop.time() - began) * 1000)
            if service.tracer is not None:
                service.tracer.stage("wait", loop.time() - began)
            service.parked.discard(future)
            if watch.token is future:  # else a later request of the session has parked
                watch.token = None
                watch.unpark()

    # --------------------------------------------------------------------------------------------------------- response

    def _finish(self, reservation: Reservation, *, is_late: bool) -> Steps[FetchResult]:
        """Build the response from what was found, with a pause after each PARTITIONS_A_TURN partitions."""
        session, watch = self._turn.session, self._watch
        if session is not None and self._turn.is_overtaken:
            reservation.release()
            self._params.metrics.api(ApiKey.FETCH).failed(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
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

    def _finish_empty(self) -> Steps[FetchResult]:
        """Build a response without records: the budget had no room for POOL_PATIENCE_S, or the quota is used up."""
        for result in self._fresh:
            result.buffers, result.size, result.reads = (), 0, False
        self._size = self._kept = 0
        return (yield from self._finish(Reservation(self._service.budget.memory, 0), is_late=self._is_late()))

    def _note_sent(self, results: Sequence[PartitionRead]) -> None:
        """Note that the response carries these."""
        watch, count, metrics = self._watch, self._service.count, self._params.metrics
        if self._params.hints is not None:
            _note_hints(results, self._params.hints)
        for result in results:
            count(result, metrics)
            result.wanted.sent_marks = result.marks
            if result.size:
                watch.served(result.wanted)
            elif not result.error:
                watch.news.pop(result.wanted, None)

    def _found(self, results: Sequence[PartitionRead], reservation: Reservation) -> FetchResult:
        session = self._turn.session
        reservation.resize(max(self._size, self._kept))
        return FetchResult(
            session_id=session.id if session is not None else NO_SESSION,
            results=results,
            release=reservation.release if self._size else None,
            endpoints=self._params.hints.endpoints if self._params.hints is not None else (),
        )

    def _news(self, *, is_late: bool) -> tuple[list[PartitionRead], Sequence[SessionPartition]]:
        """Return what the response carries so far, and the partitions that ``_rest_of`` is to add to it.

        A full response carries every partition, an incremental one only news.  The partitions in the second result have
        nothing to read.
        """
        if self._turn.partitions is not None:
            results = [*self._fresh, *self._rest.values()]
            if not is_late:
                self._hide_waiting(results)
            return results, ()
        watch = self._watch
        results = [result for result in self._fresh if result.is_news and (is_late or not result.waits)]
        return results, (*watch.news, *watch.waiting) if is_late else tuple(watch.news)

    def _hide_waiting(self, results: Sequence[PartitionRead]) -> None:
        """Clear errors that may still pass, in a full response, which must list these partitions.

        They are sent without records and without a watermark (-1): one from before a move may be too low by now, and
        librdkafka would report the end of the partition there.  A missing owner is reported if ``owner_patience_s`` is
        0: those clients are processes of this cluster, which find the next owner themselves.
        """
        hides_missing = self._service.owner_patience_s > 0
        for result in results:
            if result.waits and (hides_missing or result.error is ErrorCode.OFFSET_NOT_AVAILABLE):
                result.error = ErrorCode.NONE

    def _rest_of(self, wanted: SessionPartition) -> PartitionRead:
        """Return the partition's last check, or check it now if an earlier request of the session made the last one."""
        result = self._rest.get(wanted)
        if result is None:
            params, follows = self._params, self._may_follow
            result = self._service.check_partition(
                wanted, 0, at_least_one=False, committed=params.committed, follows=follows, may_read=params.may_read
            )
        return result

    # ----------------------------------------------------------------------------------------------------------- follow

    def _follow(self) -> None:
        """Follow the partitions from now on.  A fetch without a session checks all of its partitions again for that."""
        if self._turn.session is None:
            self._follows = True
            if self._has_checked:  # at few partitions: see ``try_now``
                for wanted in self._turn.partitions or ():
                    self._watch.touch(wanted)

    def _may_park(self) -> bool:
        """Count a large fetch's partitions while it waits.  Return False if those that wait have too many already."""
        turn, service = self._turn, self._service
        count = len(turn.partitions or ()) if turn.session is None else 0
        if count <= PARTITIONS_A_TURN:
            return True
        if service.parked_partitions and service.parked_partitions + count > PARTITIONS_MAX:
            return False
        self._parked_partitions = count
        service.parked_partitions += count
        return True

    def _leave(self, *, is_answered: bool) -> None:
        turn = self._turn
        self._service.parked_partitions -= self._parked_partitions
        if turn.session is None:
            self._service.leave(turn.partitions or ())
            self._watch.clear()
        elif turn.is_new and not is_answered:  # the client will never learn the session's id
            self._service.end_session(turn.session)


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


def _cost(result: PartitionRead) -> int:
    """Return the bytes to reserve for a read from storage."""
    return READ_COPIES * max(READ_BYTES_MIN, result.limit)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
