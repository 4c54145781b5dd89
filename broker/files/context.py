"""The objects that the files of all partitions of a broker share."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from bmq.broker.config import BrokerConfig
from bmq.broker.files.block_ceiling import BlockCeiling
from bmq.broker.files.datanode_health import NodeHealth
from bmq.broker.files.deferred_indexes import DeferredIndexes
from bmq.broker.files.index_rounds import IndexRounds
from bmq.broker.files.open_file_limit import OpenFileLimit
from bmq.broker.files.precreated import PrecreatedSegments
from bmq.core.clock import Clock
from bmq.core.logging.fields import Report
from bmq.storage.filesystem import FileSystem

SEALS_AT_ONCE = 16
"""Broken segments of this broker's own that are sealed at once.  Half as many as files are opened at once by default
(``open_parallel``): a seal costs the NameNode more, and nothing waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileContext:
    """The part of a ``BrokerContext`` that segment files need: it knows of no partition."""

    fs: FileSystem
    incarnation: str
    clock: Clock
    config: BrokerConfig
    health: NodeHealth
    open_files: OpenFileLimit
    precreated: PrecreatedSegments
    block_ceiling: BlockCeiling = field(default_factory=BlockCeiling)
    seals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SEALS_AT_ONCE))
    """Bounds the partitions that seal their own broken segments at once."""
    deferred_indexes: DeferredIndexes
    index_rounds: IndexRounds
    late_indexes: asyncio.Semaphore
    """Bounds the indexes that are written late, or made again from their segments, at once."""
    index_turns: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Locks of the writers of an index, by the path of the draft (``SegmentFiles.idx_turn``)."""
    report: Report
    """Reports what an operator should know, and bugs; never called per request."""

    def now_ms(self) -> int:
        """Return the monotonic clock in milliseconds."""
        return int(self.clock.monotonic() * 1000)
