"""The map of a pass (storage/cleaning/key_offsets.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.cleaning.key_offsets import ENTRY_BYTES, SHARDS, KeyOffsets


def test_a_map_has_the_last_offset_of_each_key() -> None:
    keys = KeyOffsets(10)
    keys.put(b"a", 0)
    keys.put(b"b", 1)
    keys.put(b"a", 2)
    assert (keys.get(b"a"), keys.get(b"b"), keys.get(b"c"), len(keys)) == (2, 1, -1, 2)
    assert keys.is_last


def test_the_buffer_bounds_the_keys_at_24_bytes_each() -> None:
    assert ENTRY_BYTES == 24
    assert KeyOffsets.within(240).entries_max == 10
    with pytest.raises(ValueError, match="room for one key"):
        KeyOffsets.within(23)


def test_a_full_map_leaves_the_upper_hashes_to_the_next_pass() -> None:
    keys = KeyOffsets(8)
    for number in range(40):
        keys.put(b"%d" % number, number)
        assert len(keys) <= 8
    assert not keys.is_last
    known = {number for number in range(40) if keys.get(b"%d" % number) >= 0}
    seen = set(known)
    while not keys.is_last:
        keys.next_pass()
        for number in range(40):
            keys.put(b"%d" % number, number)
        known = {number for number in range(40) if keys.get(b"%d" % number) >= 0}
        assert not known & seen, "a key has one pass"
        seen |= known
    assert seen == set(range(40))
    with pytest.raises(ValueError, match="no key is left"):
        keys.next_pass()


def test_a_key_known_to_a_full_map_costs_no_room() -> None:
    keys = KeyOffsets(2)
    keys.put(b"a", 0)
    keys.put(b"b", 1)
    for offset in range(2, 50):
        keys.put(b"a", offset)
    assert keys.is_last
    assert (keys.get(b"a"), keys.get(b"b")) == (49, 1)


def test_keys_of_one_shard_that_exceed_the_buffer_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.storage.cleaning.key_offsets._shard_of", lambda digest: 7)
    keys = KeyOffsets(2)
    keys.put(b"a", 0)
    keys.put(b"b", 1)
    with pytest.raises(MemoryError, match="share the first two bytes"):
        keys.put(b"c", 2)


def test_digests_that_span_two_entries_are_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digest of "x" stands across two entries of its shard, and once more behind it as itself."""
    digests = {b"a": b"A" * 16, b"b": b"B" * 16}
    digests[b"x"] = digests[b"a"][1:] + (0).to_bytes(8, "big")[:1]
    monkeypatch.setattr("bmq.storage.cleaning.key_offsets._digest", lambda key: digests[key])
    monkeypatch.setattr("bmq.storage.cleaning.key_offsets._shard_of", lambda digest: 0)
    keys = KeyOffsets(10)
    keys.put(b"a", 5)
    assert keys.get(b"x") == -1
    keys.put(b"x", 6)
    assert (keys.get(b"a"), keys.get(b"x")) == (5, 6)


@given(st.lists(st.integers(0, 30), max_size=80), st.integers(1, 12))
def test_all_passes_together_are_a_dictionary(numbers: list[int], room: int) -> None:
    expected = {b"%d" % number: offset for offset, number in enumerate(numbers)}
    keys, found = KeyOffsets(room), dict[bytes, int]()
    while True:
        assert 0 <= keys.low < keys.high <= SHARDS
        for offset, number in enumerate(numbers):
            keys.put(b"%d" % number, offset)
            assert len(keys) <= room
        found.update((key, keys.get(key)) for key in expected if keys.get(key) >= 0)
        if keys.is_last:
            break
        keys.next_pass()
    assert found == expected
