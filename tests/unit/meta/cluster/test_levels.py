"""The record of the levels of features, as the store has it."""

from __future__ import annotations

import json

import pytest

from bmq.core.errors import FormatError
from bmq.meta.cluster.levels import NO_LEVELS, FeatureLevels, decode_record, encode_record

RECORD = FeatureLevels(epoch=3, levels={"a": 2}, held=frozenset({"b", "a"}), intended={"b": 1})


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode_record(encode_record(RECORD)) == RECORD
    assert decode_record(encode_record(NO_LEVELS)) == NO_LEVELS
    assert json.loads(encode_record(RECORD)) == {
        "format": 1, "epoch": 3, "levels": {"a": 2}, "held": ["a", "b"], "intended": {"b": 1}
    }  # fmt: skip


def test_the_highest_levels_are_those_in_force_or_intended() -> None:
    record = FeatureLevels(levels={"a": 2, "b": 1}, intended={"b": 3, "c": 1})
    assert record.highest == {"a": 2, "b": 3, "c": 1}
    assert (record.of("b"), record.of("c")) == (1, 0)


def test_a_record_without_an_intention_is_read() -> None:
    assert decode_record(b'{"format":1,"epoch":1,"levels":{"a":1},"held":[]}') == FeatureLevels(
        epoch=1, levels={"a": 1}
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": 2}, {"epoch": "3"}, {"epoch": True}, {"levels": []}, {"levels": {"a": -1}}, {"held": "a"},
        {"held": [1]}, {"intended": {"a": 0}}, {"intended": 1},
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        decode_record(json.dumps(json.loads(encode_record(RECORD)) | wrong).encode())
    for text in (b"", b"[]", b"[" * 100_000):
        with pytest.raises(FormatError):
            decode_record(text)
