"""The broker: opens and closes partitions, and owns what they share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol, Unpack

from bmq.broker.cleanup.janitor import Janitor, JanitorConfig
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.context import BrokerContext
from bmq.broker.file_check import FileCheck
from bmq.broker.files.datanode_health import NodeHealth
from bmq.broker.files.deferred_indexes import DeferredIndexes
from bmq.broker.files.flush_scheduler import Alarms, FlushScheduler
from bmq.broker.files.journal_cache import JournalCache
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.precreated import PrecreatedSegments
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.files.storage_watch import StorageWatch
from bmq.broker.partition import events as ev
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.release import ReleaseNote
from bmq.broker.partition.transitions import TERMINAL
from bmq.broker.store_waits import StoreWaits
from bmq.core.aio.byte_budget import Budget
from bmq.core.clock import Clock, SystemClock
from bmq.core.logging.fields import Fields, fields, in_text
from bmq.core.model import PartitionKey
from bmq.meta import ownership
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.ownership import PartitionRecord
from bmq.meta.registration import Registration, broker_key
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.layout import PartitionPath
from bmq.storage.read_progress import ReadProgress

_log = logging.getLogger("bmq.broker")
FIRST_FILE_MS = 5_000
"""So long after its last owner's time a file that was made for a partition may wait for a batch."""
CLOSE_LEAST_S = 1.0
_UPKEEP_S = 1.0
_SEAL_S = 5.0


def new_incarnation(name: str = "0") -> str:
    """Unique per process start: it names the journals, the owner in the store and the lease holder on storage."""
    return f"{name}-{uuid.uuid4().hex[:16]}"


class Registered(Protocol):
    """Whoever keeps this process a member of its cluster (``meta.cluster.membership``)."""

    @property
    def is_member(self) -> bool: ...


class Broker:
    """One process's partitions.  Use as ``async with``; the file system's holder must be ``incarnation``'s own.

    ``membership``: who registers the process, and calls ``fence_all`` when the store has declared it dead; None: the
    broker registers itself.  ``is_alive`` tells of other incarnations; None: the store is asked for what such brokers
    registered.  ``reads``: of the process's pool of reads (``BlockCache.progress``).
    """

    def __init__(
        self,
        fs: FileSystem,
        kv: KeyValue,
        *,
        incarnation: str,
        cluster: str = "bmq",
        clock: Clock | None = None,
        config: BrokerConfig | None = None,
        upkeep: JanitorConfig | None = None,
        membership: Registered | None = None,
        is_alive: Callable[[str], bool] | None = None,
        reads: ReadProgress | None = None,
    ) -> None:
        self.config = config or BrokerConfig()
        self.config.validate()
        clock = clock or SystemClock()
        self.journal = JournalWriter(
            fs, incarnation, self._snapshot, no_room=lambda why: self.shared.places.lacks_room(why)
        )
        self.on_failed: Callable[[str], None] = _nothing
        """Hears why this broker cannot go on: its process had better end, and begin anew."""
        self._partitions: dict[PartitionKey, PartitionDriver] = {}
        self._departed: dict[PartitionKey, Checkpoint] = {}  # no more than there are partitions in the cluster
        self._opening = asyncio.Semaphore(self.config.open_parallel)
        self.alarms_raised: list[str] = []  # the last hundred
        self.alarms_total = 0
        self.moved_total = 0
        """Partitions handed over to other processes, or given up as their topic was deleted."""
        self._file_check = FileCheck(self.config.file_check_ms, self._report)
        self._journals = JournalCache(fs, incarnation, is_alive or _nobody_else)
        alarms = Alarms(now_ms := lambda: int(clock.monotonic() * 1000))
        places = OpenFileLimit(self.config.open_pipelines_max, self.config.open_parallel, self._make_room, self._report)
        self.shared = BrokerContext(
            fs=fs,
            kv=kv,
            cluster=cluster,
            incarnation=incarnation,
            clock=clock,
            config=self.config,
            journal=self.journal,
            journals=self._journals,
            scheduler=FlushScheduler(
                self.config.flushes_total, self.config.flushes_per_partition, self.config.gather_bytes
            ),
            alarms=alarms,
            health=NodeHealth(),
            budget=Budget(self.config.buffer_bytes_total),
            places=places,
            first_files=PrecreatedSegments(
                fs,
                places,
                alarms,
                now_ms,
                most=self.config.open_parallel,
                keep_ms=self.config.handover_wait_ms + FIRST_FILE_MS,
            ),
            late_indexes=DeferredIndexes(alarms, now_ms, self._report),
            store_waits=StoreWaits(self.config.stalled_ms),
            reads=reads or ReadProgress(),
            report=self._report,
            is_alone=membership is None,
        )
        self._storage = StorageWatch(self.shared)
        self.janitor = Janitor(self.shared, self.partitions, upkeep, is_alive=is_alive)
        self._membership = membership
        self._registration = self._new_registration() if membership is None else None
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._registration is not None:
            await self._registration.start()
        self._tasks = [
            loop.create_task(self._journal_task(), name="journal"),
            loop.create_task(self._storage.watch(), name="watch of storage"),
            loop.create_task(self._storage.probe_nodes(), name="probes"),
            loop.create_task(self._upkeep(), name="upkeep"),
            loop.create_task(self.janitor.run(), name="janitor"),
            loop.create_task(self._seal_journals(), name="journal sealing"),
        ]
        if self._registration is not None:
            self._tasks.append(loop.create_task(self._stay_registered(), name="membership"))
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """None of these may fail: without its journal or its membership a broker must not go on."""
        if task.cancelled() or task.exception() is None:
            return
        error = repr(task.exception())
        self._report("bug: the %s task failed", task.get_name(), error=error)
        self.fence_all()
        self.on_failed(f"bug: the {task.get_name()} task failed: {error}")

    # --------------------------------------------------------------------------------------------------- partitions

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def is_lost(self) -> bool:
        """The store has declared this process dead: it owns nothing, until it is registered again."""
        if self._membership is not None:
            return not self._membership.is_member
        return self._registration is not None and self._registration.is_lost

    @property
    def is_serving(self) -> bool:
        """Return whether this process is a member, and storage has done something lately of what was wanted of it.

        A broker cannot know whether others reach storage: the controller compares, and moves partitions away from one
        that does not serve to those that do.
        """
        return not self.is_lost and not self._storage.is_stalled

    @property
    def storage_trouble(self) -> str:
        """Return why nothing that is produced here is acknowledged; "" while storage acknowledges.

        A stalled broker that has been emptied has nothing to write: it renews its journal, and the trouble lasts until
        that is written.  Other processes can be better off or not: see ``is_serving``.
        """
        return self._storage.trouble

    @property
    def is_gray(self) -> bool:
        """Whether this broker should give its partitions to others: storage acknowledges nothing to it.

        Want of room is no such case, though a broker without a single file has nothing acknowledged: there is no more
        room for the others, and it gets its share of what there is (``broker.files.open_file_limit``).
        """
        return self.is_lost or (self._storage.is_stalled and not self.shared.places.is_refused)

    @property
    def open_pipelines(self) -> int:
        """Partitions that have a file open, and files made for those on their way here."""
        return sum(writer.has_files for writer in self.shared.busy) + len(self.shared.first_files)

    @property
    def under_replicated(self) -> int:
        """Partitions whose open segment has fewer copies than `replication` asks for: Kafka's
        UnderReplicatedPartitions."""
        return sum(writer.is_under_replicated for writer in self.shared.busy)

    @property
    def waiting_for_store(self) -> int:
        return len(self.shared.store_waits)

    @property
    def store_trouble(self) -> str:
        """Return why partitions wait for the metadata store for long; "" while none does."""
        waits = self.shared.store_waits
        return f"{len(waits)} partitions wait for the metadata store: {waits.trouble}" if waits.trouble else ""

    @property
    def waiting_for_place(self) -> int:
        """Partitions that wait until a segment of another is closed, since no more may be open."""
        return self.shared.places.waiting

    @property
    def longest_wait_for_place_s(self) -> float:
        """Seconds that the first of those has waited; 0 when there are none."""
        return self.shared.places.longest_wait_s

    @property
    def open_pipelines_limit(self) -> int:
        """Segments that may be open now: ``open_pipelines_max``, or less where storage has no room for as many."""
        return self.shared.places.limit

    @property
    def under_min_isr(self) -> int:
        """Partitions that storage gives fewer nodes than min.insync.replicas asks for: Kafka's
        UnderMinIsrPartitionCount."""
        return sum(writer.partition.is_short for writer in self.shared.short)

    @property
    def unflushed_bytes(self) -> int:
        """Accepted and not yet acknowledged by storage, over all partitions."""
        return self.shared.budget.used

    def partitions(self) -> list[PartitionDriver]:
        """Those held now."""
        return list(self._partitions.values())

    def get(self, key: PartitionKey) -> PartitionDriver | None:
        return self._partitions.get(key)

    async def read_record(self, key: PartitionKey) -> tuple[PartitionRecord, int]:
        """Return the partition's record and its revision.  Raises KvError, FormatError."""
        return await ownership.read(self.shared.kv, ownership.partition_key(self.shared.cluster, key))

    async def open(
        self,
        path: PartitionPath,
        key: PartitionKey,
        config: LogConfig | None = None,
        found: tuple[PartitionRecord, int] | None = None,
        handed: ReleaseNote | None = None,
    ) -> PartitionDriver:
        """Take a partition over; returns when it accepts batches.  RequestError when it ends otherwise.

        ``found``: its record and revision, when the caller has just read them; ``handed``: what its last owner told.
        """
        held = self._partitions.get(key)
        if held is not None and held.partition.state not in TERMINAL:
            raise ValueError(f"{path} is open already")
        async with self._opening:  # held across the takeover on purpose: it bounds how many run at once
            writer = PartitionDriver(self.shared, path, key, config or LogConfig())
            self._partitions[key] = writer
            began_ms = self.shared.now_ms()
            with self._storage.takeover(writer):
                writer.start(found, handed)
                await writer.wait_open()
            self.shared.takeover_ms.observe(self.shared.now_ms() - began_ms)
            if writer.partition.full_checkpoint() is not None:
                self._departed.pop(key, None)  # the new one is durable, and says at least as much
        return writer

    def expect(self, path: PartitionPath, config: LogConfig, epoch: int) -> None:
        """Somebody waits for a partition that we shall claim with ``epoch`` once its owner has let go of it."""
        SegmentFiles(self.shared, path, is_synced=config.flush_sync, replication=config.replication).make_first(epoch)

    async def move(self, key: PartitionKey, *, is_deleted: bool = False, has_successor: bool = False) -> ReleaseNote:
        """Hand the partition over and forget it; ``is_deleted``: nobody comes after us, so wholly.  What its successor
        is to be told, if ``has_successor``."""
        writer = self._partitions[key]
        handed = await writer.move(has_successor=has_successor)
        self.moved_total += 1
        self._forget(key, writer)
        if is_deleted:
            self.forget_departed(key)
        return handed

    def forget_departed(self, key: PartitionKey) -> None:
        """Its topic is deleted: no successor will ask."""
        self._departed.pop(key, None)

    def _forget(self, key: PartitionKey, writer: PartitionDriver) -> None:
        if self._partitions.get(key) is writer:
            del self._partitions[key]
            final = writer.partition.full_checkpoint()
            if final is not None:
                self._departed[key] = final

    async def close(self, deadline: float | None = None) -> None:
        """Hand everything over, then leave.

        What storage does not let us close in ``handover_ms``, or by ``deadline`` (on the loop's clock, though a second
        is granted always), is left as after a crash: its next owner fences it.
        """
        journal, *others = self._tasks or (None,)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._file_check.close()
        now = asyncio.get_running_loop().time()
        latest = now + self.shared.config.handover_ms / 1000
        deadline = latest if deadline is None else min(latest, max(deadline, now + CLOSE_LEAST_S))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(self._close_one(key) for key in list(self._partitions)))
        except TimeoutError:
            left = list(self._partitions.values())
            _log.warning("%d partitions are not handed over: storage does not let them be closed", len(left))
            await asyncio.gather(*(writer.abandon() for writer in left))
        await self._end_files(deadline)
        self.shared.places.close()
        self.shared.alarms.close()
        self.journal.close()
        if journal is not None:
            await self._end_journal(journal)
        if self._registration is not None:
            await self._registration.stop()

    async def _end_journal(self, journal: asyncio.Task[None]) -> None:
        """What is queued is of partitions that were not handed over: waited for no longer than a file's closing."""
        await asyncio.wait({journal}, timeout=self.config.close_timeout_ms / 1000)
        journal.cancel()
        await asyncio.gather(journal, return_exceptions=True)

    async def _end_files(self, deadline: float) -> None:
        """Those that were made for nothing, and indexes that wait to be written."""
        late = self.shared.late_indexes
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(self.shared.first_files.close(), late.finish())
        except TimeoutError:
            _log.warning("%d indexes are left to whoever owns their partitions now", len(late))
            await late.abandon()

    async def _close_one(self, key: PartitionKey) -> None:
        async with self._opening:  # the same bound as for opening
            await self.move(key)

    # ---------------------------------------------------------------------------------------------------- the tasks

    def _snapshot(self) -> Iterator[Checkpoint]:
        """Yield the checkpoint of every partition held, and of every one that was held.

        A record may name this journal until a successor's own checkpoint is durable, and a moved log start stands
        nowhere else.  The successor may be this process: until it has recovered the log it knows nothing better.

        Partitions come and go between two of them: one that comes appends a checkpoint of its own behind these.
        """
        told: set[PartitionKey] = set()
        for key in tuple(self._partitions):
            writer = self._partitions.get(key)
            checkpoint = writer.partition.full_checkpoint() if writer is not None else None
            if checkpoint is not None:
                told.add(key)
                yield checkpoint
        for key, checkpoint in tuple(self._departed.items()):
            if key not in told:
                yield checkpoint

    async def _journal_task(self) -> None:
        await self.journal.run()

    async def _stay_registered(self) -> None:
        """The store says that we are gone: stop acting on what we owned before anything else, then come back."""
        while True:
            assert self._registration is not None
            await self._registration.run()
            self._report("the store says that this broker's lease is gone")
            self.fence_all()
            self._registration = await self._register_again()

    async def _register_again(self) -> Registration:
        """Under the same incarnation: it names this process start, and what it held is fenced."""
        registration = self._new_registration()
        while True:
            try:
                await registration.start()
            except KvError:
                await asyncio.sleep(_UPKEEP_S)
                continue
            return registration

    def _new_registration(self) -> Registration:
        shared = self.shared
        key = broker_key(shared.cluster, shared.incarnation)
        return Registration(shared.kv, key, {"incarnation": shared.incarnation})

    def fence_all(self) -> None:
        """Stop acting on everything that we owned, at once: this process is declared dead, so all of it may have other
        owners.  What waits for a flush is refused; nothing of it is acknowledged any more."""
        for writer in list(self._partitions.values()):
            if writer.partition.state not in TERMINAL:
                writer.post(ev.EpochChanged(writer.partition.epoch + 1))

    async def _seal_journals(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SEAL_S):
                    await self.journal.file_left()
            await self.journal.seal_abandoned()
            await self._journals.seal_dead()

    async def _upkeep(self) -> None:
        """Once a second: leave slow nodes and broken files, look for the files of segments, forget partitions that were
        lost.  Costs by the open pipelines, not by the partitions."""
        while True:
            await asyncio.sleep(_UPKEEP_S)
            busy = self.shared.busy
            busy.difference_update([writer for writer in busy if not writer.has_files])
            self._file_check.look(busy, self.shared.now_ms())
            self._storage.leave_slow_nodes()
            self.journal.check_file()
            await self._storage.leave_broken_files()
            while self.shared.fenced:
                writer = self.shared.fenced.pop()
                await writer.abandon()
                self._forget(writer.partition.key, writer)

    def _make_room(self, wanted: int) -> None:
        """Close so many files for others that wait for a place: first those that have been idle for longest, then those
        that are written all the time and have been open for longest, each after its turn.

        A file is idle when nothing was written to it for a third of a turn: one that is written every moment would be
        closed and opened for nearly each record.  Where more wait than have files, at any moment without a write.
        """
        now_ms, turn_ms, places = self.shared.now_ms(), self.config.crowded_turn_ms, self.shared.places
        idle_ms = 0 if places.waiting > places.held else turn_ms // 3
        wanted -= self.shared.first_files.drop_older(wanted, turn_ms)
        idle: list[tuple[int, str, PartitionDriver]] = []
        written: list[tuple[int, str, PartitionDriver]] = []
        for writer in self.shared.busy:
            partition = writer.partition
            segment = partition.current
            if segment is None:
                continue
            if partition.is_draining:
                wanted -= 1
            elif partition.batches.is_idle and now_ms - segment.last_write_ms >= idle_ms:
                idle.append((segment.last_write_ms, str(writer.path), writer))
            elif now_ms - segment.opened_ms >= turn_ms:
                written.append((segment.opened_ms, str(writer.path), writer))
        idle.sort(key=lambda candidate: candidate[:2])
        written.sort(key=lambda candidate: candidate[:2])
        for _, _, writer in [*idle, *written][: max(wanted, 0)]:
            writer.post(ev.PlaceWanted())

    def _report(self, text: str, /, *arguments: object, **about: Unpack[Fields]) -> None:
        _log.error(text, *arguments, extra=fields(**about))
        self.alarms_total += 1
        self.alarms_raised.append((text % arguments if arguments else text) + in_text(about))
        del self.alarms_raised[:-100]


def _nobody_else(incarnation: str) -> bool:
    """There are no other brokers."""
    return False


def _nothing(why: str) -> None:
    """It was reported."""
