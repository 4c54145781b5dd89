"""Columns of a run of batches: types, constant columns, and the pieces that a run is cut into."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from bmq.spark.decoding import columns as columns_module
from bmq.spark.decoding import kernels
from bmq.spark.decoding.columns import COLUMNS, Constants, Memory, schema, wants

pytestmark = pytest.mark.slow


def filled(*sizes: tuple[int, int]) -> Memory:
    """Return memory with a row for each (bytes of the key, bytes of the value)."""
    memory = Memory(kernels.KEY | kernels.VALUE, len(sizes), sum(map(sum, sizes)))
    for column in (0, 1):
        memory.ends[column][1:] = np.cumsum([size[column] for size in sizes])
        memory.bytes[column][:] = ord("kv"[column])
        memory.valid[column][:] = 1
    memory.cursor[kernels.AT_ROW] = len(sizes)
    memory.cursor[kernels.KEYS_END] = memory.ends[0][-1]
    memory.cursor[kernels.VALUES_END] = memory.ends[1][-1]
    return memory


def test_a_schema_has_the_columns_in_the_order_asked_for() -> None:
    assert schema(("offset", "key")) == pa.schema([("offset", pa.int64()), ("key", pa.binary())])
    assert schema(COLUMNS).names == list(COLUMNS)


def test_an_unknown_column_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no column 'size', 'x'; there are key, value, topic"):
        schema(("key", "size", "x"))


def test_constant_columns_are_not_the_kernels() -> None:
    assert wants(("topic", "partition", "timestampType")) == 0
    assert wants(("key", "offset", "key")) == kernels.KEY | kernels.OFFSET


def test_keys_and_values_are_arrays_over_the_memory() -> None:
    memory = filled((1, 2), (0, 3))
    memory.valid[0][1] = 0
    memory.cursor[kernels.NULL_KEYS] = 1
    assert (memory.keys().to_pylist(), memory.values().to_pylist()) == ([b"k", None], [b"vv", b"vvv"])
    assert (memory.keys().null_count, memory.values().null_count) == (1, 0)


def test_rows_without_headers_are_null() -> None:
    memory = Memory(kernels.HEADERS, 2, 100)
    memory.cursor[kernels.AT_ROW] = 2
    column, replaced = memory.headers()
    assert (column.to_pylist(), replaced) == ([None, None], 0)


def test_a_run_within_the_bounds_is_one_piece() -> None:
    assert list(filled((1, 1), (1, 1)).cuts()) == [(0, 2)]


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([(5, 5)] * 4, [(0, 2), (2, 2)]),
        ([(5, 5)] * 3 + [(5, 6)], [(0, 2), (2, 1), (3, 1)]),
        ([(0, 99), (1, 1), (0, 99)], [(0, 1), (1, 1), (2, 1)]),
        ([(0, 0)] * 7, [(0, 3), (3, 3), (6, 1)]),
    ],
    ids=["by bytes", "a byte too many", "rows larger than a piece", "by rows"],
)
def test_a_run_is_cut_by_bytes_and_by_rows(
    sizes: list[tuple[int, int]], pieces: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_module, "BYTES_MAX", 20)
    monkeypatch.setattr(columns_module, "ROWS_MAX", 3)
    assert list(filled(*sizes).cuts()) == pieces


def test_constant_columns_repeat_their_value() -> None:
    constants = Constants("größe", 3)
    assert constants.topic(2).to_pylist() == ["größe", "größe"]
    assert constants.partition(3).to_pylist() == [3, 3, 3]
    assert constants.timestamp_type(False, 1).to_pylist() == [0]
    assert constants.timestamp_type(True, 2).to_pylist() == [1, 1]
    assert constants.topic(0).to_pylist() == []
