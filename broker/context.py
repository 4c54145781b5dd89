"""What all partitions of a broker share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bmq.broker.config import BrokerConfig
from bmq.broker.files.datanode_health import NodeHealth
from bmq.broker.files.deferred_indexes import DeferredIndexes
from bmq.broker.files.flush_scheduler import Alarms, FlushScheduler
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.precreated import PrecreatedSegments
from bmq.broker.store_waits import StoreWaits
from bmq.broker.traffic import TrafficCounters
from bmq.core.aio.byte_budget import Budget
from bmq.core.clock import Clock
from bmq.core.logging.fields import Report
from bmq.core.metrics.counters import Histogram
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Batch
from bmq.meta.kv import KeyValue
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.read_progress import ReadProgress

if TYPE_CHECKING:
    from bmq.broker.partition.driver import PartitionDriver


class CheckpointSource(Protocol):
    """The last checkpoints that other brokers' journals hold (see ``broker.files.journal_cache``)."""

    async def find(self, incarnation: str, key: PartitionKey, *, passes_damaged: bool = False) -> Checkpoint | None: ...


class FlushListener(Protocol):
    """Who hears of what partitions flush, in each one's order: a cache of tails
    (``endpoint.partitions.FlushListener``)."""

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None:
        """The partition is in WRITE under this epoch."""

    def flushed(self, key: PartitionKey, batches: Sequence[Batch], high_watermark: int) -> None:
        """These batches are below the watermark now; nobody writes into their bytes any more."""

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None: ...

    def closed(self, key: PartitionKey) -> None:
        """It has left WRITE.  What it still flushes while it hands over is not told."""


SEALS_AT_ONCE = 16
"""Half as many as files are opened at once by default (`open_parallel`): a takeover costs the NameNode more, and nobody
waits for it."""


@dataclass(slots=True, kw_only=True)
class BrokerContext:
    """What all partitions of a broker share."""

    fs: FileSystem
    kv: KeyValue
    cluster: str
    incarnation: str
    clock: Clock
    config: BrokerConfig
    journal: JournalWriter
    journals: CheckpointSource
    scheduler: FlushScheduler
    alarms: Alarms
    health: NodeHealth
    budget: Budget
    places: OpenFileLimit
    first_files: PrecreatedSegments
    seals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SEALS_AT_ONCE))
    """Turns of those who take their own broken segments over."""
    late_indexes: DeferredIndexes
    busy: set[PartitionDriver] = field(default_factory=set)
    """Those that may have a file open; upkeep costs by their number, not by that of all partitions."""
    short: set[PartitionDriver] = field(default_factory=set)
    """Those that had fewer nodes from storage than min.insync.replicas asks for, when they asked last."""
    fenced: list[PartitionDriver] = field(default_factory=list)
    """Those that have heard that they are not the owner, to be forgotten."""
    store_waits: StoreWaits[PartitionDriver]
    """Those that wait for the metadata store."""
    load: TrafficCounters = field(default_factory=TrafficCounters)
    """What partitions are used for."""
    queue_ms: Histogram = field(default_factory=Histogram)
    """From the first batch that waits for a flush to the flush that takes it."""
    flush_ms: Histogram = field(default_factory=Histogram)
    """From a flush to storage's acknowledgement."""
    takeover_ms: Histogram = field(default_factory=Histogram)
    """From the beginning of a takeover until the partition accepts batches."""
    trouble: str = ""
    """What storage said when it last refused to create or flush a segment; empty once a flush has succeeded again."""
    is_alone: bool = True
    """No other process can have taken a partition over without our knowledge."""
    reads: ReadProgress = field(default_factory=ReadProgress)
    """How this process's reads from storage go."""
    tails: FlushListener | None = None
    """Set before the first partition is opened."""
    report: Report
    """Told of what an operator should know, and of bugs; never per request."""

    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)
