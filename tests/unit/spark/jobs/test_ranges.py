"""The choice of a run's offsets."""

from __future__ import annotations

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.spark.jobs.ranges import SelectedRange, as_options, plan, with_empty
from bmq.spark.options import ReadOptions
from bmq.spark.planning.slices import PartitionLog, resolve


def bounds(start: int, end: int, *, log_start: int = 0, log_end: int = 1000) -> SelectedRange:
    return SelectedRange(log_start=log_start, log_end=log_end, start=start, end=end)


def test_a_new_table_begins_where_the_user_wants_and_goes_on_where_it_was() -> None:
    asked = {0: bounds(10, 50), 1: bounds(0, 30)}
    assert plan({}, asked).by_partition == {0: (10, 50), 1: (0, 30)}
    assert plan({0: 40, 1: 30}, asked).by_partition == {0: (40, 50)}
    assert plan({0: 60, 1: 30}, asked).by_partition == {}


def test_records_that_went_before_they_came_are_told() -> None:
    ranges = plan({0: 5}, {0: bounds(0, 50, log_start=20)})
    assert ranges.by_partition == {0: (20, 50)}
    assert ranges.losses == ("partition 0: offsets 5 to 20 are gone",)


def test_a_log_that_ends_before_the_table_is_told() -> None:
    ranges = plan({0: 60}, {0: bounds(0, 50, log_end=50)})
    assert ranges.by_partition == {}
    assert ranges.losses == ("partition 0: the table continues at 60, but the log ends at 50",)


def test_places_outside_of_the_log_are_told() -> None:
    ranges = plan({}, {0: bounds(100, 5000, log_start=700), 1: bounds(0, 9), 2: bounds(2000, 2000)})
    assert ranges.by_partition == {0: (700, 1000), 1: (0, 9)}
    assert ranges.losses == (
        "partition 0: offsets 100 to 700 are gone",
        "partition 0: the offsets selected end at 5000, but the log ends at 1000",
        "partition 2: the first offset selected is 2000, but the log ends at 1000",
        "partition 2: the offsets selected end at 2000, but the log ends at 1000",
    )


def test_partitions_without_records_have_an_empty_range() -> None:
    asked = {
        0: bounds(0, 0, log_end=0),
        1: bounds(0, 30),
        2: bounds(5, 9, log_start=700),
        3: bounds(2000, 2000),
        4: bounds(40, 40),
    }
    ranges = plan({}, asked).by_partition
    assert list(ranges) == [1]
    assert with_empty(ranges, asked) == {0: (0, 0), 1: (0, 30), 2: (700, 700), 3: (1000, 1000), 4: (40, 40)}


def test_where_the_table_goes_on_the_users_start_does_not_count() -> None:
    assert plan({0: 800}, {0: bounds(100, 900, log_start=700)}).losses == ()


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(0, 8), st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8),
    st.integers(1, 120),
)
def test_a_limit_is_shared_out_whole(sizes: dict[int, tuple[int, int]], limit: int) -> None:
    """Never more than the limit, never less while there is more, and each range begins where it should."""
    asked = {partition: bounds(start, start + size) for partition, (start, size) in sizes.items()}
    ranges = plan({}, asked, offsets_max=limit)
    assert ranges.count == min(limit, sum(size for _, size in sizes.values()))
    for partition, (start, end) in ranges.by_partition.items():
        assert asked[partition].start == start < end <= asked[partition].end


def test_the_source_is_told_of_the_partitions_that_have_a_range_and_of_the_topic_s_id() -> None:
    topic_id = str(uuid.uuid4())
    options = as_options("orders", topic_id, {1: (7, 9), 3: (0, 2)})
    assert json.loads(options["startingOffsets"]) == {"orders": {"1": 7, "3": 0}}
    assert json.loads(options["endingOffsets"]) == {"orders": {"1": 9, "3": 2}}
    parsed = ReadOptions.parse({"root": "file:///r", **options})
    assert parsed.assigned == {"orders": {1, 3}}
    assert str(parsed.topic_id) == topic_id


def test_without_a_range_nothing_is_read() -> None:
    options = as_options("orders", str(uuid.uuid4()), {})
    assert (options["assign"], options["startingOffsets"]) == ('{"orders": [0]}', '{"orders": {"0": -2}}')
    ReadOptions.parse({"root": "file:///r", **options})
    log = PartitionLog(topic="orders", topic_id="x", partition=0, start=30, end=90)
    nothing = resolve(log, -2, 0)
    assert (nothing.start, nothing.end, nothing.losses) == (30, 30, ())
