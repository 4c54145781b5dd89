"""The shard of a group: Java's hash of its id, as Kafka places it."""

from __future__ import annotations

from random import Random

import pytest

from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.meta.group_placement import CHARACTERS_AN_ELEMENT, SHORT, java_hash, shard_of, shards_of
from tests.harness.loop_stops import is_short, loop_stops


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


@pytest.mark.parametrize("length", [SHORT, SHORT + 1, 4_095, 4_096, 4_097, 12_289])
def test_a_long_text_has_the_same_hash_as_unit_by_unit(length: int) -> None:
    random = Random(length)
    alphabet = ["a", "z", "ü", "\uffff", "\ud800", "\N{GRINNING FACE}"]
    text = "".join(random.choices(alphabet, k=length))
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + int.from_bytes(units[at : at + 2])) % (1 << 32)
    assert java_hash(text) % (1 << 32) == value


@pytest.mark.slow
async def test_the_longest_ids_of_the_largest_request_do_not_stop_the_loop() -> None:
    """100 MB of ids of 32,767 bytes."""
    ids = [f"{each:05}" + "x" * 32_762 for each in range(3_000)]
    with loop_stops() as stops:
        numbers = await shards_of(ids, 50)
    assert numbers[:2] == [shard_of(each, 50) for each in ids[:2]]
    assert is_short(stops.longest_s), stops.longest_s


@pytest.mark.slow
async def test_ids_count_by_their_length() -> None:
    with loop_stops() as stops:
        await shards_of(["x" * (3 * CHARACTERS_AN_ELEMENT)] * ELEMENTS_A_TURN, 50)
    assert stops.turns >= 3
