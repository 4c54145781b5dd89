"""Checksum chunks by the size of flushes."""

from __future__ import annotations

from bmq.broker.files.chunk_sizes import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, chunk_for


def test_a_chunk_is_a_power_of_two_and_at_most_a_quarter_of_the_flush() -> None:
    sizes = (0, 1024, 4096, 65_536, 1 << 20, 1 << 30)
    assert [chunk_for(size) for size in sizes] == [512, 512, 1024, 16_384, 65_536, 65_536]


def test_a_chunk_grows_at_exactly_four_times_its_size() -> None:
    chunk = 2 * CHUNK_BYTES_MIN
    while chunk <= CHUNK_BYTES_MAX:
        assert (chunk_for(4 * chunk - 1), chunk_for(4 * chunk)) == (chunk // 2, chunk)
        chunk *= 2
