"""The batches of a simulated producer on their way to one partition: several in flight, sent again in their order.

A client keeps up to five requests in flight (``max.in.flight.requests.per.connection``).  Over two connections later
batches may be acknowledged before an earlier one: the five are then counted from the earliest batch without an
acknowledgement on, since a log knows the last five batches of a producer.  If a batch fails, the batches behind it fail
as well, or are on their way still.  Libraries differ in how they send them again:

| ``Retry`` | a batch is sent again |
|---|---|
| ``ONE_BY_ONE`` | once all batches before it are acknowledged: Java (``RecordAccumulator``) |
| ``TOGETHER`` | with all others that failed, in order, once nothing is in flight: franz-go |

A pipeline may go on over another connection, as for a new leader, while batches are in flight on the former one: later
batches may then arrive first.  A connection may break with batches in flight, which may arrive all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random

from tests.simulation.kafka_clients import Client, World, pause

IN_FLIGHT_MAX = 5
FOLLOWS = 0.4
"""Share of the failures after which a pipeline goes on over another connection."""
MOVES = 0.1
"""Share of the batches behind which a pipeline goes on over another connection."""
BREAKS = 0.08
"""Share of the batches whose connection breaks soon."""
BROKEN_S = 0.05
"""Time until such a break, at most."""


class Retry(Enum):
    """The order in which batches are sent again."""

    ONE_BY_ONE = "one by one"
    TOGETHER = "together"


@dataclass(eq=False)
class Batch:
    """Records with one sequence."""

    sequence: int
    values: list[bytes]
    at: int
    """Position among the batches of its pipeline."""
    sends: int = 0
    is_in_flight: bool = False
    is_first: bool = True
    """All batches before it were acknowledged when it was sent last."""


Send = Callable[[Batch, Client], Awaitable[int | None]]
"""Sends a batch once; returns its offset, or None if it must be sent again."""


class Pipeline:
    """The unacknowledged batches of one producer to one partition."""

    def __init__(
        self, world: World, client: Client, rng: Random, batches: list[Batch], send: Send, *, begins_alone: bool = False
    ) -> None:
        """Make a pipeline.  ``begins_alone``: no batch is sent until the first one is acknowledged.

        A partition takes any batch of a producer of version 1 that it does not know for the producer's first one, as
        Kafka's does.
        """
        self.world = world
        self.clients = [client]
        self._end = batches[-1].sequence + len(batches[-1].values)
        self.pipelined = self.repeated = 0
        self.window = rng.randint(1, IN_FLIGHT_MAX)
        self.retry = rng.choice(tuple(Retry))
        self._rng = rng
        self._batches = batches
        self._send = send
        self._is_begun = not begins_alone
        self._tasks: dict[asyncio.Task[int | None], Batch] = {}

    @property
    def sequence(self) -> int:
        """Return the sequence of the first record that is not acknowledged, or of the next record."""
        return self._batches[0].sequence if self._batches else self._end

    async def run(self) -> None:
        """Send all batches until they are acknowledged.  Raises what ``send`` raises, once nothing is in flight."""
        try:
            error: Exception | None = None
            while self._batches and (error is None or self._tasks):
                if error is None:
                    self._fill()
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                has_failed = False
                for task in [each for each in self._tasks if each in done]:
                    batch = self._tasks.pop(task)
                    batch.is_in_flight = False
                    if (raised := task.exception()) is not None:
                        assert isinstance(raised, Exception)
                        error = error or raised
                    elif task.result() is None:
                        has_failed = True
                    else:
                        self._batches.remove(batch)
                        self._is_begun = True
                if has_failed and error is None:
                    self._move(FOLLOWS)
                    await pause(self.world)
            if error is not None:
                raise error
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for client in self.clients[1:]:
                client.close()

    def _fill(self) -> None:
        """Send the batches that may be sent now."""
        for batch in self._sendable():
            self.pipelined += bool(self._tasks)
            self.repeated += batch.sends > 0
            batch.sends += 1
            batch.is_in_flight = True
            batch.is_first = batch is self._batches[0]
            client = self.clients[-1]
            self._tasks[asyncio.ensure_future(self._send(batch, client))] = batch
            self._move(MOVES)
            if self._rng.random() < BREAKS:
                asyncio.get_running_loop().call_later(self._rng.uniform(0.0, BROKEN_S), client.close)

    def _move(self, share: float) -> None:
        """Go on over another connection, in a share of the cases."""
        if self._rng.random() < share:
            self.clients.append(self.world.client())

    def _sendable(self) -> Iterator[Batch]:
        """Yield the batches that may be sent now, in order: none passes an earlier one that waits."""
        is_idle = not self._tasks
        for batch in list(self._batches):
            if batch.is_in_flight:
                continue
            if batch.at - self._batches[0].at >= (self.window if self._is_begun else 1):
                return
            if batch.sends:
                may_go = is_idle if self.retry is Retry.TOGETHER else batch is self._batches[0]
                if not may_go:
                    return
            yield batch
