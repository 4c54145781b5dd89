"""Memory to be read into, and its parts (storage/fresh_memory.py)."""

from __future__ import annotations

import pytest

from bmq.storage.fresh_memory import allocate, cut, fill


def parts() -> list[memoryview]:
    return [memoryview(bytearray(each)) for each in (b"abc", b"", b"defg", b"h")]


@pytest.mark.parametrize("length", [0, 1, 1 << 20])
def test_memory_can_be_written_and_read_as_bytes(length: int) -> None:
    memory = allocate(length)
    memory[:] = b"x" * length
    assert (len(memory), memory.nbytes) == (length, length)
    assert memory == b"x" * length


@pytest.mark.parametrize("start", range(10))
@pytest.mark.parametrize("stop", range(10))
def test_a_cut_has_the_bytes_of_the_range(start: int, stop: int) -> None:
    found = cut(parts(), start, stop)
    assert b"".join(found) == b"abcdefgh"[start:stop]
    assert all(len(each) for each in found)


@pytest.mark.parametrize("filled", range(9))
def test_parts_end_where_the_filled_bytes_end(filled: int) -> None:
    found = fill(parts(), filled)
    assert b"".join(found) == b"abcdefgh"[:filled]
    assert len(found) == 4
