"""Loads that last: only what was there in each of three windows counts, over moves and the loss of members."""

from __future__ import annotations

import uuid

import pytest

from bmq.controller.planning.lasting_loads import RATES_PER_STEP, WINDOW_S, WINDOWS, LastingLoads
from bmq.controller.planning.partition_table import PartitionTable
from bmq.controller.planning.rates import NO_RATE, Rate
from bmq.core.model import PartitionKey

TOPIC = uuid.UUID(int=1)
KEY, OTHER = PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1)
STEP_S = WINDOW_S / 4


class World:
    """Two members that are asked four times a window."""

    def __init__(self) -> None:
        self.table = PartitionTable.of({KEY: "a", OTHER: "a"})
        self.loads = LastingLoads(self.table)
        self.now = 0.0
        for member in ("a", "b"):
            self.loads.begin(member, self.now)

    def run(self, windows: float, bytes_s: float = 0, requests_s: float = 0, members: str = "ab") -> None:
        """Go on for some windows, in which the owner of KEY measures this load."""
        for _ in range(round(windows * 4)):
            self.now += STEP_S
            for member in members:
                is_owner = self.table[KEY] == member and (bytes_s or requests_s)
                measured = {KEY: (int(bytes_s * STEP_S), int(requests_s * STEP_S))} if is_owner else {}
                for _ in self.loads.add(member, measured, self.now):
                    pass

    @property
    def lasting(self) -> Rate:
        return self.table.lasting.of(self.table[KEY]).get(KEY, NO_RATE)

    def move(self, owner: str) -> None:
        self.table.set_chunk(TOPIC, 0, [owner, "a"])


def test_a_load_counts_once_it_was_there_in_every_window() -> None:
    world = World()
    world.run(WINDOWS - 0.25, 1000, 8)
    assert world.lasting == NO_RATE
    world.run(0.25, 1000, 8)
    assert world.lasting == pytest.approx(Rate(1000, 8))
    assert world.table.lasting.total.bytes_s == 1000


def test_the_least_window_counts() -> None:
    world = World()
    for bytes_s in (1000, 500, 4000, 3000, 2000):
        world.run(1, bytes_s)
    assert world.lasting.bytes_s == 2000


@pytest.mark.parametrize("bytes_s", [0, 0.5])
def test_a_window_without_a_load_ends_it(bytes_s: float) -> None:
    world = World()
    world.run(5, 1000)
    world.run(1, bytes_s)
    assert world.lasting == NO_RATE
    assert repr(world.loads) == "<LastingLoads partitions=0 members=2>"
    world.run(WINDOWS - 1, 1000)
    assert world.lasting == NO_RATE


def test_a_partition_keeps_its_load_over_a_move() -> None:
    """Move it in the middle of a window, of which neither owner has measured all."""
    world = World()
    world.run(3.5, 1000)
    world.move("b")
    for _ in range(16):
        assert world.lasting.bytes_s == 1000
        world.run(0.25, 1000)


def test_a_load_that_ends_with_a_move_ends() -> None:
    world = World()
    world.run(3.5, 1000)
    world.move("b")
    world.run(3)
    assert world.lasting == NO_RATE
    assert repr(world.loads) == "<LastingLoads partitions=0 members=2>"


def test_a_load_of_a_member_that_is_gone_is_its_next_owners() -> None:
    world = World()
    world.run(3, 1000)
    world.loads.forget("a")
    world.move("b")
    assert world.lasting.bytes_s == 1000
    world.run(3, 0, members="b")
    assert world.lasting == NO_RATE
    assert repr(world.loads) == "<LastingLoads partitions=0 members=1>"


def test_a_deleted_topic_leaves_nothing() -> None:
    world = World()
    world.run(3, 1000)
    world.table.remove_topic(TOPIC)
    assert not world.table.lasting
    for _ in range(4):
        world.now += STEP_S
        for _ in world.loads.add("a", {}, world.now):
            pass
    assert repr(world.loads) == "<LastingLoads partitions=0 members=2>"


@pytest.mark.slow
def test_a_long_list_is_taken_in_steps() -> None:
    everything = [PartitionKey(TOPIC, number) for number in range(2500)]
    loads = LastingLoads(PartitionTable.of(dict.fromkeys(everything, "a")))
    loads.begin("a", 0.0)
    assert len(list(loads.add("a", dict.fromkeys(everything, (1000, 1)), WINDOW_S))) == 4


def test_partitions_of_a_member_that_is_gone_go_to_the_windows_of_their_owners_in_steps() -> None:
    many = 20_000
    table = PartitionTable.of({PartitionKey(TOPIC, number): "b" for number in range(many)})
    loads = LastingLoads(table)
    loads.begin("a", 0.0)
    loads.begin("b", 0.0)
    loads._windows["a"].arrived = {PartitionKey(TOPIC, number) for number in range(many)}
    loads.forget("a")
    left, longest = many, 0
    for _ in loads.add("b", {}, WINDOW_S):
        left, longest = len(loads._orphans), max(longest, left - len(loads._orphans))
    assert not loads._orphans
    assert longest <= RATES_PER_STEP
