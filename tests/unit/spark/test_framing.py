"""Framing: every batch once, whatever the chunks; damage is found and stepped over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.records import Batch, split_batches
from bmq.spark.framing import Framer, Misframed, Run
from tests.unit.spark.storing import batch, series

BATCHES = [batch(i, b"x" * (i % 7) * 30) for i in range(40)]
DATA = b"".join(BATCHES)


def feed(framer: Framer, data: bytes, chunk: int) -> list[Run]:
    return [run for at in range(0, len(data), chunk) for run in framer.feed(data[at : at + chunk])]


def offsets(runs: list[Run]) -> list[int]:
    return [Batch(piece).base_offset for run in runs for piece in split_batches(memoryview(bytearray(run.data)))]


@given(st.integers(1, len(DATA) + 10))
def test_any_chunks(chunk: int) -> None:
    framer = Framer(1000, 0, start=0, stop=40)
    runs = feed(framer, DATA, chunk)
    assert b"".join(run.data for run in runs) == DATA
    position = 1000
    for run in runs:
        assert run.position == position
        position += len(run.data)
    assert framer.is_done
    assert not framer.pending


@given(st.integers(1, len(DATA)), st.integers(0, 40), st.integers(0, 40))
def test_start_and_stop(chunk: int, start: int, stop: int) -> None:
    framer = Framer(0, 0, start=start, stop=stop)
    assert offsets(feed(framer, DATA, chunk)) == list(range(start, stop))
    assert framer.is_done


def test_gaps_are_no_fault() -> None:
    """A compacted log has them."""
    framer = Framer(0, 0, start=0, stop=100)
    assert offsets(feed(framer, batch(3, b"a") + batch(50, b"b", b"c") + batch(99, b"d"), 7)) == [3, 50, 99]
    assert framer.is_done


def test_a_batch_that_does_not_end() -> None:
    framer = Framer(0, 0, start=0, stop=40)
    assert len(feed(framer, DATA[:-1], 64)) > 0
    assert not framer.is_done
    assert framer.next_offset == 39
    assert framer.pending == len(BATCHES[-1]) - 1


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda bad: bad[:16] + b"\x01" + bad[17:], "magic 1"),
        (lambda bad: bad[:8] + b"\0\0\0\1" + bad[12:], "a batch of 13 bytes"),
        (lambda bad: bad[:8] + b"\x7f\xff\xff\xff" + bad[12:], "a batch of 2147483659 bytes"),
        (lambda bad: b"\0" * 8 + bad[8:], "a batch at offset 0, 20 is due"),
        (lambda bad: bad[:23] + b"\xff\xff\xff\xff" + bad[27:], "last offset delta -1"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 50, 333, 1 << 20])
def test_damage(damage, fault: str, chunk: int) -> None:  # type: ignore[no-untyped-def]
    """What precedes it is given; what follows it is found again."""
    data = b"".join([*BATCHES[:20], damage(BATCHES[20]), *BATCHES[21:]])
    framer = Framer(0, 0, start=0, stop=40)
    seen: list[Run] = []
    faults = []
    for at in range(0, len(data), chunk):
        piece = data[at : at + chunk]
        while True:
            try:
                seen.extend(framer.feed(piece))
                break
            except Misframed as error:
                faults.append((error.position, error.offset, error.fault))
                framer.skip()
                piece = b""
    assert faults == [(len(b"".join(BATCHES[:20])), 20, fault)]
    assert offsets(seen) == [*range(20), *range(21, 40)]
    assert framer.skipped_bytes == len(BATCHES[20])


def test_nothing_right_follows() -> None:
    framer = Framer(0, 0, start=0, stop=10)
    with pytest.raises(Misframed):
        list(framer.feed(b"\1" * 100))
    framer.skip()
    assert list(framer.feed(b"")) == []
    assert list(framer.feed(b"\1" * (8 << 20))) == []
    assert framer.pending <= 2 << 20, "bounded"
    assert offsets(list(framer.feed(b"".join(series(5, 2))))) == [5, 6]
