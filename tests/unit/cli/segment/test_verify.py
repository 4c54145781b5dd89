"""``bmq segment verify``: which files it reads, what it compares them with, and its progress."""

from __future__ import annotations

import sys

import pytest

from bmq.cli import progress
from bmq.core.model import SegmentName
from bmq.core.records.control import Marker
from bmq.storage import batch_search
from bmq.storage.checkpoint import AbortedTransaction, Cleaned, ProducerState, encode
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_BEGIN, SNAPSHOT_END, frame
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.cli.segment.roots import FIRST, SIZE, THREE, Root, batch, described, spoil

pytestmark = pytest.mark.slow


def test_a_right_log_has_no_findings(root: Root) -> None:
    root.log(0, *THREE)
    root.idx(described(FIRST, *THREE))
    root.log(9, batch(9, epoch=2), epoch=2)
    root.journal(frame(SNAPSHOT_BEGIN, b""), frame(SNAPSHOT_END, b""))
    assert root.verify() == (0, [])
    status, out, _ = root.run("verify", "--topic", "orders", "--records")
    assert status == 0
    assert "ok" in out
    assert "3 batches, offsets 0..8" in out
    assert out.endswith("2 files, 0 faults, 0 notes\n")


def test_damage_is_found_in_front_of_a_batch_larger_than_a_block(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_search, "READ_BYTES", 256)
    spoil(root.log(0, batch(0), batch(3, value=b"x" * 5000)), 17)
    status, (line,) = root.verify()
    assert status == 1
    assert f"good batches follow at {SIZE}" in line


@pytest.mark.parametrize("block_bytes", range(90, 400, 31))
def test_block_borders_do_not_matter(root: Root, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(batch_search, "READ_BYTES", block_bytes)
    spoil(root.log(0, *THREE), SIZE + 20)
    root.journal(*(frame(CHECKPOINT, encode(described(FIRST, *THREE[:1]))) for _ in range(3)))
    status, (line,) = root.verify()
    assert status == 1
    assert f"@{SIZE} #3" in line


def test_a_superseded_segment_is_ignored_unless_it_was_flushed(root: Root) -> None:
    root.log(0, *THREE[:2])
    root.log(6, batch(6), n=1)
    root.log(6, batch(6), batch(9), n=2)
    status, (line,) = root.verify()
    assert status == 0
    assert "all its" in line
    root.journal(frame(CHECKPOINT, encode(described(SegmentName(6, 1, 1), batch(6), is_closed=False))))
    status, (line,) = root.verify()
    assert status == 1
    assert "below data that was flushed here" in line


def test_the_empty_end_of_a_quiet_log_is_no_fault(root: Root) -> None:
    root.log(0, *THREE[:2])
    root.log(6, n=1)
    root.idx(described(SegmentName(6, 1, 1)))
    root.log(6, batch(6), n=2)
    status, lines = root.run_json("verify", "--topic", "orders")
    assert status == 0
    (meaning,) = [line["meaning"] for line in lines if line["kind"] == "note"]
    assert "the empty end of a quiet compacted log" in meaning


def test_sources_that_wait_for_their_deletion_are_no_fault(root: Root) -> None:
    """A cleaned segment has replaced them; the owner deletes them file.delete.delay.ms later."""
    cleaned = SegmentName(0, 1, 1, 1)
    for name, batches in ((FIRST, THREE[:2]), (SegmentName(6, 1, 1), [batch(6)])):
        root.log(name.base, *batches, n=name.n)
        root.idx(described(name, *batches))
    folder = next(root.folder.rglob(f"{FIRST}.log")).parent
    (folder / f"{cleaned}.log").write_bytes(b"".join([*THREE[:2], batch(6)]))
    root.idx(described(cleaned, *THREE[:2], batch(6), cleaned=Cleaned(clean_to=9)))
    root.log(9, batch(9), n=2)
    status, lines = root.verify()
    assert status == 0
    assert sum("a cleaned segment has replaced it" in line for line in lines) == 2
    (folder / f"{cleaned}.log").unlink()
    root.log(0, *THREE[:2], batch(6), epoch=2)  # of another owner: the first owner's records were acknowledged
    status, lines = root.verify()
    assert status == 1
    assert sum("below data that was flushed here" in line for line in lines) == 2


def test_a_damaged_index_and_one_without_its_log_are_reported(root: Root) -> None:
    root.log(0, *THREE)
    spoil(root.idx(described(FIRST, *THREE)), 40)
    root.idx(described(SegmentName(20, 1, 9), batch(20)))
    status, lines = root.verify()
    assert status == 1
    assert [line.split(":", 1)[1] for line in lines] == [
        " there is an index and no log of this name",
        " index CRC does not match",
    ]


def test_a_journal_may_end_torn_but_not_be_damaged(root: Root) -> None:
    records = [
        frame(SNAPSHOT_BEGIN, b""),
        frame(CHECKPOINT, encode(described(FIRST, *THREE))),
        frame(SNAPSHOT_END, b""),
    ]
    path = root.journal(*records, frame(9, b"of a later version"))
    assert root.verify(root.within(path)) == (0, [])
    root.journal(*records, records[1][:-3])
    status, (line,) = root.verify(root.within(path))
    assert status == 0
    assert "torn write" in line
    spoil(path, len(records[0]) + 30)
    status, lines = root.verify(root.within(path))
    assert status == 1
    assert f"@{len(records[0])} #None: {len(records[1])} bytes are not a record" in lines[0]
    root.journal(frame(CHECKPOINT, b"no checkpoint"))
    status, lines = root.verify(root.within(path))
    assert status == 1
    assert "@0 #None: checkpoint ends early" in lines[0]
    assert "no whole snapshot" in lines[1]


def test_progress_counts_bytes_over_all_files(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify two files: progress is reported by bytes over all files, and by files."""
    monkeypatch.setattr(progress, "LOG_S", 0.0)
    first, second = batch(0), batch(3)
    root.log(0, first, second)
    root.log(6, batch(6), n=1)
    _, out, err = root.run("verify", "--topic", "orders", "--json")
    assert len(out.splitlines()) == 3
    assert [line.partition("/s, ")[2] or line.rpartition(", ")[2] for line in err.splitlines()] == [
        "file 1 of 2",
        "file 1 of 2",
        "file 2 of 2",
    ]
    read = [line.removeprefix("bmq: verify: ").partition(",")[0] for line in err.splitlines()]
    assert read == ["0 B", f"{len(first)} B", f"{len(first) + len(second)} B"]


def test_progress_is_cleared_before_a_finding_is_printed(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TERMINAL_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    root.log(0, batch(0), b"\0" * 100, batch(3))
    _, _, err = root.run("verify", "--topic", "orders")
    assert err.startswith("\r\x1b[Kbmq: verify: 0 B, file 1 of 1")
    assert err.endswith("\r\x1b[K")


def test_two_segments_of_one_registration_are_a_fault(root: Root) -> None:
    root.log(0, batch(0))
    root.log(3, batch(3))
    status, lines = root.verify()
    assert status == 1
    assert lines == [
        "fault 000003-00000001-0000.log @None #None: 00000000000000000000-00000001-0000 has the same epoch and number"
    ]


CLEANED = SegmentName(0, 4, 0, 1)
"""Cleaned from segments of the epochs 1, 2 and 4."""


def of_epochs(root: Root, *epochs: int, history: tuple[tuple[int, int], ...]) -> None:
    """Write a cleaned segment of three batches with these epochs, and its index with this history."""
    data = [batch(3 * at, epoch=epoch) for at, epoch in enumerate(epochs)]
    (root.partition / f"{CLEANED}.log").write_bytes(b"".join(data))
    root.idx(described(CLEANED, *data, epochs=history))


def test_a_cleaned_segment_over_several_epochs_is_right_beside_its_sources(root: Root) -> None:
    of_epochs(root, 1, 2, 4, history=((1, 0), (2, 3), (4, 6)))
    root.log(0, batch(0))
    root.log(6, batch(6, epoch=4), epoch=4)
    root.log(9, batch(9, epoch=5), epoch=5)
    status, lines = root.verify()
    assert (status, [line for line in lines if line.startswith("fault")]) == (0, [])
    (root.partition / f"{CLEANED}.idx").unlink()
    assert root.verify()[0] == 0


@pytest.mark.parametrize(
    ("epochs", "history", "what"),
    [
        ((1, 4, 2), ((1, 0), (2, 3), (4, 6)), "leader epoch 2 follows 4"),
        ((1, 2, 5), ((1, 0), (2, 3), (4, 6)), "leader epoch 5 is above that of the name"),
        ((1, 2, 4), ((2, 0), (4, 6)), "leader epoch 2 at offset 0; in the log it is 1"),
        ((1, 2, 4), ((1, 1), (4, 6)), "leader epochs [(1, 1), (4, 6)] are not those of the segment's sources"),
        ((1, 2, 4), (), "leader epochs [] are not those of the segment's sources"),
    ],
)
def test_each_fault_of_a_cleaned_segments_epochs_is_named(
    root: Root, epochs: tuple[int, ...], history: tuple[tuple[int, int], ...], what: str
) -> None:
    of_epochs(root, *epochs, history=history)
    root.log(9, batch(9, epoch=6), epoch=6)
    status, lines = root.verify()
    assert status == 1
    assert any(what in line for line in lines), lines


def test_dump_shows_the_facts_of_a_cleaned_segments_index(root: Root) -> None:
    root.idx(described(CLEANED, batch(0), cleaned=Cleaned(9, -1, 300, 200, 2, 1)))
    _, lines = root.run_json("dump", f"{root.within(root.partition)}/{CLEANED}.idx")
    (index,) = [line for line in lines if line["kind"] == "idx"]
    assert index["segment"] == str(CLEANED)
    wanted = {"cleanUpTo": 9, "earliestDeleteHorizon": -1, "bytesBefore": 300, "bytesAfter": 200}
    assert index.items() >= (wanted | {"tombstones": 2, "markers": 1}).items()


@pytest.mark.parametrize("action", ["verify", "cat", "dump"])
def test_a_root_with_a_level_that_this_version_would_misread_is_refused(root: Root, action: str) -> None:
    root.log(0, *THREE)
    (root.folder / "cluster.json").write_text('{"format":2,"cluster_id":"id","incarnation":0}')
    (root.folder / "levels" / f"{0:05d}-{9:019d},transaction.version=3").mkdir(parents=True)
    status, out, err = root.run(action, "--topic", "orders")
    assert (status, out) == (2, "")
    assert "transaction.version 3 is in force, this version supports 0 to 2. Use a version of BMQ" in err
    assert err.count("\n") == 1


def test_an_index_that_forgot_what_was_open_before_its_segment_is_at_fault(root: Root) -> None:
    """The index of the first segment says what is open; the second index lists neither it nor its abort."""
    first = [data(0, pid=7, base=0), data(0, pid=8, base=1)]
    second = [marker(Marker.ABORT, pid=7, base=2), data(0, pid=9, base=3)]
    for each in (*first, *second):
        each.assign(each.base_offset, 1)
    raw = [[bytes(each.data) for each in part] for part in (first, second)]
    name = SegmentName(2, 1, 1)
    root.log(0, *raw[0])
    root.log(2, *raw[1], n=1)
    begun = tuple(ProducerState(pid, 0, 0, 0, start, ()) for pid, start in ((7, 0), (8, 1)))
    root.idx(described(FIRST, *raw[0], first_open_txn=0, producers=begun))
    opened = (begun[1], ProducerState(9, 0, 0, 0, 3, ()))
    right = {"first_open_txn": 1, "producers": opened, "aborted": (AbortedTransaction(7, 0, 2, 1),)}
    root.idx(described(name, *raw[1], **right))
    assert root.verify() == (0, [])
    root.idx(described(name, *raw[1], **{**right, "producers": opened[1:], "aborted": (), "first_open_txn": 3}))
    status, lines = root.verify()
    assert status == 1
    assert "aborted transactions []; in the log they are [7: 0 to 2, stable to 1]" in lines[0]
    assert "open transactions {9: 3}, the oldest from offset 3 on; in the log they are {8: 1, 9: 3}" in lines[1]
