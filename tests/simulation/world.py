"""The simulated world: processes that own a partition, clients that write to it, and a judge that remembers.

Everything runs in one virtual-time loop (see ``loop``).  The judge's rules, checked during a history and at its end:

* *acked stays*: a batch that was acknowledged stands at the offset that was answered.
* *visible stays*: what a reader saw below a watermark is there at the end, the same.
* *once*: an idempotent producer's batch stands at most once, in the order it was sent.
* *dense*: offsets have no gap.
* *start stays*: a log start that was confirmed is not taken back; none moves past what was asked for, but over records
  that have outlived ``retention.ms``.
* *available*: when the faults end, a new owner opens the log (no false OFFLINE) and takes a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.janitor import JanitorConfig
from bmq.broker.manager import Broker
from bmq.broker.transitions import State
from bmq.broker.writer import PartitionWriter
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records import HEADER_BYTES, Batch, Record, build_batch
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.storage import layout
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.checkpoint import encode as encode_checkpoint
from bmq.storage.filesystem import FileSystem, NoSuchFile, StorageError
from bmq.storage.journal import CHECKPOINT, frame
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage

KEY = PartitionKey(uuid.UUID(int=0x600D), 0)
PATH = PartitionPath("orders", str(KEY.topic_id), 0)
ID = struct.Struct(">16sQ")
MARK = b"who:"

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
BUSY = JanitorConfig(interval_ms=1500, join_after=1, grace_ms=4000, sweep_ms=3000, journal_sweep_ms=5000)


@dataclass(slots=True)
class Sent:
    """A batch by its producer and number; ``offset`` once acknowledged."""

    producer: int
    number: int
    offset: int | None = None


@dataclass
class Judge:
    """What clients were told and readers saw."""

    acked: list[Sent] = field(default_factory=list)
    seen: dict[int, bytes] = field(default_factory=dict)
    watermark: int = 0
    start_told: int = 0
    start_asked: int = 0
    start_moved: int = 0
    """The furthest log start of any owner, also one that was never confirmed."""
    retention_ms: int = -1
    flushed: dict[int, int] = field(default_factory=dict)
    """The timestamp of each batch that an owner had flushed, by its offset (one record a batch)."""

    def acknowledge(self, sent: Sent, offset: int) -> None:
        assert sent.offset is None or sent.offset == offset, f"{sent} was answered {offset} the second time"
        if sent.offset is None:
            sent.offset = offset
            self.acked.append(sent)

    def flush(self, batches: Sequence[Batch]) -> None:
        """What an owner has shown to its readers."""
        for batch in batches:
            self.flushed[batch.base_offset] = batch.max_timestamp

    def move_start(self, log_start: int, wall_ms: int) -> None:
        """An owner whose clock never showed more than ``wall_ms`` moves the log start."""
        for offset in range(max(self.start_moved, self.start_asked), log_start):
            timestamp = self.flushed.get(offset)
            if timestamp is None:
                continue  # found by a takeover: its producer was never answered, and the judge knows no timestamp
            age = wall_ms - timestamp
            assert 0 <= self.retention_ms < age, f"offset {offset} is {age} ms old, and below the log start {log_start}"
        self.start_moved = max(self.start_moved, log_start)

    def see(self, batches: list[Batch], watermark: int) -> None:
        """What a reader got below ``watermark``."""
        self.watermark = max(self.watermark, watermark)
        for batch in batches:
            content = identity(batch)
            known = self.seen.setdefault(batch.base_offset, content)
            assert known == content, f"offset {batch.base_offset} changed after it was visible"

    def check(self, batches: list[Batch], idempotent: set[int], log_start: int = 0) -> None:
        """Hold the final log, read from ``log_start`` on, against all that was said."""
        offset = log_start
        at: dict[int, bytes] = {}
        order: dict[int, list[int]] = {}
        for batch in batches:
            assert batch.base_offset == offset, f"gap: {batch!r} stands where offset {offset} should"
            offset = batch.next_offset
            at[batch.base_offset] = identity(batch)
            producer, number = decode(batch)
            order.setdefault(producer, []).append(number)
        for sent in self.acked:
            assert sent.offset is not None
            if sent.offset < log_start:
                continue
            assert sent.offset in at, f"acknowledged {sent} is gone: the log ends at {offset}"
            assert at[sent.offset] == encode(sent.producer, sent.number), f"{sent} is not what stands at its offset"
        for seen, content in self.seen.items():
            assert seen < log_start or at.get(seen) == content, f"offset {seen} was visible and is gone or changed"
        assert offset >= self.watermark, f"the watermark was {self.watermark}, the log ends at {offset}"
        for producer, numbers in order.items():
            if producer in idempotent:
                assert numbers == sorted(set(numbers)), f"producer {producer}: doubled or out of order: {numbers}"


def encode(producer: int, number: int) -> bytes:
    return ID.pack(producer.to_bytes(16), number)


def make(producer: int, number: int, *, pid: int, size: int, timestamp: int = 0) -> memoryview:
    """One batch of one record that names itself; ``pid`` -1 without idempotence."""
    value = MARK + encode(producer, number) + b"." * size
    epoch = 0 if pid >= 0 else -1
    sequence = number if pid >= 0 else -1
    return memoryview(
        build_batch(
            [Record(value=value)],
            base_timestamp=timestamp,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )


def identity(batch: Batch) -> bytes:
    """What the batch's one record says of itself."""
    data = bytes(batch.data)
    at = data.index(MARK) + len(MARK)
    return data[at : at + ID.size]


def decode(batch: Batch) -> tuple[int, int]:
    producer, number = ID.unpack(identity(batch))
    return int.from_bytes(producer), number


async def read_log(fs: FileSystem, limit: int, path: PartitionPath = PATH, *, start: int = 0) -> list[Batch]:
    """The batches of [start, limit), or from the first one left.

    A reader of its own, written from DESIGN's rule 5 alone: names, not records, not the code under test.
    """
    names: list[SegmentName] = []
    async for status in fs.list(path.folder):
        parsed = layout.parse_segment(layout.base_name(status.path))
        if parsed is not None and parsed[1] == "log":
            names.append(parsed[0])
    names.sort(key=lambda name: (name.epoch, name.n))
    batches: list[Batch] = []
    for at, name in enumerate(names):
        end = min([limit, *(later.base for later in names[at + 1 :])])
        if end <= start:
            continue
        offset, position = name.base, 0
        data = b""
        while offset < end:
            if len(data) < HEADER_BYTES or len(data) < Batch(memoryview(data)).size:
                more = await fs.read(path.log(name), position + len(data), 1 << 16)
                assert more, f"{name} ends at {offset}, it should reach {end}"
                data += more
                continue
            batch = Batch(memoryview(data))
            batch = Batch(memoryview(data[: batch.size]))
            assert batch.has_valid_crc, f"bad CRC in {name} at {position}"
            assert batch.base_offset == offset, f"{batch!r} in {name} where {offset} should stand"
            if batch.base_offset >= start:
                batches.append(batch)
            position, data, offset = position + batch.size, data[batch.size :], batch.next_offset
    return batches


class Told:
    """Notes for the judge what one process shows to its readers."""

    def __init__(self, process: Process) -> None:
        self._judge = process.world.judge
        self._clock = process.clock

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        assert log_start <= self._judge.start_moved, f"opened at log start {log_start}, where nobody had moved it"

    def flushed(self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int) -> None:
        self._judge.flush(batches)

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None:
        self._judge.move_start(log_start, self._clock.latest_ms)

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
        self.fs = MemoryFileSystem(world.storage, name)
        self.kv = MemoryKeyValue(world.store, random=world.rng, faults=world.kv_faults)
        fs, kv = wrap(self.fs, self.kv) if wrap else (self.fs, self.kv)
        self.clock = WallClock()
        self.broker = Broker(fs, kv, incarnation=name, clock=self.clock, config=world.config, upkeep=BUSY)
        self.broker.shared.tails = Told(self)
        self.died = asyncio.Event()
        self.writer: PartitionWriter | None = None
        self.moving: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._chatter: asyncio.Task[None] | None = None
        world.processes.append(self)

    @property
    def is_alive(self) -> bool:
        return not self.died.is_set()

    @property
    def is_serving(self) -> bool:
        return self.is_alive and self.writer is not None and self.writer.partition.state is State.WRITE

    def start(self) -> None:
        """Begin to take the partition over, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        if self.world.are_clocks_wrong:
            self.clock.ahead_ms = self.world.rng.choice((0, 0, -3_600_000, 3_000, 3_600_000))
        if self.world.is_journal_busy:
            self.broker.journal._roll_bytes = self.world.rng.choice((500, 3_000))
            self._chatter = asyncio.get_running_loop().create_task(self._chat())

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
            await asyncio.sleep(self.world.rng.uniform(0.05, 0.5))
            await self.broker.journal.append(other)

    def write_undecodable(self) -> None:
        """A record of the partition in the journal that no version can decode, with a right CRC."""
        appender = self.broker.journal._appender
        if appender is not None and appender.pending == 0:
            payload = encode_checkpoint(
                Checkpoint(key=KEY, segment=SegmentName(0, 1, 0), position=1, end_offset=1, log_start=0)
            )
            with contextlib.suppress(StorageError):
                appender.write(frame(CHECKPOINT, b"X" + payload[1:]))
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
            self.writer = await self.broker.open(PATH, KEY, self.world.log_config)
        except RequestError:
            self.writer = self.broker.get(KEY)

    def crash(self) -> None:
        if not self.is_alive:
            return
        self.died.set()
        self.fs.crash()
        self.kv.crash()
        tasks = [self._task, self.moving, self._chatter, *self.broker._tasks]
        writer = self.broker.get(KEY)
        if writer is not None:
            tasks += list(writer._tasks)
        for task in tasks:
            if task is not None:
                task.cancel()
        self.broker.shared.alarms.close()

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
        self.processes: list[Process] = []
        self.last: Process
        """Who opens the log when the faults have ended."""
        self.judge = Judge(retention_ms=log_config.retention_ms)
        self.clock = WallClock()  # of the clients
        self.idempotent: set[int] = set()
        self.is_over = False
        self.log_start = 0  # at the end
        self.are_clocks_wrong = False
        self.is_journal_busy = False  # every process writes another partition's checkpoints, and rolls soon

    def process(self, name: str | None = None) -> Process:
        process = Process(self, name or f"p{len(self.processes)}")
        process.start()
        return process

    def target(self) -> Process | None:
        """A serving process; clients may well talk to a zombie."""
        serving = [process for process in self.processes if process.is_serving]
        if not serving:
            return None
        return serving[-1] if self.rng.random() < 0.8 else self.rng.choice(serving)

    def has_room_again(self) -> None:
        """Somebody has deleted something else."""
        self.storage.is_full = False

    def lose_power(self, *, is_partial: bool = False) -> None:
        """Every machine of the cluster at once, but for the store's disk (see ``MemoryStorage.lose_power``)."""
        for process in self.processes:
            process.crash()
        self.storage.lose_power(is_partial=is_partial)

    async def settle(self) -> list[Batch]:
        """End all faults, open the log with a fresh owner, write one more batch, and return the log from its start."""
        self.is_over = True
        self.storage.faults = Faults()
        self.storage.is_full = False
        self.kv_faults = KvFaults()
        for process in self.processes:
            process.kv.faults = KvFaults()
            process.resume()
        for name, node in self.storage.datanodes.items():
            if node.state.name == "STOPPED":
                self.storage.resume_datanode(name)
            elif not node.is_up:
                self.storage.start_datanode(name)
            self.storage.slow_datanode(name, 0)
        await asyncio.sleep(60)  # virtual: outages drawn before this moment run out
        last = self.process("last")
        await until(lambda: last.writer is not None)
        assert last.is_serving, f"the log is not available after the faults: {last.writer}"
        assert last.writer is not None
        partition = last.writer.partition
        assert self.judge.start_told <= partition.log_start <= self.judge.start_moved
        await last.writer.append(make(999, 0, pid=-1, size=10, timestamp=self.clock.now_ms()))
        self.log_start = partition.log_start
        self.last = last
        return await read_log(last.fs, partition.high_watermark, start=partition.log_start)

    async def check_producers(self) -> None:
        """Repeat each producer's last five batches, as a client whose answers were lost, then send its next one."""
        assert self.last.writer is not None
        partition = self.last.writer.partition
        standing: dict[int, list[tuple[int, int]]] = {}
        for batch in await read_log(self.last.fs, partition.high_watermark, start=partition.log_start):
            producer, number = decode(batch)
            standing.setdefault(producer, []).append((number, batch.base_offset))
        for producer in sorted(self.idempotent & set(standing)):
            for number, offset in standing[producer][-5:]:
                again = await self.last.writer.append(make(producer, number, pid=producer, size=5))
                assert again == offset, f"producer {producer}'s batch {number} stands at {offset}; again at {again}"
            end = partition.next_offset
            number = standing[producer][-1][0] + 1
            assert await self.last.writer.append(make(producer, number, pid=producer, size=5)) == end

    async def verdict(self) -> list[Batch]:
        batches = await self.settle()
        self.judge.check(batches, self.idempotent, self.log_start)
        return batches


async def until(is_met: Callable[[], bool], limit_s: float = 600.0) -> None:
    """Virtual time passes until the condition holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s
    while not is_met():
        assert loop.time() < end, "the condition never came to hold"
        await asyncio.sleep(0.01)


async def produce(world: World, producer: int, count: int, *, is_idempotent: bool, window: int = 5) -> None:
    """A client with ``window`` batches in flight; idempotent ones resend all that is open, in order, until acked."""
    rng = world.rng
    if is_idempotent:
        world.idempotent.add(producer)
    batches = [Sent(producer, number) for number in range(count)]
    sizes = [rng.choice((5, 40, 200, 900)) for _ in batches]
    first = 0
    while first < count and not world.is_over:
        process = world.target()
        if process is None:
            await asyncio.sleep(rng.uniform(0.01, 0.3))
            continue
        todo = range(first, min(first + rng.randint(1, window), count))
        done = await _send(world, process, [batches[n] for n in todo], [sizes[n] for n in todo], is_idempotent)
        first += done if is_idempotent else len(todo)
        if done < len(todo):
            await asyncio.sleep(rng.uniform(0.0, 0.2))
        elif rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0.0, 0.5))


async def _send(world: World, process: Process, batches: list[Sent], sizes: list[int], is_idempotent: bool) -> int:
    """Send in order; how many of the first were acknowledged, in order."""
    writer = process.writer
    assert writer is not None
    futures: list[asyncio.Future[int]] = []
    now = world.clock.now_ms()
    for sent, size in zip(batches, sizes, strict=True):
        pid = sent.producer if is_idempotent else -1
        try:
            futures.append(writer.append(make(sent.producer, sent.number, pid=pid, size=size, timestamp=now)))
        except RequestError as error:
            if not error.code.is_retriable and error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            break
    if not futures:
        return 0
    died = asyncio.ensure_future(process.died.wait())
    patience = world.rng.uniform(0.5, 30.0)
    waited = asyncio.gather(*futures, return_exceptions=True)
    both: list[asyncio.Future[Any]] = [waited, died]
    await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    died.cancel()
    done = 0
    for sent, future in zip(batches, futures, strict=False):
        if process.is_alive and future.done() and not future.cancelled() and future.exception() is None:
            world.judge.acknowledge(sent, future.result())
            done += 1
            continue
        break
    return done


async def trim(world: World) -> None:
    """An administrator who deletes records now and then."""
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.5, 5.0))
        process = world.target()
        if process is None or process.writer is None:
            continue
        writer = process.writer
        offset = world.rng.randint(0, writer.partition.high_watermark)
        world.judge.start_asked = max(world.judge.start_asked, offset)
        try:
            await asyncio.wait_for(writer.delete_before(offset), world.rng.uniform(0.5, 10.0))
        except (RequestError, KvError, TimeoutError):
            continue
        if process.is_alive:
            world.judge.start_told = max(world.judge.start_told, offset)


async def observe(world: World) -> None:
    """A reader that looks again and again at what some process says is visible."""
    fs = MemoryFileSystem(world.storage, "reader")
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.2, 3.0))
        process = world.target()
        if process is None or process.writer is None:
            continue
        partition = process.writer.partition
        watermark = partition.high_watermark
        try:
            batches = await read_log(fs, watermark, start=partition.log_start)
        except (NoSuchFile, StorageError):
            continue  # storage is away for a moment
        world.judge.see(batches, watermark)
