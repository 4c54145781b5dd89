"""The planner's table is what catalog and view show, in whatever order their changes come in, also while it reads."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.rates import Rate
from bmq.controller.planning.table_feed import FORGET_TOPIC_S, TableFeed
from bmq.core.model import PartitionKey
from bmq.meta.catalog import Topic, TopicChange
from bmq.meta.cluster.assignment import CHUNK, AssignmentChunk
from bmq.meta.cluster.view import ViewChange
from tests.harness.fakes import FakeCatalog, FakeClock
from tests.harness.loop_stops import is_short, longest_step_s, without_collector
from tests.harness.seeds import example_count

IDS = [uuid.UUID(int=number + 1) for number in range(4)]
SIZES = [1, 3, CHUNK + 2]


class World:
    """A catalog and a view, which are two watches: either may be ahead."""

    def __init__(self) -> None:
        self.topics: dict[uuid.UUID, Topic] = {}
        self.chunks: dict[tuple[uuid.UUID, int], AssignmentChunk] = {}
        self.now = 0.0
        self.table = PartitionTable()
        self.catalog = FakeCatalog()
        view: Any = SimpleNamespace(chunks=self.chunks, chunk=lambda topic, number: self.chunks.get((topic, number)))
        self.feed = TableFeed(self.table, self.catalog, view, FakeClock(monotonic=lambda: self.now))

    def topic(self, topic_id: uuid.UUID, partitions: int) -> None:
        """Create a topic, give it more partitions, or delete it (0)."""
        before = self.topics.get(topic_id)
        if partitions and (before is None or before.partitions < partitions):
            self.topics[topic_id] = Topic(name=str(topic_id), topic_id=topic_id, partitions=partitions)
        elif not partitions:
            self.topics.pop(topic_id, None)
        self.catalog.topics = {str(key): topic for key, topic in self.topics.items()}
        self.feed.note_topic(TopicChange(before, self.topics.get(topic_id)))

    def chunk(self, topic_id: uuid.UUID, number: int, owners: list[str]) -> None:
        if owners:
            self.chunks[topic_id, number] = AssignmentChunk(tuple(owners))
        else:
            self.chunks.pop((topic_id, number), None)
        self.feed.note_view(ViewChange(chunks={(topic_id, number)}))

    def wanted(self) -> dict[tuple[uuid.UUID, int], str]:
        found = {}
        for topic in self.topics.values():
            for partition in range(topic.partitions):
                chunk = self.chunks.get((topic.topic_id, partition // CHUNK), AssignmentChunk(()))
                place = partition % CHUNK
                found[topic.topic_id, partition] = chunk.owners[place] if place < len(chunk.owners) else ""
        return found


CHANGES = st.one_of(
    st.tuples(st.just("topic"), st.sampled_from(IDS), st.sampled_from([0, *SIZES])),
    st.tuples(
        st.just("chunk"), st.sampled_from(IDS), st.integers(0, 1), st.lists(st.sampled_from(["a", "b", ""]), max_size=4)
    ),
    st.tuples(st.just("catch up"), st.integers(0, 3)),
)


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=12), st.lists(CHANGES, max_size=25))
@settings(max_examples=example_count(50, 1_500), deadline=None)
def test_the_table_is_that_of_catalog_and_view(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> None:
    world = World()
    for kind, *rest in before:
        if kind != "catch up":
            getattr(world, kind)(*rest)
    world.feed = TableFeed(world.table, world.catalog, world.feed._view, world.feed._clock)
    world.feed.begin()
    reading = world.feed.catch_up()
    for kind, *rest in after:
        if kind == "catch up":
            for _ in range(rest[0]):
                if next(reading, reading) is reading:
                    reading = world.feed.catch_up()
        else:
            getattr(world, kind)(*rest)
    for steps in (reading, world.feed.catch_up()):
        for _ in steps:
            """Until all is read."""
    assert {(key.topic_id, key.partition): owner for key, owner in world.table.items()} == world.wanted()


def test_an_assignment_without_a_topic_is_deleted_after_a_minute() -> None:
    """The catalog may be behind: a topic that it comes to know keeps its assignment."""
    world = World()
    world.chunk(IDS[0], 0, ["a"])
    world.chunk(IDS[1], 0, ["a"])
    world.feed.begin()
    list(world.feed.catch_up())
    assert world.feed.has_unknown
    assert world.feed.deleted(FORGET_TOPIC_S) == []
    world.topic(IDS[1], 1)
    list(world.feed.catch_up())
    assert world.feed.deleted(FORGET_TOPIC_S + 1) == [IDS[0]]
    world.feed.forget([IDS[0]])
    assert not world.feed.has_unknown


@pytest.mark.slow
def test_very_many_partitions_with_traffic_change_owners_and_are_deleted_in_short_steps() -> None:
    world, (topic_id, *_), chunks = World(), IDS, 100
    world.topic(topic_id, chunks * CHUNK)
    longest_s = 0.0
    with without_collector():
        for owner in ("a", "b", ""):
            if not owner:
                world.topic(topic_id, 0)
            for number in range(chunks):
                world.chunk(topic_id, number, [owner] * CHUNK if owner else [])
            longest_s = max(longest_s, longest_step_s(world.feed.catch_up()))
            assert world.table.count(owner) == (chunks * CHUNK if owner else 0)
            if owner == "a":
                for key in world.table:
                    world.table.set_rate(key, Rate(1_000.0, 1.0))
                    world.table.set_lasting(key, Rate(1_000.0, 1.0))
    assert not world.table.rated_count
    assert not world.table.lasting
    assert is_short(longest_s, 0.025), longest_s


def test_a_rate_of_a_partition_that_is_being_removed_is_ignored() -> None:
    """Set rates between the steps in which the topic goes: none of them stays behind."""
    table, (topic_id, *_) = PartitionTable(), IDS
    table.set_topic(topic_id, 3 * CHUNK)
    for number in range(3):
        table.set_chunk(topic_id, number, ["a"] * CHUNK)
    for _ in table.remove_in_steps(topic_id):
        for key in [PartitionKey(topic_id, number * CHUNK) for number in range(3)]:
            table.set_rate(key, Rate(1_000.0, 1.0))
    assert (table.rated_count, len(table), list(table.owners)) == (0, 0, [])
