"""A streaming query's offsets and tasks: limits, targets, losses, restarts.

``Query`` does what Spark does with a reader: it writes the end of each micro-batch down before the batch is read.
"""

from __future__ import annotations

import uuid
from typing import cast

import pytest

from bmq.spark.options import OptionError, ReadOptions
from bmq.spark.planning.discover import NoSuchTopic
from bmq.spark.planning.slices import DataLoss
from bmq.spark.streaming.offsets import Offsets
from bmq.spark.streaming.planner import StreamPlanner, Undecided
from bmq.spark.streaming.rate_limits import RateLimits
from bmq.storage import layout
from bmq.storage.filesystem import FileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.unit.spark.counting import Counting
from tests.unit.spark.storing import Store, batch, marker, series, transactional

A, B = ("orders", 0), ("orders", 1)


class Query:
    """One run of a query; ``logged`` is its checkpoint, which outlives it."""

    def __init__(self, fs: FileSystem, logged: list[Offsets] | None = None, **given: str) -> None:
        is_given = {"subscribe", "subscribePattern", "assign"} & given.keys()
        subscription = {} if is_given else {"topic": "orders"}
        options = {"root": "memory:", "startingOffsets": "earliest"} | subscription | given
        self.now = 0.0
        self.limits = RateLimits.parse(options)
        self.planner = StreamPlanner(fs, ReadOptions.parse_stream(options), self.limits, lambda: self.now)
        self.logged = logged if logged is not None else []
        self.read: list[tuple[str, int, int, int]] = []
        self.bytes = 0

    async def batch(self) -> bool:
        """One micro-batch, if there is anything to read."""
        start = self.logged[-1] if self.logged else await self.planner.initial()
        end = await self.planner.latest(start, is_limited=self.limits != RateLimits())
        if end == start:
            return False
        self.logged.append(end)
        await self.redo(start, end)
        self.planner.follower.trim(end)
        return True

    async def redo(self, start: Offsets, end: Offsets, *, is_first: bool = False) -> None:
        tasks = await self.planner.tasks(start, end, is_first=is_first)
        pieces = [piece for task in tasks for piece in task]
        self.read = [(piece.topic, piece.partition, piece.start, piece.end) for piece in pieces]
        self.bytes = sum(piece.size for piece in pieces)


async def orders(fs: FileSystem, *, partitions: int = 2, count: int = 20) -> Store:
    """Segments of ten records each."""
    store = await Store(fs).create(partitions)
    for partition in range(partitions):
        for n in range(count // 10):
            await store.segment(series(10 * n, 10), partition=partition, n=n)
    return store


async def test_a_query_reads_everything_once() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs)
    query = Query(fs)
    assert await query.batch()
    assert query.logged == [{A: 20, B: 20}]
    assert query.read == [("orders", 0, 0, 10), ("orders", 0, 10, 20), ("orders", 1, 0, 10), ("orders", 1, 10, 20)]
    assert not await query.batch()
    await store.segment(series(20, 5), partition=1, n=2)
    assert await query.batch()
    assert query.read == [("orders", 1, 20, 25)]
    assert query.planner.seen == {A: 20, B: 25}


@pytest.mark.parametrize(
    ("starting", "expected"),
    [
        ("earliest", {A: 0, B: 0}),
        ("latest", {A: 20, B: 20}),
        ('{"orders":{"0":7,"1":-1}}', {A: 7, B: 20}),
        ('{"orders":{"0":-2,"1":20}}', {A: 0, B: 20}),
    ],
)
async def test_where_a_query_begins(starting: str, expected: Offsets) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await orders(fs)
    assert await Query(fs, startingOffsets=starting).planner.initial() == expected


async def test_where_a_query_cannot_begin() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await orders(fs)
    with pytest.raises(OptionError, match="missing are orders-1"):
        await Query(fs, startingOffsets='{"orders":{"0":7}}').planner.initial()
    with pytest.raises(DataLoss, match="starting offset 99 is past the end, 20"):
        await Query(fs, startingOffsets='{"orders":{"0":99,"1":0}}').planner.initial()
    lenient = Query(fs, startingOffsets='{"orders":{"0":99,"1":0}}', failOnDataLoss="false")
    assert await lenient.planner.initial() == {A: 20, B: 0}
    with pytest.raises(NoSuchTopic):
        await Query(fs, topic="none").planner.initial()


# ---------------------------------------------------------------------------------------------------------- limits


async def test_a_limit_of_records() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await orders(fs, count=40)
    query = Query(fs, maxOffsetsPerTrigger="30")
    while await query.batch():
        pass
    assert query.logged == [{A: 15, B: 15}, {A: 30, B: 30}, {A: 40, B: 40}]


async def test_a_limit_of_bytes() -> None:
    """Batches keep to it, give or take an index entry a partition, and all is read."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs, count=100)
    await store.segment(series(100, 60, size=100), n=10)
    query = Query(fs, maxBytesPerTrigger="4k")
    sizes = []
    while await query.batch():
        sizes.append(query.bytes)
    assert query.logged[-1] == {A: 160, B: 100}
    assert max(sizes) <= 4096 + 2 * 600, "an entry each 200 bytes, and slices are of whole entries"
    assert len(sizes) >= sum(sizes) // 5300
    both = Query(fs, maxBytesPerTrigger="4k", maxOffsetsPerTrigger="6")
    assert await both.batch()
    assert both.logged == [{A: 3, B: 2}]


@pytest.mark.slow
async def test_a_limit_of_bytes_reads_few_indexes() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    counting = Counting(fs)
    await orders(fs, partitions=1, count=1000)
    query = Query(cast(FileSystem, counting), maxBytesPerTrigger="2k")
    assert await query.batch()
    counting.reset()
    for _ in range(5):
        assert await query.batch()
    assert counting.reads["idx"] <= 5 * 4
    assert counting.names < 5 * 8


async def test_few_records_wait() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs)
    query = Query(fs, minOffsetsPerTrigger="15", maxTriggerDelay="1m")
    assert await query.batch(), "the first one never waits"
    await store.segment(series(20, 10), n=2)
    assert not await query.batch()
    query.now += 60_000
    assert await query.batch()
    await store.segment(series(30, 15), n=3)
    assert await query.batch()


async def test_a_target_is_kept_to_and_reached() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs)
    query = Query(fs, maxOffsetsPerTrigger="16", minOffsetsPerTrigger="16")
    await query.planner.settle_target()
    await store.segment(series(20, 10), n=2)
    await store.resize(3)
    while await query.batch():
        pass
    assert [(each[A], each[B]) for each in query.logged] == [(8, 8), (16, 16), (20, 20)], "nothing waits"
    again = Query(fs, query.logged, startingOffsets="latest")
    await again.planner.settle_target()
    assert await again.batch()
    assert again.logged[-1] == {A: 30, B: 20, ("orders", 2): 0}
    assert not await again.batch()


# ------------------------------------------------------------------------------------------- new, gone, made again


async def test_new_partitions_are_read_from_their_beginning() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs)
    query = Query(fs, startingOffsets="latest", maxOffsetsPerTrigger="5", subscribePattern="or.*")
    assert not await query.batch()
    query.logged.append(await query.planner.initial())
    await store.resize(3)
    await store.segment(series(0, 10), partition=2)
    organs = await Store(fs, "organs", uuid.uuid4()).create()
    await organs.segment(series(0, 10))
    while await query.batch():
        assert sum(end - start for *_, start, end in query.read) <= 5 + 2
    assert query.logged[-1] == {A: 20, B: 20, ("orders", 2): 10, ("organs", 0): 10}
    first = query.logged[1]
    await query.redo(query.logged[0], first)
    assert {(topic, partition, start) for topic, partition, start, _ in query.read} == {
        ("orders", 2, 0),
        ("organs", 0, 0),
    }


@pytest.mark.parametrize("is_strict", [True, False])
async def test_a_topic_that_is_deleted(is_strict: bool) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await orders(fs)
    await (await Store(fs, "other", uuid.uuid4()).create()).segment(series(0, 3))
    query = Query(fs, subscribePattern=".*", failOnDataLoss=str(is_strict))
    assert await query.batch()
    await fs.delete(layout.topic_folder("orders"), recursive=True)
    if is_strict:
        with pytest.raises(DataLoss, match="orders-0 is gone"):
            await query.batch()
        return
    await query.batch()
    assert query.logged[-1] == {("other", 0): 3}
    assert not await query.batch()


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_a_query_outlives_its_topics_without_fail_on_data_loss(
    is_restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Named, not found by a pattern: one of two, then both, then one is there again."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    named = {"subscribe": "orders,other", "failOnDataLoss": "false"}
    await orders(fs)
    await (await Store(fs, "other", uuid.uuid4()).create()).segment(series(0, 3))
    query = Query(fs, None, **named)

    def restarted() -> Query:
        return Query(fs, query.logged, **named) if is_restarted else query

    assert await query.batch()
    for topic, left in (("orders", {("other", 0): 3}), ("other", {})):
        await fs.delete(layout.topic_folder(topic), recursive=True)
        query = restarted()
        while await query.batch():
            assert not query.read
        assert query.logged[-1] == left
        query = restarted()
        assert not await query.batch()
    assert [record.message for record in caplog.records].count("other-0 is gone") == 1
    fresh = await Store(fs, "orders", uuid.uuid4()).create()
    await fresh.segment(series(0, 5))
    query = restarted()
    assert await query.batch()
    assert query.read == [("orders", 0, 0, 5)]


async def test_a_query_that_goes_on_misses_topics_that_are_not_there() -> None:
    """One that was named wrongly would otherwise be waited for in silence."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    await orders(fs)
    query = Query(fs)
    assert await query.batch()
    with pytest.raises(NoSuchTopic, match="there is no topic others"):
        await Query(fs, subscribe="orders,others", failOnDataLoss="false").batch()
    with pytest.raises(DataLoss, match="there is no topic others"):
        await Query(fs, query.logged, subscribe="orders,others").batch()
    assert not await Query(fs, query.logged, subscribe="orders,others", failOnDataLoss="false").batch()
    with pytest.raises(NoSuchTopic, match="no partition 2"):
        await Query(fs, assign='{"orders": [0, 2]}').batch()


async def test_assigned_partitions_only() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await orders(fs, partitions=3)
    query = Query(fs, assign='{"orders": [2, 0]}')
    assert await query.batch()
    assert {(topic, partition) for topic, partition, _, _ in query.read} == {("orders", 0), ("orders", 2)}
    assert query.logged[-1] == {("orders", 0): 20, ("orders", 2): 20}


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_a_topic_that_is_made_anew(is_restarted: bool) -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    await orders(fs)
    query = Query(fs, failOnDataLoss="false")
    assert await query.batch()
    await fs.delete(layout.topic_folder("orders"), recursive=True)
    fresh = await Store(fs, "orders", uuid.uuid4()).create(2)
    await fresh.segment(series(0, 5))
    if is_restarted:
        query = Query(fs, query.logged, failOnDataLoss="false")
    read = []
    while await query.batch():
        read += query.read
    assert read == [("orders", 0, 0, 5)], "each record of the new one once"
    assert query.logged[-1] == {A: 5, B: 0}
    with pytest.raises(DataLoss, match="orders-0 ends at 5, but was read up to 20"):
        await Query(fs, [{A: 20, B: 20}]).batch()


async def test_retention_that_was_faster() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs, partitions=1, count=50)
    query = Query(fs, maxOffsetsPerTrigger="5")
    assert await query.batch()
    for n in range(3):
        for kind in ("log", "idx"):
            async for status in fs.list(store.path().folder):
                if status.path.endswith(f"-{n:04d}.{kind}"):
                    await fs.delete(status.path)
                    break
    with pytest.raises(DataLoss, match="records from offset 5 are gone, the log begins at 30"):
        await Query(fs, [{A: 5}]).batch()
    assert await query.batch(), "it knows the first segment's index: that one's task will find it gone"
    with pytest.raises(DataLoss, match="records from offset 10 are gone, the log begins at 30"):
        await query.batch()
    lenient = Query(fs, [{A: 5}], failOnDataLoss="false")
    assert await lenient.batch()
    assert lenient.read == [("orders", 0, 30, 40), ("orders", 0, 40, 50)]


# -------------------------------------------------------------------------------------------------------- restarts


async def test_a_batch_is_done_again_as_it_was() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs)
    query = Query(fs, maxOffsetsPerTrigger="10")
    await query.batch()
    await query.batch()
    before = query.read
    await store.segment(series(20, 10), n=2)
    again = Query(fs, query.logged)
    await again.redo(*query.logged)
    assert again.read == before


async def test_a_first_batch_done_again_takes_nothing_that_came_later() -> None:
    """Begun at ``latest``, which is another place now: the end that was logged counts."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await orders(fs)
    logged = await Query(fs, startingOffsets="latest").planner.initial()
    await store.segment(series(20, 10), n=2)
    again = Query(fs, [logged], startingOffsets="latest")
    initial = await again.planner.initial()
    assert initial == {A: 30, B: 20}
    await again.redo(initial, logged, is_first=True)
    assert again.read == []
    assert await again.batch()
    assert again.read == [("orders", 0, 20, 30)]


async def test_open_transactions_end_a_batch() -> None:
    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment([batch(0, b"a", b"b"), transactional(2, b"open", pid=7), batch(3, b"behind")])
    query = Query(fs)
    assert await query.batch()
    assert query.logged == [{A: 2}]
    assert not await query.batch()
    all_of_it = Query(fs, isolationLevel="read_uncommitted")
    await all_of_it.batch()
    assert all_of_it.logged == [{A: 4}]
    assert not await Query(fs, all_of_it.logged).batch(), "no loss: it reads less now"
    await store.segment([marker(4, pid=7, is_abort=True), batch(5, b"c")], n=1)
    assert await query.batch()
    assert query.read == [("orders", 0, 2, 4), ("orders", 0, 4, 6)]
    (task,) = await query.planner.tasks({A: 2}, {A: 6})
    assert [piece.aborted for piece in task] == [((7, 2, 4),), ((7, 2, 4),)]


@pytest.mark.parametrize("is_strict", [True, False])
async def test_another_isolation_level_at_a_restart(is_strict: bool) -> None:
    """Settle a micro-batch past the last stable offset: which of its data is committed is not known yet."""

    fs = MemoryFileSystem(MemoryStorage(), "test")
    store = await Store(fs).create()
    await store.segment([batch(0, b"a", b"b"), transactional(2, b"open", pid=7), batch(3, b"behind")])
    before = Query(fs, isolationLevel="read_uncommitted")
    await before.batch()
    again = Query(fs, failOnDataLoss=str(is_strict).lower())
    with pytest.raises(Undecided, match=r"orders-0: the micro-batch up to 4 was begun with .*read_uncommitted.* 2 on"):
        await again.redo({A: 0}, {A: 4})
    await again.redo({A: 4}, {A: 4})
    assert again.read == [], "done: nothing of it is asked for"
    await store.segment([marker(4, pid=7, is_abort=True), batch(5, b"c")], n=1)
    (task,) = await again.planner.tasks({A: 0}, {A: 4})
    assert [(piece.start, piece.end, piece.aborted) for piece in task] == [(0, 4, ((7, 2, 4),))]
    back = Query(fs, [{A: 0}, {A: 4}], isolationLevel="read_uncommitted")
    await back.redo({A: 0}, {A: 4})
    assert back.read == [("orders", 0, 0, 4)]
