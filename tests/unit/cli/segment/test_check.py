"""The rules of one segment: which bytes are damage, loss, a torn write or leftovers, and at which place."""

from __future__ import annotations

import pytest

from bmq.cli.segment.check import FlushedEnd, SegmentCheck
from bmq.cli.segment.findings import Finding
from bmq.cli.segment.targets import TargetSegment
from bmq.core.records.batch import HEADER_BYTES, Batch, build_gap
from bmq.storage.checkpoint import encode
from bmq.storage.damage_reader import FoundBatch
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_BEGIN, SNAPSHOT_END, frame
from tests.harness.cleaned import cleaned_batch
from tests.unit.cli.segment.roots import FIRST, NOW, SIZE, THREE, Root, batch, described, spoil

pytestmark = pytest.mark.slow

COUNT_AT = 57  # the number of records in a batch's header


@pytest.mark.parametrize("at", [SIZE + 100, SIZE + 17, SIZE + 16], ids=["data", "crc", "magic"])
def test_damage_in_the_middle_is_a_fault_at_its_first_byte(root: Root, at: int) -> None:
    path = root.log(0, *THREE)
    spoil(path, at)
    status, (line,) = root.verify()
    assert status == 1
    assert line.startswith(f"fault 000000-00000001-0000.log @{SIZE} #3: {SIZE} bytes are not a batch (")
    assert line.endswith(f"good batches follow at {2 * SIZE}")


def test_damage_names_the_repair_that_reads_the_segment(root: Root) -> None:
    """A repair without `--all` does not read a closed segment."""
    path = root.log(0, *THREE)
    spoil(path, SIZE + 100)
    for command in ("`bmq segment repair TOPIC PARTITION`", "`bmq segment repair TOPIC PARTITION --all`"):
        _, found = root.run_json("verify", "--topic", "orders")
        assert command in found[0]["meaning"]
        root.idx(described(FIRST, *THREE))


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("at", [8, 11])
def test_a_damaged_length_field_is_named_with_the_right_length(root: Root, number: int, at: int) -> None:
    """Damage the last batch too: it is not taken for a torn write."""
    path = root.log(0, *THREE)
    spoil(path, number * SIZE + at)
    status, (line,) = root.verify()
    assert status == 1
    where = f"fault 000000-00000001-0000.log @{number * SIZE} #{number * 3}"
    assert line == f"{where}: the batch's length field is damaged: it has {SIZE} bytes"


def test_damage_is_reported_once_and_not_again_for_the_index(root: Root) -> None:
    root.idx(described(FIRST, *THREE))
    for at in (100, SIZE + 100):
        path = root.log(0, *THREE)
        spoil(path, at)
        status, (line,) = root.verify()
        assert status == 1
        assert ".log" in line


@pytest.mark.parametrize("cut", [SIZE - 1, SIZE // 2, 61, 60, 20, 1])
def test_a_torn_end_is_how_a_log_may_end(root: Root, cut: int) -> None:
    root.log(0, *THREE[:2], THREE[2][:cut])
    status, (line,) = root.verify()
    assert status == 0
    assert line.startswith(f"note 000000-00000001-0000.log @{2 * SIZE} #6: the last {cut} bytes are a torn write")


def test_a_torn_end_that_the_index_describes_is_loss(root: Root) -> None:
    root.log(0, *THREE[:2], THREE[2][:-1])
    root.idx(described(FIRST, *THREE))
    status, (line,) = root.verify()
    assert status == 1
    assert f"@{2 * SIZE} #6: the file has {3 * SIZE - 1} bytes, its .idx describes {3 * SIZE}" in line


def test_a_file_shorter_than_its_checkpoint_is_loss(root: Root) -> None:
    root.log(0, *THREE[:2])
    open_one = described(FIRST, *THREE, is_closed=False)
    root.journal(frame(SNAPSHOT_BEGIN, b""), frame(CHECKPOINT, encode(open_one)), frame(SNAPSHOT_END, b""))
    status, (line,) = root.verify()
    assert status == 1
    assert f"the file has {2 * SIZE} bytes, a checkpoint says that {3 * SIZE} were flushed" in line


def test_a_bad_last_batch_that_a_checkpoint_covers_is_loss(root: Root) -> None:
    spoil(root.log(0, *THREE), 3 * SIZE - 1)
    assert root.verify()[0] == 0
    root.journal(frame(CHECKPOINT, encode(described(FIRST, *THREE, is_closed=False))))
    status, (line,) = root.verify()
    assert status == 1
    assert f"damaged from here on (the batch's CRC does not match); a checkpoint says {3 * SIZE}" in line


def test_a_checkpoint_that_contradicts_the_file_is_a_fault(root: Root) -> None:
    root.log(0, *THREE)
    root.journal(frame(CHECKPOINT, encode(described(FIRST, *THREE[:2], is_closed=False, position=2 * SIZE - 5))))
    status, (line,) = root.verify()
    assert status == 1
    assert f"a checkpoint says offset 6 is at position {2 * SIZE - 5}" in line


def test_leftovers_behind_the_next_segments_base_are_ignored(root: Root) -> None:
    root.log(0, *THREE, b"garbage")
    root.log(6, batch(6), batch(9), n=1)
    status, (line,) = root.verify()
    assert status == 0
    assert line == (
        f"note 000000-00000001-0000.log @{2 * SIZE} #6: {SIZE + 7} bytes after the segment's end are ignored"
    )


def test_a_gap_before_the_next_segment_is_loss(root: Root) -> None:
    root.log(0, *THREE[:2])
    root.log(9, batch(9), n=1)
    status, (line,) = root.verify()
    assert (status, line) == (
        1,
        f"fault 000000-00000001-0000.log @{2 * SIZE} #6: ends before offset 9, where the next segment begins",
    )


def test_a_batch_that_reaches_into_the_next_segment_is_a_fault(root: Root) -> None:
    root.log(0, *THREE)
    root.log(7, batch(7), n=1)
    status, (line,) = root.verify()
    assert status == 1
    assert "the batch reaches offset 8, but the next segment begins at 7" in line


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ([batch(0), batch(4)], f"@{SIZE} #3: base offset 4, expected 3: 1 offsets are missing"),
        ([batch(0), batch(0)], f"@{SIZE} #0: base offset 0, expected 3: offsets appear twice"),
        ([batch(1)], "@0 #0: base offset 1, expected 0"),
        ([batch(0, epoch=3), batch(3, epoch=2)], f"@{SIZE} #3: leader epoch 2 follows 3"),
    ],
)
def test_offsets_are_dense_and_epochs_do_not_fall(root: Root, data: list[bytes], what: str) -> None:
    root.log(0, *data)
    status, (line,) = root.verify()
    assert status == 1
    assert what in line


def test_records_are_parsed_only_with_the_flag(root: Root) -> None:
    good = batch(0)
    bad = bytearray(good)
    bad[HEADER_BYTES] = 0x7E  # the first record's length
    Batch(memoryview(bad)).set_append_time(NOW)  # makes the CRC right again
    root.log(0, bytes(bad))
    assert root.verify()[0] == 0
    status, (line,) = root.verify("--topic", "orders", "--records")
    assert status == 1
    assert "@0 #0: its records cannot be read: record 0 of 3" in line


@pytest.mark.parametrize("shows_open_files", [False, True])
def test_an_open_file_over_webhdfs_may_be_longer_than_it_looks(shows_open_files: bool) -> None:
    found: list[Finding] = []
    segment = TargetSegment("/f", FIRST, None, has_log=True, has_idx=False)
    check = SegmentCheck(segment, SIZE, None, FlushedEnd(2 * SIZE, 6), found.append, shows_open_files=shows_open_files)
    check.on_batch(FoundBatch(0, Batch(memoryview(THREE[0]))))
    check.finish()
    assert [finding.is_fault for finding in found] == [shows_open_files]


def found_in(segment: TargetSegment, *batches: bytes) -> list[Finding]:
    """Check a log of these batches, without an index and a checkpoint."""
    found: list[Finding] = []
    check = SegmentCheck(segment, sum(map(len, batches)), None, None, found.append)
    position = 0
    for raw in batches:
        check.on_batch(FoundBatch(position, Batch(memoryview(raw))))
        position += len(raw)
    check.finish()
    return found


ALONE = TargetSegment("/f", FIRST, None, has_log=True, has_idx=False)


def test_a_gap_that_a_repair_left_is_a_note() -> None:
    (finding,) = found_in(ALONE, *map(bytes, build_gap(0, 3, 1)), batch(3))
    assert (finding.is_fault, finding.position, finding.offset) == (False, 0, 0)
    assert finding.what == "3 offsets without records, in 1 batches"


def test_gaps_are_one_note_at_the_first_of_them() -> None:
    """A compacted segment may have thousands of them."""
    gaps = [*map(bytes, build_gap(3, 5, 1)), *map(bytes, build_gap(5, 9, 1))]
    (finding,) = found_in(ALONE, batch(0), *gaps, batch(9))
    assert (finding.is_fault, finding.position, finding.offset) == (False, SIZE, 3)
    assert finding.what == "6 offsets without records, in 2 batches"


@pytest.mark.parametrize("kept", [{0}, {1}, {2}, {0, 2}])
def test_a_batch_that_compaction_took_records_from_is_right(kept: set[int]) -> None:
    assert found_in(ALONE, cleaned_batch(batch(0), kept), batch(3)) == []


def test_a_count_that_contradicts_the_offsets_is_a_fault() -> None:
    wrong = bytearray(batch(0))
    wrong[COUNT_AT : COUNT_AT + 4] = (4).to_bytes(4)
    (finding,) = found_in(ALONE, bytes(wrong))
    assert (finding.is_fault, finding.what) == (True, "the header counts 4 records, its offsets 3")


def test_an_empty_segment_has_no_findings() -> None:
    assert found_in(ALONE) == []


def test_an_index_as_new_as_the_checkpoint_wins() -> None:
    """Repair a segment so that it is shorter: the journal's checkpoint is older than the index."""
    found: list[Finding] = []
    index = described(FIRST, *THREE[:2])
    segment = TargetSegment("/f", FIRST, None, has_log=True, has_idx=True)
    check = SegmentCheck(segment, 2 * SIZE, index, FlushedEnd(3 * SIZE, 6), found.append)
    for number, raw in enumerate(THREE[:2]):
        check.on_batch(FoundBatch(number * SIZE, Batch(memoryview(raw))))
    check.finish()
    assert found == []
