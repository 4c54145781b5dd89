"""The plan of a segment's repair: batches that are kept byte for byte, and gaps for the offsets that are lost."""

from __future__ import annotations

import pytest

from bmq.broker.partition.older_producers import OlderProducers
from bmq.broker.partition.producer_state import ProducerTable
from bmq.broker.repair.plan import Kept, LostOffsets, Mended, Planner, Salvage, SegmentPlan
from bmq.broker.repair.transactions import TransactionScan
from bmq.core.model import SegmentName
from bmq.core.records.batch import HEADER_BYTES, Batch, Record, build_batch, build_gap
from bmq.storage.damage_reader import DamagedPart, FoundBatch
from bmq.storage.filesystem import CorruptData, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

NAME = SegmentName(10, 3, 0)


def batch(base: int, count: int = 1, epoch: int = 3) -> Batch:
    records = [Record(value=b"0123456789")] * count
    data = build_batch(records, base_offset=base, base_timestamp=1000 + base, leader_epoch=epoch)
    return Batch(memoryview(data))


SIZE = batch(0).size


class Noting(TransactionScan):
    """A scan that notes the first offset of each batch that is kept."""

    def __init__(self, kept: list[int]) -> None:
        super().__init__(OlderProducers(ProducerTable(), is_complete=True), 0)
        self._kept = kept

    def keep(self, batch: Batch) -> None:
        super().keep(batch)
        self._kept.append(batch.base_offset)


class Planning:
    """A planner of a segment that begins at offset 10, and the batches that it kept."""

    def __init__(self, limit: int | None = None, *, with_records: bool = False) -> None:
        self.kept: list[int] = []
        self.planner = Planner(
            NAME, "/log", 10_000, limit, with_records=with_records, interval_bytes=1,
            scan=Noting(self.kept),
        )  # fmt: skip
        self.position = 0

    def find(self, *found: Batch) -> None:
        """Have the planner find these batches one behind the other."""
        for each in found:
            self.planner.on_batch(FoundBatch(self.position, each))
            self.position += each.size

    def damage(self, size: int, mended: Batch | None = None, *, is_tail: bool = False) -> None:
        """Have the planner find so many damaged bytes."""
        self.planner.on_damage(DamagedPart(self.position, size, "damaged here", is_tail=is_tail, mended=mended))
        self.position += size


def lost(plan: SegmentPlan) -> list[tuple[int, int, int, str]]:
    return [(gap.first, gap.end, gap.position, gap.why) for gap in plan.gaps]


def test_a_sound_segment_is_kept_in_one_piece_and_not_changed() -> None:
    planning = Planning()
    planning.find(batch(10), batch(11, 2), batch(13))
    plan = planning.planner.finish(14)
    assert plan.parts == [Kept(0, planning.position)]
    assert (plan.is_changed, plan.lost, plan.end_offset, plan.position) == (False, 0, 14, planning.position)
    assert planning.kept == [10, 11, 13]


def test_offsets_of_a_damaged_part_become_a_gap_where_it_stands() -> None:
    planning = Planning()
    planning.find(batch(10))
    planning.damage(77)
    planning.find(batch(14))
    plan = planning.planner.finish(15)
    assert plan.parts[0] == Kept(0, SIZE)
    assert lost(plan) == [(11, 14, SIZE, "damaged here")]
    assert plan.parts[2] == Kept(SIZE + 77, SIZE)
    assert (plan.is_changed, plan.lost) == (True, 3)
    gap_bytes = sum(len(data) for data in build_gap(11, 14, 3))
    assert plan.position == 2 * SIZE + gap_bytes
    assert plan.index.entries.tolist()[-3:-1] == [14, SIZE + gap_bytes]


def test_offsets_that_are_missing_without_damage_are_a_gap_too() -> None:
    planning = Planning()
    planning.find(batch(12))
    assert lost(planning.planner.finish(15)) == [
        (10, 12, 0, "a batch is missing"),
        (13, 15, 10_000, "the file ends before"),
    ]


def test_damage_at_the_end_is_a_gap_only_if_acknowledged_offsets_are_lost() -> None:
    for end, gaps in ((11, []), (13, [(11, 13, SIZE, "damaged here")])):
        planning = Planning()
        planning.find(batch(10))
        planning.damage(30, is_tail=True)
        plan = planning.planner.finish(end)
        assert (lost(plan), plan.is_changed, plan.end_offset) == (gaps, bool(gaps), end)


def test_a_batch_whose_length_was_damaged_is_kept_with_the_right_one() -> None:
    planning = Planning()
    whole = batch(10)
    planning.damage(SIZE, whole)
    planning.find(batch(11))
    plan = planning.planner.finish(12)
    assert plan.parts == [Mended(whole.data), Kept(SIZE, SIZE)]
    assert (plan.lost, plan.is_changed, planning.kept) == (0, True, [10, 11])
    assert plan.notes == ["damaged here, at 0: kept with the right length"]


def test_offsets_that_are_found_again_are_dropped_there() -> None:
    planning = Planning()
    planning.find(batch(10), batch(10), batch(11))
    plan = planning.planner.finish(12)
    assert plan.parts == [Kept(0, SIZE), Kept(2 * SIZE, SIZE)]
    assert plan.notes == [f"offsets from 10 are found again at {SIZE}: dropped there"]


def test_nothing_at_or_past_the_next_segments_base_is_kept() -> None:
    planning = Planning(limit=12)
    planning.find(batch(10))
    assert not planning.planner.is_complete
    planning.find(batch(11, 2))
    plan = planning.planner.finish(12)
    assert planning.kept == [10]
    assert lost(plan) == [(11, 12, 10_000, "the file ends before")]
    planning = Planning(limit=12)
    planning.find(batch(10, 2))
    assert planning.planner.is_complete


def test_a_batch_with_unreadable_records_is_lost_only_if_records_are_checked() -> None:
    poison = batch(10)
    poison.data[HEADER_BYTES] ^= 0x40  # the record's length
    poison.set_max_timestamp(poison.max_timestamp)  # makes the CRC right
    for with_records in (False, True):
        planning = Planning(with_records=with_records)
        planning.find(poison, batch(11))
        plan = planning.planner.finish(12)
        assert (plan.lost, planning.kept) == ((1, [11]) if with_records else (0, [10, 11]))


def test_leader_epochs_are_those_of_the_batches_and_a_gap_has_the_one_before_it() -> None:
    planning = Planning()
    planning.find(batch(10, epoch=3), batch(13, epoch=5))
    plan = planning.planner.finish(14)
    assert plan.epochs == [(3, 10), (5, 13)]
    (gap,) = plan.gaps
    assert isinstance(gap, LostOffsets)
    assert gap.leader_epoch == 3


class Failing(MemoryFileSystem):
    """A file of 64 KB of the byte x, of which reads over ``bad`` fail."""

    def __init__(self, bad: range, error: StorageError) -> None:
        super().__init__(MemoryStorage(), "tool")
        self._bad = bad
        self._error = error

    async def read(self, path: str, position: int, length: int) -> bytes:
        if position < self._bad.stop and position + length > self._bad.start:
            raise self._error
        return b"x" * length


async def test_bytes_without_a_right_checksum_are_zeros_and_their_neighbours_are_read() -> None:
    salvage = Salvage(Failing(range(9_000, 9_001), CorruptData("bad")), unreadable_is_lost=False)
    found = await salvage.read("/log", 0, 64 << 10)
    assert len(found) == 64 << 10
    zeros = found.count(0)
    assert 0 < zeros <= 4 << 10
    assert found[9_000] == 0
    assert found == b"x" * found.index(0) + bytes(zeros) + b"x" * (len(found) - found.index(0) - zeros)


async def test_bytes_that_may_come_back_are_lost_only_if_the_operator_says_so() -> None:
    away = Failing(range(1), StorageUnavailable("no datanode responds"))
    with pytest.raises(StorageUnavailable):
        await Salvage(away, unreadable_is_lost=False).read("/log", 0, 1000)
    assert await Salvage(away, unreadable_is_lost=True).read("/log", 0, 1000) == bytes(1000)
    with pytest.raises(NoSuchFile):
        await Salvage(Failing(range(1), NoSuchFile("/log")), unreadable_is_lost=True).read("/log", 0, 1000)
