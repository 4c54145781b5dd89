"""Storage's report of its own health, for an operator: safe mode, room, quota, and lost blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable


class NameNodeState(NamedTuple):
    """One NameNode's state.

    ``state`` is Hadoop's word for it ("active", "standby", ...), "" if it is not known; ``error`` says why the NameNode
    does not respond, "" if it does.
    """

    address: str
    state: str = ""
    error: str = ""


class LoginStep(NamedTuple):
    """One step of the way to a secure storage.

    ``result`` is ``OK``, ``FAILED`` or ``NOT_CHECKED``; ``remedy`` of a failed step is an instruction, or a
    question to the storage's administrator.
    """

    name: str
    result: str
    what: str
    remedy: str = ""


OK, FAILED, NOT_CHECKED = "ok", "failed", "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageHealth:
    """The health of the storage under one root.

    Bytes are those of all copies together.  A capacity of 0 means that storage does not report it; -1 is a quota that
    is not set.
    """

    capacity_bytes: int = 0
    remaining_bytes: int = 0
    is_in_safe_mode: bool = False
    missing_blocks: int = 0
    """Blocks without a copy, of any file of the whole HDFS."""
    root_names: int = 0
    root_names_quota: int = -1
    """The quota of the files and folders of the root, which ``root_names`` counts."""
    root_bytes: int = 0
    root_bytes_quota: int = -1
    root_refusal: str = ""
    """The reason why a server refuses this root, with the ways on; empty if it can keep segments."""


@runtime_checkable
class Examined(Protocol):
    """A ``FileSystem`` that reports its health."""

    async def health(self) -> StorageHealth:
        """Return storage's health.  Raises StorageError if storage does not respond."""
