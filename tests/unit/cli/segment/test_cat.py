"""``bmq segment cat``: the records of a range of offsets, from every codec, around damage."""

from __future__ import annotations

import base64

import pytest

from bmq.core.records.batch import CODECS
from bmq.core.records.control import Marker
from bmq.storage.checkpoint import AbortedTransaction, ProducerState
from tests.unit.broker.partition.transactional import data, marker
from tests.unit.cli.segment.roots import FIRST, NOW, SIZE, THREE, Root, batch, described, spoil
from tests.unit.core.records.test_reader import built_by_kafka

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
def test_records_of_each_codec_are_printed(root: Root, codec: int) -> None:
    path = root.log(0, batch(0, codec=codec), batch(3, codec=codec))
    status, lines = root.run_json("cat", root.within(path))
    assert status == 0
    assert [(line["offset"], line["key"], line["value"]) for line in lines] == [
        (offset, f"k{offset}", "v" * 40) for offset in range(6)
    ]
    assert lines[4] | {"topic": "orders", "partition": 0, "timestamp": NOW + 4, "headers": []} == lines[4]


def test_bytes_that_are_not_text_are_printed_as_base64(root: Root) -> None:
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
def test_a_range_of_offsets_spans_segments(root: Root, arguments: list[str], offsets: range, with_idx: bool) -> None:
    root.log(0, *THREE, batch(9))  # the last batch is a leftover
    if with_idx:
        root.idx(described(FIRST, *THREE))
    root.log(9, batch(9, epoch=2), batch(12, epoch=2), epoch=2)
    status, lines = root.run_json("cat", "--topic", "orders", "--partition", "0", *arguments)
    assert status == 0
    assert [line["offset"] for line in lines] == list(offsets)


def test_cat_names_damaged_bytes_and_continues_behind_them(root: Root) -> None:
    path = root.log(0, *THREE, b"torn")
    spoil(path, SIZE + 100)
    status, out, err = root.run("cat", "--topic", "orders")
    assert status == 1
    assert [int(line.split("\t")[1]) for line in out.splitlines()] == [0, 1, 2, 6, 7, 8]
    assert f"{SIZE} bytes at {SIZE} are left out" in err
    assert "note: the last 4 bytes" in err


def test_a_damaged_length_field_is_named_where_reading_begins_at_an_index_entry(root: Root) -> None:
    """Damage the length field where an index has a batch begin: without that offset it would look like any damage."""
    root.idx(described(FIRST, *THREE))
    spoil(root.log(0, *THREE), SIZE + 11)
    status, out, err = root.run("cat", "--topic", "orders", "--offset", "4")
    assert (status, [int(line.split("\t")[1]) for line in out.splitlines()]) == (1, [6, 7, 8])
    assert f"{SIZE} bytes at {SIZE} are left out (the batch's length field is damaged: it has {SIZE} bytes)" in err


def test_a_batch_that_decompresses_to_too_much_is_left_out(root: Root) -> None:
    root.log(0, batch(0, codec=4, value=bytes(1 << 20)), batch(3))
    status, lines = root.run_json("cat", "--topic", "orders", "--batch-bytes-max", "100000")
    assert (status, [line["offset"] for line in lines]) == (1, [3, 4, 5])


def transactional_log(root: Root, *, with_idx: bool) -> None:
    """Two segments: producer 7 commits and aborts, 8 aborts over both, 9 leaves one open before a plain record."""
    first = [
        data(0, pid=7, base=0), data(0, pid=8, base=1), marker(pid=7, base=2), data(1, pid=7, base=3),
        marker(Marker.ABORT, pid=7, base=4),
    ]  # fmt: skip
    second = [
        marker(Marker.ABORT, pid=8, base=5), data(1, pid=8, base=6), marker(pid=8, base=7), data(0, pid=9, base=8),
        data(-1, pid=-1, base=9, is_transactional=False),
    ]  # fmt: skip
    for each in (*first, *second):
        each.assign(each.base_offset, 1)
    root.log(0, *(bytes(each.data) for each in first))
    root.log(5, *(bytes(each.data) for each in second), n=1)
    if with_idx:
        aborted = (AbortedTransaction(7, 3, 4, 1),)
        opened = (ProducerState(8, 0, 0, 0, 1, ()),)
        raw = [bytes(each.data) for each in first]
        root.idx(described(FIRST, *raw, first_open_txn=1, aborted=aborted, producers=opened))


@pytest.mark.parametrize("with_idx", [False, True])
def test_records_of_aborted_and_open_transactions_are_no_data(root: Root, with_idx: bool) -> None:
    transactional_log(root, with_idx=with_idx)
    status, lines = root.run_json("cat", "--topic", "orders")
    assert status == 0
    assert [line["offset"] for line in lines] == [0, 2, 4, 5, 6, 7]
    assert [line["offset"] for line in lines if not line.get("isControl")] == [0, 6]
    markers = {line["offset"]: (line["marker"], line["producerId"]) for line in lines if line.get("isControl")}
    assert markers == {2: ("COMMIT", 7), 4: ("ABORT", 7), 5: ("ABORT", 8), 7: ("COMMIT", 8)}
    _, _, err = root.run("cat", "--topic", "orders")
    assert "orders-0: a transaction is open from offset 8 on: --isolation-level read_uncommitted" in err
    _, later = root.run_json("cat", "--topic", "orders", "--offset", "5")
    assert [line["offset"] for line in later] == [5, 6, 7]


@pytest.mark.parametrize("with_idx", [False, True])
def test_uncommitted_records_are_shown_with_a_mark(root: Root, with_idx: bool) -> None:
    transactional_log(root, with_idx=with_idx)
    _, lines = root.run_json("cat", "--topic", "orders", "--isolation-level", "read_uncommitted")
    marked = {line["offset"]: (line["transaction"], line["producerId"]) for line in lines if "transaction" in line}
    assert marked == {1: ("aborted", 8), 3: ("aborted", 7), 8: ("open", 9)}
    assert [line["offset"] for line in lines] == list(range(10))
    _, out, err = root.run("cat", "--topic", "orders", "--isolation-level", "read_uncommitted")
    texts = out.splitlines()
    assert texts[1].endswith("[aborted transaction of producer 8]")
    assert texts[4].endswith("[ABORT marker of producer 7]")
    assert texts[8].endswith("[open transaction of producer 9]")
    assert err == ""
