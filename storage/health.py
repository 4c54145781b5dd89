"""What storage says of its own health, for an operator: safe mode, room, quota, and what it has lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable


class NameNodeState(NamedTuple):
    """One NameNode.  `state` is Hadoop's word, "" where it does not say; `error`: why it does not answer."""

    address: str
    state: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageHealth:
    """Bytes are of all copies together; 0 of 0 where storage does not tell, -1 for a quota that is not set."""

    capacity_bytes: int = 0
    remaining_bytes: int = 0
    is_in_safe_mode: bool = False
    missing_blocks: int = 0
    """Blocks of any file of the whole HDFS, of which no copy is left."""
    root_names: int = 0
    root_names_quota: int = -1
    """Files and folders of the root, and how many it may have."""
    root_bytes: int = 0
    root_bytes_quota: int = -1


@runtime_checkable
class Examined(Protocol):
    """A ``FileSystem`` that can be asked for its health.  Raises StorageError."""

    async def health(self) -> StorageHealth: ...
