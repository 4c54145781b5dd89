"""HDFS in memory: its semantics, with seeded faults and latency, for tests and simulation."""

from bmq.storage.memory.faults import Faults
from bmq.storage.memory.filesystem import MemoryFileSystem
from bmq.storage.memory.storage import MemoryStorage

__all__ = ["Faults", "MemoryFileSystem", "MemoryStorage"]
