"""Framing: every batch once, whatever the chunks; damage is found and stepped over."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.records.cursor import read_batches
from bmq.spark.decoding.framing import BatchRun, Framer, Misframed
from tests.harness.cleaned import cleaned_log
from tests.unit.spark.storing import batch, series

pytestmark = pytest.mark.slow

BATCHES = [batch(i, b"x" * (i % 7) * 30) for i in range(40)]
DATA = b"".join(BATCHES)


def feed(framer: Framer, data: bytes, chunk: int) -> list[BatchRun]:
    return [run for at in range(0, len(data), chunk) for run in framer.feed(data[at : at + chunk])]


def offsets(runs: list[BatchRun]) -> list[int]:
    return [batch.base_offset for run in runs for batch in read_batches(run.data)]


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


def test_batches_without_records_stand_for_their_offsets() -> None:
    """A compacted log has them, and batches that lack records."""
    full = [batch(0, b"a", b"b"), batch(2, b"c"), batch(3, b"d"), batch(4, b"e", b"f", b"g")]
    framer = Framer(0, 0, start=0, stop=7, limit=7)
    assert offsets(feed(framer, b"".join(cleaned_log(full, {1, 6})), 7)) == [0, 2, 4]
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
        (lambda bad: bad[:16] + b"\x01" + bad[17:], "no batch begins here: magic 1, not 2"),
        (lambda bad: bad[:8] + b"\0\0\0\1" + bad[12:], "no batch begins here: its length field says 13 bytes"),
        (
            lambda bad: bad[:8] + b"\x7f\xff\xff\xff" + bad[12:],
            "no batch begins here: its length field says 2147483659 bytes",
        ),
        (lambda bad: b"\0" * 8 + bad[8:], "a batch at offset 0, but 20 is due"),
        (lambda bad: bad[:23] + b"\xff\xff\xff\xff" + bad[27:], "the batch's last offset delta is -1"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 50, 333, 1 << 20])
def test_damage(damage, fault: str, chunk: int) -> None:  # type: ignore[no-untyped-def]
    """Damage one batch of forty: those before it are returned, those after it are found again."""
    data = b"".join([*BATCHES[:20], damage(BATCHES[20]), *BATCHES[21:]])
    framer = Framer(0, 0, start=0, stop=40)
    seen: list[BatchRun] = []
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


# ------------------------------------------------------------------------------------------- wrong base offsets


def rebased(data: bytes, base: int) -> bytes:
    """Return the batch with another base offset, which no CRC covers."""
    return base.to_bytes(8, "big") + data[8:]


def walk(data: bytes, chunk: int, **given: Any) -> tuple[list[int], list[tuple[int, int]], Framer]:
    """Return the base offsets found, (position, offset due) of each fault, and the framer when all bytes were fed."""
    framer = Framer(0, 0, start=0, **given)
    seen: list[int] = []
    faults = []
    for at in range(0, len(data), chunk):
        piece = data[at : at + chunk]
        while not framer.is_done:
            try:
                for run in framer.feed(piece):
                    seen += offsets([run])
                break
            except Misframed as error:
                faults.append((error.position, error.offset))
                framer.skip()
                piece = b""
    return seen, faults, framer


FLIPPED = [20, 39]
"""Batches whose base offset is wrong: one in the middle, and the last."""


@pytest.mark.parametrize("chunk", [len(DATA), 333, 61])
@pytest.mark.parametrize("bit", range(63))
@pytest.mark.parametrize("at", FLIPPED)
def test_any_flipped_bit_of_a_base_offset_is_a_fault(at: int, bit: int, chunk: int) -> None:
    """Only its batch is lost."""
    wrong = at ^ (1 << bit)
    data = b"".join([*BATCHES[:at], rebased(BATCHES[at], wrong), *BATCHES[at + 1 :]])
    seen, faults, _ = walk(data, chunk, stop=40, limit=40)
    assert faults[0] == (len(b"".join(BATCHES[:at])), at)
    assert seen == [each for each in range(40) if each != at]


def test_a_hole_is_a_fault() -> None:
    """Leave out three batches: those after the hole are sound, and kept by a reader that reads around damage."""
    data = b"".join([*BATCHES[:10], *BATCHES[13:]])
    for chunk in (len(data), 200):
        seen, faults, framer = walk(data, chunk, stop=40, limit=40)
        assert faults == [(len(b"".join(BATCHES[:10])), 10)]
        assert set(seen) >= {*range(10), *range(14, 40)}
        assert framer.next_offset == 40
    assert walk(data, len(data), stop=40, limit=40)[0] == [*range(10), *range(13, 40)]


def test_a_hole_up_to_the_last_batch() -> None:
    data = b"".join([*BATCHES[:10], BATCHES[39]])
    seen, faults, _ = walk(data, len(data), stop=40, limit=40)
    assert (seen, len(faults)) == ([*range(10), 39], 1)


def test_a_batch_that_seems_to_lie_past_the_stop_is_a_fault() -> None:
    data = b"".join([*BATCHES[:20], rebased(BATCHES[20], 34), *BATCHES[21:]])
    assert walk(data, len(data), stop=30, limit=40)[1] == [(len(b"".join(BATCHES[:20])), 20)]


def test_a_walk_ends_at_the_stop() -> None:
    seen, faults, framer = walk(DATA, len(DATA), stop=30, limit=40)
    assert (seen, faults) == (list(range(30)), [])
    assert framer.is_done
    assert framer.next_offset == 30
