"""The writer of a broker's journal: durable when acknowledged, group-committed, bounded, short, while storage fails."""

from __future__ import annotations

import asyncio
import math
import random
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.storage import layout
from bmq.storage.checkpoint import PRODUCERS_A_STEP, Checkpoint, ProducerBatch, ProducerState
from bmq.storage.filesystem import (
    CreateOptions,
    OutOfSpace,
    StorageError,
    StorageUnavailable,
)
from bmq.storage.journal import (
    CHECKPOINT,
    PROBE,
    SNAPSHOT_BEGIN,
    SNAPSHOT_END,
    JournalView,
    read_backwards,
    read_journals,
)
from bmq.storage.journal_writer import SNAPSHOT_A_TURN, JournalWriter
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from bmq.storage.memory.appender import MemoryAppender
from tests.harness.journals import (
    BROKER,
    JournalWorld,
    backwards,
    check,
    delta,
    full,
    key,
    parse,
    put,
    record,
    restart_all,
)
from tests.harness.loop_stops import TurnCounter, is_short, loop_stops, without_collector
from tests.harness.seeds import seeds
from tests.harness.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the positions of all flushes from now on."""
    sent: list[int] = []
    flush = MemoryAppender.flush

    def counted(self: MemoryAppender, *, sync: bool = False) -> asyncio.Future[int]:
        sent.append(self.position)
        return flush(self, sync=sync)

    monkeypatch.setattr(MemoryAppender, "flush", counted)
    return sent


async def test_an_acknowledged_checkpoint_can_be_read() -> None:
    """Durable when the future is done, and the file begins with a snapshot."""

    world = JournalWorld()
    async with world.running():
        await world.append(full(5))
        await world.append(delta(6))
        assert (await world.read())[key()].end_offset == 6
        kinds = [kind for kind, _ in backwards(await world.data(1))][::-1]
        assert kinds[0] == SNAPSHOT_BEGIN
        assert kinds.count(SNAPSHOT_END) == 1
        assert check(memoryview(await world.data(1))) == []


async def test_many_appends_share_a_flush(flushes: list[int]) -> None:
    """Group commit: what gathers while one flush is under way goes out with the next."""

    world = JournalWorld(MemoryStorage(faults=Faults(ack_s=(0.01, 0.01))))
    async with world.running():
        await world.append(full(1))
        before = len(flushes)
        first = world.append(full(2))
        await asyncio.sleep(0.005)
        rest = [world.append(full(n)) for n in range(3, 503)]
        await asyncio.gather(first, *rest)
        assert len(flushes) - before == 2
        assert world.journal.records_written == 502


async def test_appends_are_acknowledged_in_order() -> None:
    world = JournalWorld(MemoryStorage(random.Random(1), Faults(ack_s=(0.0, 0.05), pipeline_fails=0.2)))
    done: list[int] = []
    async with world.running():
        futures = []
        for n in range(1, 60):
            future = world.append(full(n))
            future.add_done_callback(lambda _, n=n: done.append(n))  # type: ignore[misc]
            futures.append(future)
            await asyncio.sleep(0.01)
        await asyncio.gather(*futures)
    assert done == list(range(1, 60))


async def test_an_idle_journal_writes_nothing(flushes: list[int]) -> None:
    world = JournalWorld()
    async with world.running():
        await world.append(full(1))
        before = len(flushes)
        await asyncio.sleep(3600)
        assert len(flushes) == before


async def test_a_full_file_is_rolled_with_a_snapshot_and_old_files_are_deleted() -> None:
    """Every file stays near its bound, each begins with a whole snapshot, and no more than two are kept."""

    world = JournalWorld(roll_bytes=4000)
    size = len(record(delta(1)))
    async with world.running():
        for partition in range(3):
            await world.append(full(1, partition))
        for n in range(2, 300):
            await world.append(delta(n, n % 3))
            assert len(await world.files()) <= 3  # the third only while it is being deleted
        await asyncio.sleep(1)
        files = await world.files()
        assert len(files) == 2
        assert files[1] > 5
        for n in files:
            data = await world.data(n)
            assert len(data) <= 4000 + 2 * size
            kinds = [kind for kind, _ in backwards(data)][::-1]
            assert kinds[:5] == [SNAPSHOT_BEGIN, CHECKPOINT, CHECKPOINT, CHECKPOINT, SNAPSHOT_END]
        assert {k.partition: c.end_offset for k, c in (await world.read()).items()} == {0: 297, 1: 298, 2: 299}
        assert list(world.storage.open_files()) == [layout.journal(BROKER, files[1])]


async def test_a_file_whose_snapshot_exceeds_the_roll_size_is_not_rolled_at_once() -> None:
    """The bound is also a few times the snapshot: else a broker of many partitions would write snapshots only."""

    world = JournalWorld(roll_bytes=100)
    for partition in range(50):
        world.held[key(partition)] = full(1, partition)
    async with world.running():
        for n in range(2, 100):
            await world.append(delta(n))
        assert await world.files() == [1]


async def test_after_a_pipeline_failure_the_next_file_holds_everything() -> None:
    """Callers only wait longer: what was queued is durable in the next file, behind its snapshot."""

    world = JournalWorld(MemoryStorage(faults=Faults(ack_s=(0.01, 0.01))))
    async with world.running():
        await world.append(full(1))
        await world.append(full(1, 1))
        queued = [world.append(delta(2)), world.append(delta(3))]
        await asyncio.sleep(0.001)
        (appender,) = world.storage.appenders
        world.storage.kill_datanode(appender.nodes[0])
        assert not any(future.done() for future in queued)
        await asyncio.gather(*queued)
        assert await world.files() == [1, 2]
        alone = parse(await world.data(2))
        assert {k.partition: c.end_offset for k, c in alone.items()} == {0: 3, 1: 1}
        assert JournalView.parse(memoryview(await world.data(2))).has_snapshot


async def test_a_probe_is_acknowledged_without_a_namenode_and_adds_no_checkpoint() -> None:
    world = JournalWorld()
    async with world.running():
        await world.append(full(1))
        world.storage.restart_namenode(30.0)
        await asyncio.wait_for(world.journal.probe(), 1.0)
        await asyncio.sleep(60)
        assert await world.files() == [1]
        data = memoryview(await world.data(1))
        assert [bytes(payload) for kind, payload in read_backwards(data) if kind == PROBE] == [b""]
        assert JournalView.parse(data).checkpoints == {key(): full(1)}
        assert not check(data)


async def test_a_probe_is_done_when_storage_takes_it_and_is_written_once() -> None:
    world = JournalWorld()
    async with world.running():
        await world.append(full(1))
        world.storage.faults = Faults(hung_ack=1.0, create_fails=1.0)
        probe = world.journal.probe()
        await asyncio.sleep(30)
        assert not probe.done()
        assert world.journal.probe() is probe
        world.storage.faults = Faults()
        await asyncio.wait_for(probe, 10.0)
        (*_, last) = await world.files()
        assert [kind for kind, _ in read_backwards(memoryview(await world.data(last)))].count(PROBE) == 1
        assert world.journal.probe() is not probe
    assert world.journal.probe().cancelled(), "nobody waits for a journal that has ended"


async def test_a_renewal_begins_a_file_once_storage_serves() -> None:
    """Ask for a new file while the NameNode is away: it is begun once storage serves and holds everything; meanwhile
    the open file takes the appends."""

    world = JournalWorld()
    async with world.running():
        await world.append(full(1))
        world.storage.restart_namenode(30.0)
        renewal = world.journal.renew()
        assert world.journal.renew() is renewal
        await asyncio.wait_for(world.append(delta(2)), 1.0)
        await asyncio.sleep(25.0)
        assert not renewal.done()
        await asyncio.wait_for(renewal, 10.0)
        files = await world.files()
        assert files[-1] > 1
        assert parse(await world.data(files[-1]))[key()].end_offset == 2
        await asyncio.sleep(60.0)
        assert await world.files() == files, "one is enough"
        again = world.journal.renew()
        assert again is not renewal
    assert again.cancelled() or again.done(), "nobody waits for a journal that has ended"
    assert world.journal.renew().cancelled()


async def test_a_journal_whose_snapshots_fail_uses_no_number_twice_and_recovers() -> None:
    """Again and again: a number is never used twice, and in the end everything is there."""

    world = JournalWorld(MemoryStorage(faults=Faults(pipeline_fails=1.0)))
    async with world.running():
        future = world.append(full(1))
        await asyncio.sleep(1.0)
        assert not future.done()
        world.storage.faults = Faults()
        await asyncio.wait_for(future, 1.0)
        files = await world.files()
        assert files == list(range(1, files[-1] + 1))
        assert len(files) > 2
        assert (await world.read())[key()].end_offset == 1


async def test_file_numbers_in_use_are_skipped() -> None:
    """Numbers are in use after a create whose response was lost."""

    world = JournalWorld()
    for n in (1, 2):
        await put(world.fs, n, b"")
    async with world.running():
        await world.append(full(4))
        assert await world.files() == [1, 2, 3]
        assert (await world.read())[key()].end_offset == 4


async def test_storage_that_is_unavailable_at_first_only_delays_appends() -> None:
    """Storage is unavailable from the beginning, before the first file exists."""

    world = JournalWorld()
    world.storage.restart_namenode(10.0, safe_mode_s=5.0)
    async with world.running():
        future = world.append(full(1))
        await asyncio.sleep(14.0)
        assert not future.done()
        await asyncio.wait_for(future, 2.0)
        assert (await world.read())[key()].end_offset == 1


async def test_a_roll_waits_for_the_namenode_and_the_open_file_goes_on() -> None:
    """Pipelines outlive the NameNode, so checkpoints must too: the file grows past its bound until a roll succeeds."""

    world = JournalWorld(roll_bytes=1000)
    async with world.running():
        await world.append(full(1))
        world.storage.restart_namenode(60.0)
        for n in range(2, 30):
            await asyncio.wait_for(world.append(delta(n)), 1.0)
        assert asyncio.get_running_loop().time() < 60.0
        await asyncio.sleep(61.0)
        files = await world.files()
        assert (files[0], len(files)) == (1, 2)
        await world.append(delta(30))
        await world.append(delta(31))
        assert (await world.read())[key()].end_offset == 31
        assert list(world.storage.open_files()) == [layout.journal(BROKER, files[1])]


async def test_close_drains_and_closes_the_file() -> None:
    """All appends that were queued are durable, ``run`` ends, no file stays open."""

    world = JournalWorld(MemoryStorage(faults=Faults(ack_s=(0.01, 0.01))))
    task = asyncio.create_task(world.journal.run())
    futures = [world.append(full(n)) for n in range(1, 20)]
    world.journal.close()
    await asyncio.wait_for(task, 5.0)
    assert all(future.done() and not future.cancelled() for future in futures)
    assert world.storage.open_files() == {}
    assert (await world.read())[key()].end_offset == 19


async def test_close_drains_through_a_failure() -> None:
    world = JournalWorld(MemoryStorage(faults=Faults(pipeline_fails=1.0)))
    task = asyncio.create_task(world.journal.run())
    future = world.append(full(1))
    world.journal.close()
    await asyncio.sleep(2.0)
    assert not task.done()
    world.storage.faults = Faults()
    await asyncio.wait_for(task, 5.0)
    assert future.done()
    assert not future.cancelled()


async def test_closing_an_unused_journal_ends_it() -> None:
    world = JournalWorld()
    task = asyncio.create_task(world.journal.run())
    await asyncio.sleep(1.0)
    world.journal.close()
    await asyncio.wait_for(task, 5.0)
    assert world.storage.open_files() == {}


async def test_a_closed_journal_cancels_appends_at_once() -> None:
    """Append after the end: the append is cancelled and there is room, so that nothing waits for ever."""

    world = JournalWorld(queue_bytes_max=10)
    task = asyncio.create_task(world.journal.run())
    world.journal.close()
    await task
    late = world.append(full(1))
    assert late.cancelled()
    await asyncio.wait_for(world.journal.room(), 1.0)


async def test_cancellation_cancels_queued_appends_and_drops_the_file() -> None:
    """Futures are cancelled, waiters for room continue, the file is dropped, and the cancellation is passed on."""

    world = JournalWorld(MemoryStorage(faults=Faults(ack_s=(0.001, 0.001))), queue_bytes_max=200)
    task = asyncio.create_task(world.journal.run())
    await world.append(full(1))
    world.storage.faults = Faults(hung_ack=1.0)
    flying = world.append(full(2))
    await asyncio.sleep(0.1)
    queued = [world.append(full(n)) for n in range(3, 9)]
    room = asyncio.create_task(world.journal.room())
    await asyncio.sleep(0.1)
    assert not room.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert flying.cancelled()
    assert all(future.cancelled() for future in queued)
    await asyncio.wait_for(room, 1.0)
    assert list(world.storage.appenders) == []


async def test_a_second_cancellation_leaves_no_append_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel while the next file is being created, and again while that creation is given up: it takes long to end."""

    world = JournalWorld()
    create = world.fs.create

    async def create_stubbornly(path: str, options: CreateOptions) -> MemoryAppender:
        try:
            await asyncio.sleep(math.inf)
        except asyncio.CancelledError:
            await asyncio.sleep(60.0)
        return await create(path, options)

    task = asyncio.create_task(world.journal.run())
    await world.append(full(1))
    monkeypatch.setattr(world.fs, "create", create_stubbornly)
    renewed = world.journal.renew()
    await asyncio.sleep(0.1)
    world.storage.faults = Faults(hung_ack=1.0)
    flying = world.append(full(2))
    await asyncio.sleep(0.1)
    queued = world.append(full(3))
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(1.0)
    assert task.cancelled()
    assert (flying.cancelled(), queued.cancelled(), renewed.cancelled()) == (True, True, True)
    await asyncio.wait_for(world.journal.room(), 1.0)
    await until(lambda: list(world.storage.appenders) == [], 100.0)


@pytest.mark.parametrize("is_stuck_in_close", [False, True])
async def test_cancellation_during_a_roll_aborts_both_files(is_stuck_in_close: bool) -> None:
    """Cancel while the next file is being created or the last one closed: no pipeline and no lease stays alive."""

    world = JournalWorld(MemoryStorage(faults=Faults(waits_for_namenode=1.0)), roll_bytes=500)
    async with world.running() as task:
        await world.append(full(1))
        if not is_stuck_in_close:
            world.storage.restart_namenode(1000.0)
        else:
            world.fs.create = _then_down(world)  # type: ignore[method-assign, assignment]
        futures = [world.append(full(n)) for n in range(2, 9)]
        await asyncio.sleep(5.0)
        assert all(future.done() for future in futures)
        assert len(world.storage.appenders) == (2 if is_stuck_in_close else 1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert list(world.storage.appenders) == []


def _then_down(world: JournalWorld) -> Callable[[str, CreateOptions], Coroutine[Any, Any, MemoryAppender]]:
    """Return a ``create`` after which the NameNode is away, so that the close that follows hangs."""
    create = MemoryFileSystem.create

    async def wrapped(path: str, options: CreateOptions) -> MemoryAppender:
        appender = await create(world.fs, path, options)
        appender._has_length = True  # its first flush needs no NameNode
        world.storage.restart_namenode(1000.0)
        return appender

    return wrapped


async def test_a_cancelled_append_does_not_disturb_the_others() -> None:
    world = JournalWorld(MemoryStorage(faults=Faults(ack_s=(0.1, 0.1))))
    async with world.running():
        first, second = world.append(full(1)), world.append(full(2))
        first.cancel()
        await second
        await world.append(full(3))
        assert (await world.read())[key()].end_offset == 3


async def test_the_queue_has_a_bound() -> None:
    """``has_room`` is false past the bound, and ``room`` waits until the queue has been taken."""

    size = len(record(full(1)))
    world = JournalWorld(queue_bytes_max=3 * size + 1)
    for n in (1, 2, 3):
        world.append(full(n))
        assert world.journal.has_room
    world.append(full(4))
    assert not world.journal.has_room
    waiting = asyncio.create_task(world.journal.room())
    await asyncio.sleep(1.0)
    assert not waiting.done()
    async with world.running():
        await asyncio.wait_for(waiting, 1.0)
        assert world.journal.has_room


async def test_records_of_a_failed_flush_count_to_the_queues_bound_again() -> None:
    """The bound holds while storage is away, not only before the first attempt."""

    size = len(record(full(1)))
    world = JournalWorld(MemoryStorage(faults=Faults(ack_s=(0.1, 0.1))), queue_bytes_max=3 * size)
    async with world.running():
        await world.append(full(1))
        world.storage.faults = Faults(hung_ack=1.0)
        futures = [world.append(full(n)) for n in range(2, 8)]
        await asyncio.sleep(0.01)
        assert world.journal.has_room  # all were taken
        world.storage.restart_namenode(5.0)
        (appender,) = world.storage.appenders
        world.storage.kill_datanode(appender.nodes[0])
        await asyncio.sleep(0.01)
        assert not world.journal.has_room
        world.storage.faults = Faults()
        await asyncio.gather(*futures)
        assert world.journal.has_room


async def test_a_bug_in_the_snapshot_ends_the_task_and_cancels_the_queue() -> None:
    """The task's owner gets the error, and no append waits for a response that will not come."""

    world = JournalWorld()
    world.held[key(1)] = delta(1, 1)  # no full checkpoint
    task = asyncio.create_task(world.journal.run())
    future = world.append(full(1))
    with pytest.raises(AssertionError):
        await task
    assert future.cancelled()
    assert list(world.storage.appenders) == []


FAULTS = Faults(
    call_s=(0.0, 0.01),
    ack_s=(0.0, 0.02),
    slow_ack=0.05,
    pipeline_fails=0.08,
    early_bytes=0.3,
    create_fails=0.2,
    unavailable=0.1,
    lost_answer=0.1,
    out_of_space=0.1,
)


@pytest.mark.parametrize("seed", seeds(20, 600))
async def test_every_acknowledged_checkpoint_survives_any_crash(seed: int) -> None:
    """Random partitions, deltas, faults and a crash at a random moment: what another process then reads of each
    partition was appended, and is not older than what was acknowledged."""
    rng = random.Random(seed)

    world = JournalWorld(MemoryStorage(rng, FAULTS), roll_bytes=rng.choice([300, 2000, 1 << 20]), retry_s=0.05)
    said: dict[PartitionKey, dict[int, Checkpoint]] = {}
    answered: dict[PartitionKey, int] = {}

    def keep(checkpoint: Checkpoint, future: asyncio.Future[None]) -> None:
        if not future.cancelled():
            answered[checkpoint.key] = checkpoint.end_offset

    async def partition(number: int) -> None:
        """Append as a partition does: one checkpoint at a time, the index and producers of a delta are those since
        then."""
        state = full(0, number)
        while True:
            end = state.end_offset + rng.randint(1, 5)
            is_full = state.end_offset == 0 or rng.random() < 0.1
            news = delta(end, number)
            entry, producers = news.index, (*state.producers, *news.producers)
            state = replace(full(end, number), index=state.index + entry, producers=producers)
            said.setdefault(state.key, {})[end] = state
            world.held[state.key] = state
            future = world.journal.append(state if is_full else news)
            future.add_done_callback(lambda done, state=state: keep(state, done))  # type: ignore[misc]
            await asyncio.gather(future, return_exceptions=True)
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.1]))

    async with world.running():
        tasks = [asyncio.create_task(partition(number)) for number in range(rng.randint(1, 5))]
        await asyncio.sleep(rng.uniform(0.0, 5.0))
        world.fs.crash()
        promised = dict(answered)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        found = await world.read()
        for which, end in promised.items():
            assert found[which].end_offset >= end, f"seed {seed}"
        for which, checkpoint in found.items():
            assert checkpoint == said[which][checkpoint.end_offset], f"seed {seed}"


def test_a_format_error_is_not_taken_for_a_broken_pipeline() -> None:
    """Only storage's own errors count as a broken pipeline."""
    assert not issubclass(FormatError, StorageError)


class FullFileSystem(MemoryFileSystem):
    """A storage where some live datanodes have no room for a block: a file gets fewer copies, if its options allow
    that."""

    is_full = True

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(storage, BROKER)
        self.asked: list[tuple[float, bool]] = []
        """Each file that was asked for, once, though first with the usual block and then with a smaller one."""
        self.last = ""
        self.is_always_full = False  # also for fewer copies

    async def create(self, path: str, options: CreateOptions = CreateOptions()) -> MemoryAppender:  # noqa: B008
        now = asyncio.get_running_loop().time()
        if path != self.last:
            self.asked.append((now, options.all_copies))
        self.last = path
        if self.is_always_full or (self.is_full and options.all_copies):
            raise OutOfSpace(f"{path}: 1 of 3 datanodes take a block")
        return await super().create(path, replace(options, replication=1) if self.is_full else options)


def full_world(**options: Any) -> tuple[JournalWorld, FullFileSystem]:
    world = JournalWorld()
    fs = world.fs = FullFileSystem(world.storage)
    world.journal = JournalWriter(fs, BROKER, world._snapshot, **options)
    return world, fs


async def test_a_renewal_is_tried_once_a_second_while_there_is_no_room() -> None:
    """Retries continue at that pace also while checkpoints are written to the open file."""

    world, fs = full_world()
    fs.is_full = False
    async with world.running():
        await world.append(full(1))
        fs.is_full = fs.is_always_full = True
        fs.asked.clear()
        renewal = world.journal.renew()
        for number in range(300):
            await asyncio.sleep(0.1)
            await world.append(full(number + 2))
        assert 20 <= len(fs.asked) <= 31
        await asyncio.sleep(30)
        assert 40 <= len(fs.asked) <= 61, "also while nothing is written"
        fs.is_full = fs.is_always_full = False
        await asyncio.wait_for(renewal, 2)


@pytest.mark.parametrize("wanted", [JournalWriter.renew, JournalWriter.probe])
async def test_a_file_is_tried_once_a_second_while_none_is_open_and_no_checkpoint_waits(
    wanted: Callable[[JournalWriter], asyncio.Future[None]],
) -> None:
    world, fs = full_world()
    fs.is_always_full = True
    async with world.running():
        waiting = wanted(world.journal)
        await asyncio.sleep(30)
        assert 20 <= len(fs.asked) <= 32
        fs.is_full = fs.is_always_full = False
        await asyncio.wait_for(waiting, 2)


async def test_the_file_after_a_full_one_is_tried_once_a_second() -> None:
    """Checkpoints go to the full one meanwhile, and do not wait for the tries."""

    world, fs = full_world(roll_bytes=300)
    fs.is_full = False
    async with world.running():
        await world.append(full(1))
        fs.is_always_full = True
        for number in range(300):
            await asyncio.sleep(0.1)
            await world.append(full(number + 2))
        assert 20 <= len(fs.asked) <= 32
        fs.is_full = fs.is_always_full = False
        await asyncio.sleep(2)
        assert await world.files() == [1, world.journal._n]


@pytest.mark.parametrize("after_s", [0.1, 0.5, 1.5])
async def test_a_probe_goes_to_the_open_file_when_that_is_full_and_there_is_no_next_one(after_s: float) -> None:
    world, fs = full_world(roll_bytes=300)
    fs.is_full = False
    async with world.running():
        await world.append(full(1))
        fs.is_always_full = True
        fs.asked.clear()
        while not fs.asked:
            await world.append(full(1))
        await asyncio.sleep(after_s)
        await asyncio.wait_for(world.journal.probe(), 2)
        assert await world.files() == [1]


async def test_a_journal_asks_for_all_its_copies_then_takes_those_that_it_gets() -> None:
    notified: list[str] = []
    world, fs = full_world(no_room=notified.append)
    async with world.running():
        await world.append(full(5))
        now = asyncio.get_running_loop().time()
        assert now == pytest.approx(5.0, abs=0.5), "takeovers wait no longer"
        assert [all_copies for _, all_copies in fs.asked] == [True] * (len(fs.asked) - 1) + [False]
        assert len(notified) == len(fs.asked) - 1, "others are asked to make room"
        assert (await world.read())[key()].end_offset == 5


async def test_a_journal_with_few_copies_is_replaced_once_there_is_room_for_all() -> None:
    """The journal continues with few copies meanwhile, and does not ask to make room for a better file."""

    notified: list[str] = []
    world, fs = full_world(no_room=notified.append)
    async with world.running():
        await world.append(full(5))
        refusals, tries = len(notified), len(fs.asked)
        for number in range(6, 16):
            await asyncio.sleep(20)
            await world.append(full(number))
        assert 5 <= len(fs.asked) - tries <= 7, "after 5 s, then more and more rarely"
        assert len(notified) == refusals
        fs.is_full = False
        tries, begun = len(fs.asked), world.journal._n
        for number in range(16, 26):
            await asyncio.sleep(20)
            await world.append(full(number))
        assert (len(fs.asked) - tries, world.journal._n) == (1, begun + 1)
        assert fs.asked[-1][1]
        assert (await world.read())[key()].end_offset == 25


async def test_a_full_journal_goes_on_in_its_file_while_the_next_one_waits_for_room() -> None:
    world, fs = full_world(roll_bytes=200)
    fs.is_full = False
    async with world.running():
        await world.append(full(5))
        fs.is_full = True
        for number in range(6, 60):
            await world.append(full(number))
            await asyncio.sleep(0.2)
        fewer = [at for at, all_copies in fs.asked if not all_copies]
        assert fewer
        assert fewer[0] >= 5.0
        assert (await world.read())[key()].end_offset == 59


async def test_a_journal_has_a_smaller_block_where_storage_has_no_room_for_the_usual_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody is asked to make room for it: it is open at once.  It is rolled when half of that block is full."""
    monkeypatch.setattr("bmq.storage.journal_writer._FLUSH_BYTES_MAX", 4096)
    notified: list[str] = []
    world = JournalWorld()
    world.journal = JournalWriter(world.fs, BROKER, world._snapshot, no_room=notified.append)
    create, blocks = world.fs.create, []

    async def small(path: str, options: CreateOptions) -> MemoryAppender:
        if options.block_bytes > 1 << 20:
            raise OutOfSpace(f"{path}: no datanode has room")
        blocks.append(options.block_bytes)
        return await create(path, options)

    world.fs.create = small  # type: ignore[assignment]
    async with world.running():
        await world.append(full(1))
        assert asyncio.get_running_loop().time() < 0.1
        first = world.journal._n
        for number in range(2, 10_000):
            await world.append(full(number))
            if world.journal._n != first:
                break
        assert len(await world.data(first)) == pytest.approx(1 << 19, rel=0.05)
        await world.append(full(20_000))
        assert (await world.read())[key()].end_offset == 20_000
    assert blocks == [1 << 20] * len(blocks)
    assert notified == []


async def test_failed_attempts_to_roll_do_not_delete_the_open_file() -> None:
    """Files of failed tries have higher numbers than the one that the journal continues in."""

    world = JournalWorld(roll_bytes=300)
    create = world.fs.create

    async def broken(path: str, options: CreateOptions) -> MemoryAppender:
        appender = await create(path, options)
        appender.abort()
        return appender

    async with world.running():
        await world.append(full(1))
        world.fs.create = broken  # type: ignore[assignment]
        for n in range(2, 12):
            await world.append(delta(n))
            await asyncio.sleep(1)
        assert len(await world.files()) > 3
        assert parse(await world.data(1))[key()].end_offset == 11
        world.fs.create = create  # type: ignore[method-assign]
        await world.append(delta(12))
        await asyncio.sleep(2)
        assert len(await world.files()) == 2
        assert (await world.read())[key()].end_offset == 12


async def test_a_pipeline_that_breaks_while_nothing_is_written_is_replaced() -> None:
    """A partition may be taken over from the journal of a live broker, which might write nothing for days."""

    world = JournalWorld()
    async with world.running():
        await world.append(full(5))
        restart_all(world.storage)
        with pytest.raises(StorageUnavailable):
            await world.read()
        await asyncio.sleep(60)
        assert await world.files() == [1], "nobody has looked"
        sealing = asyncio.create_task(world.journal.former.wait_left())
        world.journal.check_file()
        await asyncio.wait_for(sealing, 1)
        await world.journal.seal_left_files()
        assert list(world.storage.open_files()) == [layout.journal(BROKER, 2)]
        assert (await world.read())[key()] == full(5)
        assert JournalView.parse(memoryview(await world.data(2))).has_snapshot
        world.journal.check_file()
        await asyncio.sleep(60)
        assert await world.files() == [2], "the new one stands"


async def test_an_idle_journal_tries_once_a_second_while_storage_is_away() -> None:
    """Each try makes a file at the NameNode; a checkpoint that comes meanwhile waits no longer than otherwise."""

    world = JournalWorld()
    created: list[float] = []
    create = world.fs.create

    async def counted(path: str, options: CreateOptions) -> MemoryAppender:
        created.append(asyncio.get_running_loop().time())
        return await create(path, options)

    async with world.running():
        await world.append(full(1))
        world.fs.create = counted  # type: ignore[assignment]
        for name in world.storage.datanodes:
            world.storage.kill_datanode(name)
        for _ in range(60):
            world.journal.check_file()
            await asyncio.sleep(1)
        assert 30 < len(created) <= 61
        for name in world.storage.datanodes:
            world.storage.start_datanode(name)
        await asyncio.wait_for(world.append(full(2)), 0.5)


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("rolls", [0, 1, 3])
async def test_a_synced_checkpoint_survives_rolls_and_a_loss_of_power(
    rolls: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new file's snapshot repeats it, and takes its place, whether or not the old file could be closed."""

    async def left(self: JournalWriter, appender: MemoryAppender) -> None:
        self._leave(appender)

    if not closes:
        monkeypatch.setattr(JournalWriter, "_close_file", left)

    storage = MemoryStorage()
    fs = MemoryFileSystem(storage, "b")
    held = replace(full(5), log_start=3)
    journal = JournalWriter(fs, "b", lambda: [held], roll_bytes=200)
    task = asyncio.get_running_loop().create_task(journal.run())
    await journal.append(held, sync=True)
    last = journal._n + rolls
    while journal._n < last:
        await journal.append(full(1, 1))
        await asyncio.sleep(0.01)
    fs.crash()
    task.cancel()
    storage.lose_power(is_partial=False)
    found = await read_journals(MemoryFileSystem(storage, "r"), "b", passes_damaged=True)
    assert found[key()].log_start == 3


async def test_a_long_queue_goes_out_in_several_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file has room for its snapshot and some flushes, not for the whole of a queue that an outage left."""
    monkeypatch.setattr("bmq.storage.journal_writer._FLUSH_BYTES_MAX", 500)

    storage = MemoryStorage()
    journal = JournalWriter(MemoryFileSystem(storage, "b"), "b", list)
    key = PartitionKey(uuid.UUID(int=1), 0)
    futures = [
        journal.append(Checkpoint(key=key, segment=SegmentName(0, 1, 0), position=n, end_offset=n, log_start=0))
        for n in range(1, 21)
    ]
    task = asyncio.get_running_loop().create_task(journal.run())
    taken: list[int] = []
    while not futures[-1].done():
        taken.append(sum(future.done() for future in futures))
        await asyncio.sleep(0)
    assert sorted(set(taken)) == [0, 4, 8, 12, 16]
    journal.close()
    await task
    found = await read_journals(MemoryFileSystem(storage, "r"), "b")
    assert found[key].end_offset == 20


def producers(count: int) -> tuple[ProducerState, ...]:
    """Return the states of ``count`` producers, with the five batches that are kept of each."""
    batches = tuple(ProducerBatch(n, n, 0, 1000) for n in range(5))
    return tuple(ProducerState(pid, 0, -1, 1000, -1, batches) for pid in range(count))


async def test_a_checkpoint_of_many_producers_is_written_and_read_in_turns() -> None:
    """Append a checkpoint of 20,000 producers: it is durable when its future is done, and those behind it in the queue
    wait for it."""

    world = JournalWorld()
    large = replace(full(5), producers=producers(20_000))
    behind = [key(number) for number in range(1, 4)]
    async with world.running():
        await world.append(full(1))
        with loop_stops() as writing:
            done = [world.append(large), *(world.append(replace(full(1), key=each)) for each in behind)]
            finished: list[int] = []
            for number, future in enumerate(done):
                future.add_done_callback(lambda _, number=number: finished.append(number))  # type: ignore[misc]
            await asyncio.gather(*done)
            await asyncio.sleep(0)
        assert finished == [0, 1, 2, 3]
        assert writing.turns > 20_000 / PRODUCERS_A_STEP
        with loop_stops() as reading:
            found = await world.read()
        assert reading.turns > 20_000 / PRODUCERS_A_STEP
    assert found[key()] == large
    assert set(found) == {key(), *behind}
    assert is_short(max(writing.longest_s, reading.longest_s))


async def test_a_checkpoint_of_many_producers_survives_a_pipeline_that_fails_meanwhile() -> None:
    world = JournalWorld()
    async with world.running():
        await world.append(full(1))
        world.storage.faults = Faults(pipeline_fails=1.0)
        large = replace(full(5), producers=producers(3_000))
        done = world.append(large)
        await asyncio.sleep(1.0)
        assert not done.done()
        world.storage.faults = Faults()
        await done
        assert (await world.read())[key()] == large


async def test_a_snapshot_of_many_partitions_is_made_in_turns() -> None:
    """Append while a snapshot is being made: the record stands behind it."""

    world = JournalWorld(roll_bytes=1)
    count = 5 * SNAPSHOT_A_TURN
    for number in range(count):
        world.held[key(number)] = replace(full(5), key=key(number))
    turns, taken = TurnCounter(), list[int]()

    def snapshot() -> Iterator[Checkpoint]:
        for number in range(count):
            taken.append(number)
            turns.count()
            yield world.held[key(number)]

    world.journal._snapshot = snapshot
    async with world.running():
        while len(taken) < count // 2:  # noqa: ASYNC110 - a turn of the loop is what is waited for
            await asyncio.sleep(0)
        later = world.append(replace(full(9), key=key(0)))
        assert not later.done()
        await later
        found = await world.read()
    assert 0 < max(turns.take()) <= SNAPSHOT_A_TURN + 1  # the next one is taken before the turn ends
    assert {each.partition: checkpoint.end_offset for each, checkpoint in found.items()} == {
        number: 5 if number else 9 for number in range(count)
    }


async def test_a_journal_with_few_copies_is_replaced_once_more_datanodes_respond() -> None:
    """Soon at first: a broker that was cut off itself for a moment finds one datanode, and then all of them."""

    world = JournalWorld(MemoryStorage(datanodes=4))
    for name in ("dn1", "dn2", "dn3"):
        world.storage.stop_datanode(name)
    async with world.running():
        await world.append(full(5))
        assert [len(each.nodes) for each in world.storage.appenders] == [1]
        for name in ("dn1", "dn2", "dn3"):
            world.storage.resume_datanode(name)
        await asyncio.sleep(6)
        assert [len(each.nodes) for each in world.storage.appenders] == [3], "also if nothing is written"
        begun = world.journal._n
        await asyncio.sleep(300)
        assert world.journal._n == begun, "one that has them all is left alone"
        assert await world.files() == [begun], "the one with a single copy is gone"
        world.storage.kill_datanode("dn0")
        assert (await world.read())[key()].end_offset == 5


async def test_a_journal_with_few_copies_goes_on_while_there_are_no_more_datanodes() -> None:
    """A file with as few copies is not better: it is dropped, and the next one is tried after growing pauses."""

    world = JournalWorld(MemoryStorage(datanodes=2))
    async with world.running():
        await world.append(full(5))
        (first,) = world.storage.appenders
        for number in range(6, 306):
            await asyncio.sleep(1)
            await world.append(full(number))
        assert list(world.storage.appenders) == [first]
        assert await world.files() == [1], "and what was made in vain is gone"
        assert 6 <= world.journal._n <= 10
        assert (await world.read())[key()].end_offset == 305


class SlowNameNode(MemoryFileSystem):
    """A storage whose NameNode is slow, or away: then calls fail after their deadline. Open files continue."""

    DEADLINE_S = 15.0

    def __init__(self, storage: MemoryStorage) -> None:
        super().__init__(storage, BROKER)
        self.is_away = self.is_slow = self.is_readonly = False
        self.creates = self.deletes = 0

    async def create(self, path: str, options: CreateOptions = CreateOptions()) -> MemoryAppender:  # noqa: B008
        self.creates += 1
        if self.is_away:
            await asyncio.sleep(self.DEADLINE_S)
            raise StorageUnavailable("no NameNode responds")
        if self.is_slow:
            await asyncio.sleep(self.DEADLINE_S)
        return await super().create(path, options)

    async def delete(self, path: str, *, recursive: bool = False) -> bool:
        self.deletes += 1
        if self.is_readonly:
            await asyncio.sleep(self.DEADLINE_S)
            raise StorageUnavailable("no NameNode responds")
        return await super().delete(path, recursive=recursive)


def slow_world() -> tuple[JournalWorld, SlowNameNode]:
    world = JournalWorld(roll_bytes=300)
    fs = SlowNameNode(world.storage)
    world.journal = JournalWriter(fs, BROKER, world._snapshot, roll_bytes=300)
    return world, fs


async def test_a_full_journal_is_written_while_its_next_file_waits_for_the_namenode() -> None:
    world, fs = slow_world()
    async with world.running():
        await world.append(full(1))
        fs.is_away = True
        began = asyncio.get_running_loop().time()
        number = 1
        while asyncio.get_running_loop().time() < began + 100.0:
            number += 1
            await asyncio.wait_for(world.append(full(number)), 0.1)
            await asyncio.wait_for(world.journal.probe(), 0.1)
            await asyncio.sleep(0.1)
        assert fs.creates <= 2 + 100 / fs.DEADLINE_S
        fs.is_away = False
        await asyncio.sleep(fs.DEADLINE_S + 2)
        await asyncio.wait_for(world.append(full(number + 1)), 0.1)
        files = await world.files()
        assert files[0] == 1
        assert list(world.storage.open_files()) == [layout.journal(BROKER, files[-1])] != [layout.journal(BROKER, 1)]
        assert (await world.read())[key()].end_offset == number + 1


@pytest.mark.parametrize("has_open_file", [False, True])
@pytest.mark.parametrize("cancelled_after_s", [1.0, SlowNameNode.DEADLINE_S, None])
async def test_a_journal_that_ends_while_its_next_file_is_created_leaves_no_file_open(
    cancelled_after_s: float | None, has_open_file: bool
) -> None:
    world, fs = slow_world()
    fs.is_slow = not has_open_file
    task = asyncio.create_task(world.journal.run())
    if has_open_file:
        await world.append(full(1))
        fs.is_slow = True
        while fs.creates < 2:
            await world.append(full(1))
    else:
        await asyncio.sleep(0)
    if cancelled_after_s is None:
        world.journal.close()
        await task
        assert await world.files() == [1]
    else:
        asyncio.get_running_loop().call_later(cancelled_after_s, task.cancel)
        await asyncio.wait([task])
    assert not world.storage.appenders


async def test_a_journal_that_ends_closes_its_file_before_the_next_one_is_created() -> None:
    """The process is given some seconds to end: it need not leave the open file to be fenced by others."""

    world, fs = slow_world()
    task = asyncio.create_task(world.journal.run())
    await world.append(full(1))
    fs.is_slow = True
    while fs.creates < 2:
        await world.append(full(1))
    world.journal.close()
    await asyncio.sleep(1.0)
    assert world.storage.open_files() == {}
    await task
    assert await world.files() == [1]


async def test_old_files_that_could_not_be_deleted_are_deleted_later_and_delay_nothing() -> None:
    world, fs = slow_world()
    async with world.running():
        await world.append(full(1))
        fs.is_readonly = True
        number = 1
        while fs.creates < 4:
            number += 1
            await asyncio.wait_for(world.append(full(number)), 0.1)
            await asyncio.sleep(0.1)
        for _ in range(300):
            await asyncio.wait_for(world.journal.probe(), 0.1)
            await asyncio.sleep(0.1)
        assert len(await world.files()) == fs.creates
        assert fs.deletes <= 2 + 40 / fs.DEADLINE_S
        fs.is_readonly = False
        await asyncio.sleep(fs.DEADLINE_S + 2.0)
        assert len(await world.files()) == 2, "the open one, and the one before it"


@pytest.mark.parametrize("is_held", [True, False])
async def test_a_snapshot_of_very_many_partitions_is_written_without_a_stop(*, is_held: bool) -> None:
    """Write the checkpoints of 100,000 partitions, or find that none of them has a checkpoint yet."""
    world = JournalWorld()
    checkpoints = [replace(full(1), key=key(number)) for number in range(100_000)]
    found: dict[PartitionKey, Checkpoint | None] = {each.key: each if is_held else None for each in checkpoints}
    world.journal = JournalWriter(world.fs, BROKER, lambda: map(found.get, found))
    with loop_stops() as stops:
        async with world.running():
            await world.journal.append(full(2))
    assert is_short(stops.longest_s, 0.020), stops.longest_s
    with without_collector():
        assert len(await world.read()) == (100_000 if is_held else 1)
