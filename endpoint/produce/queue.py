"""Produces that wait for their partition: it is moving, or its buffers are full.

Each partition has one FIFO that nothing overtakes (rule 9): while it is not empty, whatever comes for the partition
goes behind.  What waits keeps its request's bytes, which count as unanswered (``queued.max.request.bytes``).  For a
partition without owner they wait ``held_produce_ms`` at most, counted from their arrival wherever they wait, and in
all no more than a quarter of those bytes, so that one partition's trouble does not stop the reading of all others'
requests; full buffers are waited for until the request's own time-out, since an error would only have the client send
the same bytes again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from bmq.core.aio.timeouts import GRAIN_S, Deadlines
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Client
from bmq.endpoint.partitions import Owner, Owners

STUMBLES_MAX = 10_000
"""Of one connection; a producer has one a partition, a proxy's connection those of its clients."""


class Waiting(Protocol):
    """One partition's part of a produce."""

    on_over: Callable[[], None]
    """To be called once it is over while it waits: answered, timed out, or its client has gone."""

    @property
    def size(self) -> int:
        """Bytes of its records."""

    @property
    def held_until(self) -> float:
        """So long it may wait for an owner, on the loop's clock: set once, when its request arrives."""

    def append(self, owner: Owner) -> None:
        """Its turn has come."""

    def fail(self, error: RequestError) -> None: ...


class _Line:
    """One partition's FIFO: parts in the order of their numbers.  ``task`` serves it."""

    __slots__ = ("last", "parts", "task")

    def __init__(self) -> None:
        self.parts: OrderedDict[int, tuple[Waiting, int]] = OrderedDict()  # with its size: it gives its records up
        self.last = 0
        self.task: asyncio.Task[None] | None = None


class _Span(NamedTuple):
    """The sequences of one producer's refused batches: the `first` of all, and the `last` that came behind it."""

    first: int
    last: int


class _Refused:
    """One connection's: the span by partition and producer, oldest first, and the producers of each partition."""

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
    """Idempotent batches that were refused with a retriable error, by connection, partition and producer.

    The producer sends such a batch again, and before it nothing that follows it: but what follows may be on its way
    already.  Were it let through to an owner that does not know the producer yet (its first batches were those
    refused), the owner would take it for the beginning, and the one sent again for out of order.  Kafka's clients meet
    a new leader on a new connection; ours stay on theirs while a partition moves, so the order is kept here.

    An entry goes when its batch comes again, or one before it, or the sequence begins anew; all go with the connection.
    It also goes when a batch comes again that was refused for it: whoever repeats that has read the answers before it,
    in which the earlier batch was refused, and sends what is open in order; so the earlier one was accepted at another
    proxy, where Metadata had sent the producer meanwhile.  What comes further behind is on its way already, or refused
    once.

    A proxy's connection carries many clients' batches, to a partition that may have been elsewhere meanwhile: it tells
    when it has heard all answers (``begin_anew``), and keeps the order itself from there.
    """

    def __init__(self) -> None:
        self._refused: dict[Client, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def note(self, client: Client, key: PartitionKey, producer_id: int, sequence: int) -> None:
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
        """Nothing that the client sends for this partition from here on was sent before it heard of the refusals."""
        refused = self._refused.get(client)
        if refused is not None:
            refused.forget(key)

    def may_pass(self, client: Client, key: PartitionKey, producer_id: int, sequence: int) -> bool:
        """Return whether no batch before this one was refused and is still to come again."""
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
        refused.remove(key, producer_id)
        return True


def _follows(sequence: int, earlier: int) -> bool:
    """Sequences wrap at 2^31: the nearer way round decides."""
    return 0 < (sequence - earlier) & 0x7FFFFFFF < 1 << 30


class ProduceQueue:
    """One process's; empty, and without any task, as long as partitions are open and have room."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.stumbles = RetryOrder()
        self.held_bytes = 0
        self._lines: dict[PartitionKey, _Line] = {}

    def __repr__(self) -> str:
        return f"<Holding {len(self._lines)} partitions, {self.held_bytes} bytes>"

    def __len__(self) -> int:
        return len(self._lines)

    def is_held(self, key: PartitionKey) -> bool:
        """Whether what comes for this partition has to go behind others."""
        return bool(self._lines) and key in self._lines

    def hold(self, key: PartitionKey, part: Waiting, owners: Owners, config: NodeConfig) -> None:
        """Have ``part`` appended when its turn comes, or failed."""
        size = part.size
        if self.held_bytes + size > config.queued_max_request_bytes // 4 and owners.get(key) is None:
            part.fail(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "too many produces wait for moving partitions"))
            return
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
            loop = asyncio.get_running_loop()
            line.task = loop.create_task(self._serve(key, line, owners))
            line.task.add_done_callback(lambda task: self._ended(key, line, task))
        line.last += 1
        line.parts[line.last] = (part, size)
        part.on_over = partial(self._over, line, line.last)
        self.held_bytes += size

    def _over(self, line: _Line, number: int) -> None:
        """Nobody waits for this part any more: its bytes are given back at once, whatever its line waits for."""
        self._take(line, number)

    async def _serve(self, key: PartitionKey, line: _Line, owners: Owners) -> None:
        loop = asyncio.get_running_loop()
        while line.parts:
            first, _ = next(iter(line.parts.values()))
            last, until = line.last, first.held_until
            try:
                owner = await owners.wait(key, max(0.0, until - loop.time()))
            except RequestError as error:
                late = loop.time() + GRAIN_S
                self._refuse(line, last, error, late if late >= until else None)
                continue
            if not owner.has_room:
                await owner.room()  # and look again: it may be another's by now
                continue
            if line.parts:
                self._take(line, next(iter(line.parts))).append(owner)
        del self._lines[key]  # in the same step: who comes now goes straight to the owner

    def _refuse(self, line: _Line, last: int, error: RequestError, late: float | None) -> None:
        """The time is up of those that had to be served by ``late``; None: there is no owner to wait for, and that goes
        for all up to ``last``."""
        while line.parts:
            number, (part, _) = next(iter(line.parts.items()))
            if number > last or (late is not None and part.held_until > late):
                return
            self._take(line, number).fail(error)

    def _take(self, line: _Line, number: int) -> Waiting:
        part, size = line.parts.pop(number)
        part.on_over = _nothing
        self.held_bytes -= size
        return part

    def _ended(self, key: PartitionKey, line: _Line, task: asyncio.Task[None]) -> None:
        """Parts are left only when the task was cancelled or has met a bug."""
        if self._lines.get(key) is line:
            del self._lines[key]
        while line.parts:
            part = self._take(line, next(iter(line.parts)))
            part.fail(RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the server is closing"))
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"holding produces for {key} failed", "exception": task.exception(), "task": task}
            )


def _nothing() -> None:
    """It does not wait: nobody is to be told that it is over."""
