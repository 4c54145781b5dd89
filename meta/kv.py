"""The interface to the store of the cluster's metadata: owners, topics, configs.

Adapters: ``memory`` (seeded faults, for simulation), ``sqlite`` (one process, a file) and, in a cluster, etcd v3, which
the interface follows.  Callers rely on this, and each adapter must provide it:

* Keys are non-empty text, values bytes.  The store has one **revision**, 1 when it is new.  A commit with a change
  takes the next revision, for all its writes together.  An entry carries the revision of its last write.
* ``commit`` is the only write: atomic, and decided by comparing revisions.  A commit that compares the revisions read
  by its author cannot overwrite a change that the author has not seen, and cannot happen twice.
* Every read is linearizable: it shows all commits that were answered before the call began.
* An entry written with a lease is deleted when the lease ends; the deletion has a revision and an event like any
  other.  A lease ends no earlier than its ttl after the *start* of its last ``keep_alive`` that was answered, maybe a
  little later.  Its holder counts from before the call, with a margin, by a clock that goes on in suspend.  A store of
  one process (``sqlite``) ends leases with the process instead: nobody else waits for them.
* ``watch`` misses nothing: it gives every change of its prefix in order, or raises ``Compacted``.

All calls may raise the errors below and nothing else, except ValueError, a caller's bug.  **Unknown outcomes** are
real: after ``KvUnknown`` the commit may be done, not done, or (it may still sit in a queue) be done later.  Reading it
back shows that it *was* done.  Only a further commit with the same compares can settle that it was *not* done.  If the
further commit succeeds, the first can no longer succeed; if it fails, ``current`` shows whose write is there.  A
cancelled call is an unknown outcome too.

To follow a prefix: take ``revision()``, then ``list``, then ``watch`` after this revision, and drop events older than
the entry held for their key.  After ``Compacted`` start over.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

# etcd's limits, enforced by every adapter so that what works on SQLite works in a cluster.
COMMIT_OPERATIONS_MAX = 128
"""Compares, and writes, of one commit (etcd: --max-txn-ops)."""
COMMIT_BYTES_MAX = 1 << 20
"""Keys and values of one commit together (etcd: --max-request-bytes is 1.5 MiB with the framing)."""


class KvError(Exception):
    """The base class of all errors that a ``KeyValue`` raises, except ValueError."""


class KvUnavailable(KvError):
    """A call that the store did not take: certainly nothing was done, try again.  Also raised after ``close``."""


class KvUnknown(KvError):
    """A call that was sent and not answered: it may be done, or be done later.  See the module's text (rule 3)."""


class LeaseNotFound(KvError):
    """A lease that has expired or was revoked: its entries are gone, and nothing was written."""


class Compacted(KvError):
    """A request for changes that are no longer kept (those after ``revision`` are): list again."""

    def __init__(self, revision: int) -> None:
        super().__init__(f"changes up to revision {revision} are compacted")
        self.revision = revision


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's present state.  ``revision`` is that of its last write; ``lease`` 0 means until deleted."""

    key: str
    value: bytes
    revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Compare:
    """The condition that the key's last write has this revision; 0: that the key does not exist."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Put:
    """An order to set the key, and to bind it to the lease (0 unbinds it).

    LeaseNotFound fails the whole commit.
    """

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """An order to remove the key.  A key that does not exist is neither an error nor a change."""

    key: str


Write = Put | Delete


@dataclass(frozen=True, slots=True)
class Commit:
    """The result of a ``commit``.

    ``revision``: the commit's own when it changed anything, else the store's.  ``current``: the present state of the
    compared keys if it failed; empty if it succeeded.
    """

    succeeded: bool
    revision: int
    current: Mapping[str, Entry | None]


@dataclass(frozen=True, slots=True)
class Event:
    """One key's change: its state since ``revision``, None if it was deleted."""

    key: str
    entry: Entry | None
    revision: int


Changes = list[Event]
"""All the changes of one revision under a watched prefix, each key once, in no order."""


class KeyValue(Protocol):
    """A process's client of the store.  Calls may overlap; without an await in between they have no order."""

    async def get(self, key: str) -> Entry | None:
        """Return the entry of a key; None if the key does not exist."""

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> AsyncIterator[Entry]:
        """Yield the entries whose key begins with ``prefix`` and is greater than ``after``, in byte order of keys.

        They are read in pages of ``limit``, never whole.  A page is true when it is read; the pages are not one
        snapshot.
        """

    async def revision(self) -> int:
        """Return the store's present revision."""

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        """Do all writes under one new revision if all compares are true; else nothing.

        Each key is written at most once a commit; more, or more than ``COMMIT_OPERATIONS_MAX`` or ``COMMIT_BYTES_MAX``,
        raises ValueError.  Raises KvUnavailable, KvUnknown, or LeaseNotFound if a write names an ended lease.
        """

    async def grant(self, ttl_s: float) -> int:
        """Return a new lease, never 0.  Adapters may round ``ttl_s`` up.  After KvUnknown it expires by itself."""

    async def keep_alive(self, lease: int) -> float:
        """Start the lease's ttl again.  Return the seconds now left, infinite if it ends with this process.

        Raises LeaseNotFound if the lease has ended.
        """

    async def revoke(self, lease: int) -> None:
        """End the lease and delete its entries, under one revision.  Raises LeaseNotFound if it has ended already."""

    def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        """Yield every change under ``prefix`` with a greater revision: a list per revision, in order, without end.

        Outages are waited out inside.  Raises Compacted if ``after_revision`` is too old, or if the caller takes the
        changes so slowly that they are no longer kept; KvUnavailable after ``close``.
        """

    async def close(self) -> None:
        """Answer the calls in progress, end the watches, and close the store.  Leases are left to expire.

        Idempotent.
        """


def check_commit(compares: Sequence[Compare], writes: Sequence[Write]) -> None:
    """Raise ValueError if a commit breaks the interface's limits: for adapters, so that all refuse the same."""
    keys = {write.key for write in writes}
    if len(keys) != len(writes):
        raise ValueError("a commit writes each key at most once")
    if max(len(compares), len(writes)) > COMMIT_OPERATIONS_MAX:
        raise ValueError(f"a commit has at most {COMMIT_OPERATIONS_MAX} compares and as many writes")
    compared = {compare.key for compare in compares}
    if "" in keys | compared:
        raise ValueError("a key is not empty")
    if any(compare.revision < 0 for compare in compares):
        raise ValueError("a compared revision is 0 (the key does not exist) or more")
    size = sum(len(key.encode()) for key in keys) + sum(len(key.encode()) for key in compared)
    size += sum(len(write.value) for write in writes if isinstance(write, Put))
    if size > COMMIT_BYTES_MAX:
        raise ValueError(f"a commit has at most {COMMIT_BYTES_MAX} bytes of keys and values, not {size}")


def holds(compare: Compare, entry: Entry | None) -> bool:
    """Return whether ``compare`` is true of its key's present state."""
    return compare.revision == (entry.revision if entry else 0)


def prefix_range(prefix: str) -> tuple[bytes, bytes]:
    """Return the range of keys that begin with ``prefix``, in byte order: the first, and the one after the last."""
    if not prefix:
        return b"\x00", b"\xff"
    low = prefix.encode()
    return low, low[:-1] + bytes([low[-1] + 1])  # UTF-8 has no byte 0xFF: the last one can be raised
