"""Memory of chunks, which is used again, and kept up to a bound."""

from __future__ import annotations

from bmq.spark.reading.buffers import CHUNK_BYTES, KEPT, Buffers


def test_memory_is_used_again_at_any_size() -> None:
    buffers = Buffers()
    first = buffers.take(100)
    first[:] = b"x" * 100
    buffers.give_back(first)
    again = buffers.take(CHUNK_BYTES)
    assert again.obj is first.obj
    assert len(again) == CHUNK_BYTES
    assert buffers.take(100).obj is not first.obj


def test_more_than_a_chunk_is_given_and_not_kept() -> None:
    buffers = Buffers()
    large = buffers.take(CHUNK_BYTES + 1)
    assert len(large) == CHUNK_BYTES + 1
    buffers.give_back(large)
    assert buffers.take(1).obj is not large.obj


def test_no_more_are_kept_than_said() -> None:
    buffers = Buffers()
    taken = [buffers.take(1) for _ in range(KEPT + 3)]
    for each in taken:
        buffers.give_back(each)
    known = {id(each.obj) for each in taken}
    again = [buffers.take(1) for _ in range(KEPT + 3)]
    assert sum(id(each.obj) in known for each in again) == KEPT
