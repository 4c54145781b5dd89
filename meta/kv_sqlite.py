"""``KeyValue`` in one SQLite file, for one process: the embedded default.

A thread does all SQLite work.  All calls queued when it wakes become **one** SQLite transaction (group commit), so that
a thousand concurrent commits cost a few disk syncs.  Each call is still decided on its own, in order, on top of the
calls before it, and is answered after the sync.  Nothing of a call is written before it is decided, so no savepoints
are needed: a call either writes all it has or nothing.  The tables are in ``sqlite_tables``.

Invariants:

* Only the process that holds the flock on ``<path>.lock`` touches the file.  The kernel drops it with the process.
* A lease lasts as long as the process: no other one can hold it, and the lock shows that the process lives.  So leases
  live in memory, to renew one writes nothing, and entries with a lease are deleted when the store is opened.
* A COMMIT that fails may or may not be on the disk, and a second sync proves nothing about the first.  Unless the disk
  was merely full, the file is closed and opened again before the next call: SQLite finds out what was committed, and a
  checkpoint writes that to the disk once more.  Until it succeeds calls are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import socket
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from bmq.core.aio.waiters import Waiters
from bmq.core.logging.fields import fields
from bmq.meta.kv import (
    Changes,
    Commit,
    Compare,
    Entry,
    KvError,
    KvUnavailable,
    KvUnknown,
    LeaseNotFound,
    Put,
    Write,
    check_commit,
    holds,
    prefix_range,
)
from bmq.meta.kv_memory import HISTORY_REVISIONS
from bmq.meta.sqlite_tables import SqliteTables

T = TypeVar("T")
_log = logging.getLogger(__name__)

QUEUE_CALLS = 1024
"""Calls handed to the thread and not yet answered; further callers wait.  Also bounds one SQLite transaction."""


class StoreLocked(KvError):
    """Another process, named in the message, has the file open."""


@dataclass(frozen=True, slots=True)
class _Job:
    """One call: ``act`` decides and writes, in the thread.

    ``is_write``: after a failed COMMIT the call's outcome is unknown.
    """

    act: Callable[[_Transactions], Any]
    is_write: bool
    future: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class _Outcome:
    job: _Job
    result: Any = None
    error: Exception | None = None


class SqliteKeyValue:
    """The store and its thread.  ``open`` makes it, ``close`` ends it; used from the loop that opened it."""

    def __init__(self, path: str, *, history: int, queue: int) -> None:
        self.queued = 0
        """Calls handed to the thread and not yet answered."""
        self.groups = 0
        """SQLite transactions completed: a thousand commits in ten groups cost ten syncs."""
        self._path = os.path.realpath(path)  # one file, one lock, whatever the name
        self._history = history
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(queue)
        self._revision = 0  # of the last answered group; watches wait for it to move
        self._watches = Waiters()
        self._taken: Sequence[_Job] = ()  # the thread's: the jobs that it is doing
        self._wake = threading.Condition()  # guards the next two, shared with the thread
        self._jobs: list[_Job] = []
        self._closing = False
        self._opened: asyncio.Future[int] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        # A daemon, so that a process that fails before close() can exit: the file is safe against death at any moment.
        self._thread = threading.Thread(target=self._run, name=f"sqlite {self._path}", daemon=True)

    @classmethod
    async def open(cls, path: str, *, history: int = HISTORY_REVISIONS, queue: int = QUEUE_CALLS) -> SqliteKeyValue:
        """Open or create the file, and its folder.

        Raises StoreLocked if another process has it open; KvError if it is not such a store or cannot be opened.
        ``history`` and ``queue`` are bounds.
        """
        store = cls(path, history=history, queue=queue)
        store._thread.start()
        try:
            store._revision = await store._opened
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> Entry | None:
        raw = key.encode()
        return await self._call(lambda calls: calls.tables.get(raw))

    async def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> AsyncIterator[Entry]:
        (low, high), last = prefix_range(prefix), after.encode()
        while True:
            page = await self._page(low, high, last, limit)
            for entry in page:
                yield entry
            if len(page) < limit:
                return
            last = page[-1].key.encode()

    async def revision(self) -> int:
        return await self._call(lambda calls: calls.tables.revision)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        check_commit(compares, writes)
        return await self._call(lambda calls: calls.commit(compares, writes), is_write=True)

    async def grant(self, ttl_s: float) -> int:
        return await self._call(lambda calls: calls.grant())

    async def keep_alive(self, lease: int) -> float:
        return await self._call(lambda calls: calls.keep_alive(lease))

    async def revoke(self, lease: int) -> None:
        await self._call(lambda calls: calls.revoke(lease), is_write=True)

    async def watch(self, prefix: str, *, after_revision: int) -> AsyncGenerator[Changes, None]:
        (low, high), seen = prefix_range(prefix), after_revision
        while True:
            found, seen = await self._changes(low, high, seen)
            for changes in found:
                yield changes
            while seen >= self._revision and not self._closing:
                await self._watches.wait()

    async def close(self) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._watches.wake_all()
        await asyncio.shield(self._ended)  # when cancelled here, the thread still ends by itself
        self._thread.join()  # nothing is left in it that could block

    async def _page(self, low: bytes, high: bytes, after: bytes, limit: int) -> Sequence[Entry]:
        return await self._call(lambda calls: calls.tables.page(low, high, after, limit))

    async def _changes(self, low: bytes, high: bytes, after_revision: int) -> tuple[Sequence[Changes], int]:
        return await self._call(lambda calls: calls.tables.changes(low, high, after_revision))

    async def _call(self, act: Callable[[_Transactions], T], *, is_write: bool = False) -> T:
        await self._room.acquire()
        job = _Job(act, is_write, self._loop.create_future())
        if not self._submit(job):
            self._room.release()
            raise KvUnavailable(f"{self._path} is closed")
        result: T = await job.future
        return result

    def _submit(self, job: _Job) -> bool:
        with self._wake:
            if self._closing:
                return False
            self.queued += 1
            self._jobs.append(job)
            self._wake.notify()
            return True

    def _deliver(self, outcomes: Sequence[_Outcome], revision: int) -> None:
        self.groups += 1
        self.queued -= len(outcomes)
        for outcome in outcomes:
            self._room.release()
            future = outcome.job.future
            if future.done():
                continue  # its caller was cancelled, to whom the outcome is unknown
            if outcome.error is None:
                future.set_result(outcome.result)
            else:
                future.set_exception(outcome.error)
        if revision > self._revision:
            self._revision = revision
            self._watches.wake_all()

    def _accept(self, revision: int) -> None:
        if not self._opened.done():  # else its caller was cancelled
            self._opened.set_result(revision)

    def _refuse(self, error: KvError) -> None:
        if not self._opened.done():
            self._opened.set_exception(error)

    def _end(self, orphans: Sequence[_Job]) -> None:
        """Handle the end of the thread.  ``orphans`` are the calls that it had not answered."""
        self._refuse(KvError(f"{self._path}: the thread failed"))
        self._deliver([_Outcome(job, error=KvUnknown(f"{self._path}: the thread failed")) for job in orphans], 0)
        self._watches.wake_all()
        self._ended.set_result(None)

    # From here on: the thread.

    def _run(self) -> None:
        try:
            self._open_and_serve()
        finally:  # a bug ends the thread with its traceback, and no caller waits for ever
            with self._wake:
                self._closing = True
                orphans = [*self._taken, *self._jobs]
            self._post(self._end, orphans)

    def _open_and_serve(self) -> None:
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(_flock(self._path))
                transactions = held.enter_context(contextlib.closing(_Transactions(self._path, self._history)))
            except (OSError, sqlite3.Error, KvError) as error:
                known = error if isinstance(error, KvError) else KvError(f"cannot open {self._path}: {error}")
                self._post(self._refuse, known)
                return
            self._post(self._accept, transactions.tables.revision)
            self._serve(transactions)

    def _serve(self, transactions: _Transactions) -> None:
        while (jobs := self._take()) is not None:
            self._taken = jobs
            outcomes = transactions.group(jobs)
            self._taken = ()
            self._post(self._deliver, outcomes, transactions.tables.revision)

    def _take(self) -> Sequence[_Job] | None:
        """Return all queued jobs, once there are any; None if the store is closed and all jobs are done."""
        with self._wake:
            self._wake.wait_for(lambda: self._jobs or self._closing)
            if not self._jobs:
                return None
            jobs, self._jobs = self._jobs, []
            return jobs

    def _post(self, act: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(act, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The loop ended without close(): no caller is left, and the thread ends too.
            with self._wake:
                self._closing = True


class _Transactions:
    """The calls of one opened file, decided and written in groups, and its leases.  Used by one thread."""

    def __init__(self, path: str, history: int) -> None:
        self._path = path
        self._failure = ""  # why the file is to be opened again first
        self._leases: set[int] = set()
        self.tables = SqliteTables(path, history)
        try:
            # The first id is above all that an earlier process can have put into the history.
            self._last_lease: int = self.tables.revision << 20
            self._drop_stale_leases()
        except BaseException:
            self.tables.close()
            raise

    def close(self) -> None:
        self.tables.close()

    def group(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        """Do all jobs in order, in one SQLite transaction."""
        if self._failure:
            try:
                self.tables.open_again()
            except (sqlite3.Error, KvError) as error:
                text = f"{self._failure}, which fails: {error}"
                return [_Outcome(job, error=KvUnavailable(text)) for job in jobs]
            self._failure = ""
        leases, committing = set(self._leases), False
        try:
            self.tables.begin()
            outcomes = [self._outcome(job) for job in jobs]
            self.tables.save()
            committing = True
            self.tables.commit()
        except sqlite3.Error as error:
            self.tables.rollback()
            self._leases = leases
            if committing and error.sqlite_errorcode != sqlite3.SQLITE_FULL:
                self._failure = f"{self._path} failed to commit ({error}) and must be opened again"
                _log.error(
                    "the metadata store failed to commit and must be opened again",
                    extra=fields(path=self._path, error=error),
                )
            return [self._failed(job, error, committing) for job in jobs]
        return outcomes

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        current = {compare.key: self.tables.get(compare.key.encode()) for compare in compares}
        if not all(holds(compare, current[compare.key]) for compare in compares):
            return Commit(False, self.tables.revision, current)
        for write in writes:
            if isinstance(write, Put) and write.lease:
                self._check(write.lease)
        self.tables.apply(writes)
        return Commit(True, self.tables.revision, {})

    def grant(self) -> int:
        self._last_lease += 1
        self._leases.add(self._last_lease)
        return self._last_lease

    def keep_alive(self, lease: int) -> float:
        self._check(lease)
        return math.inf

    def revoke(self, lease: int) -> None:
        self._check(lease)
        self._leases.remove(lease)
        self.tables.delete_leased(lease)

    def _check(self, lease: int) -> None:
        if lease not in self._leases:
            raise LeaseNotFound(f"lease {lease} has ended")

    def _outcome(self, job: _Job) -> _Outcome:
        try:
            return _Outcome(job, result=job.act(self))
        except KvError as error:  # decided before anything was written: the others of the group go on
            return _Outcome(job, error=error)

    def _failed(self, job: _Job, error: sqlite3.Error, committing: bool) -> _Outcome:
        kind = KvUnknown if committing and job.is_write else KvUnavailable
        return _Outcome(job, error=kind(f"{self._path}: {error}"))

    def _drop_stale_leases(self) -> None:
        self.tables.begin()
        for lease in self.tables.leases():
            self.tables.delete_leased(lease)
        self.tables.save()
        self.tables.commit()


@contextlib.contextmanager
def _flock(path: str) -> Iterator[None]:
    """Hold ``<path>.lock``, whose text names the holder.

    The file stays: if it were removed, two processes could each hold a lock of that name.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    file = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(file, 400, 0).decode(errors="replace").strip() or "a process that is just starting"
            raise StoreLocked(f"{path} is in use by {holder}; only one process at a time can open it") from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"pid {os.getpid()} on {socket.gethostname()} ({' '.join(sys.argv)[:200]})\n".encode(), 0)
        yield
    finally:
        os.close(file)
