"""Produces that wait for their partition: it is moving, or its buffers are full.

A partition has a single FIFO queue, and nothing overtakes it (rule 9): while it is not empty, all further batches for
the partition go behind.  A batch that an owner gives back goes to the front: it was there before.  The queue stands
above the owners, since it outlives each of them.  A batch that waits keeps its request's bytes, which count in
``queued.max.request.bytes``.

============================ ==============================================================================
the partition                the batch waits
============================ ==============================================================================
has no owner                 ``held_produce_ms`` at most, counted from its arrival at the first process
has full buffers             until its request's own time-out: after an error the client would only send
                             the same bytes again
============================ ==============================================================================

Once all waiting batches take a quarter of ``queued.max.request.bytes``, a further batch for a partition without an
owner is refused. So one partition's trouble does not stop the reading of all other requests.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Protocol

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.timers import GRAIN_S, Deadlines
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.endpoint.partitions import Owner, Owners
from bmq.endpoint.produce.retry_order import RetryOrder


class Waiting(Protocol):
    """One partition's part of a produce."""

    on_over: Callable[[], None]
    """Callback for the part's end while it waits: it has an error, has timed out, or its client has gone."""

    @property
    def size(self) -> int:
        """Bytes of the part's records."""

    @property
    def held_until(self) -> float:
        """Time on the loop's clock until which the part may wait for an owner; set when its request arrives."""

    def append(self, owner: Owner) -> None:
        """Hand the records to the owner."""

    def fail(self, error: RequestError) -> None:
        """Set the error as the part's result."""


class _Line:
    """One partition's queue: parts in the order of their numbers.  ``task`` serves it; ``is_served`` once it runs."""

    __slots__ = ("first", "is_served", "last", "parts", "task")

    def __init__(self) -> None:
        self.parts: OrderedDict[int, tuple[Waiting, int]] = OrderedDict()  # with its size: a part drops its records
        self.first, self.last = 0, -1  # the numbers that were given out
        self.is_served = False
        self.task: asyncio.Task[None] | None = None


class ProduceQueue:
    """One process's queues; empty, and without any task, as long as partitions are open and have room."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.retry_order = RetryOrder()
        self.held_bytes = 0
        self._lines: dict[PartitionKey, _Line] = {}

    def __repr__(self) -> str:
        return f"<ProduceQueue {len(self._lines)} partitions, {self.held_bytes} bytes>"

    def __len__(self) -> int:
        """Return the number of partitions with a queue."""
        return len(self._lines)

    @property
    def parts(self) -> int:
        """Number of parts that wait.  The cost grows with the partitions that have a queue."""
        return sum(len(line.parts) for line in self._lines.values())

    def is_held(self, key: PartitionKey) -> bool:
        """Return whether the partition has a queue, behind which a further batch must go."""
        return bool(self._lines) and key in self._lines

    def hold(self, key: PartitionKey, part: Waiting, owners: Owners, config: NodeConfig) -> None:
        """Put ``part`` into the partition's queue.

        Later ``part.append`` or ``part.fail`` is called; ``fail`` at once if too many bytes wait and there is no owner.
        """
        size = part.size
        if self.held_bytes + size > config.queued_max_request_bytes // 4 and owners.get(key) is None:
            part.fail(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "too many produces wait for moving partitions"))
            return
        line = self._line(key, owners)
        line.last += 1
        self._put(line, line.last, part)

    def hold_first(self, key: PartitionKey, part: Waiting, owners: Owners) -> None:
        """Put ``part``, which an owner has given back, before all others in the partition's queue; as ``hold``."""
        line = self._line(key, owners)
        if line.is_served:  # its task waits until the time of a later part: begin again
            assert line.task is not None
            line.task.cancel()
            self._begin(key, line, owners)
        line.first -= 1
        self._put(line, line.first, part)
        line.parts.move_to_end(line.first, last=False)

    def _line(self, key: PartitionKey, owners: Owners) -> _Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
            self._begin(key, line, owners)
        return line

    def _begin(self, key: PartitionKey, line: _Line, owners: Owners) -> None:
        line.is_served = False
        line.task = asyncio.get_running_loop().create_task(self._serve(key, line, owners))
        line.task.add_done_callback(lambda task: self._ended(key, line, task))

    def _put(self, line: _Line, number: int, part: Waiting) -> None:
        size = part.size
        line.parts[number] = (part, size)
        part.on_over = partial(self._over, line, number)
        self.held_bytes += size

    def _over(self, line: _Line, number: int) -> None:
        """Remove a part that is over: its bytes are given back at once, whatever its queue waits for."""
        self._take(line, number)

    async def _serve(self, key: PartitionKey, line: _Line, owners: Owners) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        line.is_served = True
        while line.parts and line.task is task:
            first, _ = next(iter(line.parts.values()))
            last, until = line.last, first.held_until
            try:
                owner = await owners.wait(key, max(0.0, until - loop.time()))
            except RequestError as error:
                late = loop.time() + GRAIN_S
                self._refuse(line, last, error, late if late >= until else None)
                continue
            if not owner.has_room:
                await owner.room()  # then check again: the partition may have another owner by now
                continue
            if line.parts:
                self._take(line, next(iter(line.parts))).append(owner)
        if line.task is task:
            del self._lines[key]  # in the same step: from now on batches go directly to the owner

    def _refuse(self, line: _Line, last: int, error: RequestError, late: float | None) -> None:
        """Fail the parts up to number ``last`` whose ``held_until`` is not after ``late``, from the front on.

        ``late`` None: no owner can come, so all of them fail.
        """
        while line.parts:
            number, (part, _) = next(iter(line.parts.items()))
            if number > last or (late is not None and part.held_until > late):
                return
            self._take(line, number).fail(error)

    def _take(self, line: _Line, number: int) -> Waiting:
        part, size = line.parts.pop(number)
        part.on_over = no_op
        self.held_bytes -= size
        return part

    def _ended(self, key: PartitionKey, line: _Line, task: asyncio.Task[None]) -> None:
        """Fail the parts that are left: there are some only if the task was cancelled or has failed by a bug."""
        if line.task is not task:
            return  # another one goes on
        if self._lines.get(key) is line:
            del self._lines[key]
        while line.parts:
            part = self._take(line, next(iter(line.parts)))
            part.fail(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the server is closing"))
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"holding produces for {key} failed", "exception": task.exception(), "task": task}
            )
