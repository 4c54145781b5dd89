"""The bytes before a framed value: the head of a schema registry, and a path of messages."""

from __future__ import annotations

import pytest

from bmq.spark.jobs.framed import head_of, message_path, unframed


def test_the_head_of_a_schema_registry_is_taken_off() -> None:
    assert unframed(b"value", "none") == b"value"
    assert unframed(b"\0\0\0\0\x09value", "confluent") == b"value"
    for wrong in (b"", b"\0\0\0", b"\x01\0\0\0\x09value"):
        with pytest.raises(ValueError, match="no schema registry's head"):
            unframed(wrong, "confluent")
    assert head_of(b"\0\0\0\1\x09value") == (265, b"value")
    with pytest.raises(ValueError, match="no schema registry's head"):
        head_of(b"\x01\0\0\0\x09value")


def test_a_protobuf_value_begins_with_the_path_of_its_message() -> None:
    assert message_path(b"\0value") == ((0,), b"value")
    assert message_path(b"\x04\x02\x80\x02value") == ((1, 128), b"value")
    for wrong in (b"", b"\x02", b"\x01", b"\x80" * 20, b"\x50" + b"\0" * 99):
        with pytest.raises(ValueError, match="message path"):
            message_path(wrong)
