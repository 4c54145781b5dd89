"""Repeated batches with `acks=all` and the copies of the files that hold them, in the pure machine."""

from __future__ import annotations

import pytest

from bmq.broker import events as ev
from bmq.broker.config import LogConfig
from bmq.broker.partition.batches import Duplicate
from bmq.broker.partition.found_copies import COUNTS_MAX, Count, FoundCopies
from bmq.broker.partition.machine import PartitionMachine
from bmq.core.errors import ErrorCode, RequestError
from tests.unit.broker.partition.machines import batch
from tests.unit.broker.partition.test_shortage import open_segment, put, two_copies


def flushed_to(copies: int, *, asked: int) -> PartitionMachine:
    """Return a machine with min.insync.replicas=2, and a batch flushed to a segment of ``copies`` copies."""
    machine = two_copies()
    put(machine, asked, pid=7, sequence=0)
    machine.after_append(0)
    open_segment(machine, copies)
    machine.take(1 << 20, 0)
    assert machine.current is not None
    machine.handle(ev.Flushed(machine.current.entry.name, machine.current.position), 0)
    return machine


def repeat(machine: PartitionMachine, copies: int = 2) -> None:
    assert isinstance(machine.accept(batch(pid=7, sequence=0), 1, copies), Duplicate)


def refused(machine: PartitionMachine) -> str:
    with pytest.raises(RequestError) as error:
        repeat(machine)
    assert error.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    return str(error.value)


def test_what_was_flushed_to_enough_copies_is_not_counted() -> None:
    machine = flushed_to(2, asked=2)
    repeat(machine)
    assert machine.handle(ev.CopiesWanted(), 0) == []


def test_what_was_flushed_to_a_short_segment_is_counted() -> None:
    machine = flushed_to(1, asked=1)
    repeat(machine, 1)  # acks=1 is not bound
    assert machine.handle(ev.CopiesWanted(), 0) == []
    refused(machine)
    assert machine.handle(ev.CopiesWanted(), 0) == [ev.CountCopies(0, 1)]
    refused(machine)
    assert machine.handle(ev.CopiesWanted(), 0) == [], "a count is under way"
    machine.handle(ev.CopiesCounted(0, 1, 1), 0)
    assert "it has 1" in refused(machine)
    assert machine.handle(ev.CopiesWanted(), machine.broker.retry_ms.most - 1) == [], "counted a moment ago"
    refused(machine)
    assert machine.handle(ev.CopiesWanted(), machine.broker.retry_ms.most) == [ev.CountCopies(0, 1)]
    machine.handle(ev.CopiesCounted(0, 1, 0, "the NameNode is away"), 0)
    assert "the NameNode is away" in refused(machine)
    assert machine.handle(ev.CopiesWanted(), machine.broker.retry_ms.most) == [ev.CountCopies(0, 1)]
    machine.handle(ev.CopiesCounted(0, 1, 2), 0)
    repeat(machine)


def test_a_higher_setting_doubts_what_was_flushed_before() -> None:
    machine = flushed_to(2, asked=2)
    machine.reconfigure(LogConfig(min_insync=3))
    with pytest.raises(RequestError):
        repeat(machine, 3)
    assert machine.handle(ev.CopiesWanted(), 0) == [ev.CountCopies(0, 1)]


def test_a_batch_on_its_way_to_fewer_copies_is_not_waited_for() -> None:
    machine = two_copies()
    put(machine, 1, pid=7, sequence=0)
    assert "not flushed yet" in refused(machine)
    assert machine.handle(ev.CopiesWanted(), 0) == [], "there is no file to be counted"


def test_counts_replace_older_ones_and_are_bounded() -> None:
    found = FoundCopies()
    found.doubt(100)
    for base in range(2 * COUNTS_MAX):
        found.counted(Count(base, base + 1, 1, 0, ""))
    assert not found.has(0, 1), "forgotten"
    assert found.has(2 * COUNTS_MAX - 1, 1)
    found.counted(Count(0, 100, 2, 0, ""))
    assert all(found.has(offset, 2) for offset in range(100))
    assert found.has(100, 3)
