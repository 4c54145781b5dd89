"""The broker: opens and closes partitions, and owns what they share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Unpack

from bmq.broker import events as ev
from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.cleanup.janitor import Janitor
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.context import BrokerContext, BrokerWiring, OpenPartition
from bmq.broker.file_check import FileCheck
from bmq.broker.files.datanode_health import NodeHealth
from bmq.broker.files.deferred_indexes import DeferredIndexes
from bmq.broker.files.flush_scheduler import FlushScheduler
from bmq.broker.files.index_rounds import PARALLEL, IndexRounds
from bmq.broker.files.journal_cache import JournalCache
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.precreated import PrecreatedSegments
from bmq.broker.files.segment_files import SegmentFiles
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.release import ReleaseNote
from bmq.broker.partition.states import TERMINAL
from bmq.broker.storage_watch import StorageWatch
from bmq.broker.store_waits import StoreWaits
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.standstill import Standstill
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.aio.timers import TimerHeap
from bmq.core.clock import Clock, SystemClock
from bmq.core.logging.fields import Fields, fields, in_text
from bmq.core.model import PartitionKey
from bmq.meta import ownership
from bmq.meta.kv import KeyValue
from bmq.meta.ownership import PartitionRecord
from bmq.meta.record_groups import RecordGroups
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.layout import PartitionPath
from bmq.storage.read_progress import ReadProgress

_log = logging.getLogger("bmq.broker")
FIRST_FILE_MS = 5_000
"""Milliseconds that a precreated segment waits for its first batch after ``handover_wait_ms``, the time that the last
owner has to release the partition.  Then it is deleted."""
CLOSE_LEAST_S = 1.0
"""Seconds that ``Broker.close`` has for the hand-over even if its deadline is sooner."""
_UPKEEP_S = 1.0
_SEAL_S = 5.0


def new_incarnation(name: str = "0") -> str:
    """Return an id that is unique to this process start.

    The incarnation names the process's journals, the owner in the metadata store and the lease holder on storage.
    """
    return f"{name}-{uuid.uuid4().hex[:16]}"


class Broker:
    """The partitions of one process, and what they share.  Used as ``async with``.

    ``fs``: a file system whose lease holder is ``incarnation``.  ``is_member``: returns whether the process is a
    member as far as it knows; the membership's owner calls ``fence_all`` when the store has declared the process
    dead.  ``is_alive``: returns whether an incarnation is a member.  ``wiring``: the parts of the process that the
    broker calls.  ``reads``: the progress of the process's reads (``BlockCache.progress``).
    """

    def __init__(
        self,
        fs: FileSystem,
        kv: KeyValue,
        *,
        incarnation: str,
        is_member: Callable[[], bool],
        is_alive: Callable[[str], bool],
        wiring: BrokerWiring,
        cluster: str = "bmq",
        clock: Clock | None = None,
        config: BrokerConfig | None = None,
        janitor_config: JanitorConfig | None = None,
        reads: ReadProgress | None = None,
        standstill: Standstill | None = None,
    ) -> None:
        self.config = config or BrokerConfig()
        self.config.validate()
        clock = clock or SystemClock()
        self.journal = JournalWriter(
            fs, incarnation, self._snapshot, no_room=lambda why: self.context.open_files.lacks_room(why),
            access=self.config.journal_access,
        )  # fmt: skip
        self._partitions: dict[PartitionKey, PartitionDriver] = {}
        self._departed: dict[PartitionKey, Checkpoint] = {}  # no more than there are partitions in the cluster
        self._opening = asyncio.Semaphore(self.config.open_parallel)
        self.reports: list[str] = []  # the last hundred
        self.reports_total = 0
        self.moved_total = 0
        """Partitions handed over to other processes, or given up because their topic was deleted."""
        self._file_check = FileCheck(self.config.file_check_ms, self._report)
        self._journals = JournalCache(fs, incarnation, is_alive)
        timers = TimerHeap(now_ms := lambda: int(clock.monotonic() * 1000))
        open_files = OpenFileLimit(
            self.config.open_pipelines_max, self.config.open_parallel, self._make_room, self._report
        )
        late_indexes = asyncio.Semaphore(PARALLEL)
        self.context = BrokerContext(
            fs=fs,
            kv=kv,
            records=RecordGroups(kv),
            cluster=cluster,
            incarnation=incarnation,
            clock=clock,
            config=self.config,
            journal=self.journal,
            journals=self._journals,
            scheduler=FlushScheduler(
                self.config.flushes_total, self.config.flushes_per_partition, self.config.gather_bytes
            ),
            timers=timers,
            health=NodeHealth(),
            budget=ByteBudget(self.config.buffer_bytes_total),
            standstill=standstill or Standstill(clock),
            wiring=wiring,
            open_files=open_files,
            precreated=PrecreatedSegments(
                fs,
                open_files,
                timers,
                now_ms,
                most=self.config.open_parallel,
                keep_ms=self.config.handover_wait_ms + FIRST_FILE_MS,
            ),
            deferred_indexes=DeferredIndexes(timers, now_ms, self._report, late_indexes),
            index_rounds=IndexRounds(timers, now_ms),
            late_indexes=late_indexes,
            store_waits=StoreWaits(self.config.stalled_ms),
            reads=reads or ReadProgress(),
            report=self._report,
            is_alive=is_alive,
            on_foreign_fence=self._stop,
        )
        self._storage = StorageWatch(self.context)
        self.janitor = Janitor(self.context, self.partitions, janitor_config)
        self._is_member = is_member
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the broker's tasks."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._journal_task(), name="journal"),
            loop.create_task(self._storage.watch(), name="watch of storage"),
            loop.create_task(self._storage.probe_nodes(), name="probes"),
            loop.create_task(self._upkeep(), name="upkeep"),
            loop.create_task(self.janitor.run(), name="janitor"),
            loop.create_task(self._seal_journals(), name="journal sealing"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Fence everything and report the failure if a task failed.

        None of them may: without its journal a broker must not go on.
        """
        if task.cancelled() or task.exception() is None:
            return
        error = repr(task.exception())
        self._report("bug: the %s task failed", task.get_name(), error=error)
        self._stop(f"bug: the {task.get_name()} task failed: {error}")

    def _stop(self, why: str) -> None:
        """Give all partitions up, and have the process end: it must not go on."""
        self.fence_all()
        self.context.wiring.on_failed(why)

    # --------------------------------------------------------------------------------------------------- partitions

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def is_lost(self) -> bool:
        """True when the store has declared this process dead: it owns nothing until it is registered again."""
        return not self._is_member()

    @property
    def is_serving(self) -> bool:
        """True when this process is a member, and storage has lately done some of the work that it was given.

        A broker cannot know whether others reach storage.  The controller compares, and moves partitions away from
        brokers that do not serve.
        """
        return not self.is_lost and not self._storage.is_stalled

    @property
    def storage_trouble(self) -> str:
        """Reason why nothing that is produced here is acknowledged; "" while storage acknowledges.

        A stalled broker without partitions has nothing to write.  It renews its journal, and the trouble lasts until
        that is written.  Other processes may reach storage or not: see ``is_serving``.
        """
        return self._storage.trouble

    @property
    def is_gray(self) -> bool:
        """True when this broker should give its partitions to others, because storage acknowledges nothing to it.

        False while storage refuses files for want of room, although a broker without an open file has nothing
        acknowledged then. Other brokers have no more room, and this broker gets its share
        (``broker.files.open_file_limit``).
        """
        return self.is_lost or (self._storage.is_stalled and not self.context.open_files.is_refused)

    @property
    def open_pipelines(self) -> int:
        """Partitions that have a file open, plus files precreated for partitions that are moving here."""
        return sum(driver.has_files for driver in self.context.state.busy) + len(self.context.precreated)

    @property
    def under_replicated(self) -> int:
        """Partitions whose open segment has fewer copies than ``replication``: Kafka's UnderReplicatedPartitions."""
        return sum(0 < len(each.nodes) < each.machine.config.replication for each in self.context.state.busy)

    @property
    def waiting_for_store(self) -> int:
        """Partitions that wait for the metadata store."""
        return len(self.context.store_waits)

    @property
    def store_trouble(self) -> str:
        """Reason why partitions have waited for the metadata store for ``stalled_ms`` or longer; "" if none has."""
        waits = self.context.store_waits
        return f"{len(waits)} partitions wait for the metadata store: {waits.trouble}" if waits.trouble else ""

    @property
    def waiting_for_place(self) -> int:
        """Partitions that wait until another's segment is closed, since no more may be open."""
        return self.context.open_files.waiting

    @property
    def longest_wait_for_place_s(self) -> float:
        """Seconds that the first of ``waiting_for_place`` has waited; 0 if none waits."""
        return self.context.open_files.longest_wait_s

    @property
    def open_pipelines_limit(self) -> int:
        """Segments that may be open now: ``open_pipelines_max``, or fewer where storage has no room for as many."""
        return self.context.open_files.limit

    @property
    def under_min_isr(self) -> int:
        """Partitions that have fewer datanodes than min.insync.replicas: Kafka's UnderMinIsrPartitionCount."""
        return sum(driver.machine.is_short for driver in self.context.state.short)

    @property
    def unflushed_bytes(self) -> int:
        """Bytes accepted and not yet acknowledged by storage, over all partitions."""
        return self.context.budget.used

    def partitions(self) -> list[PartitionDriver]:
        """Return the drivers of the partitions held now, in any state."""
        return list(self._partitions.values())

    def get(self, key: PartitionKey) -> PartitionDriver | None:
        """Return the partition's driver; None if the partition is not held here."""
        return self._partitions.get(key)

    async def read_record(self, key: PartitionKey) -> tuple[PartitionRecord, int]:
        """Return the partition's record in the metadata store and its revision.  Raises KvError, FormatError."""
        return await self.context.records.read(ownership.partition_key(self.context.cluster, key))

    async def open(
        self,
        path: PartitionPath,
        key: PartitionKey,
        config: LogConfig | None = None,
        found: tuple[PartitionRecord, int] | None = None,
        release_note: ReleaseNote | None = None,
    ) -> PartitionDriver:
        """Take a partition over, and return its driver once it accepts batches.

        ``found``: its record and revision, if the caller has just read them; ``release_note``:
        its last owner's.  Raises RequestError if the takeover ends otherwise, ValueError if the partition is open here
        already.
        """
        held = self._partitions.get(key)
        if held is not None and held.machine.state not in TERMINAL:
            raise ValueError(f"{path} is open already")
        async with self._opening:  # held across the takeover on purpose: it bounds how many run at once
            if held is not None:  # the journal keeps its last checkpoint until the log is read again
                self._forget(key, held)
            driver = PartitionDriver(self.context, path, key, config or LogConfig())
            self._partitions[key] = driver
            began_ms = self.context.now_ms()
            with self._storage.takeover(driver):
                driver.start(found, release_note)
                await driver.wait_open()
            self.context.takeover_ms.observe(self.context.now_ms() - began_ms)
            if driver.machine.full_checkpoint() is not None:
                self._departed.pop(key, None)  # the new checkpoint is durable, and holds at least as much
        return driver

    def expect(self, path: PartitionPath, config: LogConfig, epoch: int) -> None:
        """Precreate the first segment of a partition that clients wait for, and that this broker will claim.

        ``epoch``: that of the claim, which follows once the present owner has released the partition.
        """
        files = SegmentFiles(
            self.context, path, is_synced=config.flush_sync, replication=config.replication, access=config.access
        )
        files.make_first(epoch)

    async def move(self, key: PartitionKey, *, is_deleted: bool = False, has_successor: bool = False) -> ReleaseNote:
        """Hand the partition over and forget it.  Returns the release note for its successor, if ``has_successor``.

        ``is_deleted``: there will be no successor, so its last checkpoint is forgotten too.
        """
        driver = self._partitions[key]
        release_note = await driver.move(has_successor=has_successor)
        self.moved_total += 1
        self._forget(key, driver)
        if is_deleted:
            self.forget_departed(key)
        return release_note

    def forget_departed(self, key: PartitionKey) -> None:
        """Forget a former partition's last checkpoint: its topic is deleted, so no successor needs it."""
        self._departed.pop(key, None)

    def _forget(self, key: PartitionKey, driver: OpenPartition) -> None:
        if self._partitions.get(key) is driver:
            del self._partitions[key]
            final = driver.machine.full_checkpoint()
            if final is not None:
                self._departed[key] = final

    async def close(self, deadline: float | None = None) -> None:
        """Hand all partitions over, and end the tasks.

        A partition that storage does not let close within ``handover_ms``, or by ``deadline``, is left as after a
        crash: its next owner fences it.  ``deadline`` is on the loop's clock; ``CLOSE_LEAST_S`` is granted always.
        """
        journal, *others = self._tasks or (None,)
        await cancel_and_wait(*others)
        await self._file_check.close()
        now = asyncio.get_running_loop().time()
        latest = now + self.context.config.handover_ms / 1000
        deadline = latest if deadline is None else min(latest, max(deadline, now + CLOSE_LEAST_S))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.gather(*(self._close_one(key) for key in list(self._partitions)))
        except TimeoutError:
            left = list(self._partitions.values())
            _log.warning("%d partitions are not handed over: storage does not let them be closed", len(left))
            await asyncio.gather(*(driver.abandon() for driver in left))
        await self._end_files(deadline)
        await self.context.records.close()
        self.context.open_files.close()
        self.context.timers.close()
        self.journal.close()
        if journal is not None:
            await self._end_journal(journal)

    async def _end_journal(self, journal: asyncio.Task[None]) -> None:
        """Wait for the journal's task, no longer than for a file to close, then cancel it.

        Only entries of partitions that were not handed over can still be queued.
        """
        await asyncio.wait({journal}, timeout=self.config.close_timeout_ms / 1000)
        await cancel_and_wait(journal)

    async def _end_files(self, deadline: float) -> None:
        """Delete the precreated segments that nothing uses, and write the deferred indexes, until ``deadline``."""
        late = self.context.deferred_indexes
        ending = asyncio.gather(self.context.precreated.close(), late.finish())
        try:
            await asyncio.wait((ending,), timeout=deadline - asyncio.get_running_loop().time())
            if ending.done():
                ending.result()
            elif count := len(late):  # before the cancellation: it ends those that are being written
                _log.warning("%d segments' indexes are not written: their partitions' next owners write them", count)
        finally:
            await cancel_and_wait(ending)
        self.context.index_rounds.abandon()
        await late.abandon()

    async def _close_one(self, key: PartitionKey) -> None:
        async with self._opening:  # the same bound as for opening
            await self.move(key)

    # ---------------------------------------------------------------------------------------------------- the tasks

    def _snapshot(self) -> Iterator[Checkpoint | None]:
        """Yield the full checkpoint of every partition that is held or was held; None for one without a checkpoint.

        A record may name this journal until a successor's own checkpoint is durable, and a moved log start is written
        nowhere else.  The successor may be this process: until it has recovered the log it has no newer checkpoint.

        Partitions come and go between two checkpoints: one that comes appends its own behind these.
        """
        yielded: set[PartitionKey] = set()
        for key in tuple(self._partitions):
            driver = self._partitions.get(key)
            checkpoint = driver.machine.full_checkpoint() if driver is not None else None
            if checkpoint is not None:
                yielded.add(key)
            yield checkpoint
        for key, checkpoint in tuple(self._departed.items()):
            yield None if key in yielded else checkpoint

    async def _journal_task(self) -> None:
        await self.journal.run()

    def fence_all(self) -> None:
        """Give all partitions up at once: this process is declared dead, so each may have another owner.

        Batches that wait for a flush are refused, and none is acknowledged any more.
        """
        for driver in list(self._partitions.values()):
            if driver.machine.state not in TERMINAL:
                driver.post(ev.EpochChanged(driver.machine.epoch + 1))

    async def _seal_journals(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SEAL_S):
                    await self.journal.former.wait_left()
            await self.journal.seal_left_files()
            await self._journals.seal_dead()

    async def _upkeep(self) -> None:
        """Do the broker's upkeep once a second.

        Leave slow datanodes and broken files, check that the segments' files exist, and forget partitions that were
        lost.  The cost grows with the open pipelines, not with the partitions.
        """
        while True:
            await asyncio.sleep(_UPKEEP_S)
            busy = self.context.state.busy
            busy.difference_update([driver for driver in busy if not driver.has_files])
            self._file_check.check(busy, self.context.now_ms())
            self._storage.leave_slow_nodes()
            self.journal.check_file()
            await self._storage.leave_broken_files()
            while self.context.state.fenced:
                driver = self.context.state.fenced.pop()
                await driver.abandon()
                self._forget(driver.machine.key, driver)

    def _make_room(self, wanted: int) -> None:
        """Begin to close ``wanted`` files for partitions that wait to open one.

        Files that have been idle for longest go first.  Then follow files that are written all the time, if they have
        been open for a turn (``crowded_turn_ms``) at least; the file that has been open for longest goes first.  A file
        is idle when nothing was written to it for a third of a turn.  Otherwise a file that is written every moment
        would be closed and opened for nearly each record.  While more partitions wait than have files, a file is idle
        whenever no write is under way.
        """
        now_ms, turn_ms, open_files = self.context.now_ms(), self.config.crowded_turn_ms, self.context.open_files
        idle_ms = 0 if open_files.waiting > open_files.held else turn_ms // 3
        wanted -= self.context.precreated.drop_older(wanted, turn_ms)
        idle: list[tuple[int, str, OpenPartition]] = []
        written: list[tuple[int, str, OpenPartition]] = []
        for driver in self.context.state.busy:
            machine = driver.machine
            segment = machine.current
            if segment is None:
                continue
            if machine.is_draining:
                wanted -= 1
            elif machine.batches.is_idle and now_ms - segment.last_write_ms >= idle_ms:
                idle.append((segment.last_write_ms, str(driver.path), driver))
            elif now_ms - segment.opened_ms >= turn_ms:
                written.append((segment.opened_ms, str(driver.path), driver))
        idle.sort(key=lambda candidate: candidate[:2])
        written.sort(key=lambda candidate: candidate[:2])
        for _, _, driver in [*idle, *written][: max(wanted, 0)]:
            driver.post(ev.PlaceWanted())

    def _report(self, text: str, /, *arguments: object, **about: Unpack[Fields]) -> None:
        _log.error(text, *arguments, extra=fields(**about))
        self.reports_total += 1
        self.reports.append((text % arguments if arguments else text) + in_text(about))
        del self.reports[:-100]
