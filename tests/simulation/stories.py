"""Small histories step by step, in virtual time, each closed by the judge of ``world``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from bmq.broker.partition.driver import PartitionDriver
from bmq.meta import ownership
from bmq.meta.ownership import PartitionRecord
from bmq.storage.memory import Faults, MemoryFileSystem
from tests.harness.loop import run
from tests.harness.waiting import until
from tests.simulation.world import KEY, PATH, Process, Sent, World, make

HUNG = Faults(ack_s=(1e6, 1e6))
RECORD = ownership.partition_key("bmq", KEY)


def story(body: Callable[[World], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run ``body`` in a new world, then let the judge look at the log."""

    async def main() -> None:
        world = World(7, **options)
        await body(world)
        await world.verdict()

    run(main(), 7)


async def owner(world: World, name: str | None = None) -> Process:
    """Start a process and return it once it has taken the partition over."""
    process = world.process(name)
    await until(lambda: process.is_serving)
    return process


def writer_of(process: Process) -> PartitionDriver:
    assert process.driver is not None
    return process.driver


async def write(process: Process, numbers: range, *, producer: int = 1, size: int = 100) -> None:
    """Append batches, wait for their flush, and pass their acknowledgements to the judge."""
    for number in numbers:
        sent = Sent(producer, number)
        batch = make(producer, number, pid=producer, size=size, timestamp=process.world.clock.now_ms())
        process.world.judge.acknowledge(sent, await writer_of(process).append(batch))


async def delete_records(process: Process, offset: int) -> None:
    """Kafka's DeleteRecords, confirmed."""
    judge = process.world.judge
    judge.start_asked = max(judge.start_asked, offset)
    await writer_of(process).delete_before(offset)
    judge.start_confirmed = max(judge.start_confirmed, offset)


def record_of(world: World) -> PartitionRecord:
    entry = world.store.get(RECORD)
    assert entry is not None
    return ownership.decode(entry.value)


async def names(world: World) -> list[str]:
    """Return the names of the partition's files."""
    fs = MemoryFileSystem(world.storage, "lister")
    return [status.path.rsplit("/", 1)[-1] async for status in fs.list(PATH.folder)]


def logs(found: list[str]) -> list[str]:
    return [name for name in found if name.endswith(".log")]


def nodes_of(process: Process) -> tuple[str, ...]:
    """Return the datanodes of the open segment."""
    driver = writer_of(process)
    assert driver.machine.current is not None
    return driver.files[driver.machine.current.entry.spare].nodes
