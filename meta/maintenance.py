"""The maintenance of a store that several processes share: its free space and its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from bmq.core.metrics.counters import Histogram

MAKE_ROOM = "compact and defragment it (etcdctl compaction, etcdctl defrag), or raise --quota-backend-bytes"
AFTER_ROOM = "then etcdctl alarm disarm"
"""What ends the alarm of a full store, once there is room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """The size of the store's database, in bytes.

    ``bytes_in_use`` excludes what a defragmentation would free.  Past ``quota_bytes`` it takes no writes; 0 if it does
    not report one.  ``is_full``: it takes none now, until an operator ends that.
    """

    bytes: int
    bytes_in_use: int
    quota_bytes: int
    is_full: bool

    @property
    def trouble(self) -> str:
        """The reason why the store takes no writes; "" while it takes them."""
        if not self.is_full:
            return ""
        return f"it takes no writes (NOSPACE): its database has {self.bytes} bytes, {self.bytes_in_use} in use"


@runtime_checkable
class Maintained(Protocol):
    """A ``KeyValue`` that keeps its history, and has a bound.  All calls raise KvError."""

    async def revision(self) -> int: ...

    async def status(self) -> StoreStatus: ...

    async def compact(self, revision: int) -> None:
        """Remove the history before this revision; watches that are further behind get ``Compacted``.

        All other data in the same store loses its history too.  Idempotent.
        """


class StoreMember(NamedTuple):
    """One server of the store.  ``error``: why it does not answer; then the other fields mean nothing."""

    address: str
    version: str = ""
    has_leader: bool = False
    is_learner: bool = False
    """True if it holds a copy and serves no clients: it was added and not promoted."""
    behind: int = 0
    """Log entries that it has received and has not applied."""
    error: str = ""


class LeaseLeft(NamedTuple):
    """The seconds until a lease ends, and the seconds that a renewal gives it; -1 and 0 if the lease does not exist."""

    left_s: float
    granted_s: float


@runtime_checkable
class Inspected(Protocol):
    """A ``KeyValue`` whose servers can be queried one by one.  All calls raise KvError."""

    async def servers(self) -> Sequence[StoreMember]: ...

    async def lease_left(self, lease: int) -> LeaseLeft: ...


@runtime_checkable
class CallTimes(Protocol):
    """A ``KeyValue`` whose calls go over a network, and are counted."""

    @property
    def calls_ms(self) -> Mapping[str, Histogram]:
        """Durations of calls, by the store's name of the call."""

    @property
    def calls_failed(self) -> int:
        """Calls that were not answered in time."""
