"""Lag of groups: committed offsets against high watermarks, in a bounded number of series."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from bmq.coordinator.offsets.committed import Offsets
from bmq.coordinator.offsets.lag import GroupLag, LagReport, PairLag, PartitionLag
from bmq.coordinator.records import Offset, OffsetRecord
from bmq.coordinator.shard.load_failure import LoadFailure
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.metrics.counters import OTHER_TOPICS
from bmq.core.model import PartitionKey
from tests.harness.loop import run
from tests.harness.loop_stops import TurnCounter, is_short, loop_stops
from tests.unit.coordinator.fakes import MemoryCatalog, MemoryLogs, World, running, topic

pytestmark = pytest.mark.slow


class Ends:
    """High watermarks, in which a partition may be missing."""

    def __init__(self, ends: Mapping[tuple[str, int], int]) -> None:
        self._ends = {PartitionKey(topic(name).topic_id, number): end for (name, number), end in ends.items()}
        self.asked: list[PartitionKey] = []

    async def __call__(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
        self.asked += keys
        return {key: self._ends[key] for key in keys if key in self._ends}


def committed(*commits: tuple[str, str, int, int], topic_id: uuid.UUID | None = None) -> Offsets:
    offsets = Offsets()
    for group, name, number, offset in commits:
        offsets.apply(OffsetRecord(group, name, number, Offset(offset, topic_id=topic_id or topic(name).topic_id)))
    return offsets


def report(
    ends: Ends, *offsets: Offsets, series_max: int = 100, catalog: MemoryCatalog | None = None, times: int = 1
) -> LagReport:
    lag = GroupLag(lambda: offsets, catalog or MemoryCatalog(topic("orders"), topic("events")), ends, series_max)
    for _ in range(times):
        run(lag.refresh())
    return lag.report


def test_lag_by_pair_and_by_partition() -> None:
    ends = Ends({("orders", 0): 100, ("orders", 1): 50, ("events", 7): 9})
    found = report(
        ends,
        committed(("billing", "orders", 0, 90), ("billing", "orders", 1, 50), ("billing", "events", 7, 0)),
        committed(("audit", "orders", 0, 1)),
    )
    assert found == LagReport(
        pairs=[
            PairLag("billing", "orders", 140, 10, 10),
            PairLag("billing", "events", 0, 9, 9),
            PairLag("audit", "orders", 1, 99, 99),
        ],
        partitions=[
            PartitionLag("billing", "orders", 0, 10), PartitionLag("billing", "orders", 1, 0),
            PartitionLag("billing", "events", 7, 9), PartitionLag("audit", "orders", 0, 99),
        ],
    )  # fmt: skip
    assert len(ends.asked) == 3, "each partition is asked for once"


def test_an_offset_past_the_watermark_has_a_lag_of_0() -> None:
    """Commit past the known watermark: it may lag behind the commit, or the topic may have been made again."""
    found = report(Ends({("orders", 0): 5}), committed(("g", "orders", 0, 8)))
    assert found.pairs == [PairLag("g", "orders", 8, 0, 0)]
    assert found.partitions == [PartitionLag("g", "orders", 0, 0)]


def test_an_owner_that_does_not_answer_is_counted_and_its_partition_has_no_lag() -> None:
    found = report(Ends({("orders", 0): 5}), committed(("g", "orders", 0, 1), ("g", "orders", 1, 1)))
    assert (found.pairs, found.groups_in_part) == ([PairLag("g", "orders", 2, 4, 4)], {"g"})
    assert found.partitions == [PartitionLag("g", "orders", 0, 4)]
    assert found.partitions_unknown == 1


@pytest.mark.parametrize("is_proven_first", [False, True])
def test_a_shard_counts_only_if_it_was_proven_before_and_after_the_requests(is_proven_first: bool) -> None:
    """A shard in doubt may be proven while the brokers respond: no watermark was asked for, so its groups had lag 0."""
    old, new = committed(("audit", "orders", 0, 90)), committed(("billing", "orders", 1, 0))
    proven = [old, new] if is_proven_first else [old]
    ends = Ends({("orders", 0): 100, ("orders", 1): 1000})

    async def watermarks(keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
        proven[:] = [old] if is_proven_first else [old, new]
        return await ends(keys)

    lag = GroupLag(lambda: list(proven), MemoryCatalog(topic("orders")), watermarks, 100)
    run(lag.refresh())
    assert lag.report == LagReport([PairLag("audit", "orders", 90, 10, 10)], [PartitionLag("audit", "orders", 0, 10)])
    proven[:] = [old, new]
    is_proven_first = False
    run(lag.refresh())
    assert {pair.group: pair.lag for pair in lag.report.pairs} == {"audit": 10, "billing": 1000}


def test_a_partition_whose_first_commit_comes_during_the_requests_is_unknown() -> None:
    offsets = committed(("billing", "orders", 0, 90))
    ends = Ends({("orders", 0): 100, ("orders", 1): 1000})

    async def watermarks(keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
        offsets.apply(OffsetRecord("billing", "orders", 1, Offset(0, topic_id=topic("orders").topic_id)))
        return await ends(keys)

    lag = GroupLag(lambda: [offsets], MemoryCatalog(topic("orders")), watermarks, 100)
    run(lag.refresh())
    assert (lag.report.partitions_unknown, lag.report.groups_in_part) == (1, {"billing"})
    assert lag.report.partitions == [PartitionLag("billing", "orders", 0, 10)]
    run(lag.refresh())
    assert (lag.report.partitions_unknown, lag.report.groups_in_part) == (0, set())
    assert lag.report.pairs == [PairLag("billing", "orders", 90, 1010, 1000)]


async def test_the_lag_of_a_group_is_absent_and_not_0_while_its_shard_is_in_doubt() -> None:
    async with running(World(MemoryLogs(3))) as world:
        assert await world.commit("g", 0) == 0

        async def ends(keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
            await asyncio.sleep(1)  # longer than the proof
            return dict.fromkeys(keys, 1000)

        lag = GroupLag(world.coordinator.offsets, world.catalog, ends, 100)
        await lag.refresh()
        before = lag.report
        assert [(pair.group, pair.lag) for pair in before.pairs] == [("g", 1000)]
        world.coordinator.doubt()
        await lag.refresh()
        assert lag.report == LagReport([], [])
        await lag.refresh()
        assert lag.report == before


def test_a_deleted_topic_has_no_lag() -> None:
    ends = Ends({("orders", 0): 5})
    catalog = MemoryCatalog(topic("orders", 1))
    assert report(ends, committed(("g", "gone", 0, 1)), catalog=catalog) == LagReport([], [])
    assert report(ends, committed(("g", "orders", 1, 1)), catalog=catalog) == LagReport([], []), "no such partition"
    earlier = committed(("g", "orders", 0, 1), topic_id=topic("orders", incarnation=1).topic_id)
    assert report(ends, earlier, catalog=catalog) == LagReport([], []), "of another topic of that name"


def test_pairs_past_the_bound_share_one_series_and_nothing_is_lost() -> None:
    ends = Ends({("orders", 0): 100})
    groups = committed(*((f"g{number}", "orders", 0, number) for number in range(50)))
    found = report(ends, groups, series_max=3, times=2)
    assert [pair.group for pair in found.pairs] == ["g0", "g1", "g2", OTHER_TOPICS], "those that lag most"
    assert sum(pair.lag for pair in found.pairs) == sum(100 - number for number in range(50))
    assert [each.group for each in found.partitions] == ["g0", "g1", "g2"]


def test_each_pair_has_its_largest_lag_also_where_its_partitions_have_no_room() -> None:
    """Tell by it a group that lacks only the markers of transactions, one record a partition, from one that lags."""
    ends = Ends({("orders", number): 1000 for number in range(10)} | {("events", 0): 501, ("events", 1): 501})
    busy = committed(*(("busy", "orders", number, number) for number in range(10)))
    markers = committed(("markers", "events", 0, 500), ("markers", "events", 1, 500))
    found = report(ends, busy, markers, series_max=10)
    assert {each.group for each in found.partitions} == {"busy"}
    assert [(each.group, each.lag, each.lag_max) for each in found.pairs] == [("busy", 9955, 1000), ("markers", 2, 1)]
    found = report(ends, busy, markers, committed(("late", "events", 0, 498)), series_max=1)
    assert [(each.group, each.lag, each.lag_max) for each in found.pairs] == [
        ("busy", 9955, 1000),
        (OTHER_TOPICS, 5, 3),
    ]


def test_a_group_with_pairs_past_the_bound_keeps_those_that_have_room() -> None:
    ends = Ends({("orders", 0): 100, ("events", 0): 10})
    found = report(ends, committed(("g", "orders", 0, 0), ("g", "events", 0, 0), ("h", "orders", 0, 1)), series_max=2)
    assert found.pairs == [
        PairLag("g", "orders", 0, 100, 100), PairLag("h", "orders", 1, 99, 99),
        PairLag(OTHER_TOPICS, OTHER_TOPICS, 0, 10, 10),
    ]  # fmt: skip
    assert found.groups_in_part == {"g"}


def test_a_wide_topic_has_its_sum_where_its_partitions_have_no_room() -> None:
    ends = Ends({("orders", number): 10 for number in range(200)} | {("events", 0): 3})
    wide = committed(*(("g", "orders", number, 0) for number in range(200)), ("g", "events", 0, 0))
    found = report(ends, wide, series_max=100)
    assert found.pairs == [PairLag("g", "orders", 0, 2000, 10), PairLag("g", "events", 0, 3, 3)]
    assert found.partitions == [PartitionLag("g", "events", 0, 3)]


async def test_many_groups_are_counted_in_turns_of_the_loop() -> None:
    many = committed(*((f"g{number}", "orders", number % 200, 0) for number in range(10_000)))
    lag = GroupLag(lambda: [many], MemoryCatalog(topic("orders")), Ends({}), 100)

    turns, of_group = TurnCounter(), many.of_group

    def counted(group_id: str) -> Mapping[str, Mapping[int, Offset]]:
        turns.count()
        return of_group(group_id)

    many.of_group = counted  # type: ignore[method-assign]
    await lag.refresh()
    worked = turns.take()
    assert sum(worked) >= 3 * 10_000
    assert max(worked) <= 3_000, "no turn is long"
    assert len(lag.report.pairs) == 101
    assert lag.report.partitions_unknown == 200


async def test_the_lag_of_very_many_groups_does_not_stop_the_loop() -> None:
    many, count, orders = Offsets(), 100_000, topic("orders")
    for number in range(count):  # each has a larger lag than those before it: the worst order for a choice
        many.apply(OffsetRecord(f"g{number}", "orders", number % 200, Offset(count - number, topic_id=orders.topic_id)))
    ends = Ends({("orders", number): count for number in range(200)})
    lag = GroupLag(lambda: [many], MemoryCatalog(orders), ends, 1_000)
    for _ in range(2):
        with loop_stops() as stops:
            await lag.refresh()
        assert is_short(stops.longest_s), stops.longest_s
    *pairs, others = lag.report.pairs
    assert {each.group for each in pairs} == {f"g{number}" for number in range(count - 1_000, count)}
    assert sum(each.lag for each in pairs) + others.lag == sum(range(count))
    assert sum(each.offset_sum for each in pairs) + others.offset_sum == sum(range(count + 1))
    assert len(lag.report.groups_in_part) == count - 1_000


async def test_a_group_of_a_large_topic_is_counted_in_turns() -> None:
    """One pair of a group and a topic may have as many partitions as a topic has at most."""
    size = 10_000
    orders = replace(topic("orders"), partitions=size)
    large = committed(*(("billing", "orders", number, 1) for number in range(size)))

    turns = TurnCounter()

    class Counted(dict[PartitionKey, int]):
        """High watermarks, each look at which is counted."""

        def get(self, key: PartitionKey, default: int | None = None) -> int | None:  # type: ignore[override]
            turns.count()
            return super().get(key, default)

    async def ends(keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
        return Counted.fromkeys(keys[1:], 3)

    lag = GroupLag(lambda: [large], MemoryCatalog(orders), ends, size)
    await lag.refresh()
    worked, found = (turns.take(), lag.report)
    assert sum(worked) == 2 * size
    assert max(worked) <= ELEMENTS_A_TURN, "no turn is long"
    assert found.pairs == [PairLag("billing", "orders", size, 2 * (size - 1), 2)]
    assert (len(found.partitions), found.partitions_unknown) == (size - 1, 1)


async def test_a_coordinator_gives_the_offsets_of_its_loaded_shards() -> None:
    async with running(World(MemoryLogs(3))) as world:
        for number in range(10):
            assert await world.commit(f"g{number}", number) == 0
        lag = GroupLag(world.coordinator.offsets, world.catalog, Ends({("orders", 0): 10}), 100)
        await lag.refresh()
        assert {pair.group: pair.lag for pair in lag.report.pairs} == {f"g{n}": 10 - n for n in range(10)}


async def test_shards_that_are_not_loaded_are_counted_by_the_kind_of_reason() -> None:
    none = dict.fromkeys(LoadFailure, 0)

    world = World()
    async with running(world):
        assert await world.commit("g", 1) == 0
        assert world.coordinator.shards_not_loaded_by_reason() == none
        world.log.fail_reads = "segment 0 ends at 566"
        await world.crash()
        await asyncio.sleep(60)
        assert world.coordinator.shards_not_loaded_by_reason() == none | {LoadFailure.STORAGE: 1}
        world.log.fail_reads = None
        world.logs.fail_opens = 1 << 30
        await asyncio.sleep(60)
        await world.crash()
        await asyncio.sleep(60)
        assert world.coordinator.shards_not_loaded_by_reason() == none | {LoadFailure.NO_OWNER: 1}
        world.logs.fail_opens, world.log.hang = 0, True
        await asyncio.sleep(60)
        await world.crash()
        await asyncio.sleep(60)
        assert world.coordinator.shards_not_loaded_by_reason() == none | {LoadFailure.LOADING: 1}
        world.log.hang = False
        await world.crash()
        await asyncio.sleep(60)
        assert world.coordinator.shards_not_loaded_by_reason() == none


def test_a_failed_count_leaves_no_earlier_lag() -> None:
    """An earlier lag would be sampled and scraped with the present time, for as long as counts fail."""
    failures = list[Exception]()

    async def watermarks(keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, int]:
        if failures:
            raise failures[0]
        return dict.fromkeys(keys, 100)

    offsets = committed(("billing", "orders", 0, 90), ("audit", "orders", 1, 50))
    lag = GroupLag(lambda: [offsets], MemoryCatalog(topic("orders")), watermarks, 100)
    run(lag.refresh())
    assert {each.group: each.lag for each in lag.report.pairs} == {"billing": 10, "audit": 50}
    failures.append(RuntimeError("a fault of ours"))
    with pytest.raises(RuntimeError):
        run(lag.refresh())
    assert lag.report == LagReport(partitions_unknown=2)
    failures.clear()
    run(lag.refresh())
    assert {each.group: each.lag for each in lag.report.pairs} == {"billing": 10, "audit": 50}
