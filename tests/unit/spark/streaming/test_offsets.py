"""Offsets of a streaming query, as its checkpoint holds them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.spark.streaming.offsets import OffsetError, from_json, to_json

partitions = st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), st.integers(0, 1 << 40))


def test_offsets_are_written_in_order_as_sparks_kafka_source_writes_them() -> None:
    written = to_json({("b", 0): 7, ("a", 10): 1, ("a", 9): 2})
    assert list(written) == ["a", "b"]
    assert list(written["a"]) == ["9", "10"]
    assert written == {"a": {"9": 2, "10": 1}, "b": {"0": 7}}


@pytest.mark.slow
@given(partitions)
def test_offsets_are_read_as_they_were_written(offsets: dict[tuple[str, int], int]) -> None:
    assert from_json(to_json(offsets)) == offsets


@pytest.mark.parametrize("raw", [7, {"a": 7}, {"a": {"0": -1}}, {"a": {"0": "7"}}, {"a": {"x": 7}}, {"a": {"0": True}}])
def test_a_checkpoint_without_offsets_is_refused(raw: Any) -> None:
    with pytest.raises(OffsetError):
        from_json(raw)
