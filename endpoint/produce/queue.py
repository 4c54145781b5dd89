"""Produces that wait for their partition: it is moving, or its buffers are full.

Each partition has one FIFO queue that nothing overtakes (rule 9): while it is not empty, each further batch for the
partition goes behind.  A batch that an owner gives back goes to the front: it was there before.  The queue stands above
the owners, since it outlives each of them.  A batch that waits keeps its request's bytes, which count in
``queued.max.request.bytes``.

============================ ==============================================================================
the partition                the batch waits
============================ ==============================================================================
has no owner                 ``held_produce_ms`` at most, counted from its arrival at the first process
has full buffers             until its request's own time-out: after an error the client would only send
                             the same bytes again
============================ ==============================================================================

Once all that wait take a quarter of ``queued.max.request.bytes``, a further batch for a partition without an owner is
refused, so that one partition's trouble does not stop the reading of all other requests.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from bmq.core.aio.subscribers import no_op
from bmq.core.aio.timeouts import GRAIN_S, Deadlines
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Client
from bmq.endpoint.partitions import Owner, Owners

STUMBLES_MAX = 10_000
"""Entries of `RetryOrder` for one connection.  A producer has one for each partition; a proxy's connection has those of
its clients."""


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


class _Span(NamedTuple):
    """The sequences of one producer's refused batches: the `first` of all, and the `last` that came behind it."""

    first: int
    last: int


class _Refused:
    """One connection's spans by partition and producer, oldest first, and the producers of each partition."""

    __slots__ = ("_producers", "sequences")

    def __init__(self) -> None:
        self.sequences: dict[tuple[PartitionKey, int], _Span] = {}
        self._producers: dict[PartitionKey, set[int]] = {}

    def put(self, key: PartitionKey, producer_id: int, span: _Span) -> None:
        self.sequences[key, producer_id] = span
        self._producers.setdefault(key, set()).add(producer_id)
        if len(self.sequences) > STUMBLES_MAX:
            self.remove(*next(iter(self.sequences)))

    def remove(self, key: PartitionKey, producer_id: int) -> None:
        del self.sequences[key, producer_id]
        producers = self._producers[key]
        producers.remove(producer_id)
        if not producers:
            del self._producers[key]

    def forget(self, key: PartitionKey) -> None:
        for producer_id in self._producers.pop(key, ()):
            del self.sequences[key, producer_id]


class RetryOrder:
    """The order of idempotent batches after one was refused with a retriable error.

    The producer sends a refused batch again before all that follow it; but batches that follow may already be under
    way.  If one of these reached an owner that does not know the producer yet (the refused batches were its first), the
    owner would take it for the producer's first batch, and the repeated one for out of order.  Kafka's clients reach a
    new leader by a new connection; here they keep theirs while a partition moves, so the order is kept here.

    There is one entry for each connection, partition and producer.  While it stands, later batches are refused, too.
    It ends

    - when its batch, or an earlier one, comes again;
    - when the sequence begins again, at 0;
    - when a batch comes again that was refused because of the entry.  The producer has then read the responses up to
      that batch, the earlier refusal among them, and sends what is open in order; so the earlier batch was accepted at
      another proxy, to which Metadata had sent the producer meanwhile.  A batch behind the last refused one is under
      way already, or is refused just once;
    - with its connection.

    A proxy's connection carries many clients' batches, and the partition may have been elsewhere meanwhile.  Once the
    proxy has received all responses, it says so (``begin_anew``), and keeps the order itself from there.
    """

    def __init__(self) -> None:
        self._refused: dict[Client, _Refused] = {}

    def __len__(self) -> int:
        """Return the number of connections with entries."""
        return len(self._refused)

    def note(self, client: Client, key: PartitionKey, producer_id: int, sequence: int) -> None:
        """Note that the batch with base sequence ``sequence`` was refused with a retriable error."""
        if client.is_closed:
            return
        refused = self._refused.get(client)
        if refused is None:
            refused = self._refused[client] = _Refused()
            client.on_close(lambda: self._forget(client))
        span = refused.sequences.get((key, producer_id))
        if span is None or not _follows(sequence, span.first):
            refused.put(key, producer_id, _Span(sequence, sequence))

    def _forget(self, client: Client) -> None:
        self._refused.pop(client, None)

    def begin_anew(self, client: Client, key: PartitionKey) -> None:
        """Remove a partition's entries: the client has received all refusals before it sent what comes now."""
        refused = self._refused.get(client)
        if refused is not None:
            refused.forget(key)

    def may_pass(
        self, client: Client, key: PartitionKey, producer_id: int, sequence: int, *, is_again: bool = False
    ) -> bool:
        """Return whether this batch may be appended: no earlier one was refused and is still to come again.

        ``is_again``: the batch has not come again from its producer, but from an owner that gave it back.
        """
        if not self._refused:
            return True
        refused = self._refused.get(client)
        span = refused.sequences.get((key, producer_id)) if refused is not None else None
        if span is None:
            return True
        assert refused is not None
        if sequence != 0 and _follows(sequence, span.first) and _follows(sequence, span.last):
            refused.sequences[key, producer_id] = _Span(span.first, sequence)
            return False
        if not is_again:
            refused.remove(key, producer_id)
        return True


def _follows(sequence: int, earlier: int) -> bool:
    """Return whether ``sequence`` comes after ``earlier``.  Sequences wrap at 2^31: the shorter distance decides."""
    return 0 < (sequence - earlier) & 0x7FFFFFFF < 1 << 30


class ProduceQueue:
    """One process's queues; empty, and without any task, as long as partitions are open and have room."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.stumbles = RetryOrder()
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
