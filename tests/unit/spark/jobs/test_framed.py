"""The bytes before a framed value: the head of a schema registry, and a path of messages."""

from __future__ import annotations

import pytest

from bmq.spark.jobs.framed import past_message_path, unframed


def test_the_head_of_a_schema_registry_is_taken_off() -> None:
    assert unframed(b"value", "none") == b"value"
    assert unframed(b"\0\0\0\0\x09value", "confluent") == b"value"
    for wrong in (b"", b"\0\0\0", b"\x01\0\0\0\x09value"):
        with pytest.raises(ValueError, match="no schema registry's head"):
            unframed(wrong, "confluent")
    assert past_message_path(b"\0value") == b"value"
    assert past_message_path(b"\x04\x02\x80\x02value") == b"value"  # two indexes: 1 and 128
    for wrong in (b"", b"\x02", b"\x01", b"\x80" * 20):
        with pytest.raises(ValueError, match="message path"):
            past_message_path(wrong)
