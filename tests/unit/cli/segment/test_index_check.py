"""The check of an index: each of its faults is named, with its place."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from bmq.cli.segment.findings import Finding
from bmq.cli.segment.index_check import IndexCheck
from bmq.cli.segment.targets import TargetSegment
from bmq.core.model import SegmentName
from bmq.core.records.batch import Batch
from bmq.core.records.control import Marker
from bmq.storage.checkpoint import AbortedTransaction, Cleaned, ProducerState
from bmq.storage.damage_reader import DamagedPart, FoundBatch
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.cli.segment.roots import FIRST, NOW, SIZE, THREE, Root, batch, described

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"index": array("q", (3, SIZE + 1, NOW + 2))}, f"points at position {SIZE + 1}, where no batch begins"),
        ({"index": array("q", (4, SIZE, NOW + 2))}, "says offset 4 where the log has 3"),
        ({"index": array("q", (3, SIZE, NOW + 1))}, f"timestamps reach {NOW + 1} before it; in the log {NOW + 2}"),
        ({"index": array("q", (9, 3 * SIZE, NOW + 8))}, f"points at position {3 * SIZE}, where no batch begins"),
        ({"end_offset": 8}, f"says that offset 8 is at position {3 * SIZE}"),
        ({"position": 3 * SIZE - 1}, f"in the log a batch ends at {3 * SIZE} with offset 9"),
        ({"max_timestamp": NOW}, f"largest timestamp {NOW} at offset 6; in the log it is {NOW + 8} at 6"),
        ({"epochs": ((1, 3),)}, "leader epochs [(1, 3)]; in the log they are [(1, 0)]"),
        ({"is_closed": False}, "checkpoint of an open segment"),
        ({"segment": SegmentName(0, 1, 5)}, "belongs to segment 00000000000000000000-00000001-0005"),
        ({"index": array("q", (6, 2 * SIZE, NOW + 5, 3, SIZE, NOW + 2))}, "its positions do not ascend"),
    ],
)
def test_each_fault_of_an_index_is_named(root: Root, changes: dict[str, Any], what: str) -> None:
    root.log(0, *THREE)
    path = root.idx(described(FIRST, *THREE, **changes), FIRST)
    status, lines = root.verify(root.within(path))
    assert status == 1
    assert any(what in line and ".idx" in line for line in lines), lines


def test_an_index_that_counts_leftovers_is_at_fault(root: Root) -> None:
    root.log(0, *THREE)
    root.idx(described(FIRST, *THREE))
    root.log(6, batch(6), n=1)
    status, lines = root.verify()
    assert status == 1
    assert f"describes {3 * SIZE} bytes, but the segment ends at {2 * SIZE}" in lines[0]


def test_a_merged_segment_may_be_longer_than_its_index(root: Root) -> None:
    root.log(0, *THREE, batch(9, epoch=4))
    root.idx(described(FIRST, *THREE))
    root.log(12, batch(12, epoch=5), epoch=5)
    assert root.verify() == (0, [])


def test_entries_of_damaged_bytes_are_not_checked() -> None:
    """Damage the second batch: its entry and the sums over all batches cannot be checked, the third's entry is."""
    index = described(FIRST, *THREE, max_timestamp=NOW, epochs=((9, 0),))
    index.index[3] = 7  # the third batch's offset, which is 6
    found: list[Finding] = []
    segment = TargetSegment("/f", FIRST, None, has_log=True, has_idx=True)
    check = IndexCheck(segment, index, 3 * SIZE, found.append)
    check.on_batch(FoundBatch(0, Batch(memoryview(THREE[0]))))
    check.on_damage(DamagedPart(SIZE, SIZE, "the batch's CRC does not match", is_tail=False))
    check.on_batch(FoundBatch(2 * SIZE, Batch(memoryview(THREE[2]))))
    check.finish(None)
    assert [finding.what for finding in found] == ["an entry says offset 7 where the log has 6"]


def test_an_index_of_an_empty_segment_is_right() -> None:
    index = described(FIRST, THREE[0], position=0, end_offset=0, max_timestamp=-1, max_timestamp_offset=-1, epochs=())
    found: list[Finding] = []
    IndexCheck(TargetSegment("/f", FIRST, None, has_log=True, has_idx=True), index, 0, found.append).finish(None)
    assert found == []


TRANSACTIONAL_LOG = [
    data(0, pid=7, base=10), data(0, pid=8, base=11), marker(Marker.ABORT, pid=7, base=12),
    marker(Marker.ABORT, pid=5, base=13), marker(Marker.COMMIT, pid=6, base=14), data(1, pid=7, base=15),
]  # fmt: skip
"""Producers 5 and 6 began before the segment."""
OPENED = (ProducerState(7, 0, 0, 0, 15, ()), ProducerState(8, 0, 0, 0, 11, ()), ProducerState(5, 0, 0, 0, -1, ()))
RIGHT: dict[str, Any] = {
    "aborted": (AbortedTransaction(7, 10, 12, 2), AbortedTransaction(5, 3, 13, 2)),
    "first_open_txn": 11,
    "producers": OPENED,
}


def of_transactions(**changes: Any) -> list[str]:
    """Check an index of that log; return the faults."""
    name = SegmentName(10, 1, 0)
    raw = [bytes(each.data) for each in TRANSACTIONAL_LOG]
    for each in TRANSACTIONAL_LOG:
        each.leader_epoch = 1
    index = described(name, *raw, **{**RIGHT, "epochs": ((1, 10),), **changes})
    found: list[Finding] = []
    check = IndexCheck(TargetSegment("/f", name, None, has_log=True, has_idx=True), index, index.position, found.append)
    position = 0
    for each in TRANSACTIONAL_LOG:
        check.on_batch(FoundBatch(position, each))
        position += each.size
    check.finish(None)
    return [finding.what for finding in found]


def test_the_transactions_of_an_index_are_those_of_the_log() -> None:
    assert of_transactions() == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"aborted": ()}, "aborted transactions []; in the log they are [7: 10 to 12, stable to 11]"),
        ({"aborted": RIGHT["aborted"][1:]}, "aborted transactions [5: 3 to 13"),
        ({"aborted": (AbortedTransaction(7, 11, 12, 2), RIGHT["aborted"][1])}, "aborted transactions [7: 11 to 12"),
        ({"aborted": (AbortedTransaction(7, 10, 12, 13), RIGHT["aborted"][1])}, "stable to 13"),
        ({"first_open_txn": -1}, "the oldest from offset -1 on; in the log they are {8: 11, 7: 15}"),
        ({"producers": OPENED[:1]}, "open transactions {7: 15}"),
        ({"producers": (*OPENED, ProducerState(6, 0, 0, 0, 2, ()))}, "open transactions {7: 15, 8: 11, 6: 2}"),
    ],
)
def test_each_fault_of_an_indexs_transactions_is_named(changes: dict[str, Any], what: str) -> None:
    assert any(what in fault for fault in of_transactions(**changes)), of_transactions(**changes)


CLEANED_LOG = [
    data(0, pid=7, base=10), marker(Marker.ABORT, pid=7, base=11), marker(Marker.ABORT, pid=8, base=12),
    data(1, pid=9, base=13),
]  # fmt: skip
"""What a round left: data of 8 is gone, and a part of 9's open transaction may be."""
LEFT: dict[str, Any] = {
    "segment": SegmentName(10, 1, 0, 1),
    "aborted": (AbortedTransaction(7, 5, 11, 4), AbortedTransaction(8, 3, 12, 4)),
    "first_open_txn": 4,
    "producers": (ProducerState(9, 0, 0, 0, 12, ()), ProducerState(6, 0, 0, 0, 4, ())),
    "cleaned": Cleaned(clean_to=14),
}


def of_cleaned(**changes: Any) -> list[str]:
    """Check an index of that log; return the faults."""
    for each in CLEANED_LOG:
        each.leader_epoch = 1
    raw = [bytes(each.data) for each in CLEANED_LOG]
    name = SegmentName(10, 1, 0, 1)
    index = described(name, *raw, **{**LEFT, "epochs": ((1, 10),), **changes})
    found: list[Finding] = []
    check = IndexCheck(TargetSegment("/f", name, None, has_log=True, has_idx=True), index, index.position, found.append)
    position = 0
    for each in CLEANED_LOG:
        check.on_batch(FoundBatch(position, each))
        position += each.size
    check.finish(None)
    return [finding.what for finding in found]


def test_an_index_of_a_cleaned_segment_has_more_transactions_than_have_data_left() -> None:
    """Transactions are listed whose aborted data the round took, for readers of the old files."""
    assert of_cleaned() == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"aborted": ()}, "aborted transactions []; in the log data is left of [7: 10 to 11, stable to 12]"),
        ({"aborted": LEFT["aborted"][1:]}, "aborted transactions [8: 3 to 12"),
        ({"aborted": LEFT["aborted"][::-1]}, "aborted transactions [8: 3 to 12"),
        ({"aborted": (AbortedTransaction(6, 5, 11, 4), LEFT["aborted"][1])}, "aborted transactions [6: 5 to 11"),
        ({"aborted": (*LEFT["aborted"], AbortedTransaction(8, 3, 14, 4))}, "8: 3 to 14"),
        ({"aborted": (AbortedTransaction(4, 3, 9, 4), *LEFT["aborted"])}, "4: 3 to 9"),
        ({"first_open_txn": -1}, "the oldest from offset -1 on"),
        (
            {"producers": LEFT["producers"][1:]},
            "open transactions {6: 4}, the oldest from offset 4",
        ),
        ({"producers": (ProducerState(9, 0, 0, 0, 14, ()), LEFT["producers"][1])}, "open transactions {9: 14"),
    ],
)
def test_each_fault_of_a_cleaned_segments_transactions_is_named(changes: dict[str, Any], what: str) -> None:
    assert any(what in fault for fault in of_cleaned(**changes)), of_cleaned(**changes)
