"""The Fetch service of one process: it receives what owners flush, and serves fetches from that and from storage.

A fetch is served from one of three: the tail cache, the next flush (it is parked until then), or storage.  Nothing here
polls, and an idle partition costs nothing here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any

from bmq.core.aio.lru import LruCache
from bmq.core.aio.tasks import OwnedTasks, cancel_and_wait
from bmq.core.aio.turns import map_in_turns, run_in_turns
from bmq.core.clock import Clock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.logging.fields import fields
from bmq.core.metrics.counters import Histogram, Metrics
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.core.tracing import Tracer, Value
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.authorization.authorizer import MayRead
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.fetch_time import OWNER_PATIENCE_S
from bmq.endpoint.fetch.memory_budget import FetchBudget, Reservation
from bmq.endpoint.fetch.operation import READ_COPIES, FetchOperation, FetchResult
from bmq.endpoint.fetch.partition_read import PartitionRead, read_partition
from bmq.endpoint.fetch.purgatory import FetchPurgatory, FetchWatch, Identity, SessionPartition
from bmq.endpoint.fetch.sessions import EPOCH_MAX, FetchSession, FetchSessions, Turn
from bmq.endpoint.fetch.tail_cache import TailCache
from bmq.endpoint.partitions import Owners
from bmq.meta.catalog import Catalog, Topic, TopicChange
from bmq.storage.block_cache import BlockCache
from bmq.storage.filesystem import StorageError
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader, LogSlice, MissingRecords, OffsetNotFound

_log = logging.getLogger("bmq.endpoint.fetch.service")
LEFT_AT_ONCE = 2_000
"""Partitions that are left (or woken) in one turn of the loop: half a microsecond each."""
READERS_MAX = 1_000
"""Partitions whose `LogReader` is kept, with the name of each of its segments; the least recently used ones are
dropped."""


class FetchService:
    """The Fetch service, and the ``endpoint.partitions.FlushListener`` that owners call synchronously.

    A process that is proxy and broker has two: one for clients, and one, ``beside`` the first, for the proxies that
    follow the partitions it owns.  They share the tails, the budget, the readers and the purgatory, so there is one
    copy of a tail, and owners notify only the first one: a parked fetch wakes, whichever of the two it belongs to.
    Each has its own sessions and parked fetches, with their gauges in ``metrics``.  A fetch counts in the counters of
    its caller (`FetchParams.metrics`).  ``served`` is called with the bytes of each partition in a response.
    ``owner_patience_s``: see ``endpoint.fetch.fetch_time``.
    """

    def __init__(
        self,
        config: NodeConfig,
        catalog: Catalog,
        owners: Owners,
        pool: BlockCache,
        clock: Clock,
        metrics: Metrics,
        *,
        beside: FetchService | None = None,
        served: Callable[[PartitionKey, int], None] | None = None,
        owner_patience_s: float = OWNER_PATIENCE_S,
    ) -> None:
        self.owner_patience_s = owner_patience_s
        self.metrics = metrics
        self.budget: FetchBudget
        self.tails: TailCache
        self.poll: FetchPurgatory
        self._readers: LruCache[PartitionKey, LogReader]
        if beside is None:
            self.budget = FetchBudget(config.cache_bytes, config.tail_fraction, pool)
            self.tails = self.budget.tails
            self.poll = FetchPurgatory()
            self._readers = LruCache(READERS_MAX)
            catalog.subscribe(self._topic_changed)
        else:
            self.budget, self.tails, self.poll, self._readers = (
                beside.budget,
                beside.tails,
                beside.poll,
                beside._readers,
            )
            catalog.subscribe(self._forget_counters)
        self._served = served
        self.sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, _random_id)
        self._catalog = catalog
        self._owners = owners
        self._pool = pool
        self._clock = clock
        self.tracer: Tracer | None = None
        self.wait_ms = Histogram()
        """Milliseconds that parked fetches waited for records."""
        self.read_ms = Histogram()
        """Milliseconds that reads of one partition, from storage or from its cached blocks, took."""
        self.parked: set[asyncio.Future[None]] = set()
        self.is_draining = False
        self._sends_away = False
        self.parked_partitions = 0
        """Number of partitions of large parked fetches without a session."""
        self._leaving = OwnedTasks()
        self._late: dict[asyncio.Task[LogSlice | ErrorCode], Reservation] = {}
        self._bytes_max = min(config.fetch_max_bytes, self.budget.storage.limit // READ_COPIES)

    def __repr__(self) -> str:
        return f"<FetchService {self.tails!r} {self.budget!r} {self.sessions!r} followed={len(self.poll)}>"

    def drain(self) -> None:
        """Let parked fetches respond now, and park no more: the process is about to end."""
        self.is_draining = True
        for future in self.parked:
            if not future.done():
                future.set_result(None)

    def send_away(self, sends_away: bool) -> None:
        """Refuse all partitions with NOT_LEADER_OR_FOLLOWER from now on, or no longer, so that clients ask Metadata.

        For a process that is not a member of the cluster: its view of partitions may be that of former owners.  Parked
        fetches check again, and so respond soon.
        """
        if sends_away == self._sends_away:
            return
        self._sends_away = sends_away
        waking = map_in_turns(lambda key: _wake(self.poll.changed(key)), self.poll.keys(), LEFT_AT_ONCE)
        self._leaving.start(waking, "waking fetches")

    async def close(self) -> None:
        """Cancel late reads and unfinished background work, and wait for their end."""
        await cancel_and_wait(*self._late)
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
        fetching = self._fetching(turn, params)
        return fetching.try_now() or fetching.run()

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
        now_ms = int(self._clock.monotonic() * 1000)
        turn = await run_in_turns(
            self.sessions.begin_in_steps(session_id, session_epoch, listed, forgotten, by_id=by_id, now_ms=now_ms)
        )
        return self._begun(turn, params) or await self._fetching(turn, params).run(on_park)

    def _begun(self, turn: Turn, params: FetchParams) -> FetchResult | None:
        """Leave the partitions that the request has ended, and resume its session.  Return the result if refused."""
        self.leave(turn.left)
        for session in turn.closed:
            self._unfollow(session)
        self.metrics.fetch_sessions = len(self.sessions)
        if turn.error:
            params.metrics.api(ApiKey.FETCH).failed(turn.error)
            return FetchResult(turn.error)
        if turn.session is not None:
            self._resume(turn.session.watch)
        return None

    def _fetching(self, turn: Turn, params: FetchParams) -> FetchOperation:
        params.max_bytes = min(params.max_bytes, self._bytes_max)
        params.min_bytes = min(params.min_bytes, params.max_bytes)
        return FetchOperation(self, turn, params)

    def leave(self, partitions: Collection[SessionPartition]) -> None:
        """Follow these partitions no longer: at once, or in later turns of the loop if there are many."""
        if len(partitions) <= LEFT_AT_ONCE:
            for wanted in partitions:
                self.poll.leave(wanted)
            return
        self._leaving.start(map_in_turns(self.poll.leave, tuple(partitions), LEFT_AT_ONCE), "leaving partitions")

    def _resume(self, watch: FetchWatch) -> None:
        """Resume a session for its next request: wake one that is parked, and check again what had only news."""
        watch.touch_news()
        if watch.is_parked:
            watch.unpark()
            _wake((watch,))

    def end_session(self, session: FetchSession) -> None:
        """Close a session, and leave its partitions."""
        self.sessions.close(session)
        self._unfollow(session)
        self.metrics.fetch_sessions = len(self.sessions)

    def _unfollow(self, session: FetchSession) -> None:
        self.leave(session.partitions.values())
        if session.watch.is_parked:
            session.watch.unpark()
            _wake((session.watch,))

    # ------------------------------------------------------------------------------------------------------- partitions

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
        """Return what the partition has now.  See `FetchReads.check_partition`."""
        topic = self._topic_of(wanted)
        if may_read is not None:
            name = wanted.topic if isinstance(wanted.topic, str) else topic.name if topic is not None else None
            if name is not None and not may_read(name):
                return PartitionRead(wanted, topic, limit).fails(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if topic is None or not 0 <= wanted.partition < topic.partitions:
            return self._unknown(wanted, limit, has_topic=topic is not None)
        key = wanted.key
        if key is None or key.topic_id != topic.topic_id:
            key = PartitionKey(topic.topic_id, wanted.partition)
        if follows:
            self.poll.follow(wanted, key)
        wanted.key = key
        if self._sends_away:
            return PartitionRead(wanted, topic, limit).fails(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        followed = self._owners.follow(key)
        return read_partition(
            wanted, topic, followed, self.tails, limit, at_least_one=at_least_one, committed=committed
        )

    def _topic_of(self, wanted: SessionPartition) -> Topic | None:
        if isinstance(wanted.topic, str):
            return self._catalog.topics.get(wanted.topic)
        return self._catalog.by_id(wanted.topic)

    def _unknown(self, wanted: SessionPartition, limit: int, *, has_topic: bool) -> PartitionRead:
        result = PartitionRead(wanted, None, limit)
        result.is_gone = wanted.key is not None
        self.poll.leave(wanted)
        if has_topic or isinstance(wanted.topic, str):
            return result.fails(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return result.fails(ErrorCode.UNKNOWN_TOPIC_ID)

    def count(self, result: PartitionRead, metrics: Metrics) -> None:
        """Count a partition's part of a response in ``metrics``, the counters of the caller."""
        if result.error:
            metrics.api(ApiKey.FETCH).failed(result.error)
        if result.topic is None:
            return  # a topic that does not exist gets no counters
        counters = metrics.topic(result.topic.name)
        counters.fetches += 1
        counters.bytes_out += result.size
        if result.size and result.key is not None:
            if self._served is not None:
                self._served(result.key, result.size)
            if metrics.traffic is not None:
                metrics.traffic.read(result.topic.name, result.key.partition, result.size)
        if result.error:
            counters.failed_fetches += 1
        elif result.is_stored:
            metrics.storage_read_bytes += result.size
        else:
            metrics.tail_hit_bytes += result.size

    # ---------------------------------------------------------------------------------------------------------- storage

    def reader(self, key: PartitionKey, path: PartitionPath) -> LogReader:
        """Return the partition's reader; the least recently used one of more than READERS_MAX is dropped."""
        reader = self._readers.get(key)
        if reader is None:
            reader = LogReader(self._pool, path)
            self._readers.put(key, reader)
        return reader

    async def read(self, result: PartitionRead, gate: asyncio.Semaphore) -> LogSlice | ErrorCode:
        """Return the records that ``result`` found on storage, or the error of this partition alone."""
        key, topic = result.key, result.topic
        assert key is not None
        assert topic is not None
        path = PartitionPath(topic.name, str(topic.topic_id), key.partition)
        try:
            try:
                return await self._read_from(self.reader(key, path), result, gate)
            except (OffsetNotFound, MissingRecords):
                self._readers.pop(key)  # its list of segments may be out of date
                return await self._read_from(self.reader(key, path), result, gate)
        except RequestError as error:
            return _fetch_code(error)
        except (OffsetNotFound, MissingRecords) as error:
            return await self._missing(key, result.offset, error)
        except StorageError as error:
            _log.warning(
                "records cannot be read from storage now: their readers get KAFKA_STORAGE_ERROR, and try again",
                extra=fields(topic=topic.name, partition=key.partition, error=error),
            )
            return ErrorCode.KAFKA_STORAGE_ERROR

    async def _read_from(self, reader: LogReader, result: PartitionRead, gate: asyncio.Semaphore) -> LogSlice:
        async with gate:
            began = self._clock.monotonic()
            active = result.active_segment if result.asks is None else await result.asks.ask_active_segment()
            held = self.tails.held(result.key) if result.key is not None else None
            records = await reader.read_slice(result.offset, result.limit, result.end, active=active, held=held)
            took_s = self._clock.monotonic() - began
            self.read_ms.observe(took_s * 1000)
            if self.tracer is not None:
                self._trace_read(self.tracer, result, took_s, records.size)
            return records

    def _trace_read(self, tracer: Tracer, result: PartitionRead, took_s: float, size: int) -> None:
        assert result.topic is not None
        attributes: dict[str, Value] = {
            "messaging.destination.name": result.topic.name,
            "messaging.destination.partition.id": str(result.wanted.partition),
            "messaging.kafka.offset": result.offset,
            "bmq.bytes": size,
        }
        tracer.stage("read", took_s, attributes)

    async def _missing(self, key: PartitionKey, offset: int, error: Exception) -> ErrorCode:
        """Return the error for an offset that storage does not have, by the owner's offsets (rule 2).

        If the offset is within the owner's log, its bytes are lost: CORRUPT_MESSAGE, which no client ignores silently.
        """
        owner = self._owners.get(key)
        if owner is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        try:
            ends = await owner.ends()
        except RequestError as refusal:
            return _fetch_code(refusal)
        if offset < ends.log_start:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        if offset >= ends.high_watermark:
            return ErrorCode.OFFSET_NOT_AVAILABLE
        topic = self._catalog.by_id(key.topic_id)
        _log.error(
            "records are gone from storage, consumers that read them get CORRUPT_MESSAGE: put the file back, or skip"
            " them by DeleteRecords or another offset (offsets %d to %d should be there)",
            ends.log_start,
            ends.high_watermark,
            extra=fields(
                topic=topic.name if topic is not None else str(key.topic_id), partition=key.partition, error=error
            ),
        )
        return ErrorCode.CORRUPT_MESSAGE

    def adopt(self, task: asyncio.Task[LogSlice | ErrorCode], reservation: Reservation) -> None:
        """Let a read, for which its fetch no longer waits, go on and fill the block cache.

        Its reservation, released when it ends, bounds such reads.
        """
        self._late[task] = reservation
        task.add_done_callback(self._late_ended)

    def _late_ended(self, task: asyncio.Task[LogSlice | ErrorCode]) -> None:
        self._late.pop(task).release()

    # ------------------------------------------------------------------------------------------------------------ tails

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        """Drop the tail of the former owner, and wake the fetches that follow the partition."""
        self._forget_tail(key)
        _wake(self.poll.changed(key))

    def flushed(self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int) -> None:
        """Add the batches to the tail, and wake the fetches that have enough now."""
        if not batches:
            return
        self.tails.add(key, batches)
        self.budget.tails_changed()
        _wake(self.poll.flushed(key, sum([batch.size for batch in batches])))

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        """Drop the batches below the log start, and wake the fetches that follow the partition."""
        self.tails.trim(key, log_start)
        self.budget.tails_changed()
        _wake(self.poll.changed(key))

    def closed(self, key: PartitionKey) -> None:
        """Drop the tail, and wake the fetches that follow the partition."""
        self._forget_tail(key)
        _wake(self.poll.changed(key))

    def changed(self, key: PartitionKey) -> None:
        """Wake the fetches that follow the partition: its end is confirmed, or its new leader has become known."""
        _wake(self.poll.changed(key))

    def _forget_tail(self, key: PartitionKey) -> None:
        self.tails.drop(key)
        self.budget.tails_changed()

    def _topic_changed(self, change: TopicChange) -> None:
        """Wake the fetches of a topic that is gone, and drop its tails, readers and counters."""
        before = change.before
        if before is None or not _is_gone(change):
            return
        self._forget_counters(change)
        for partition in range(before.partitions):
            key = PartitionKey(before.topic_id, partition)
            self._readers.pop(key)
            self._forget_tail(key)
            _wake(self.poll.changed(key))

    def _forget_counters(self, change: TopicChange) -> None:
        if change.before is not None and _is_gone(change):
            self.metrics.topics.pop(change.before.name, None)


def _is_gone(change: TopicChange) -> bool:
    before, after = change.before, change.after
    return before is not None and (after is None or after.topic_id != before.topic_id)


def _wake(watches: Iterable[FetchWatch]) -> None:
    for watch in watches:
        future = watch.token
        if isinstance(future, asyncio.Future) and not future.done():
            future.set_result(None)


def _random_id() -> int:
    return random.randint(1, EPOCH_MAX)


def _fetch_code(error: RequestError) -> ErrorCode:
    """Return the code for a partition of a Fetch whose owner did not respond.

    An owner that does not respond in time is REQUEST_TIMED_OUT in Produce.  Kafka's Fetch has no such code: Java's
    consumer throws IllegalStateException (FetchCollector), librdkafka passes it to the application.  Both look for the
    leader again after NOT_LEADER_OR_FOLLOWER.
    """
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error.code == ErrorCode.REQUEST_TIMED_OUT else error.code
