"""What all partitions of a broker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bmq.broker.budget import Budget
from bmq.broker.config import BrokerConfig
from bmq.broker.health import NodeHealth
from bmq.broker.scheduler import Alarms, FlushScheduler
from bmq.core.clock import Clock
from bmq.core.model import PartitionKey
from bmq.meta.kv import KeyValue
from bmq.storage.checkpoint import Checkpoint
from bmq.storage.filesystem import FileSystem
from bmq.storage.journal import JournalWriter

if TYPE_CHECKING:
    from bmq.broker.writer import PartitionWriter


class CheckpointSource(Protocol):
    """The last checkpoints that other brokers' journals hold (see ``broker.journals``)."""

    async def find(self, incarnation: str, key: PartitionKey) -> Checkpoint | None: ...


@dataclass(slots=True, kw_only=True)
class Shared:
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
    busy: set[PartitionWriter] = field(default_factory=set)
    """Those that may have a file open; upkeep costs by their number, not by that of all partitions."""
    fenced: list[PartitionWriter] = field(default_factory=list)
    """Those that have heard that they are not the owner, to be forgotten."""
    report: Callable[[str], None]
    """Told of what an operator should know, and of bugs; never per request."""

    def now_ms(self) -> int:
        return int(self.clock.monotonic() * 1000)
