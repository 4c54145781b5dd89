"""The shard of a group: Java's hash of its id, as Kafka places it."""

from __future__ import annotations

import pytest

from bmq.meta.group_placement import java_hash, shard_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("console-consumer-12345", 158_455_506),
        ("polygenelubricants", -(2**31)),
        ("\N{GRINNING FACE}", 1_772_899),
        ("Grüße", 69_215_351),
    ],
)
def test_a_group_ids_hash_is_javas(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_the_hash_that_has_no_positive_is_in_shard_0() -> None:
    assert shard_of("polygenelubricants", 50) == 0
    assert shard_of("a", 50) == 47
