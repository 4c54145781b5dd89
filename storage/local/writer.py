"""The write path of a local root: one thread writes, checks the fence and acknowledges, for all files of a process.

``bmq.storage.local.file`` shows why an acknowledgement can be trusted.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue

from bmq.storage.filesystem import (
    Buffer,
    Lease,
    LeaseLost,
    OutOfSpace,
    PipelineFailed,
    StorageError,
    StorageUnavailable,
)
from bmq.storage.local.file import Folders, OpenFile, check_fence, raise_fence, translate, write_all

DRAIN_JOBS_MAX = 4096  # flushes acknowledged together
QUEUED_BYTES_MAX = 256 << 20  # queued, not yet written: past it the disk is the bottleneck and callers must wait


class _Job:
    """A flush, a close (a flush that ends the file) or, without a future, an abort."""

    __slots__ = ("appender", "buffers", "closes", "future", "position", "size", "sync")

    def __init__(
        self,
        appender: LocalAppender,
        *,
        future: asyncio.Future[int] | None = None,
        buffers: Sequence[memoryview] = (),
        size: int = 0,
        position: int = 0,
        sync: bool = False,
        closes: bool = False,
    ) -> None:
        self.appender = appender
        self.future = future
        self.buffers = buffers
        self.size = size  # of the buffers together
        self.position = position
        self.sync = sync
        self.closes = closes


class LocalAppender:
    """The ``Appender`` of a local file (``bmq.storage.filesystem``).

    The descriptors of ``file`` belong to the writer thread from now on.
    """

    def __init__(self, writer: WriterThread, file: OpenFile, holder: str) -> None:
        self.file = file
        self._writer = writer
        self._lease = Lease(paths=(file.path,), holder=holder, file_id=file.file_id)
        self._position = self._queued = self._flushed = file.position
        self._buffers: list[memoryview] = []
        self._pending: dict[asyncio.Future[int], None] = {}
        self._failure: StorageError | None = None
        self._is_closing = False
        writer.open[self] = None

    @property
    def lease(self) -> Lease:
        return self._lease

    @property
    def nodes(self) -> tuple[str, ...]:
        return ()

    @property
    def position(self) -> int:
        return self._position

    @property
    def flushed(self) -> int:
        return self._flushed

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def failure(self) -> StorageError | None:
        return self._failure

    def __repr__(self) -> str:
        state = repr(self._failure) if self._failure else f"{self._flushed}/{self._position}, {self.pending} pending"
        return f"<LocalAppender {self.file.path} by {self._lease.holder}, {state}>"

    def write(self, data: Buffer) -> int:
        """Take bytes as ``Appender.write``.

        Raises StorageUnavailable, and takes nothing, while ``QUEUED_BYTES_MAX`` wait for the disk.
        """
        if self._failure is not None:
            raise self._failure
        assert not self._is_closing, "write after close"
        buffer = memoryview(data).cast("B")
        self._writer.take(len(buffer))
        if buffer:
            self._buffers.append(buffer)
            self._position += len(buffer)
        return self._position

    def flush(self, *, sync: bool = False) -> asyncio.Future[int]:
        return self._enqueue(sync=sync, closes=False)

    async def close(self) -> int:
        future = self._enqueue(sync=False, closes=True)
        self._is_closing = True
        return await future

    def abort(self) -> None:
        if self._failure is None:
            self._fail(PipelineFailed(f"{self.file.path}: aborted by its writer"))
            self._writer.put_now(_Job(self))

    def _enqueue(self, *, sync: bool, closes: bool) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._writer.loop.create_future()
        self._pending[future] = None
        if self._failure is not None:
            self._fail(self._failure)
            return future
        buffers, self._buffers = self._buffers, []
        size, self._queued = self._position - self._queued, self._position
        self._writer.put(
            _Job(self, future=future, buffers=buffers, size=size, position=self._position, sync=sync, closes=closes)
        )
        return future

    def done(self, job: _Job, error: StorageError | None) -> None:
        """Complete a job that the thread has performed; on the loop."""
        if self._failure is not None:
            return
        if error is not None:
            self._fail(error)
            return
        assert job.future is not None
        self._flushed = job.position
        del self._pending[job.future]
        if not job.future.done():  # its waiter may have been cancelled
            job.future.set_result(job.position)
        if job.closes:
            self._fail(LeaseLost(f"{self.file.path} is closed"))

    def _fail(self, error: StorageError) -> None:
        """Fail all outstanding flushes together."""
        self._failure = error
        self._writer.release(sum(len(buffer) for buffer in self._buffers))
        self._buffers.clear()
        self._writer.open.pop(self, None)
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(error)
                future.exception()  # retrieved: no warning if no caller does, since the next call raises the same


_Outcome = tuple[_Job, StorageError | None]
_Item = _Job | asyncio.Future[None] | None  # a barrier is a future; None: stop


class WriterThread:
    """The writer thread of a process: it takes all queued jobs, writes file by file, and wakes the loop once for all.

    The jobs of one turn of the loop are queued together: a thread that is woken competes with the loop for the
    interpreter.
    """

    def __init__(self, folders: Folders) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: dict[LocalAppender, None] = {}
        self._folders = folders
        self._bytes = 0  # taken and not completed; only the loop's thread counts
        self._put: list[_Item] = []  # in this turn of the loop
        self._queue: SimpleQueue[list[_Item]] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="bmq-local-writer", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        """Queue a job at the end of this turn of the loop."""
        if not self._put:
            self.loop.call_soon(self._hand_over)
        self._put.append(job)

    def put_now(self, item: _Item) -> None:
        """Queue an item, and those put before it, without waiting for the end of the turn."""
        self._put.append(item)
        self._hand_over()

    def _hand_over(self) -> None:
        if self._put:
            self._queue.put(self._put)
            self._put = []

    def take(self, size: int) -> None:
        """Count bytes that are to be written.  Raises StorageUnavailable if too many wait already."""
        if self._bytes and self._bytes + size > QUEUED_BYTES_MAX:
            raise StorageUnavailable(f"{self._bytes} bytes wait for the disk")
        self._bytes += size

    def release(self, size: int) -> None:
        """Stop counting bytes that will not be written."""
        self._bytes -= size

    async def barrier(self) -> None:
        """Wait until everything put before is done, and the descriptors that it closes are closed."""
        done: asyncio.Future[None] = self.loop.create_future()
        self.put_now(done)
        await done

    async def stop(self) -> None:
        """Abort the open files, perform the queued jobs, and end the thread."""
        for appender in list(self.open):
            appender.abort()
        self.put_now(None)
        await asyncio.to_thread(self._thread.join)

    # The thread

    def _run(self) -> None:
        while True:
            batch = self._queue.get()
            while len(batch) < DRAIN_JOBS_MAX:
                try:
                    batch += self._queue.get_nowait()
                except Empty:
                    break
            jobs: dict[LocalAppender, list[_Job]] = {}
            for job in batch:
                if isinstance(job, _Job):
                    jobs.setdefault(job.appender, []).append(job)
            outcomes = [outcome for appender, own in jobs.items() for outcome in self._perform(appender.file, own)]
            barriers = [job for job in batch if isinstance(job, asyncio.Future)]
            try:
                self.loop.call_soon_threadsafe(self._deliver, outcomes, barriers)
            except RuntimeError:
                if not self.loop.is_closed():
                    raise
                for appender in self.open:  # the loop ended without closing its file system: no task waits any more
                    appender.file.close()
                return
            if None in batch:
                return

    def _perform(self, file: OpenFile, jobs: list[_Job]) -> list[_Outcome]:
        """Perform one file's jobs of this batch; they succeed or fail together, and a failed file is closed at once."""
        error: StorageError | None = None
        try:
            if not file.fds:
                error = LeaseLost(f"{file.path} is not open any more")
            else:
                self._write(file, jobs)
        except LeaseLost as lost:
            error = lost
        except OSError as failed:
            full = isinstance(translate(failed, file.path), OutOfSpace)
            error = (OutOfSpace if full else PipelineFailed)(f"{file.path}: {failed.strerror}")
        if error is not None or any(job.closes or job.future is None for job in jobs):
            file.close()
        return [(job, error) for job in jobs]

    def _write(self, file: OpenFile, jobs: list[_Job]) -> None:
        fd = file.fds[0]
        flushes = [job for job in jobs if job.future is not None]
        if not flushes:
            return
        check_fence(fd, file.path)
        write_all(fd, [buffer for job in flushes for buffer in job.buffers])
        if any(job.sync for job in flushes):
            os.fdatasync(fd)
            self._folders.sync(file.real)
        check_fence(fd, file.path)
        if flushes[-1].closes:
            raise_fence(fd)

    # Back on the loop

    def _deliver(self, outcomes: list[_Outcome], barriers: list[asyncio.Future[None]]) -> None:
        for job, error in outcomes:
            self._bytes -= job.size
            if job.future is not None:
                job.appender.done(job, error)
        for barrier in barriers:
            if not barrier.done():
                barrier.set_result(None)
