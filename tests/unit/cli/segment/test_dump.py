"""``bmq segment dump``: the content of each kind of file, and damage in its place."""

from __future__ import annotations

import pytest

from bmq.core.records.batch import CONTROL, Record, build_batch
from bmq.storage.checkpoint import AbortedTransaction, ProducerBatch, ProducerState, encode
from bmq.storage.journal import CHECKPOINT, SNAPSHOT_BEGIN, frame
from tests.harness.cleaned import cleaned_batch
from tests.unit.cli.segment.roots import FIRST, NOW, SIZE, THREE, Root, batch, described, spoil

pytestmark = pytest.mark.slow


def test_each_header_field_of_a_batch_is_printed(root: Root) -> None:
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


def test_a_delete_horizon_is_printed_and_a_batch_that_lacks_records(root: Root) -> None:
    path = root.log(0, cleaned_batch(batch(0), {1}, horizon=NOW + 9), batch(3))
    status, lines = root.run_json("dump", root.within(path))
    assert status == 0
    assert [line.get("deleteHorizonMs") for line in lines] == [None, NOW + 9, None]
    assert [(line["baseOffset"], line["lastOffset"], line["count"]) for line in lines[1:]] == [(0, 2, 1), (3, 5, 3)]
    _, out, _ = root.run("dump", root.within(path))
    assert " H " in out


def test_dump_continues_behind_damage(root: Root) -> None:
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


def test_each_entry_of_an_index_and_a_journal_is_printed(root: Root) -> None:
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
