"""The clients of one partition: producers, an administrator, a reader."""

from __future__ import annotations

import asyncio
from typing import Any

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.records.batch import parse_batch
from bmq.meta.kv import KvError
from bmq.storage.filesystem import NoSuchFile, StorageError
from bmq.storage.memory import MemoryFileSystem
from tests.simulation.judge import Sent, encode, make, read_log
from tests.simulation.world import Process, World


async def produce(world: World, producer: int, count: int, *, is_idempotent: bool, window: int = 5) -> None:
    """Produce with ``window`` batches in flight; idempotent ones are all sent again, in order, until acknowledged."""
    rng = world.rng
    if is_idempotent:
        world.idempotent.add(producer)
    batches = [Sent(producer, number) for number in range(count)]
    sizes = [rng.choice((5, 40, 200, 900)) for _ in batches]
    first = 0
    while first < count and not world.is_over:
        process = world.producers_target()
        if process is None:
            await asyncio.sleep(rng.uniform(0.01, 0.3))
            continue
        todo = range(first, min(first + rng.randint(1, window), count))
        done = await _send(world, process, [batches[n] for n in todo], [sizes[n] for n in todo], is_idempotent)
        first += done if is_idempotent else len(todo)
        if done < len(todo):
            await asyncio.sleep(rng.uniform(0.0, 0.2))
        elif rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0.0, 0.5))


async def _send(world: World, process: Process, batches: list[Sent], sizes: list[int], is_idempotent: bool) -> int:
    """Send in order; how many of the first were acknowledged, in order."""
    driver = process.driver
    assert driver is not None
    futures: list[asyncio.Future[int]] = []
    now = world.clock.now_ms()
    for sent, size in zip(batches, sizes, strict=True):
        pid = sent.producer if is_idempotent else -1
        try:
            futures.append(driver.append(make(sent.producer, sent.number, pid=pid, size=size, timestamp=now)))
            copies = driver.machine.config.min_insync
            if futures[-1].done():
                world.check_repeated(process, futures[-1].result(), copies)
            world.judge.ask_copies(process.name, encode(sent.producer, sent.number), copies)
        except RequestError as error:
            if not error.code.is_retriable and error.code is not ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                raise
            break
    if not futures:
        return 0
    died = asyncio.ensure_future(process.died.wait())
    patience = world.rng.uniform(0.5, 30.0)
    waited = asyncio.gather(*futures, return_exceptions=True)
    both: list[asyncio.Future[Any]] = [waited, died]
    await asyncio.wait(both, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    died.cancel()
    done = 0
    for sent, future in zip(batches, futures, strict=False):
        if process.is_alive and future.done() and not future.cancelled() and future.exception() is None:
            world.judge.acknowledge(sent, future.result())
            done += 1
            continue
        break
    return done


async def trim(world: World) -> None:
    """Delete records now and then."""
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.5, 5.0))
        process = world.target()
        if process is not None:
            await delete_records(world, process)


async def delete_records(world: World, process: Process) -> None:
    """Ask a process to delete the records before some offset."""
    driver = process.driver
    if driver is None:
        return
    offset = world.rng.randint(0, driver.machine.high_watermark)
    world.judge.start_asked = max(world.judge.start_asked, offset)
    try:
        await asyncio.wait_for(driver.delete_before(offset), world.rng.uniform(0.5, 10.0))
    except (RequestError, KvError, TimeoutError):
        return
    if process.is_alive:
        world.confirm_start(offset)


async def ask_copies(world: World) -> None:
    """Set min.insync.replicas to one value after the other."""
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.1, 3.0))
        world.ask_copies(world.rng.randint(1, 3))


async def observe(world: World) -> None:
    """Read again and again the batches that some process shows as visible."""
    fs = MemoryFileSystem(world.storage, "reader")
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.2, 3.0))
        process = world.target()
        if process is None or process.driver is None:
            continue
        partition = process.driver.machine
        watermark = partition.high_watermark
        try:
            batches = await read_log(fs, watermark, start=partition.log_start)
        except (NoSuchFile, StorageError):
            continue  # storage is away for a moment
        world.judge.see(batches, watermark)


async def trickle(world: World, producer: int) -> None:
    """Produce a batch now and then with idempotence, as long as the history lasts."""
    world.idempotent.add(producer)
    sent, size = Sent(producer, 0), 40
    while not world.is_over:
        await asyncio.sleep(world.rng.uniform(0.1, 0.6))
        process = world.producers_target()
        if process is not None and await _send(world, process, [sent], [size], is_idempotent=True):
            sent = Sent(producer, sent.number + 1)


async def produce_one_ack(world: World, producer: int, count: int) -> None:
    """Produce with acks=1, without idempotence: responses come before the flush, so no batch of it need stay."""
    rng = world.rng
    for number in range(count):
        await asyncio.sleep(rng.uniform(0.0, 0.5))
        process = None if world.is_over else world.producers_target()
        if process is None or process.driver is None:
            continue
        batch = parse_batch(make(producer, number, pid=-1, size=rng.choice((5, 200)), timestamp=world.clock.now_ms()))
        try:
            process.driver.check(batch)
            process.driver.accept(batch, acks_all=False)
        except RequestError as error:
            if not error.code.is_retriable:
                raise
