"""One partition as its owner serves it: the requests of the proxy, and of the coordinator's shards, to a broker.

The class matches ``endpoint.partitions.Owner`` and ``PartitionView``; a test compares them. Properties are read from
the partition at each access, so they are never outdated. Errors of storage and of the metadata store become
RequestErrors here.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from bmq.broker.context import BrokerContext
from bmq.broker.partition.assurance import Assurance
from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.log_size import LogSize
from bmq.broker.partition.offset_search import OffsetLookups, SearchedLog
from bmq.broker.partition.recompress import Recompressor, RecompressQueue, is_needed
from bmq.broker.partition.record_checks import Work, check_at_once
from bmq.broker.partition.refusals import UNPROVEN, Refusals
from bmq.broker.partition.states import PartitionState
from bmq.broker.partition.verified_appends import VerifiedAppends
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch, Ends, parse_batch
from bmq.core.records.control import TransactionMarker
from bmq.endpoint.partitions import AppendCallback
from bmq.meta.kv import KvError
from bmq.meta.shard_kinds import kind_of_topic
from bmq.storage.aborted import RecentAborted
from bmq.storage.checkpoint import ProducerState
from bmq.storage.filesystem import StorageError
from bmq.storage.log_reader import ActiveSegment

T = TypeVar("T")
TO_WATERMARK = -1
"""The offset in Kafka's DeleteRecords that means the high watermark: delete all records."""
SURE_S = 2.0
"""Seconds for which a proof of ownership is kept for the reader past the end that caused it. It serves one read."""
CONFIRM_EVERY_S = 0.1
"""Least seconds between two proofs for one partition: a client may read again as soon as it has its response."""
CONFIRM_AGAIN_S = 1.0
"""Seconds from a proof that failed to the next one, while a reader waits for it."""
FLUSH_WAIT_S = 30.0
"""Longest wait of a request for a flush: Kafka's request.timeout.ms, after which its client gives it up."""


class PartitionOwner:
    """The interface of one ownership, around a ``PartitionDriver``.

    Once it is not open, ask ``AssignedPartitions`` again.
    """

    __slots__ = (
        "_acknowledged_to",
        "_assurance",
        "_confirmed_at",
        "_context",
        "_driver",
        "_is_confirming",
        "_queue",
        "_recompressor",
        "_refusals",
        "_searches",
        "_size",
        "_sure_until",
        "_unverified",
        "key",
    )  # fmt: skip

    def __init__(
        self, context: BrokerContext, driver: PartitionDriver, searches: OffsetLookups, recompressor: Recompressor
    ) -> None:
        self.key: PartitionKey = driver.machine.key
        self._context = context
        self._driver = driver
        self._searches = searches
        self._recompressor = recompressor
        self._queue: RecompressQueue | None = None
        self._size: LogSize | None = None
        self._unverified: VerifiedAppends | None = None
        self._refusals = Refusals(driver)
        self._assurance = Assurance(driver)
        self._acknowledged_to = 0  # end of the batches acknowledged before their flush (acks=1)
        self._is_confirming = False
        self._confirmed_at = -math.inf
        self._sure_until = 0.0

    def __repr__(self) -> str:
        return f"<PartitionOwner {self._driver!r}>"

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._driver.path.topic

    @property
    def epoch(self) -> int:
        """The owner's epoch, Kafka's leader epoch."""
        return self._driver.machine.epoch

    @property
    def is_open(self) -> bool:
        """True while batches are accepted."""
        return self._driver.machine.state is PartitionState.WRITE

    @property
    def log_start(self) -> int:
        """The first offset that may be read."""
        return self._driver.machine.log_start

    @property
    def high_watermark(self) -> int:
        """The end of what is flushed."""
        return self._driver.machine.high_watermark

    def proven_watermark(self) -> int:
        """Return the high watermark; -1 after a standstill, until a proof of ownership that this call starts is done.

        Costs no call to the store unless the process stood still.
        """
        return self.high_watermark if self._assurance.ask() else -1

    @property
    def last_stable_offset(self) -> int:
        """The end of what is flushed and decided."""
        return self._driver.machine.last_stable_offset

    @property
    def max_message_bytes(self) -> int:
        """The topic's max.message.bytes."""
        return self._driver.machine.config.rules.max_message_bytes

    @property
    def active_segment(self) -> ActiveSegment | None:
        """The active segment as far as it is flushed; None without one."""
        segment = self._driver.machine.current
        if segment is None:
            return None
        # Flush by flush the three move together: the watermark is the end of the segment's last flushed batch.
        return ActiveSegment(segment.entry.name, segment.flushed, self._driver.machine.high_watermark, segment.index)

    @property
    def recent_aborted(self) -> RecentAborted:
        """The aborted transactions of the flushed batches that no index may have yet."""
        machine = self._driver.machine
        return machine.unindexed.recent(machine.high_watermark)

    def ask_end(self) -> bool:
        """Return whether the high watermark is certain, so that an offset past it may be called out of range (rule 2).

        Another broker may have taken the partition unnoticed. So this call starts a proof of ownership, shared by all
        readers that call meanwhile. After the proof it returns True to a single reader. The proof waits for the flush
        of batches that were acknowledged before their flush.
        """
        if self._loop_time() < self._sure_until:
            self._sure_until = 0.0
            return True
        if not self._is_confirming:
            self._is_confirming = True
            self._driver.spawn(self._confirm())
        return False

    async def _confirm(self) -> None:
        try:
            await asyncio.sleep(self._confirmed_at + CONFIRM_EVERY_S - self._loop_time())
            await self.confirmed_ends()
            self._sure_until = self._loop_time() + SURE_S
        except RequestError:
            await asyncio.sleep(CONFIRM_AGAIN_S)
        finally:
            self._is_confirming = False
            self._confirmed_at = self._loop_time()
        # readers check again, and start another proof if this failed
        self._context.wiring.flush_listener.changed(self.key)

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()

    @property
    def knows_active_segment(self) -> bool:
        """True: ``active_segment`` is the owner's own."""
        return True

    async def ask_active_segment(self) -> ActiveSegment | None:
        """Return ``active_segment``.  Needs no proof: what is flushed of a segment is in the next owner's log too."""
        return self.active_segment

    # ------------------------------------------------------------------------------------------------------ writing

    @property
    def has_room(self) -> bool:
        """True if another batch may be appended now; else wait for ``room``."""
        return self._driver.has_room and (self._queue is None or self._queue.budget.has_room)

    async def room(self) -> None:
        """Wait until there is room, or the partition has left WRITE."""
        while self.is_open and not self.has_room:
            await self._driver.room()
            if self._queue is not None:
                await self._queue.budget.room()

    def append(
        self, data: memoryview, callback: AppendCallback, *, acks_all: bool, held_until: float = math.inf
    ) -> None:
        """Accept the one batch in ``data``; its bytes belong to the partition from here on.

        ``callback`` gets the result once the batch is flushed, or an error with Kafka's code. Without ``acks_all`` it
        gets the result at once, unless the check of the records takes long or the batch must be recompressed first.
        ``held_until`` has no effect here.
        """
        try:
            self._append(data, callback, acks_all=acks_all)
        except RequestError as error:
            callback.on_failed(error)

    def _append(self, data: memoryview, callback: AppendCallback, *, acks_all: bool) -> None:
        """Append as ``append`` does. Raises RequestError if the batch is refused at once."""
        batch = parse_batch(data)
        self._context.load.wrote(self.key, len(data))
        self._driver.check(batch)
        config, now_ms = self._driver.machine.config, self._context.clock.now_ms()
        is_checked_apart = self._queue or is_needed(batch, config.compression)
        if is_checked_apart or not check_at_once(batch, config.rules, now_ms):
            self._enqueue(batch, callback, acks_all=acks_all)
        else:
            self._accept(batch, callback, acks_all)

    def append_internal(self, data: memoryview) -> asyncio.Future[int]:
        """Append one of this broker's own batches (a coordinator's): a control batch, any size, internal producer ids.

        Returns a future of its base offset, done once it is flushed. Raises RequestError if it is refused.
        """
        self._context.load.wrote(self.key, len(data))
        return self._driver.append(data, is_internal=True)

    async def end_transaction(self, marker: TransactionMarker) -> None:
        """End a producer's transaction, as its coordinator says; return once the marker is flushed.

        A refusal needs no proof of the ownership: the epochs that refuse a marker exist, whoever owns the partition.
        Raises RequestError: TRANSACTION_COORDINATOR_FENCED or INVALID_PRODUCER_EPOCH if a later one was here, else a
        retriable code.  For the log of a coordinators' shard this is NOT_LEADER_OR_FOLLOWER: only the shard's
        coordinator appends there, and a batch of another would be missing in its memory.
        """
        if kind_of_topic(self.topic) is not None:
            text = f"{self.topic} takes markers from the coordinators of its shards only"
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
        self._context.load.wrote(self.key, 0)
        await self._driver.end_transaction(marker)

    def _accept(self, batch: Batch, callback: AppendCallback, acks_all: bool) -> None:
        """Take a batch whose records are checked, once its transaction is verified. Raises RequestError."""
        if batch.is_transactional or self._unverified:
            self._verified_appends(batch, callback).put(batch, callback, acks_all=acks_all)
        else:
            self._take(batch, callback, acks_all)

    def _verified_appends(self, batch: Batch, callback: AppendCallback) -> VerifiedAppends:
        """Return the batches that wait for coordinators.

        Raises RequestError TRANSACTIONAL_ID_AUTHORIZATION_FAILED for a transactional batch that no coordinator is
        asked about: Kafka's code for a request without a transactional id, and fatal in Java and librdkafka.
        """
        verifier = self._context.wiring.verifier
        if batch.is_transactional and (verifier is None or callback.transaction is None):
            text = "a transactional batch without a transactional id, or transactions are not available"
            raise RequestError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, text)
        if self._unverified is None:
            assert verifier is not None
            self._unverified = VerifiedAppends(self._driver, verifier, self._take, self._refusals)
        return self._unverified

    def _take(self, batch: Batch, callback: AppendCallback, acks_all: bool) -> bool:
        """Append the batch; return False if ``callback`` gets a refusal instead. Raises RequestError."""
        try:
            accepted = self._driver.accept(batch, acks_all=acks_all)
        except RequestError as error:
            if error.code not in UNPROVEN:
                raise
            self._refusals.prove(error.with_traceback(None), callback)  # a traceback would keep the batch alive
            return False
        if acks_all:
            self._driver.when_flushed(accepted, callback)
            return True
        self._acknowledged_to = self._driver.machine.next_offset
        if isinstance(accepted, Duplicate):
            callback.on_appended(self._driver.appended(accepted.base_offset, accepted.timestamp))
        else:
            callback.on_appended(self._driver.appended(batch.base_offset, batch.max_timestamp))
        return True

    def _enqueue(self, batch: Batch, callback: AppendCallback, *, acks_all: bool) -> None:
        """Have the records checked, and recompressed, off the loop."""
        if self._queue is None:
            context = self._context
            self._queue = RecompressQueue(
                self._recompressor, self._accept, self._driver.spawn, context.budget, context.config.buffer_bytes
            )
        config = self._driver.machine.config
        work = Work(config.rules, self._context.clock.now_ms(), config.compression)
        self._queue.put(batch, work, callback, acks_all=acks_all)

    # ------------------------------------------------------------------------------------------------------ reading

    async def ends(self) -> Ends:
        """Return epoch, log start, last stable offset and high watermark as they are now.

        Raises RequestError NOT_LEADER_OR_FOLLOWER if the process stood still, and the store names another owner or does
        not respond (``broker.partition.assurance``).  So do all further questions about the log.
        """
        await self._assurance.renew()
        return Ends(self.epoch, self.log_start, self.last_stable_offset, self.high_watermark)

    async def flushed_ends(self) -> Ends:
        """Return ``ends`` once everything that was acknowledged before the call is flushed.

        Raises RequestError if that is not flushed within ``FLUSH_WAIT_S``, or the partition has left this broker.
        """
        await self._await_flush()
        return await self.ends()

    async def _await_flush(self) -> None:
        """Wait until everything that was acknowledged is flushed. Raises RequestError as ``flushed_ends`` does."""
        machine, end = self._driver.machine, self._acknowledged_to
        if machine.high_watermark >= end:
            return
        try:
            async with asyncio.timeout(FLUSH_WAIT_S):
                await self._driver.wait(lambda: machine.high_watermark >= end or not self.is_open)
        except TimeoutError:
            raise RequestError(ErrorCode.REQUEST_TIMED_OUT, f"offset {end - 1} is not flushed yet") from None
        if machine.high_watermark < end:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key} is not open here any more")

    async def confirmed_ends(self) -> Ends:
        """Return ``flushed_ends``, after a proof that this broker was the owner since the call: a read of the store.

        Raises RequestError NOT_LEADER_OR_FOLLOWER if it is not the owner, or the store does not respond.
        """
        await self._await_flush()
        try:
            await self._driver.prove()
        except KvError as error:
            raise RequestError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the metadata store did not confirm the owner: {error}"
            ) from error
        return await self.ends()

    async def confirm_ownership(self) -> None:
        """Return once this broker is sure to be the owner: at once, unless the process stood still.

        Raises RequestError: NOT_LEADER_OR_FOLLOWER if it is not, REQUEST_TIMED_OUT if the store does not respond.
        """
        try:
            await self._assurance.renew()
        except RequestError as error:
            if not self.is_open:
                raise
            raise RequestError(ErrorCode.REQUEST_TIMED_OUT, error.message) from error

    async def producers(self) -> Sequence[ProducerState]:
        """Return the producers' states as of the flushed batches.  Raises RequestError as ``ends`` does."""
        await self._assurance.renew()
        return self._driver.machine.producers.snapshot()

    async def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch at or below ``epoch``, its end offset): Kafka's OffsetForLeaderEpoch.

        The end of the present epoch is the high watermark; the result for a later epoch is (-1, -1). Source:
        ``LeaderEpochFileCache.endOffsetFor``. Raises RequestError KAFKA_STORAGE_ERROR.
        """
        if not 0 <= epoch <= self.epoch:
            await self._assurance.renew()
            return -1, -1
        end = self.high_watermark
        if epoch < self.epoch:
            found = await self._search(lambda log: log.end_of_epoch(epoch, end, self.active_segment))
            if found is not None:
                await self._assurance.renew()
                return found
        await self._assurance.renew()
        return epoch, end

    async def offset_of_max_timestamp(self) -> tuple[int, int]:
        """Return (offset, timestamp) of the first record with the largest timestamp; (-1, -1) for an empty log.

        Raises RequestError KAFKA_STORAGE_ERROR.
        """
        start, end, active = self.log_start, self.high_watermark, self.active_segment
        found = None
        if start != end:
            found = await self._search(lambda log: log.offset_of_max_timestamp(start, end, active))
        await self._assurance.renew()
        return (-1, -1) if found is None else (found.offset, found.timestamp)

    async def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at or after ``timestamp``; None if there is none.

        Raises RequestError KAFKA_STORAGE_ERROR.
        """
        start, end, active = self.log_start, self.high_watermark, self.active_segment
        found = None
        if start != end:
            found = await self._search(
                lambda log: log.by_timestamp.find(timestamp, end, start_offset=start, active=active)
            )
        await self._assurance.renew()
        return None if found is None else (found.offset, found.timestamp)

    async def _search(self, ask: Callable[[SearchedLog], Coroutine[Any, Any, T]]) -> T:
        try:
            return await ask(self._searches.log(self.key, self._driver.path))
        except StorageError as error:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error

    async def delete_before(self, offset: int) -> int:
        """Raise the log start to ``offset``, for Kafka's DeleteRecords; return it. ``TO_WATERMARK`` deletes everything.

        Raises RequestError: OFFSET_OUT_OF_RANGE past the end of what was acknowledged, whose flush is waited for; a
        retriable code if storage or store do not respond.
        """
        if offset == TO_WATERMARK or offset > self.high_watermark:
            await self._await_flush()
        wanted = self.high_watermark if offset == TO_WATERMARK else offset
        if wanted < 0:
            raise RequestError(ErrorCode.OFFSET_OUT_OF_RANGE, f"offset {offset} is negative")
        if wanted > self.high_watermark:
            await self.confirmed_ends()  # a broker that is not the owner any more must not call it out of range
        try:
            await self._driver.delete_before(wanted)
        except KvError as error:  # the log start is durable, but the ownership is not proven
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, str(error)) from error
        return self.log_start

    @property
    def log_bytes_known(self) -> int | None:
        """``log_bytes`` as far as it is known without a call to storage; None if it was never counted."""
        if self._size is None:
            return None
        return self._size.known(self._driver)

    @property
    def is_log_size_current(self) -> bool:
        """True if ``log_bytes_known`` is what ``log_bytes`` would return."""
        return self._size is not None and self._size.is_current(self._driver)

    async def log_bytes(self) -> int:
        """Return the bytes of the log from its start, in whole segments, as Kafka counts a replica.

        Raises RequestError KAFKA_STORAGE_ERROR.
        """
        machine = self._driver.machine
        if self._size is None or self._size.log_start != machine.log_start:
            self._size = LogSize(machine.log_start, self.log_bytes_known)
        try:
            size = await self._size.count(self._context.fs, self._driver)
        except StorageError as error:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from error
        await self._assurance.renew()
        return size
