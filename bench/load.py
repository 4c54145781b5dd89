"""A load of batches that are made beforehand, and sent again as soon as they are acknowledged.

A batch is one record of random bytes.  For each batch and turn the generator zeroes the base offset (a client always
sends 0, the broker writes the real one there), calls ``append`` and takes two times; no task, no copy, no encoding.
That cost is measured too, against a target that acknowledges at once.
"""

from __future__ import annotations

import asyncio
import random
import resource
import struct
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bmq.core.records.batch import Record, build_batch

_OFFSET = struct.Struct(">q")
_POLL_S = 0.02


class Target(Protocol):
    """A receiver of a load: a ``PartitionDriver``, or nothing."""

    def append(self, data: memoryview) -> asyncio.Future[int]: ...


class NoTarget:
    """A target that acknowledges in the next turn of the loop: what remains is the generator's own cost."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: list[asyncio.Future[int]] = []

    def append(self, data: memoryview) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._acknowledge)
        self._waiting.append(future)
        return future

    def _acknowledge(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(0)


def make_batch(size: int, seed: int = 0) -> memoryview:
    """Return a batch of exactly ``size`` bytes that a producer could have sent."""
    value = random.Random(seed).randbytes(size)
    length = size - 100
    while True:
        batch = build_batch([Record(value=value[:length])])
        if len(batch) == size:
            return memoryview(batch)
        assert len(batch) < size, f"no batch has {size} bytes"
        length += size - len(batch)


def renew(batch: memoryview) -> memoryview:
    """Return the batch as its producer would send it, with base offset 0."""
    _OFFSET.pack_into(batch, 0, 0)
    return batch


@dataclass(slots=True)
class Cpu:
    """The CPU seconds of this process, all its threads."""

    user_s: float
    system_s: float

    @classmethod
    def now(cls) -> Cpu:
        """Return the process's times until now."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return cls(usage.ru_utime, usage.ru_stime)

    def since(self, before: Cpu) -> Cpu:
        """Return the times spent since ``before``."""
        return Cpu(self.user_s - before.user_s, self.system_s - before.system_s)


@dataclass(slots=True, kw_only=True)
class Measured:
    """The counts between the end of the warm-up and the end of the load."""

    seconds: float
    batches: int
    size: int
    cpu: Cpu
    latencies_s: array[float]

    @property
    def bytes(self) -> int:
        """The bytes of all batches."""
        return self.batches * self.size


class _Slot:
    """One batch that is always in flight."""

    __slots__ = ("batch", "callback", "started", "target")

    def __init__(self, target: Target, batch: memoryview, done: Callable[[_Slot, asyncio.Future[int]], None]) -> None:
        self.target = target
        self.batch = batch
        self.started = 0.0
        self.callback: Callable[[asyncio.Future[int]], None] = lambda future: done(self, future)


class ClosedLoop:
    """A load of ``in_flight`` batches to each target, each sent again when it is acknowledged."""

    def __init__(self, targets: Sequence[Target], *, size: int, in_flight: int) -> None:
        self.size = size
        self.batches = 0
        self.last_offset = -1
        self.error: BaseException | None = None
        self.latencies_s: array[float] = array("d")
        self._pattern = make_batch(size)
        self._slots = [
            _Slot(target, memoryview(bytearray(self._pattern)), self._done)
            for _ in range(in_flight)
            for target in targets
        ]
        self._outstanding = 0
        self._is_stopping = False
        self._idle = asyncio.Event()

    def start(self) -> None:
        """Send the first batch of each slot."""
        for slot in self._slots:
            self._send(slot)

    async def drain(self) -> None:
        """Send nothing more, and wait for the batches in flight."""
        self._is_stopping = True
        if self._outstanding:
            await self._idle.wait()

    async def measure(self, *, warm_s: float, seconds: float, bytes_max: int) -> Measured:
        """Start, warm up, count, stop.  Raises the first error of a batch."""
        self.start()
        await asyncio.sleep(warm_s)
        self.latencies_s = array("d")
        batches_max = bytes_max // self.size
        batches, cpu, started = self.batches, Cpu.now(), time.perf_counter()
        end = started + seconds
        while time.perf_counter() < end and self.batches - batches < batches_max and not self.error:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)  # an event would be checked once a batch
        took_s = time.perf_counter() - started
        measured = Measured(
            seconds=took_s,
            batches=self.batches - batches,
            size=self.size,
            cpu=Cpu.now().since(cpu),
            latencies_s=self.latencies_s,
        )
        self.latencies_s = array("d")
        await self.drain()
        if self.error is not None:
            raise self.error
        return measured

    def _send(self, slot: _Slot) -> None:
        _OFFSET.pack_into(slot.batch, 0, 0)
        slot.started = time.perf_counter()
        try:
            future = slot.target.append(slot.batch)
        except Exception as error:  # noqa: BLE001 - raised by measure()
            self._fail(error)
            return
        self._outstanding += 1
        future.add_done_callback(slot.callback)

    def _done(self, slot: _Slot, future: asyncio.Future[int]) -> None:
        self._outstanding -= 1
        error = future.exception()
        if error is not None:
            self._fail(error)
        else:
            self.batches += 1
            self.latencies_s.append(time.perf_counter() - slot.started)
            self.last_offset = max(self.last_offset, future.result())
            if not self._is_stopping:
                self._send(slot)
        if not self._outstanding:
            self._idle.set()

    def _fail(self, error: BaseException) -> None:
        self._is_stopping = True
        if self.error is None:
            self.error = error


async def one_at_a_time(target: Target, *, size: int, count: int, seconds: float) -> array[float]:
    """Send the next batch when the last one is acknowledged, as a lone writer does.  Returns the seconds of each."""
    ring = [make_batch(size, seed) for seed in range(4)]
    taken: array[float] = array("d")
    end = time.perf_counter() + seconds
    while len(taken) < count:
        batch = renew(ring[len(taken) % len(ring)])
        started = time.perf_counter()
        if started > end:
            break
        await target.append(batch)
        taken.append(time.perf_counter() - started)
    return taken
