"""``bmq segment`` on real folders: what it prints, what it finds wrong and where, and its exit status."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from array import array
from pathlib import Path
from typing import Any

import pytest

from bmq.cli import progress
from bmq.cli.main import EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, main
from bmq.cli.segment import batch_records
from bmq.cli.segment.check import FlushedEnd, SegmentCheck
from bmq.cli.segment.findings import Finding
from bmq.cli.segment.targets import TargetSegment
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.records.batch import CODECS, CONTROL, HEADER_BYTES, Batch, Record, build_batch
from bmq.storage import batch_search
from bmq.storage.checkpoint import AbortedTransaction, Checkpoint, ProducerBatch, ProducerState, encode
from bmq.storage.damage_reader import FoundBatch
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_BEGIN, SNAPSHOT_END, frame
from bmq.storage.segment import encode_idx
from tests.unit.core.records.test_reader import built_by_kafka

pytestmark = pytest.mark.slow

TOPIC_ID = uuid.UUID(int=7)
KEY = PartitionKey(TOPIC_ID, 0)
NOW = 1_700_000_000_000


def batch(base: int, count: int = 3, *, codec: int = 0, epoch: int = 1, value: bytes = b"v" * 40) -> bytes:
    """``count`` records from ``base``, built by kafka-python, numbered as an owner does."""
    data = bytearray(built_by_kafka([(NOW + base + i, b"k%d" % (base + i), value, []) for i in range(count)], codec))
    Batch(memoryview(data)).assign(base, epoch)
    return bytes(data)


class Root:
    """A folder with one topic."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.partition = folder / "topics" / "orders" / str(TOPIC_ID) / "0"
        self.partition.mkdir(parents=True)
        self._capsys = capsys

    def log(self, base: int, *data: bytes, epoch: int = 1, n: int = 0) -> Path:
        path = self.partition / f"{SegmentName(base, epoch, n)}.log"
        path.write_bytes(b"".join(data))
        return path

    def idx(self, checkpoint: Checkpoint, name: SegmentName | None = None) -> Path:
        path = self.partition / f"{name or checkpoint.segment}.idx"
        path.write_bytes(encode_idx(checkpoint))
        return path

    def journal(self, *records: bytes, name: str = "broker-00000001.jnl") -> Path:
        path = self.folder / "journals" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"".join(records))
        return path

    def within(self, path: Path) -> str:
        return f"/{path.relative_to(self.folder)}"

    def run(self, *arguments: str) -> tuple[int, str, str]:
        status = main(["segment", arguments[0], "--root", self.folder.as_uri(), *arguments[1:]])
        out, err = self._capsys.readouterr()
        return status, out, err

    def run_json(self, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
        status, out, _ = self.run(*arguments, "--json")
        return status, [json.loads(line) for line in out.splitlines()]

    def verify(self, *arguments: str) -> tuple[int, list[str]]:
        """Exit status, and each finding as one line."""
        status, lines = self.run_json("verify", *(arguments or ("--topic", "orders")))
        found = [line for line in lines if line["kind"] in ("fault", "note")]
        assert [line["kind"] for line in lines][-1] == "summary"
        assert all(line["meaning"] for line in found)
        names = [line["file"].rsplit("/", 1)[1].replace("00000000000000", "") for line in found]
        return status, [
            f"{f['kind']} {name} @{f['position']} #{f['offset']}: {f['what']}"
            for f, name in zip(found, names, strict=True)
        ]


@pytest.fixture
def root(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Root:
    return Root(tmp_path, capsys)


def described(name: SegmentName, *data: bytes, **changes: Any) -> Checkpoint:
    """Return the closed checkpoint of a segment of these batches, with an index entry for each but the first."""
    index, position, highest, highest_at = array("q"), 0, -1, -1
    epochs: list[tuple[int, int]] = []
    for raw in data:
        b = Batch(memoryview(raw))
        if position:
            index.extend((b.base_offset, position, highest))
        if b.max_timestamp > highest:
            highest, highest_at = b.max_timestamp, b.base_offset
        if not epochs or epochs[-1][0] != b.leader_epoch:
            epochs.append((b.leader_epoch, b.base_offset))
        position += len(raw)
    fields: dict[str, Any] = {
        "segment": name, "position": position, "end_offset": Batch(memoryview(data[-1])).next_offset,
        "log_start": 0, "is_closed": True, "max_timestamp": highest, "max_timestamp_offset": highest_at,
        "index": index, "epochs": tuple(epochs),
    }  # fmt: skip
    return Checkpoint(key=KEY, **{**fields, **changes})


def spoil(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


THREE = [batch(0), batch(3), batch(6)]
SIZE = len(THREE[0])
FIRST = SegmentName(0, 1, 0)


# ------------------------------------------------------------------------------------------------- verify


def test_a_right_log_is_fine(root: Root) -> None:
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


@pytest.mark.parametrize("at", [SIZE + 100, SIZE + 17, SIZE + 16], ids=["data", "crc", "magic"])
def test_damage_in_the_middle(root: Root, at: int) -> None:
    path = root.log(0, *THREE)
    spoil(path, at)
    status, (line,) = root.verify()
    assert status == 1
    assert line.startswith(f"fault 000000-00000001-0000.log @{SIZE} #3: {SIZE} bytes are not a batch (")
    assert line.endswith(f"good batches follow at {2 * SIZE}")


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("at", [8, 11])
def test_a_damaged_length_field_is_told(root: Root, number: int, at: int) -> None:
    """Damage the last batch too: it is not taken for a torn write."""
    path = root.log(0, *THREE)
    spoil(path, number * SIZE + at)
    status, (line,) = root.verify()
    assert status == 1
    where = f"fault 000000-00000001-0000.log @{number * SIZE} #{number * 3}"
    assert line == f"{where}: the batch's length field is damaged: it has {SIZE} bytes"


def test_damage_is_found_in_front_of_a_batch_larger_than_a_block(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_search, "READ_BYTES", 256)
    spoil(root.log(0, batch(0), batch(3, value=b"x" * 5000)), 17)
    status, (line,) = root.verify()
    assert status == 1
    assert f"good batches follow at {SIZE}" in line


def test_damage_is_told_once_not_again_for_the_index(root: Root) -> None:
    root.idx(described(FIRST, *THREE))
    for at in (100, SIZE + 100):
        path = root.log(0, *THREE)
        spoil(path, at)
        status, (line,) = root.verify()
        assert status == 1
        assert ".log" in line


@pytest.mark.parametrize("block_bytes", range(90, 400, 31))
def test_block_borders_do_not_matter(root: Root, monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(batch_search, "READ_BYTES", block_bytes)
    spoil(root.log(0, *THREE), SIZE + 20)
    root.journal(*(frame(CHECKPOINT, encode(described(FIRST, *THREE[:1]))) for _ in range(3)))
    status, (line,) = root.verify()
    assert status == 1
    assert f"@{SIZE} #3" in line


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


def test_a_checkpoint_that_contradicts_the_file(root: Root) -> None:
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


def test_a_gap_before_the_next_segment_is_loss(root: Root) -> None:
    root.log(0, *THREE[:2])
    root.log(9, batch(9), n=1)
    status, (line,) = root.verify()
    assert (status, line) == (
        1,
        f"fault 000000-00000001-0000.log @{2 * SIZE} #6: ends before offset 9, where the next segment begins",
    )


def test_a_segment_that_reaches_into_the_next_one(root: Root) -> None:
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
def test_each_fault_of_an_index(root: Root, changes: dict[str, Any], what: str) -> None:
    root.log(0, *THREE)
    path = root.idx(described(FIRST, *THREE, **changes), FIRST)
    status, lines = root.verify(root.within(path))
    assert status == 1
    assert any(what in line and ".idx" in line for line in lines), lines


def test_an_index_that_counts_leftovers(root: Root) -> None:
    root.log(0, *THREE)
    root.idx(described(FIRST, *THREE))
    root.log(6, batch(6), n=1)
    status, lines = root.verify()
    assert status == 1
    assert f"describes {3 * SIZE} bytes, but the segment ends at {2 * SIZE}" in lines[0]


def test_an_index_with_a_bad_byte_and_one_without_its_log(root: Root) -> None:
    root.log(0, *THREE)
    spoil(root.idx(described(FIRST, *THREE)), 40)
    root.idx(described(SegmentName(20, 1, 9), batch(20)))
    status, lines = root.verify()
    assert status == 1
    assert [line.split(":", 1)[1] for line in lines] == [
        " there is an index and no log of this name",
        " index CRC does not match",
    ]


def test_a_joined_segment_is_longer_than_its_index(root: Root) -> None:
    root.log(0, *THREE, batch(9, epoch=4))
    root.idx(described(FIRST, *THREE))
    root.log(12, batch(12, epoch=5), epoch=5)
    assert root.verify() == (0, [])


def test_records_are_parsed_when_asked(root: Root) -> None:
    good = batch(0)
    bad = bytearray(good)
    bad[HEADER_BYTES] = 0x7E  # the first record's length
    Batch(memoryview(bad)).set_append_time(NOW)  # makes the CRC right again
    root.log(0, bytes(bad))
    assert root.verify()[0] == 0
    status, (line,) = root.verify("--topic", "orders", "--records")
    assert status == 1
    assert "@0 #0: its records cannot be read: record 0 of 3" in line


def test_journals(root: Root) -> None:
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
    assert "a checkpoint of 13 bytes" in lines[0] or "checkpoint" in lines[0]
    assert "no whole snapshot" in lines[1]


@pytest.mark.parametrize("shows_open_files", [False, True])
def test_an_open_file_over_webhdfs_may_be_longer_than_it_looks(shows_open_files: bool) -> None:
    found: list[Finding] = []
    segment = TargetSegment("/f", FIRST, None, has_log=True, has_idx=False)
    check = SegmentCheck(segment, SIZE, None, FlushedEnd(2 * SIZE, 6), found.append, shows_open_files=shows_open_files)
    check.on_batch(FoundBatch(0, Batch(memoryview(THREE[0]))))
    check.finish()
    assert [finding.is_fault for finding in found] == [shows_open_files]


# ------------------------------------------------------------------------------------------------- dump


def test_dump_of_a_log_names_all_headers(root: Root) -> None:
    data = bytearray(build_batch([Record(key=b"k")], base_offset=3, base_timestamp=NOW, producer_id=5, producer_epoch=2,
                                 base_sequence=9, leader_epoch=1, attributes=CONTROL))  # fmt: skip
    path = root.log(0, batch(0, codec=1), bytes(data))
    status, lines = root.run_json("dump", root.within(path))
    assert status == 0
    assert lines[0] == {"kind": "file", "file": root.within(path), "bytes": path.stat().st_size}
    assert (lines[1]["codec"], lines[1]["baseOffset"], lines[1]["lastOffset"]) == ("gzip", 0, 2)
    assert lines[2]["position"] == lines[1]["size"]
    wanted = {
        "producerId": 5, "producerEpoch": 2, "baseSequence": 9, "lastSequence": 9, "isControl": True, "count": 1,
        "isTransactional": False, "maxTimestamp": NOW, "partitionLeaderEpoch": 1, "isValid": True,
    }  # fmt: skip
    assert {name: lines[2][name] for name in wanted} == wanted
    status, out, _ = root.run("dump", root.within(path))
    assert status == 0
    assert "first offset" in out
    assert "2023-11-14T22:13:20.000Z" in out


def test_dump_goes_on_behind_damage(root: Root) -> None:
    path = root.log(0, *THREE)
    spoil(path, SIZE + 100)
    status, lines = root.run_json("dump", "--topic", "orders")
    assert status == 1
    assert [line["kind"] for line in lines] == ["file", "batch", "damage", "batch"]
    assert lines[2]["header"]["baseOffset"] == 3
    assert lines[2]["header"]["isValid"] is False
    status, out, _ = root.run("dump", "--topic", "orders")
    assert status == 1
    assert "BAD" in out
    assert "DAMAGED: the batch's CRC does not match; good data follows" in out


def test_dump_of_an_index_and_a_journal(root: Root) -> None:
    producer = ProducerState(7, 1, 0, NOW, -1, (ProducerBatch(0, 0, 2, NOW),))
    aborted = AbortedTransaction(7, 0, 2, 0)
    checkpoint = described(FIRST, *THREE, producers=(producer,), aborted=(aborted,))
    root.log(0, *THREE)
    idx = root.idx(checkpoint)
    status, lines = root.run_json("dump", root.within(idx))
    assert status == 0
    kinds = ["file", "idx", "index entry", "index entry", "leader epoch", "producer", "aborted"]
    assert [line["kind"] for line in lines] == kinds
    assert lines[2] == {"kind": "index entry", "file": root.within(idx), "offset": 3, "position": SIZE,
                        "maxTimestampBefore": NOW + 2}  # fmt: skip
    jnl = root.journal(frame(SNAPSHOT_BEGIN, b""), frame(CHECKPOINT, encode(checkpoint)), frame(9, b"?"), b"JRN1")
    status, lines = root.run_json("dump", root.within(jnl), "--entries")
    assert status == 1
    assert [line["kind"] for line in lines] == [
        "file",
        "snapshot begin",
        "checkpoint",
        *kinds[2:],
        "unknown 9",
        "damage",
    ]
    assert lines[2]["segment"] == str(FIRST)
    for path in (idx, jnl):
        assert root.run("dump", root.within(path))[1].startswith(root.within(path))
    spoil(idx, 3)
    assert root.run("dump", root.within(idx))[0] == 1


# ------------------------------------------------------------------------------------------------- cat


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_cat_of_each_codec(root: Root, codec: int) -> None:
    path = root.log(0, batch(0, codec=codec), batch(3, codec=codec))
    status, lines = root.run_json("cat", root.within(path))
    assert status == 0
    assert [(line["offset"], line["key"], line["value"]) for line in lines] == [
        (offset, f"k{offset}", "v" * 40) for offset in range(6)
    ]
    assert lines[4] | {"topic": "orders", "partition": 0, "timestamp": NOW + 4, "headers": []} == lines[4]


def test_cat_of_bytes_that_are_no_text(root: Root) -> None:
    data = built_by_kafka([(NOW, b"\xff\x00", None, [("h", b"\xfe"), ("t", b"a\tb")])], 0)
    root.log(0, data)
    _, (line,) = root.run_json("cat", "--topic", "orders")
    assert base64.b64decode(line["key"]["base64"]) == b"\xff\x00"
    assert line["value"] is None
    assert line["headers"] == [{"key": "h", "value": {"base64": "/g=="}}, {"key": "t", "value": "a\tb"}]
    _, out, _ = root.run("cat", "--topic", "orders")
    assert out == "0\t0\t2023-11-14T22:13:20.000Z\tbase64:/wA=\tnull\th=base64:/g==,t=a\\tb\n"


@pytest.mark.parametrize("with_idx", [False, True])
@pytest.mark.parametrize(
    ("arguments", "offsets"),
    [
        (["--offset", "4"], range(4, 15)),
        (["--offset", "4", "--max-records", "3"], range(4, 7)),
        (["--end-offset", "5"], range(5)),
        (["--offset", "8", "--end-offset", "13"], range(8, 13)),
        (["--max-records", "0"], range(0)),
        (["--offset", "99"], range(0)),
    ],
)
def test_cat_of_a_range_over_segments(root: Root, arguments: list[str], offsets: range, with_idx: bool) -> None:
    root.log(0, *THREE, batch(9))  # the last batch is a leftover
    if with_idx:
        root.idx(described(FIRST, *THREE))
    root.log(9, batch(9, epoch=2), batch(12, epoch=2), epoch=2)
    status, lines = root.run_json("cat", "--topic", "orders", "--partition", "0", *arguments)
    assert status == 0
    assert [line["offset"] for line in lines] == list(offsets)


def test_cat_tells_of_holes_and_goes_on(root: Root) -> None:
    path = root.log(0, *THREE, b"torn")
    spoil(path, SIZE + 100)
    status, out, err = root.run("cat", "--topic", "orders")
    assert status == 1
    assert [int(line.split("\t")[1]) for line in out.splitlines()] == [0, 1, 2, 6, 7, 8]
    assert f"{SIZE} bytes at {SIZE} are left out" in err
    assert "note: the last 4 bytes" in err


def test_cat_knows_the_offset_due_where_an_index_has_it_begin(root: Root) -> None:
    """Damage the length field where an index has a batch begin: without that offset it would look like any damage."""
    root.idx(described(FIRST, *THREE))
    spoil(root.log(0, *THREE), SIZE + 11)
    status, out, err = root.run("cat", "--topic", "orders", "--offset", "4")
    assert (status, [int(line.split("\t")[1]) for line in out.splitlines()]) == (1, [6, 7, 8])
    assert f"{SIZE} bytes at {SIZE} are left out (the batch's length field is damaged: it has {SIZE} bytes)" in err


def test_cat_refuses_a_bomb(root: Root) -> None:
    root.log(0, batch(0, codec=4, value=bytes(1 << 20)), batch(3))
    status, lines = root.run_json("cat", "--topic", "orders", "--batch-bytes-max", "100000")
    assert (status, [line["offset"] for line in lines]) == (1, [3, 4, 5])


@pytest.fixture(params=["a decoder", "none installed"])
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments too, with the decoder and where its packages are missing."""
    monkeypatch.setattr(batch_records, "DECODER_BYTES_MIN", 0)
    if request.param == "none installed":
        monkeypatch.setitem(sys.modules, "bmq.spark.decoding.decoder", None)


@pytest.mark.usefixtures("_decoder")
def test_cat_prints_the_same_whatever_reads(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = build_batch(
        [Record(key=bytes(4), value=bytes(6))], base_offset=15, attributes=CONTROL | 0x10, producer_id=5
    )
    strange = [
        (NOW, None, b"", [("h", None), ("é", b"x")]),
        (0, b"", None, []),
        (1 << 47, b"year 6429", b"v", []),
        (1 << 58, b"later than Arrow knows", b"v", []),
    ]
    odd = bytearray(built_by_kafka(strange, 2))
    Batch(memoryview(odd)).assign(16, 1)
    torn = bytearray(build_batch([Record(value=b"v"), Record(value=b"w")], base_offset=20))
    torn[-1] = 9  # a count of headers; and the CRC that belongs to it
    Batch(memoryview(torn)).set_append_time(NOW)
    made = (marker, odd, torn)
    root.log(0, *(batch(base, codec=base % 5) for base in range(0, 15, 3)), *map(bytes, made), batch(22))
    found = [root.run("cat", "--topic", "orders", *options) for options in ([], ["--json"], ["--offset", "4"])]
    monkeypatch.setattr(batch_records, "DECODER_BYTES_MIN", 1 << 40)
    assert found == [root.run("cat", "--topic", "orders", *options) for options in ([], ["--json"], ["--offset", "4"])]
    status, out, err = found[0]
    assert status == 1
    assert "offset 20: record 1 of 2" in err
    assert [int(line.split("\t")[1]) for line in out.splitlines()] == [*range(21), 22, 23, 24]


# ------------------------------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dump"], "name either files"),
        (["dump", "/x.log", "--topic", "orders"], "name either files"),
        (["dump", "/x.log", "--partition", "1"], "belong to --topic"),
        (["dump", "/x.txt"], "/x.txt is neither a segment"),
        (["dump", "/journals/x.jnl"], "x.jnl"),
        (["dump", "/topics/00000000000000000000-00000001-0000.log"], "00000000000000000000-00000001-0000.log"),
        (["dump", "--topic", "nobody"], "no such topic"),
        (["dump", "--topic", "no/topic"], "is not a topic name"),
        (["dump", "--topic", "orders", "--partition", "4"], "has no partition 4; there is 0"),
        (["dump", "--topic", "orders", "--topic-id", "x"], "orders has no id x"),
        (["cat", "/journals/j-00000001.jnl"], "cat prints the records of .log files"),
        (["dump", "../outside.jnl"], "'..'"),
    ],
)
def test_wrong_usage_is_told_in_one_line(root: Root, arguments: list[str], message: str) -> None:
    root.journal(name="j-00000001.jnl")
    status, out, err = root.run(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("bmq: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_topic_of_two_ids_wants_one_named(root: Root) -> None:
    other = root.folder / "topics" / "orders" / str(uuid.UUID(int=8)) / "0"
    other.mkdir(parents=True)
    root.log(0, *THREE)
    status, _, err = root.run("verify", "--topic", "orders")
    assert status == 2
    assert str(uuid.UUID(int=8)) in err
    assert root.run("verify", "--topic", "orders", "--topic-id", str(TOPIC_ID))[0] == 0


def test_roots(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("BMQ_ROOT", raising=False)
    assert main(["segment", "verify", "--topic", "orders"]) == 2
    assert "no root is given" in capsys.readouterr().err
    assert main(["segment", "verify", "--topic", "orders", "--root", f"{tmp_path.as_uri()}/typo"]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()
    assert main(["segment", "verify", "--topic", "orders", "--root", "s3://bucket"]) == 2
    assert "use one of" in capsys.readouterr().err
    for url in ("file://[::1", "hdfs://u:secret@[::1/x", "webhdfs://u:secret@h:99999/x", "hdfs://h:x/y"):
        assert main(["segment", "verify", "--topic", "orders", "--root", url]) == 2
        told = capsys.readouterr().err
        assert told.startswith("bmq: --root: ")
        assert "secret" not in told
    root.log(0, *THREE)
    monkeypatch.setenv("BMQ_ROOT", tmp_path.as_uri())
    assert main(["segment", "verify", "--topic", "orders"]) == 0


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["segment", "--help"], ["segment", "cat", "--help"]])
def test_help_and_version(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 0
    assert "bmq" in capsys.readouterr().out


def test_a_reader_that_goes_away_is_no_error(root: Root) -> None:
    root.log(0, *(batch(base, value=b"x" * 200) for base in range(0, 9000, 3)))
    command = [sys.executable, "-m", "bmq.cli.main", "segment", "cat", "--topic", "orders"]
    environment = {**os.environ, "BMQ_ROOT": root.folder.as_uri()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"0\t0\t")
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == EXIT_BROKEN_PIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
def test_an_output_without_room_is_one_line() -> None:
    command = [sys.executable, "-m", "bmq.cli.main", "completion", "bash"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"bmq: cannot write: No space left on device\n")


def test_an_interrupt_while_the_command_is_loaded_is_no_traceback() -> None:
    """Press Ctrl-C during the half second in which modules are loaded."""
    script = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "bmq.cli.topic":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from bmq.cli.main import main
sys.exit(main(["topic", "list"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (EXIT_INTERRUPTED, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_standard_streams_that_are_closed(closed: str, root: Root) -> None:
    command = f'"{sys.executable}" -m bmq.cli.main segment verify --topic orders {closed}'
    root.log(0, batch(0))
    environment = {**os.environ, "BMQ_ROOT": root.folder.as_uri()}
    done = subprocess.run(["sh", "-c", command], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_verify_tells_how_far_it_is(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_finding_takes_progress_off_the_terminal(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TERMINAL_S", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    root.log(0, batch(0), b"\0" * 100, batch(3))
    _, _, err = root.run("verify", "--topic", "orders")
    assert err.startswith("\r\x1b[Kbmq: verify: 0 B, file 1 of 1")
    assert err.endswith("\r\x1b[K")
