"""The broker: opens and closes partitions, and owns what they share."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator
from typing import Protocol

from bmq.broker import events as ev
from bmq.broker.budget import Budget
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.health import NodeHealth
from bmq.broker.janitor import Janitor, JanitorConfig
from bmq.broker.journals import JournalCache
from bmq.broker.scheduler import Alarms, FlushScheduler
from bmq.broker.shared import Shared
from bmq.broker.stalls import Stalls
from bmq.broker.transitions import TERMINAL, State
from bmq.broker.writer import PartitionWriter
from bmq.core.clock import Clock, SystemClock
from bmq.core.model import PartitionKey
from bmq.meta import ownership
from bmq.meta.kv import KeyValue, KvError
from bmq.meta.ownership import PartitionRecord
from bmq.meta.registration import Registration, broker_key
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem, StorageError
from bmq.storage.journal import JournalWriter
from bmq.storage.layout import PartitionPath

_log = logging.getLogger("bmq.broker")
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
    registered.
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
    ) -> None:
        self.config = config or BrokerConfig()
        self.config.validate()
        clock = clock or SystemClock()
        self.journal = JournalWriter(fs, incarnation, self._snapshot)
        self.on_failed: Callable[[str], None] = _nothing
        """Hears why this broker cannot go on: its process had better end, and begin anew."""
        self._partitions: dict[PartitionKey, PartitionWriter] = {}
        self._departed: dict[PartitionKey, Checkpoint] = {}  # no more than there are partitions in the cluster
        self._opening = asyncio.Semaphore(self.config.open_parallel)
        self._taken_over: set[PartitionWriter] = set()  # being opened now, at most ``open_parallel``
        self._opened = 0  # so far
        self._stalls = Stalls(self.config.stalled_ms)
        self.alarms_raised: list[str] = []
        self.shared = Shared(
            fs=fs,
            kv=kv,
            cluster=cluster,
            incarnation=incarnation,
            clock=clock,
            config=self.config,
            journal=self.journal,
            journals=JournalCache(fs),
            scheduler=FlushScheduler(
                self.config.flushes_total, self.config.flushes_per_partition, self.config.gather_bytes
            ),
            alarms=Alarms(lambda: int(clock.monotonic() * 1000)),
            health=NodeHealth(),
            budget=Budget(self.config.buffer_bytes_total),
            report=self._report,
            is_alone=membership is None,
        )
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
        why = f"bug: the {task.get_name()} task failed: {task.exception()!r}"
        self._report(why)
        self.fence_all()
        self.on_failed(why)

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
        """False while this process is no member, or has something to write and has not reached storage for long.

        A broker cannot know whether others reach storage: the controller compares, and moves partitions away from one
        that does not serve to those that do.
        """
        return not self.is_lost and not self._stalls.is_stalled

    @property
    def open_pipelines(self) -> int:
        return sum(writer.has_files for writer in self.shared.busy)

    @property
    def unflushed_bytes(self) -> int:
        """Accepted and not yet acknowledged by storage, over all partitions."""
        return self.shared.budget.used

    def partitions(self) -> list[PartitionWriter]:
        """Those held now."""
        return list(self._partitions.values())

    def get(self, key: PartitionKey) -> PartitionWriter | None:
        return self._partitions.get(key)

    async def read_record(self, key: PartitionKey) -> tuple[PartitionRecord, int]:
        """Who owns the partition, and the record's revision.  KvError."""
        return await ownership.read(self.shared.kv, ownership.partition_key(self.shared.cluster, key))

    async def open(
        self,
        path: PartitionPath,
        key: PartitionKey,
        config: LogConfig | None = None,
        found: tuple[PartitionRecord, int] | None = None,
    ) -> PartitionWriter:
        """Take a partition over; returns when it accepts batches.  RequestError when it ends otherwise.

        ``found``: its record and revision, when the caller has just read them.
        """
        held = self._partitions.get(key)
        if held is not None and held.partition.state not in TERMINAL:
            raise ValueError(f"{path} is open already")
        async with self._opening:  # held across the takeover on purpose: it bounds how many run at once
            writer = PartitionWriter(self.shared, path, key, config or LogConfig())
            self._partitions[key] = writer
            self._departed.pop(key, None)
            self._taken_over.add(writer)
            try:
                writer.start(found)
                await writer.wait_open()
            finally:
                self._taken_over.discard(writer)
            self._opened += 1
        return writer

    async def move(self, key: PartitionKey, *, is_deleted: bool = False) -> None:
        """Hand the partition over and forget it; ``is_deleted``: nobody comes after us, so wholly."""
        writer = self._partitions[key]
        await writer.move()
        self._forget(key, writer)
        if is_deleted:
            self.forget_departed(key)

    def forget_departed(self, key: PartitionKey) -> None:
        """Its topic is deleted: no successor will ask."""
        self._departed.pop(key, None)

    def _forget(self, key: PartitionKey, writer: PartitionWriter) -> None:
        if self._partitions.get(key) is writer:
            del self._partitions[key]
            final = writer.partition.full_checkpoint()
            if final is not None:
                self._departed[key] = final

    async def close(self) -> None:
        """Hand everything over, then leave.

        What storage does not let us close in ``handover_ms`` is left as after a crash: its next owner fences it.
        """
        journal, *others = self._tasks or (None,)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        try:
            async with asyncio.timeout(self.shared.config.handover_ms / 1000):
                await asyncio.gather(*(self._close_one(key) for key in list(self._partitions)))
        except TimeoutError:
            left = list(self._partitions.values())
            _log.warning("%d partitions are not handed over: storage does not let us close them", len(left))
            await asyncio.gather(*(writer.abandon() for writer in left))
        self.shared.alarms.close()
        self.journal.close()
        if journal is not None:
            await asyncio.gather(journal, return_exceptions=True)
        if self._registration is not None:
            await self._registration.stop()

    async def _close_one(self, key: PartitionKey) -> None:
        async with self._opening:  # the same bound as for opening
            await self.move(key)

    # ---------------------------------------------------------------------------------------------------- the tasks

    def _snapshot(self) -> Iterator[Checkpoint]:
        """Of every partition held, and of those that were: a record may name this journal until a successor's own
        checkpoint is durable, and a moved log start stands nowhere else."""
        for writer in self._partitions.values():
            checkpoint = writer.partition.full_checkpoint()
            if checkpoint is not None:
                yield checkpoint
        for key, departed in self._departed.items():
            if key not in self._partitions:
                yield departed

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
                writer.post(ev.EpochRaised(writer.partition.epoch + 1))

    async def _seal_journals(self) -> None:
        while True:
            await asyncio.sleep(_SEAL_S)
            await self.journal.seal_abandoned()

    async def _upkeep(self) -> None:
        """Once a second: probe excluded nodes, leave slow ones, close the idlest pipelines past the bound, forget
        partitions that were lost.  Costs by the open pipelines, not by the partitions."""
        while True:
            await asyncio.sleep(_UPKEEP_S)
            self._look_for_stall()
            await self._probe()
            busy = self.shared.busy
            busy.difference_update([writer for writer in busy if not writer.has_files])
            self._leave_slow_nodes()
            self._bound_pipelines()
            while self.shared.fenced:
                writer = self.shared.fenced.pop()
                await writer.abandon()
                self._forget(writer.partition.key, writer)

    def _look_for_stall(self) -> None:
        """Takeovers count from where they meet storage: one that waits for the store says nothing of storage."""
        at_storage = any(writer.partition.state in (State.FENCE, State.RECOVER) for writer in self._taken_over)
        was_stalled = self._stalls.is_stalled
        self._stalls.look(
            self.shared.now_ms(),
            has_work=self.shared.budget.used > 0 or at_storage,
            progress=self.shared.health.flushes + self._opened,
        )
        if self._stalls.is_stalled and not was_stalled:
            self._report(f"storage has acknowledged nothing for over {self.config.stalled_ms} ms")

    def _leave_slow_nodes(self) -> None:
        health, now_ms = self.shared.health, self.shared.now_ms()
        slow = set(health.outliers())
        if not slow:
            return
        for writer in sorted(self.shared.busy, key=lambda writer: str(writer.path)):
            if writer.has_node(slow) and health.take_roll_token(now_ms):
                health.slow(sorted(slow), now_ms)
                writer.post(ev.StorageSlow())

    async def _probe(self) -> None:
        health, now_ms = self.shared.health, self.shared.now_ms()
        for node in health.to_probe(now_ms):
            try:
                is_up = await self.shared.fs.probe(node)
            except StorageError:
                is_up = False
            if is_up:
                health.restored(node)

    def _bound_pipelines(self) -> None:
        opened = [writer for writer in self.shared.busy if writer.partition.current is not None]
        excess = len(opened) - self.config.open_pipelines_max
        if excess <= 0:
            return
        opened.sort(key=lambda w: w.partition.current.last_write_ms if w.partition.current else 0)
        for writer in opened[:excess]:
            writer.post(ev.IdleClose())

    def _report(self, message: str) -> None:
        _log.error("%s", message)
        self.alarms_raised.append(message)
        del self.alarms_raised[:-100]


def _nothing(why: str) -> None:
    """It was reported."""
