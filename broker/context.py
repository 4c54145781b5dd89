"""The objects that all partitions of a broker share, and the interfaces to the objects of other packages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from bmq.broker.events import Event
from bmq.broker.files.context import FileContext
from bmq.broker.files.flush_scheduler import FlushScheduler
from bmq.broker.partition.machine import PartitionMachine
from bmq.broker.store_waits import StoreWaits
from bmq.broker.traffic import TrafficCounters
from bmq.core.aio.byte_budget import ByteBudget
from bmq.core.aio.pace import no_pause
from bmq.core.aio.standstill import Standstill
from bmq.core.aio.subscribers import no_op
from bmq.core.aio.timers import TimerHeap
from bmq.core.metrics.counters import Histogram
from bmq.core.model import PartitionKey
from bmq.core.transaction_answers import Verifier
from bmq.endpoint.partitions import FlushListener
from bmq.meta.kv import KeyValue
from bmq.meta.ownership import SegmentEntry
from bmq.meta.record_groups import RecordGroups
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.cleaning.filters import RecordFilters
from bmq.storage.filesystem import StorageError
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.layout import PartitionPath
from bmq.storage.read_progress import ReadProgress

T = TypeVar("T")


class Offload(Protocol):
    """A function that runs a call and awaits its result: ``asyncio.to_thread``, or ``run_inline``."""

    def __call__(self, call: Callable[[], T], /) -> Awaitable[T]: ...


async def run_inline(call: Callable[[], T]) -> T:
    """Run the call on the loop: for simulation and tests."""
    return call()


def never() -> bool:
    """Return False."""
    return False


class OpenPartition(Protocol):
    """A partition that this broker has opened or is opening (``PartitionDriver``), as the whole broker sees it."""

    @property
    def path(self) -> PartitionPath: ...

    @property
    def machine(self) -> PartitionMachine: ...

    @property
    def has_files(self) -> bool:
        """True while the partition has a file open."""

    @property
    def nodes(self) -> Sequence[str]:
        """The datanodes of the open segment's pipeline; none if no segment is open, or for a local folder."""

    @property
    def unflushed_bytes(self) -> int:
        """Bytes accepted and not yet acknowledged by storage."""

    def leave_broken_files(self) -> StorageError | None:
        """Close the files whose idle pipelines have broken, and return a reason; None if there is none."""

    def post(self, event: Event) -> None:
        """Have the partition's machine handle an event."""

    async def is_in_place(self, entry: SegmentEntry) -> bool:
        """Return whether the segment's file has its final name.  Raises StorageError."""

    async def is_ours(self) -> bool:
        """Return whether the store names this broker as the owner.  Raises KvError."""

    async def abandon(self) -> None:
        """Stop without handing the partition over."""


class CheckpointSource(Protocol):
    """A source of the last checkpoints in other brokers' journals (see ``broker.files.journal_cache``)."""

    async def find(self, incarnation: str, key: PartitionKey, *, passes_damaged: bool = False) -> Checkpoint | None:
        """Return the partition's last checkpoint in the journals of ``incarnation``; None if they hold none.

        ``passes_damaged``: skip a file that has no sound replica.  Raises StorageError if the journals cannot be read.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerWiring:
    """The parts of its process that a broker calls."""

    flush_listener: FlushListener
    verifier: Verifier | None = None
    """The way to the coordinators of transactions; None: transactional batches are refused."""
    may_clean: Callable[[], bool] = never
    """Returns whether cleaned segments may be written: whether level 1 of compaction.version is in force."""
    filters: RecordFilters = field(default_factory=RecordFilters)
    """The filters of rounds of cleaning: in Python, but for a server."""
    offload: Offload = run_inline
    """Runs long computations of upkeep, outside of the loop in a server."""
    pace: Callable[[], None] = no_pause
    """Called by these computations after each small piece of work; may sleep."""
    on_failed: Callable[[str], None] = no_op
    """Called with the reason when the broker cannot go on: its process should end and be started again."""


@dataclass(slots=True)
class BrokerState:
    """The part of a ``BrokerContext`` that changes while the broker runs."""

    busy: set[OpenPartition] = field(default_factory=set)
    """Partitions that may have a file open; the cost of upkeep grows with their number, not with that of all."""
    short: set[OpenPartition] = field(default_factory=set)
    """Partitions that got fewer datanodes from storage, when they last asked, than min.insync.replicas requires."""
    fenced: list[OpenPartition] = field(default_factory=list)
    """Partitions that another process owns, as they have found out; upkeep forgets them."""
    trouble: str = ""
    """Storage's error when it last refused to create or flush a segment; empty once a flush has succeeded again."""
    unverified: int = 0
    """Batches that wait for the coordinators of their transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerContext(FileContext):
    """The objects that all partitions of a broker share."""

    kv: KeyValue
    records: RecordGroups
    """The partitions' records in ``kv``."""
    cluster: str
    journal: JournalWriter
    journals: CheckpointSource
    scheduler: FlushScheduler
    timers: TimerHeap
    budget: ByteBudget
    standstill: Standstill
    """The watch over this process's loop."""
    wiring: BrokerWiring
    state: BrokerState = field(default_factory=BrokerState)
    store_waits: StoreWaits[OpenPartition]
    """Partitions that wait for the metadata store."""
    load: TrafficCounters = field(default_factory=TrafficCounters)
    """Bytes and requests of partitions."""
    queue_ms: Histogram = field(default_factory=Histogram)
    """Time from the first batch that waits for a flush to the flush that takes it."""
    flush_ms: Histogram = field(default_factory=Histogram)
    """Time from a flush to storage's acknowledgement."""
    takeover_ms: Histogram = field(default_factory=Histogram)
    """Time from the beginning of a takeover until the partition accepts batches."""
    on_foreign_fence: Callable[[str], None]
    """Called with the reason when another cluster fences this one's open files: the process must end."""
    is_alive: Callable[[str], bool]
    """Returns whether an incarnation is a member of the cluster, as far as this process knows."""
    reads: ReadProgress = field(default_factory=ReadProgress)
    """Progress of this process's reads from storage."""
