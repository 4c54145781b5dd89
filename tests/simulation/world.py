"""The simulated world: processes that own a partition, clients that write to it, and a judge that remembers.

Everything runs in one virtual-time loop (see ``loop``).  The judge's rules, checked during a history and at its end:

* *acked stays*: a batch that was acknowledged stands at the offset that was answered.
* *visible stays*: what a reader saw below a watermark is there at the end, the same.
* *once*: an idempotent producer's batch stands at most once, in the order it was sent.
* *dense*: offsets have no gap.
* *start stays*: a log start that was confirmed is not taken back; none moves past what was asked for, but over records
  that have outlived ``retention.ms``.
* *indexed*: each closed segment gets its index, however many owners died meanwhile.
* *available*: when the faults end, a new owner opens the log (no false OFFLINE) and takes a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from random import Random

from bmq.broker.broker import Broker
from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.cleanup.index_reads import read_idx
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.missing_indexes import PAUSES_MS
from bmq.broker.partition.states import PartitionState
from bmq.core.aio.subscribers import no_op
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import Batch
from bmq.meta import ownership
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.kv_memory import KvFaults, MemoryStore
from bmq.storage import layout
from bmq.storage.aborted import StableMove
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.checkpoint import encode as encode_checkpoint
from bmq.storage.filesystem import FileSystem, StorageError
from bmq.storage.journal import CHECKPOINT, frame
from bmq.storage.log_segments import walk
from bmq.storage.memory import Faults, MemoryStorage
from bmq.storage.memory.namespace import File
from tests.harness.broker_wiring import LooseWiring
from tests.harness.waiting import until
from tests.simulation.frail_files import FrailFileSystem
from tests.simulation.judge import KEY, MARK, PATH, Judge, Sent, decode, encode, make, read_log
from tests.simulation.versions import LATER_RECORD, SpokenKeyValue, Version

__all__ = ["KEY", "MARK", "PATH", "Process", "Sent", "World", "decode", "encode", "make", "read_log", "until"]

SMALL = BrokerConfig(
    block_bytes=1 << 20,
    checkpoint_bytes=600,
    checkpoint_ms=400,
    checkpoint_full_bytes=96,
    buffer_bytes=1 << 16,
    flush_bytes=1500,
    slow_flush_ms=700,
    slow_roll_interval_ms=1500,
    idle_close_ms=3000,
)
SMALL_LOG = LogConfig(segment_bytes=3000, index_interval_bytes=200, retention_ms=-1, file_delete_delay_ms=1 << 40)
"""No file is ever deleted."""
SETTLE_S = 30.0
"""After the faults: outages of storage that were drawn before may run out."""
INDEXED_S = 2 * PAUSES_MS.most / 1000
"""Without faults, for the last owner to write indexes that storage did not take before."""
OPENS_S = 120.0
"""Without faults, for the last owner to open the log, and to take a batch."""
BUSY = JanitorConfig(
    interval_ms=1500, merge_after=1, grace_ms=4000, sweep_ms=3000, journal_sweep_ms=5000,
    clean_piece_bytes=500, clean_buffer_bytes=3 * 24,
)  # fmt: skip
ROUNDS_S = 4 * 1.2 * BUSY.interval_ms / 1000
"""Rounds of the janitor: one finds what has expired, one what may be deleted, and each may just have been missed."""


PROCESSES_MAX = 8


class Witness:
    """Notes for the judge what one process shows to its readers."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._judge = process.world.judge
        self._clock = process.clock

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        self._judge.show(high_watermark)
        assert log_start <= self._judge.start_moved, f"opened at log start {log_start}, where nobody had moved it"
        if epoch == self._process.world.epoch:
            least = self._judge.start_confirmed
            assert log_start >= least, f"{self._process.name} opened at log start {log_start}, {least} was confirmed"

    def flushed(
        self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int, move: StableMove | None = None
    ) -> None:
        self._judge.flush(batches)
        if self._judge.copies_asked:
            world, process = self._process.world, self._process
            for batch in batches:
                self._judge.check_copies(process.name, batch, world.copies_of(process, batch))

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        self._judge.move_start(log_start, self._clock.latest_ms)

    def changed(self, key: PartitionKey) -> None:
        """Nothing that the judge has to know."""

    def closed(self, key: PartitionKey) -> None:
        """Nothing that the judge has to know."""


class WallClock(LoopClock):
    """One machine's clocks: ``ahead_ms`` is the wall clock's error, and may change at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead_ms = 0
        self._latest_ms = 0

    def now_ms(self) -> int:
        shown = super().now_ms() + self.ahead_ms
        self._latest_ms = max(self._latest_ms, shown)
        return shown

    @property
    def latest_ms(self) -> int:
        """The latest time that it ever showed."""
        return max(self._latest_ms, self.now_ms())


class Process:
    """One broker process.  ``crash`` is kill -9; ``pause`` is SIGSTOP as far as its calls are concerned."""

    def __init__(
        self, world: World, name: str, wrap: Callable[[FileSystem, KeyValue], tuple[FileSystem, KeyValue]] | None = None
    ) -> None:
        self.name = name
        self.world = world
        self.fs = FrailFileSystem(world.storage, name, self.end_at_a_step)
        self.kv = SpokenKeyValue(world.store, random=world.rng, faults=world.kv_faults)
        if world.are_versions_mixed:
            self.kv.version = world.rng.choice(tuple(Version))
        fs, kv = wrap(self.fs, self.kv) if wrap else (self.fs, self.kv)
        self.clock = WallClock()
        self.wiring = LooseWiring(Witness(self))
        self.wiring.may_clean = lambda: True
        self.broker = Broker(
            fs, kv, incarnation=name, is_member=lambda: True, is_alive=world.is_running, clock=self.clock,
            config=world.config, janitor_config=world.janitor_config, wiring=self.wiring.frozen(),
        )  # fmt: skip
        self.died = asyncio.Event()
        self.driver: PartitionDriver | None = None
        self.moving: asyncio.Task[None] | None = None
        self.hangs_s = 0.0
        self._dies_merging = False
        self._task: asyncio.Task[None] | None = None
        self._chatter: list[asyncio.Task[None]] = []
        world.processes.append(self)

    @property
    def is_alive(self) -> bool:
        return not self.died.is_set()

    @property
    def is_serving(self) -> bool:
        return self.is_alive and self.driver is not None and self.driver.machine.state is PartitionState.WRITE

    def start(self) -> None:
        """Begin to take the partition over, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self.world.are_merges_interrupted and not self.world.is_over:
            self._dies_merging = self.world.rng.random() < 0.5
            self.fs.last_step = "concat" if self._dies_merging else ""
        if self.world.are_clocks_wrong:
            self.clock.ahead_ms = self.world.rng.choice((0, 0, -3_600_000, 3_000, 3_600_000))
        if self.world.is_journal_busy:
            self.broker.journal._machine.roll_bytes = self.world.rng.choice((500, 3_000))
            self._chatter.append(asyncio.get_running_loop().create_task(self._chat()))
        if self.kv.version is Version.LATER:
            self._chatter.append(asyncio.get_running_loop().create_task(self._write_of_later_version()))

    async def _chat(self) -> None:
        """Checkpoints of another partition, as a broker with thousands writes them."""
        other = Checkpoint(
            key=PartitionKey(uuid.UUID(int=0xB5), 0),
            segment=SegmentName(0, 1, 0),
            position=1,
            end_offset=1,
            log_start=0,
        )
        while True:
            pause_s = (1.0, 4.0) if self.world.is_over else (0.05, 0.5)  # the last owner finds a few files then
            await asyncio.sleep(self.world.rng.uniform(*pause_s))
            await self.broker.journal.append(other)

    async def _write_of_later_version(self) -> None:
        """Write journal records of an unknown kind."""
        while True:
            await asyncio.sleep(self.world.rng.uniform(0.1, 1.0))
            self._write_journal(frame(LATER_RECORD, b"whatever it may mean"))

    def write_undecodable(self) -> None:
        """Write a journal record of the partition that no version can decode, with a right CRC."""
        payload = encode_checkpoint(
            Checkpoint(key=KEY, segment=SegmentName(0, 1, 0), position=1, end_offset=1, log_start=0)
        )
        self._write_journal(frame(CHECKPOINT, b"X" + payload[1:]))

    def _write_journal(self, record: bytes) -> None:
        appender = self.broker.journal._appender
        if appender is not None and appender.pending == 0:
            with contextlib.suppress(StorageError):
                appender.write(record)
                appender.flush()

    async def _run(self) -> None:
        while True:
            try:
                await self.broker.start()
                break
            except KvError:
                await asyncio.sleep(0.1)
        await self.open()

    async def open(self) -> None:
        try:
            self.driver = await self.broker.open(PATH, KEY, self.world.log_config)
        except RequestError:
            self.driver = self.broker.get(KEY)

    def crash(self) -> None:
        if not self.is_alive:
            return
        self.died.set()
        if self._dies_merging:
            self.world.start_after_a_merge()
        self.fs.crash()
        self.kv.crash()
        tasks = [self._task, self.moving, *self._chatter, *self.broker._tasks]
        driver = self.broker.get(KEY)
        if driver is not None:
            driver.tasks.cancel()
        for task in tasks:
            if task is not None:
                task.cancel()
        self.broker.context.timers.close()
        self.broker.context.open_files.close()

    def end_at_a_step(self) -> None:
        """Die, or hang for ``hangs_s``, after the step that the history chose."""
        if not self.hangs_s:
            self.crash()
        elif self.is_alive:
            self.pause()
            asyncio.get_running_loop().call_later(self.hangs_s, self.resume)

    async def return_under_its_name(self) -> None:
        """Declare the process dead; it registers again, and may take the partition back before another process does."""
        self.broker.fence_all()
        await until(lambda: self.broker.get(KEY) is None, every_s=0.1)
        await self.open()

    def lack_descriptors(self, for_s: float) -> None:
        """Something else has taken them all, for a while."""
        self.fs.lacks_descriptors = True
        self.kv.faults = replace(self.kv.faults, unavailable=0.5)
        asyncio.get_running_loop().call_later(for_s, self.has_descriptors_again)

    def has_descriptors_again(self) -> None:
        self.fs.lacks_descriptors = False
        self.kv.faults = self.world.kv_faults

    def pause(self) -> None:
        self.fs.pause()
        self.kv.pause()

    def resume(self) -> None:
        if self.is_alive:
            self.fs.resume()
            self.kv.resume()


class World:
    """Storage, store, processes, and which process the clients believe to be the owner."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults | None = None,
        kv_faults: KvFaults | None = None,
        config: BrokerConfig = SMALL,
        log_config: LogConfig = SMALL_LOG,
        datanodes: int = 5,
    ) -> None:
        self.rng = Random(seed)
        self.storage = MemoryStorage(self.rng, faults or Faults(), datanodes=datanodes)
        self.store = MemoryStore()
        self.kv_faults = kv_faults or KvFaults()
        self.config = config
        self.log_config = log_config
        self.janitor_config = BUSY
        self.processes: list[Process] = []
        self.last: Process
        """The process that opens the log when the faults have ended."""
        self.judge = Judge(retention_ms=log_config.retention_ms)
        self.clock = WallClock()  # the clients' clock
        self.idempotent: set[int] = set()
        self.is_over = False
        self.log_start = 0  # at the end
        self.are_clocks_wrong = False
        self.is_journal_busy = False  # every process writes another partition's checkpoints, and rolls soon
        self.are_copies_asked = False  # min.insync.replicas is set to this and that
        self.are_versions_mixed = False  # each process is of some version
        self.are_merges_interrupted = False  # processes die right after a concat, and another starts later
        self.quiet_until = 0.0  # no producer sends before, on the loop's clock

    def process(self, name: str | None = None) -> Process:
        process = Process(self, name or f"p{len(self.processes)}")
        process.start()
        return process

    def is_running(self, name: str) -> bool:
        return any(process.name == name and process.is_alive for process in self.processes)

    def start_after_a_merge(self) -> None:
        """Start another process when about a part has expired of what a process that died now was merging."""
        after_s = self.log_config.retention_ms / 1000 - self.rng.uniform(1.5, 4.5)
        asyncio.get_running_loop().call_later(max(0.0, after_s), self.start_another)

    def start_another(self) -> None:
        """Start a process, unless the faults are over or there are many."""
        if not self.is_over and len(self.processes) < PROCESSES_MAX:
            self.process()

    @property
    def epoch(self) -> int:
        """The partition's, in the store."""
        entry = self.store.get(ownership.partition_key("bmq", KEY))
        return ownership.decode(entry.value).epoch if entry is not None else 0

    def copies_of(self, process: Process, batch: Batch) -> int:
        """Count the datanodes that have acknowledged ``batch``, which ``process`` acknowledges now.

        They are its pipeline's.  When a paused process receives the ack, its file may have been fenced, with fewer
        copies left, merged or deleted.
        """
        assert process.driver is not None
        *_, held = (entry for entry in process.driver.machine.record.segments if entry.name.base <= batch.base_offset)
        return process.fs.pipelines[held.file_id]

    def check_repeated(self, process: Process, offset: int, asked: int) -> None:
        """Check that the batch at ``offset``, acknowledged because it is in the log, is on ``asked`` datanodes.

        If this owner has flushed it to so many, that is enough.  The model does not know the nodes of a merged file's
        parts, and the store has no record of what an owner of the past has seen.  Batches below the log start are
        deleted, and need no copies.
        """
        assert process.driver is not None
        partition = process.driver.machine
        if asked < 2 or partition.epoch != self.epoch or offset < partition.log_start:
            return
        if self.judge.copies_flushed.get((process.name, partition.epoch, offset), 0) >= asked:
            return
        held: tuple[SegmentName, File] | None = None
        for file in self.storage.namespace.files.values():
            if not self.storage.namespace.path_of(file).startswith(PATH.folder + "/"):
                continue
            named = layout.parse_segment(file.name)
            if named is None or named[1] != "log" or not file.data or named[0].base > offset:
                continue
            if held is None or held[0].order < named[0].order:
                held = named[0], file
        if held is not None and not held[1].is_joined:
            copies = len(held[1].replicas)
            assert copies >= asked, f"{process.name} acknowledges offset {offset} again with {copies} copies of {asked}"

    def ask_copies(self, copies: int) -> None:
        """Set min.insync.replicas."""
        self.log_config = replace(self.log_config, min_insync=copies)
        self.judge.lower_copies(copies)
        for process in self.processes:
            if process.is_alive and process.driver is not None:
                if copies > process.driver.machine.config.min_insync:
                    self.judge.doubt(process.name)
                process.driver.reconfigure(self.log_config)

    def confirm_start(self, offset: int) -> None:
        """Note that an owner has confirmed a DeleteRecords: the partition's present owner must have that log start."""
        self.judge.start_confirmed = max(self.judge.start_confirmed, offset)
        for process in self.processes:
            partition = process.driver.machine if process.is_serving and process.driver else None
            if partition is not None and partition.epoch == self.epoch:
                assert partition.log_start >= offset, f"log start {offset} is confirmed, {process.name} has {partition}"

    def producers_target(self) -> Process | None:
        """Return a process to send to; None while there is none, or clients are to be silent."""
        return None if asyncio.get_running_loop().time() < self.quiet_until else self.target()

    def target(self) -> Process | None:
        """Return a serving process, or None; clients may well use a zombie."""
        serving = [process for process in self.processes if process.is_serving]
        if not serving:
            return None
        return serving[-1] if self.rng.random() < 0.8 else self.rng.choice(serving)

    def has_room_again(self) -> None:
        """End the lack of room, as when other files are deleted."""
        self.storage.is_full = False

    def lose_power(self, *, is_partial: bool = False) -> None:
        """Stop every machine of the cluster at once, but not the store's disk (see ``MemoryStorage.lose_power``)."""
        for process in self.processes:
            process.crash()
        self.storage.lose_power(is_partial=is_partial)

    async def settle(self) -> list[Batch]:
        """End all faults, open the log with another owner, write one more batch, and return the log from its start."""
        self.is_over = True
        self.storage.faults = Faults()
        self.storage.is_full = False
        self.kv_faults = KvFaults()
        for process in self.processes:
            process.has_descriptors_again()
            process.fs.last_step = ""
            process.resume()
        for name, node in self.storage.datanodes.items():
            if node.state.name == "STOPPED":
                self.storage.resume_datanode(name)
            elif not node.is_up:
                self.storage.start_datanode(name)
            self.storage.slow_datanode(name, 0)
        await asyncio.sleep(SETTLE_S)
        last = self.last = await self._last_owner()
        assert last.is_serving, f"the log is not available after the faults: {last.driver}"
        assert last.driver is not None
        partition = last.driver.machine
        assert self.judge.start_confirmed <= partition.log_start <= self.judge.start_moved
        async with asyncio.timeout(OPENS_S):
            await last.driver.append(make(999, 0, pid=-1, size=10, timestamp=self.clock.now_ms()))
        self.log_start = partition.log_start
        return await read_log(last.fs, partition.high_watermark, start=partition.log_start)

    async def _last_owner(self) -> Process:
        """Usually a fresh one; else one that has lived through all, and may have kept something of it."""
        old = [process for process in self.processes if process.is_alive and process.driver is not None]
        if old and self.rng.random() < 0.4:
            last = self.rng.choice(old)
            await asyncio.wait_for(last.return_under_its_name(), OPENS_S)
            return last
        last = self.process("last")
        await until(lambda: last.driver is not None, every_s=0.1)
        return last

    async def check_retention(self) -> None:
        """Let all expire.  Its owner's clock is set once more, and is right from then on: nothing waits for longer."""
        config, last = self.log_config, self.last
        if config.retention_ms < 0 or last.driver is None:
            return
        for process in self.processes:
            if process is not last:
                process.crash()
        if self.are_clocks_wrong:
            last.clock.ahead_ms = self.rng.choice((-3_600_000, 3_600_000))
            await asyncio.sleep(ROUNDS_S)
            last.clock.ahead_ms = 0
        partition = last.driver.machine
        # One step of the janitor more: a temporary file whose datanodes are gone is fenced until its time is over.
        step_s = BUSY.step_timeout_ms / 1000
        limit_s = (config.retention_ms + self.config.idle_close_ms) / 1000 + ROUNDS_S + step_s
        await until(lambda: partition.log_start == partition.high_watermark, limit_s, every_s=1.0)
        if config.file_delete_delay_ms < 1 << 32:
            limit_s = config.file_delete_delay_ms / 1000 + ROUNDS_S + step_s
            deadline = asyncio.get_running_loop().time() + limit_s
            while expired := await self._expired_files():
                assert asyncio.get_running_loop().time() < deadline, f"expired, and not deleted: {expired}"
                await asyncio.sleep(1.0)

    async def _expired_files(self) -> set[str]:
        """Return the files of segments below the log start, but for the newest name."""
        logs = [status.path async for status in self.last.fs.list(PATH.folder) if status.path.endswith(".log")]
        return set(logs[:-1])

    async def check_indexes(self) -> None:
        """Wait until each closed segment has its whole index, whoever closed it and however many owners died since.

        Without it, readers of committed records cannot read its transactions, and a log is not cleaned further.
        """
        deadline = asyncio.get_running_loop().time() + INDEXED_S
        while lacking := await self._without_index():
            assert asyncio.get_running_loop().time() < deadline, f"closed, and without an index: {lacking}"
            await asyncio.sleep(1.0)

    async def _without_index(self) -> list[SegmentName]:
        assert self.last.driver is not None
        machine = self.last.driver.machine
        opened = {entry.name for entry in machine.record.segments if not entry.is_closed}
        lacking = []
        async with aclosing(walk(self.last.fs, PATH)) as listing:
            async for listed in listing:
                end = machine.high_watermark if listed.end is None else listed.end
                if not listed.is_live or listed.name in opened or end <= machine.log_start:
                    continue
                if not listed.has_idx or await self._indexed_to(listed.name) < end:
                    lacking.append(listed.name)
        return lacking

    async def _indexed_to(self, name: SegmentName) -> int:
        """Return the end offset of a segment's index, -1 without any."""
        index = await read_idx(self.last.fs, PATH.idx(name), no_op)
        return -1 if index is None else index.end_offset

    async def check_producers(self) -> None:
        """Repeat each producer's last five batches, as a client whose answers were lost, then send its next one."""
        assert self.last.driver is not None
        partition = self.last.driver.machine
        standing: dict[int, list[tuple[int, int]]] = {}
        for batch in await read_log(self.last.fs, partition.high_watermark, start=partition.log_start):
            producer, number = decode(batch)
            standing.setdefault(producer, []).append((number, batch.base_offset))
        for producer in sorted(self.idempotent & set(standing)):
            for number, offset in standing[producer][-5:]:
                again = await repeated(self.last, make(producer, number, pid=producer, size=5))
                assert again == offset, f"producer {producer}'s batch {number} stands at {offset}; again at {again}"
            end = partition.next_offset
            number = standing[producer][-1][0] + 1
            assert await self.last.driver.append(make(producer, number, pid=producer, size=5)) == end

    async def verdict(self) -> list[Batch]:
        batches = await self.settle()
        self.judge.check(batches, self.idempotent, self.log_start)
        await self.check_indexes()
        return batches


async def repeated(process: Process, batch: memoryview, limit_s: float = OPENS_S) -> int:
    """Send a batch again until it has its copies; return its offset."""
    assert process.driver is not None
    async with asyncio.timeout(limit_s):
        while True:
            try:
                return await process.driver.append(batch)
            except RequestError as error:
                if error.code is not ErrorCode.NOT_ENOUGH_REPLICAS:
                    raise
            await asyncio.sleep(0.1)
