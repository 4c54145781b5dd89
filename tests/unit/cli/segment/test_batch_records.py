"""Two readers of a batch's records, vectorised and one by one: their output is the same."""

from __future__ import annotations

import sys

import pytest

from bmq.cli.segment import batch_records
from bmq.core.records.batch import CONTROL, Batch, Record, build_batch
from tests.unit.cli.segment.roots import NOW, Root, batch
from tests.unit.core.records.test_reader import built_by_kafka

pytestmark = pytest.mark.slow


@pytest.fixture(params=["a decoder", "none installed"])
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small segments too, with the decoder and where its packages are missing."""
    monkeypatch.setattr(batch_records, "DECODER_BYTES_MIN", 0)
    if request.param == "none installed":
        monkeypatch.setitem(sys.modules, "bmq.spark.decoding.decoder", None)


@pytest.mark.usefixtures("_decoder")
def test_both_readers_print_the_same(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
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
