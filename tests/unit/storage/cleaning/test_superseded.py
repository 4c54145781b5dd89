"""The records that a later record replaces (storage/cleaning/superseded.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.cleaning.key_offsets import KeyOffsets
from bmq.storage.cleaning.superseded import SupersededRecords


def superseded(keys: list[int], room: int) -> tuple[list[bool], int]:
    records, passes = SupersededRecords(KeyOffsets(room)), 0
    while True:
        passes += 1
        for offset, key in enumerate(keys):
            records.map_record(b"%d" % key, offset)
        if records.needs_marks:
            for offset, key in enumerate(keys):
                records.mark_record(b"%d" % key, offset, offset)
        if not records.next_pass():
            break
    assert records.mark_bytes <= len(keys) // 8 + 1
    return [records.is_superseded(b"%d" % key, offset, offset) for offset, key in enumerate(keys)], passes


def test_one_pass_needs_no_marks() -> None:
    records = SupersededRecords(KeyOffsets(4))
    records.map_record(b"a", 3)
    assert not records.needs_marks
    assert not records.next_pass()
    assert records.is_superseded(b"a", 2, 0)
    assert not records.is_superseded(b"a", 3, 1)
    assert not records.is_superseded(b"b", 3, 2)
    assert records.mark_bytes == 0


@given(st.lists(st.integers(0, 20), max_size=60), st.integers(1, 6))
def test_many_passes_agree_with_one(keys: list[int], room: int) -> None:
    expected = [key in keys[at + 1 :] for at, key in enumerate(keys)]
    assert superseded(keys, 100) == (expected, 1)
    found, passes = superseded(keys, room)
    assert found == expected
    assert passes > 1 or len(set(keys)) <= room
