"""The fetch service: it serves fetches from the tail cache, the next flush, or storage.

A fetch that waits for the next flush is parked.  Nothing here polls, and an idle partition costs nothing here.  The
fetch's ``FetchOperation`` decides; the service reserves bytes before they are read, reads, parks and wakes.  The bytes
are released when the response was sent.

Storage may be slow.  A fetch that has enough in memory waits for storage only a short time.  A read that comes too late
still goes on to its end, and fills the block cache for the next fetch.  Partitions that are left out stay at the front
of their session's order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.tasks import OwnedTasks, cancel_and_wait
from bmq.core.aio.turns import map_in_turns, run_in_turns
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.metrics.counters import Histogram
from bmq.core.model import PartitionKey
from bmq.core.tracing import Tracer
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.fetch.context import FetchContext, wake
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.fetch_time import OWNER_PATIENCE_S
from bmq.endpoint.fetch.memory_budget import Reservation
from bmq.endpoint.fetch.operation import READ_COPIES, FetchOperation, read_cost
from bmq.endpoint.fetch.partition_checks import PartitionChecks
from bmq.endpoint.fetch.purgatory import FetchWatch, Identity, SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from bmq.endpoint.fetch.sessions import EPOCH_MAX, FetchSession, FetchSessions, Turn
from bmq.endpoint.fetch.storage_reads import StorageReads
from bmq.endpoint.large_requests import PARTITIONS_MAX
from bmq.endpoint.partitions import Owners
from bmq.meta.catalog import Catalog

LEFT_AT_ONCE = 2_000
"""Partitions that are left (or woken) in a turn of the loop: half a microsecond each."""
STORAGE_PATIENCE_S = 10.0
"""Time that a fetch without other records waits for storage (or its max.wait, if longer).  It is below any client's
request time-out: a fetch that never gets a response makes librdkafka and franz-go begin again (nisshi #668)."""
SHORT_PATIENCE_S = 0.5
"""Time that a fetch with enough records from memory waits for storage (Kafka's remote.fetch.max.wait.ms)."""
POOL_PATIENCE_S = 10.0
"""Time that a fetch waits for bytes of the budget; then its response has no records."""
PARALLEL_READS = 8
"""Partitions that one fetch reads from storage at once."""


class FetchService:
    """The fetches of one kind of caller: the clients, or the processes that follow this process's partitions.

    Each service has its own sessions and parked fetches.  All services of a process share its ``context``.  The service
    has no counters: a fetch counts in the counters of its caller (``FetchParams.metrics``).  ``served`` is called with
    the bytes of each partition in a response.  ``owner_patience_s``: see ``endpoint.fetch.fetch_time``.
    """

    def __init__(
        self,
        config: NodeConfig,
        catalog: Catalog,
        owners: Owners,
        context: FetchContext,
        clock: Clock,
        *,
        tracer: Tracer | None = None,
        served: Callable[[PartitionKey, int], None] | None = None,
        owner_patience_s: float = OWNER_PATIENCE_S,
    ) -> None:
        self.context = context
        self.budget = context.budget
        self.tails = context.tails
        self.poll = context.poll
        self.sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, _random_id)
        self.wait_ms = Histogram()
        """Milliseconds that parked fetches waited for records."""
        self.parked: set[asyncio.Future[None]] = set()
        self.is_draining = False
        self.parked_partitions = 0
        """Number of partitions of large parked fetches without a session."""
        self._checks = PartitionChecks(context, catalog, owners, served)
        self._reads = StorageReads(context, catalog, owners, clock, tracer)
        self._clock = clock
        self._tracer = tracer
        self.owner_patience_s = owner_patience_s
        self._leaving = OwnedTasks()
        self._bytes_max = min(config.fetch_max_bytes, self.budget.storage.limit // READ_COPIES)

    def __repr__(self) -> str:
        return f"<FetchService {self.context!r} {self.sessions!r}>"

    @property
    def read_ms(self) -> Histogram:
        """Milliseconds that reads of one partition, from storage or from its cached blocks, took."""
        return self._reads.read_ms

    def drain(self) -> None:
        """Let parked fetches respond now, and park no more: the process is about to end."""
        self.is_draining = True
        for future in self.parked:
            _wake(future)

    def send_away(self, sends_away: bool) -> None:
        """Refuse all partitions with NOT_LEADER_OR_FOLLOWER from now on, or no longer, so that clients ask Metadata.

        For a process that is not a member of the cluster: its view of partitions may be that of former owners.  Parked
        fetches check again, and so respond soon.
        """
        if sends_away == self._checks.sends_away:
            return
        self._checks.sends_away = sends_away
        self._leaving.start(map_in_turns(self.context.changed, self.poll.keys(), LEFT_AT_ONCE), "waking fetches")

    async def close(self) -> None:
        """Cancel late reads and unfinished background work, and wait for their end."""
        await self._reads.close()
        await self._leaving.close()

    # ---------------------------------------------------------------------------------------------------------- fetches

    def fetch(
        self,
        session_id: int,
        session_epoch: int,
        listed: Sequence[SessionPartition],
        forgotten: Iterable[Identity],
        params: FetchParams,
        *,
        by_id: bool,
    ) -> FetchResult | Coroutine[Any, Any, FetchResult]:
        """Serve one request.  Return its result, or a coroutine of it if the request must wait.

        The session arguments are those of ``FetchSessions.begin_in_steps``.
        """
        now_ms = int(self._clock.monotonic() * 1000)
        turn = self.sessions.begin(session_id, session_epoch, listed, forgotten, by_id=by_id, now_ms=now_ms)
        refused = self._begun(turn, params)
        if refused is not None:
            return refused
        operation = FetchOperation(self._checks, turn, params, self.owner_patience_s)
        return self._respond_now(operation) or self._run(operation)

    async def fetch_large(
        self,
        session_id: int,
        session_epoch: int,
        listed: Sequence[SessionPartition],
        forgotten: Iterable[Identity],
        params: FetchParams,
        *,
        by_id: bool,
        on_park: Callable[[], None],
    ) -> FetchResult:
        """Serve a request that names many partitions, in turns of the loop.  ``on_park`` is called before it waits."""
        now_ms, turn = int(self._clock.monotonic() * 1000), Turn()
        steps = self.sessions.begin_in_steps(
            session_id, session_epoch, listed, forgotten, by_id=by_id, now_ms=now_ms, turn=turn
        )
        try:
            await run_in_turns(steps)
        except BaseException:  # the client has gone in a pause
            self._leave_ended(turn)
            raise
        refused = self._begun(turn, params)
        if refused is not None:
            return refused
        return await self._run(FetchOperation(self._checks, turn, params, self.owner_patience_s), on_park)

    def _begun(self, turn: Turn, params: FetchParams) -> FetchResult | None:
        """Leave the partitions that the request has ended, and resume its session.  Return the result if refused.

        The service's own bound of bytes applies from here on.
        """
        self._leave_ended(turn)
        if turn.error:
            params.metrics.api(ApiKey.FETCH).failed(turn.error)
            return FetchResult(turn.error)
        if turn.session is not None:
            self._resume(turn.session.watch)
        params.max_bytes = min(params.max_bytes, self._bytes_max)
        params.min_bytes = min(params.min_bytes, params.max_bytes)
        return None

    def _leave_ended(self, turn: Turn) -> None:
        """Leave the partitions and the sessions that a request has ended."""
        if turn.left:
            self.leave(turn.left)
        for session in turn.closed:
            self._unfollow(session)

    def _respond_now(self, operation: FetchOperation) -> FetchResult | None:
        """Return the response, if it needs neither storage nor a wait, and no more than one turn of the loop.

        None: ``_run`` is needed.
        """
        if not operation.is_ready():
            return None
        memory, planned = self.budget.memory, operation.planned
        reservation = memory.try_take(planned) if planned else Reservation(memory, 0)
        if reservation is None:
            return None
        if reservation.size < planned:
            operation.check_now(operation.bytes_of(reservation))
            reservation.resize(operation.planned)
        if not operation.is_admitted():
            reservation.release()
            return None
        return operation.finish_now(reservation)

    async def _run(self, operation: FetchOperation, on_park: Callable[[], None] = no_op) -> FetchResult:
        """Return the response, once there is enough or the fetch's time is up.

        To be cancelled when the client has gone.  ``on_park`` is called before each wait for records.  A large fetch
        without a session waits only if all such fetches that wait have PARTITIONS_MAX partitions at most.
        """
        now = asyncio.get_running_loop().time
        storage_deadline = now() + max(STORAGE_PATIENCE_S, operation.params.max_wait_s)
        counted = operation.parked_partitions
        may_park = not (counted and self.parked_partitions and self.parked_partitions + counted > PARTITIONS_MAX)
        if not may_park:
            counted = 0
        self.parked_partitions += counted
        fetched: FetchResult | None = None
        try:
            operation.begin(now(), may_park=may_park)
            while fetched is None:
                await run_in_turns(operation.check_changed())
                operation.time.on_check(now(), waits=bool(operation.watch.waiting), reads=operation.reads)
                if operation.reads or self._is_done(operation):
                    fetched = await self._gather(operation, storage_deadline)
                if fetched is None and operation.may_park:
                    on_park()
                    await self._park(operation, operation.time.next_check_at(now()))
            return fetched
        finally:
            self.parked_partitions -= counted
            self._end(operation.turn, is_answered=fetched is not None)

    def _is_done(self, operation: FetchOperation) -> bool:
        """Return whether the fetch can respond with what it has from memory."""
        now = asyncio.get_running_loop().time()
        return operation.is_enough() or operation.is_over(now, is_draining=self.is_draining)

    def _is_late(self, operation: FetchOperation) -> bool:
        return operation.is_late(asyncio.get_running_loop().time(), is_draining=self.is_draining)

    async def _gather(self, operation: FetchOperation, storage_deadline: float) -> FetchResult | None:
        """Reserve bytes, read from storage, respond.  Return None if nothing was found after all and time is left."""
        if operation.reads and not operation.may_read_storage():
            return await self._finish_empty(operation)
        reservation = await self._reserve(operation)
        if reservation is None:
            return await self._finish_empty(operation)
        try:
            if operation.reads:
                await self._read(operation, reservation, storage_deadline)
            if not (operation.size or self._is_done(operation)):
                reservation.release()
                return None
            if not operation.is_admitted():
                reservation.release()
                return await self._finish_empty(operation)
            return await run_in_turns(operation.finish(reservation, is_late=self._is_late(operation)))
        except BaseException:
            reservation.release()
            raise

    async def _finish_empty(self, operation: FetchOperation) -> FetchResult:
        """Return a response without records: the budget has no room, or the client's quota is used up."""
        nothing = Reservation(self.budget.memory, 0)
        return await run_in_turns(operation.finish_empty(nothing, is_late=self._is_late(operation)))

    async def _reserve(self, operation: FetchOperation) -> Reservation | None:
        """Reserve bytes for what was found, or for the part of it that there is room for.

        Returns None if there was no room for POOL_PATIENCE_S.  If room must be waited for, drop what was found (it may
        be evicted meanwhile) and check again once room is granted.
        """
        pool = self.budget.storage if operation.reads else self.budget.memory
        reservation = pool.try_take(operation.planned) if operation.planned else Reservation(pool, 0)
        if reservation is not None:
            if reservation.size >= operation.planned:
                return reservation
        else:
            operation.forget_found()
            try:
                async with asyncio.timeout(POOL_PATIENCE_S):
                    reservation = await pool.take(operation.planned)
            except TimeoutError:
                await run_in_turns(operation.check_changed())
                return None
        try:
            await run_in_turns(operation.check_changed(operation.bytes_of(reservation)))
        except BaseException:
            reservation.release()
            raise
        reservation.resize(operation.planned)
        return reservation

    async def _read(self, operation: FetchOperation, reservation: Reservation, deadline: float) -> None:
        """Read what lies on storage, several partitions at once."""
        gate = asyncio.Semaphore(PARALLEL_READS)
        loop = asyncio.get_running_loop()
        began = loop.time()
        tasks = {loop.create_task(self._reads.read(result, gate)): result for result in operation.wanted_reads}
        patience = SHORT_PATIENCE_S if operation.is_rich else max(0.0, deadline - began)
        try:
            await asyncio.wait(tasks, timeout=patience)
            for task, result in tasks.items():
                if task.done():
                    operation.take(result, task.result())
        except BaseException:
            await cancel_and_wait(*tasks)
            raise
        for task, result in tasks.items():
            if result.reads:  # still under way: it goes on without this fetch
                self._reads.adopt(task, reservation.split(read_cost(result)))
        operation.note_read(began)

    async def _park(self, operation: FetchOperation, until: float) -> None:
        """Wait until enough has been flushed, something has changed, or the loop's clock reaches ``until``."""
        loop, watch = asyncio.get_running_loop(), operation.watch
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(until, _wake, future)
        watch.token = future
        began = loop.time()
        watch.park(operation.needed_bytes(began))
        operation.forget_found()
        self.parked.add(future)
        try:
            await future
        finally:
            timer.cancel()
            self.wait_ms.observe((loop.time() - began) * 1000)
            if self._tracer is not None:
                self._tracer.stage("wait", loop.time() - began)
            self.parked.discard(future)
            if watch.token is future:  # else a later request of the session has parked
                watch.token = None
                watch.unpark()

    def _end(self, turn: Turn, *, is_answered: bool) -> None:
        """Leave the partitions of a fetch without a session, and end a session whose id the client will never learn."""
        if turn.session is None:
            self.leave(turn.partitions or ())
            assert turn.watch is not None
            turn.watch.clear()
        elif turn.is_new and not is_answered:
            self.end_session(turn.session)

    # --------------------------------------------------------------------------------------------------------- sessions

    def leave(self, partitions: Collection[SessionPartition]) -> None:
        """Follow these partitions no longer: at once, or in later turns of the loop if there are many."""
        if len(partitions) <= LEFT_AT_ONCE:
            for wanted in partitions:
                self.poll.leave(wanted)
            return
        self._leaving.start(map_in_turns(self.poll.leave, tuple(partitions), LEFT_AT_ONCE), "leaving partitions")

    def _resume(self, watch: FetchWatch) -> None:
        """Resume a session for its next request: wake a parked fetch, check again the partitions with news only."""
        watch.touch_news()
        if watch.is_parked:
            watch.unpark()
            wake((watch,))

    def end_session(self, session: FetchSession) -> None:
        """Close a session, and leave its partitions."""
        self.sessions.close(session)
        self._unfollow(session)

    def _unfollow(self, session: FetchSession) -> None:
        self.leave(session.partitions.values())
        if session.watch.is_parked:
            session.watch.unpark()
            wake((session.watch,))


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _random_id() -> int:
    return random.randint(1, EPOCH_MAX)
