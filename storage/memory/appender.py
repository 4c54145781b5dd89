"""The writer of a file in the memory HDFS, with its pipeline."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf

from bmq.storage.filesystem import Buffer, Lease, LeaseLost, PipelineFailed, StorageError
from bmq.storage.memory.namespace import Datanode, NodeState
from bmq.storage.memory.process import MemoryProcess
from bmq.storage.memory.storage import Opened

_CLOCK_S = 1e-6  # timers may fire this early


class _Flush:
    """A flush under way.

    At ``land_at`` all datanodes have its bytes, at ``answer_at`` the client receives the acknowledgement (-1: the flush
    is not sent yet).
    """

    __slots__ = ("answer_at", "breaks", "future", "is_sync", "land_at", "position")

    def __init__(self, position: int, future: asyncio.Future[int], *, is_sync: bool) -> None:
        self.position = position
        self.is_sync = is_sync
        self.future = future
        self.land_at = -1.0
        self.answer_at = -1.0
        self.breaks = False


class MemoryAppender:
    """The ``Appender`` of the memory HDFS (``bmq.storage.filesystem``)."""

    def __init__(self, process: MemoryProcess, opened: Opened, path: str) -> None:
        self.process = process
        self.replicas = opened.replicas
        self._storage = process.storage
        self._loop = asyncio.get_running_loop()
        self._file = opened.file
        self._generation = opened.generation
        self._lease = Lease(paths=(path,), holder=process.holder, file_id=opened.file.file_id)
        self._nodes = tuple(replica.node.name for replica in self.replicas)
        self._position = self._flushed = opened.position
        self._has_length = opened.has_length
        self._sent: deque[_Flush] = deque()  # not yet on all datanodes
        self._landed: deque[_Flush] = deque()  # on all, not yet acknowledged to the client
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._failure: StorageError | None = None  # as the client has received it
        self._broken: StorageError | None = None  # as it is; different only while the client is paused
        self._is_closing = False
        self._storage.appenders[self] = None

    @property
    def lease(self) -> Lease:
        return self._lease

    @property
    def nodes(self) -> tuple[str, ...]:
        return self._nodes

    @property
    def position(self) -> int:
        return self._position

    @property
    def flushed(self) -> int:
        return self._flushed

    @property
    def pending(self) -> int:
        return len(self._sent) + len(self._landed)

    @property
    def failure(self) -> StorageError | None:
        return self._failure

    def __repr__(self) -> str:
        state = repr(self._failure) if self._failure else f"{self._flushed}/{self._position}, {self.pending} pending"
        return f"<MemoryAppender {self._lease.paths[0]} by {self._lease.holder}, {state}>"

    def write(self, data: Buffer) -> int:
        if self._failure is not None:
            raise self._failure
        assert not self._is_closing, "write after close"
        if self._file.generation == self._generation and not self.process.is_crashed:
            assert len(self._file.data) == self._position
            self._file.data += data  # else the writer is fenced and has not received that: its bytes are dropped
        self._position += memoryview(data).nbytes
        return self._position

    def flush(self, *, sync: bool = False) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        if self._failure is not None:
            _fail(future, self._failure)
            return future
        flush = _Flush(self._position, future, is_sync=sync)
        self._sent.append(flush)
        if self.process.is_running:
            self._send(flush)
            if len(self._sent) == 1:  # else the timer, or the event that the head waits for, advances this one too
                self._arm(flush.land_at)
        return future

    async def close(self) -> int:
        await self.process.awake()
        if self._failure is not None:
            raise self._failure
        self._is_closing = True
        await self.flush()
        try:
            length = await self.process.call(lambda: self._storage.complete(self._file, self._generation))
        except StorageError as error:
            self._break(error)
            raise
        self._break(LeaseLost(f"{self._lease.paths[0]} is closed"))
        return length

    def abort(self) -> None:
        self._break(PipelineFailed(f"{self._lease.paths[0]}: aborted by its writer"))

    # Events

    def node_died(self, node: Datanode) -> None:
        """Break the pipeline: one of its datanodes died."""
        self._break(PipelineFailed(f"{self._lease.paths[0]}: {node.name} died", [node.name]))

    def process_died(self) -> None:
        """Forget the client, which receives nothing more; bytes under way may still reach replicas."""
        self._scatter()
        self._forget()

    def process_resumed(self) -> None:
        """Go on after the client's pause: fail if the pipeline broke meanwhile, else send the waiting flushes."""
        if self._broken is not None:
            self._fail_all(self._broken)
            return
        for flush in self._sent:
            if flush.land_at < 0:
                self._send(flush)
        self.advance()

    def advance(self) -> None:
        """Advance all flushes that are due; called again by a timer, or by the event that the head waits for."""
        if self._broken is not None:
            return
        self._disarm()
        now = self._loop.time() + _CLOCK_S
        while self._sent and 0 <= self._sent[0].land_at <= now and self._land(self._sent[0]):
            self._landed.append(self._sent.popleft())
        while self._landed and self._landed[0].answer_at <= now and self._acknowledge(self._landed[0]):
            self._landed.popleft()
        # A head that is due, yet still here, is blocked: the event that it waits for calls again.
        if self._sent and self._sent[0].land_at > now:
            self._arm(self._sent[0].land_at)
        if self._landed and now < self._landed[0].answer_at < inf:
            self._arm(self._landed[0].answer_at)

    # The pipeline

    def _send(self, flush: _Flush) -> None:
        storage, faults = self._storage, self._storage.faults
        delay = storage.draw(faults.ack_s) + max((r.node.delay_s for r in self.replicas), default=0.0)
        if storage.chance(faults.slow_ack):
            delay += storage.draw(faults.slow_ack_s)
        flush.land_at = self._loop.time() + (delay * storage.rng.random() if delay else 0.0)
        flush.answer_at = self._loop.time() + delay
        if storage.chance(faults.hung_ack):
            flush.answer_at = inf
        flush.breaks = storage.chance(faults.pipeline_fails)
        self._scatter()

    def _land(self, flush: _Flush) -> bool:
        """Bring a flush's bytes to all datanodes.

        Return False if a datanode is stopped, or refuses the bytes: the pipeline is then broken.
        """
        if any(replica.generation != self._generation for replica in self.replicas):
            self._break(self._fenced())
            return False
        if any(replica.node.state is NodeState.STOPPED for replica in self.replicas):
            return False
        if flush.breaks or self._storage.is_full:
            suspects = [self._storage.rng.choice(self._nodes)] if self._storage.chance(0.8) else []
            self._break(PipelineFailed(f"{self._lease.paths[0]}: pipeline broke", suspects))
            return False
        for replica in self.replicas:
            replica.length = max(replica.length, flush.position)
        if flush.is_sync:
            self._file.synced = max(self._file.synced, flush.position)
        return True

    def _acknowledge(self, flush: _Flush) -> bool:
        """Acknowledge a flush to the client, which first sends the NameNode a new block's length (rule 1).

        Return False if the client is paused or the NameNode is down.
        """
        if not self.process.is_running:
            return False
        if not self._has_length:
            wait_s = self._storage.wait_s(writes=True)
            if wait_s > 0:
                flush.answer_at = self._loop.time() + wait_s
                return False
            try:
                self._storage.store_length(self._file, self._generation, flush.position)
            except LeaseLost as error:
                self._break(error)
                return False
            self._has_length = True
        self._flushed = flush.position
        if not flush.future.done():  # its waiter may have been cancelled
            flush.future.set_result(flush.position)
        return True

    def _fenced(self) -> StorageError:
        """Return the error of a writer that datanodes refuse: LeaseLost once the NameNode has the new generation."""
        path = self._lease.paths[0]
        if self._file.generation != self._generation:
            return LeaseLost(f"{path} was fenced")
        return PipelineFailed(f"{path}: datanodes refuse the writer's generation")

    def _scatter(self) -> None:
        """Show unacknowledged bytes on the replicas, on each as far as chance says."""
        if self._storage.chance(self._storage.faults.early_bytes):
            for replica in self.replicas:
                if replica.generation == self._generation and replica.node.is_up:
                    replica.length = self._storage.rng.randint(replica.length, max(replica.length, self._position))

    def _break(self, error: StorageError) -> None:
        if self._broken is not None or self.process.is_crashed:
            return
        self._broken = error
        self._scatter()
        if self.process.is_running:
            self._fail_all(error)

    def _fail_all(self, error: StorageError) -> None:
        waiting = [*self._landed, *self._sent]
        self._failure = error
        self._landed.clear()
        self._sent.clear()
        self._forget()
        for flush in waiting:
            _fail(flush.future, error)

    def _forget(self) -> None:
        self._disarm()
        self._storage.appenders.pop(self, None)

    # One timer, for the first event

    def _arm(self, at: float) -> None:
        if at < self._timer_at:
            self._disarm()
            self._timer_at = at
            self._timer = self._loop.call_at(at, self.advance)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at = inf


def _fail(future: asyncio.Future[int], error: StorageError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved: no warning if no caller does, since the next call raises the same
