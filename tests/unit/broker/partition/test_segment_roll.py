"""The next segment's file: its chunks, its block, and its way from a spare to a name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bmq.broker import events as ev
from bmq.broker.partition.segment_roll import SegmentRoll, Spare, block_for
from bmq.core.model import SegmentName
from tests.unit.broker.partition.machines import SPARE, append, flush, kinds, only, opened, writing


def test_the_next_segments_chunk_follows_the_usual_flush() -> None:
    machine = opened()
    machine.reconfigure(replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30)))
    flush(machine)
    append(machine, size=1 << 20)
    machine.take(1 << 20, 0)
    flush(machine)
    assert machine.current is not None
    machine.handle(ev.SegmentFailed(machine.current.entry.name, "x"), 0)
    append(machine)
    create = only(machine.after_append(0), ev.CreateSpare)
    assert isinstance(create, ev.CreateSpare)
    assert create.chunk_bytes == 65_536


@pytest.mark.parametrize(("size", "chunk"), [(10, 512), (5 << 10, 1024), (64 << 10, 4096), (1 << 20, 4096)])
def test_the_first_segments_chunk_is_at_most_a_quarter_of_its_first_batch_and_of_16_kb(size: int, chunk: int) -> None:
    """The flushes to come may be smaller than the first batch, so a chunk is at most a quarter of it, and of 16 KB."""
    machine = writing()
    machine.reconfigure(replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30)))
    append(machine, size=size)
    create = only(machine.after_append(0), ev.CreateSpare)
    assert isinstance(create, ev.CreateSpare)
    assert create.chunk_bytes == chunk


def test_the_next_segments_block_follows_what_the_last_one_took() -> None:
    """Quiet partitions reserve little room on storage; none reserves more than its topic's segments can take."""
    machine = opened(first_block_bytes=1 << 20)
    assert machine.current is not None
    assert machine.current.block_bytes == 1 << 20
    machine.reconfigure(replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30)))
    append(machine, size=950_000)
    _, effects = machine.take(1 << 20, 0)
    ahead = only(effects, ev.CreateSpare)
    assert isinstance(ahead, ev.CreateSpare)
    assert ahead.block_bytes == 128 << 20
    append(machine, size=200_000)
    assert machine.take(1 << 20, 0)[0] == [], "no longer than the block that its file was created with"
    assert "CloseSegment" in kinds(flush(machine))


def test_a_batch_larger_than_a_block_gets_a_larger_block() -> None:
    machine = writing(block_bytes=1 << 20)
    machine.reconfigure(replace(machine.config, rules=replace(machine.config.rules, max_message_bytes=1 << 30)))
    append(machine, size=3 << 20)
    create = only(machine.after_append(0), ev.CreateSpare)
    assert isinstance(create, ev.CreateSpare)
    assert create.block_bytes == 4 << 20


def test_a_segment_that_took_little_is_followed_by_a_small_block_and_none_exceeds_its_topics_segments() -> None:
    mb = 1 << 20
    assert [block_for(last * mb, 16 * mb, 128 * mb, 1 << 30) // mb for last in (0, 8, 9, 128)] == [16, 16, 128, 128]
    assert [block_for(last * mb, 16 * mb, 128 * mb, 3 * mb + 1) // mb for last in (0, 9)] == [4, 4]
    assert block_for(0, 16 * mb, 4 * mb, 14) == mb


def test_a_spare_is_registered_under_the_next_number_of_its_epoch_before_it_is_renamed() -> None:
    roll = SegmentRoll()
    for n in range(2):
        assert roll.create(4, 1 << 20, 0, 1) == ev.CreateSpare(4, n + 1, 1 << 20, 512, 1)
        assert (roll.spare, roll.unused, roll.is_chosen) == (Spare.CREATING, None, False)
        roll.ready(SPARE, 3)
        assert (roll.unused, roll.copies) == (SPARE, 3)
        entry = roll.register(10, 4)
        assert entry == replace(SPARE, name=SegmentName(10, 4, n))
        assert (roll.spare, roll.is_registering, roll.is_chosen) == (Spare.NONE, True, True)
        assert roll.name() == ev.NameSegment(entry)
        assert (roll.is_registering, roll.is_chosen) == (False, True)
        assert roll.naming(SegmentName(10, 4, 9)) is None
        assert roll.naming(entry.name) == entry
        roll.named()
        assert not roll.is_chosen


def test_only_a_spare_that_is_ready_can_be_dropped() -> None:
    roll = SegmentRoll()
    assert roll.drop() == []
    roll.create(1, 1 << 20, 0, 1)
    assert roll.drop() == []
    roll.ready(SPARE, 1)
    assert roll.drop() == [ev.DropSpare(SPARE)]
    assert roll.drop() == []
    roll.create(1, 1 << 20, 0, 1)
    roll.failed()
    assert (roll.spare, roll.drop()) == (Spare.NONE, [])


def test_spares_are_given_up_once_they_are_neither_in_use_nor_about_to_be() -> None:
    roll = SegmentRoll()
    path, made_ahead = SPARE.spare, "/topics/orders/0/.spare-00000001-0000-a"
    assert not roll.has_given_up(made_ahead, 0), "the first creation may take it"
    roll.create(1, 1 << 20, 0, 1)
    assert not roll.has_given_up(made_ahead, 0)
    assert not roll.has_given_up(path, 1)
    roll.ready(SPARE, 1)
    assert roll.has_given_up(made_ahead, 0)
    for step in (lambda: None, lambda: roll.register(10, 1), roll.name):
        step()
        assert not roll.has_given_up(path, 1)
    roll.named()
    assert roll.has_given_up(path, 1)
    roll.create(1, 1 << 20, 0, 1)
    assert not roll.has_given_up(path, 1)
    roll.failed()
    assert [roll.has_given_up(f"{path}{serial}", serial) for serial in (1, 2, 3)] == [True, True, False]
