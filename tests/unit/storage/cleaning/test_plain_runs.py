"""Runs of plain batches (storage/cleaning/plain_runs.py): a round with windows beside a round batch by batch.

Both have the same filter in compiled code.  Files, facts and errors are the same, byte for byte.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from crc32c import crc32c

from bmq.core.errors import FormatError
from bmq.core.records.batch import (
    CRC_START,
    DELETE_HORIZON,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    Batch,
    Record,
    build_batch,
    build_gap,
)
from bmq.core.records.control import Marker
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning import source_reader
from bmq.storage.cleaning.compiled_filter import COMPILED_FILTERS
from bmq.storage.cleaning.key_offsets import ENTRY_BYTES
from bmq.storage.cleaning.loops.layout import REBASED_BYTES_MAX
from bmq.storage.cleaning.plain_runs import RunRules, Window
from bmq.storage.cleaning.retention import ProducerEnd, RoundBounds
from bmq.storage.cleaning.round import CleanedFacts, CleaningRound, Source
from bmq.storage.cleaning.source_reader import SourceReader
from bmq.storage.filesystem import write_once
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.seeds import seeds
from tests.unit.storage.cleaning.logs import BUFFER_BYTES, DAY_MS, NOW_MS, Log
from tests.unit.storage.cleaning.random_logs import extend_log

pytestmark = pytest.mark.slow

assert COMPILED_FILTERS.load_compiled()
SECRET = bytes(range(16))
ROOT = Path(__file__).parents[4]
HEADER_FIELDS = {8: ">i", 16: ">b", 21: ">h", 23: ">i", 27: ">q", 35: ">q", 43: ">q", 57: ">i"}
"""The fields of a batch's header behind its offset."""


class Segment(NamedTuple):
    """A source and its bytes."""

    source: Source
    data: bytes


@dataclass
class Outcome:
    """The result of a round: the bytes of its files, their facts, the error that ended it."""

    files: list[bytes] = field(default_factory=list)
    facts: list[CleanedFacts] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The arguments of a round, and the bytes of a read."""

    bounds: RoundBounds
    producers: dict[int, ProducerEnd]
    aborted: Sequence[AbortedTransaction]
    group_size: int = 1
    buffer_bytes: int = BUFFER_BYTES
    piece_bytes: int = 1 << 20

    async def play(self, segments: Sequence[Segment], *, has_windows: bool) -> Outcome:
        """Do a round over the segments."""
        outcome = Outcome()
        try:
            await self._play(segments, outcome, has_windows=has_windows)
        except (FormatError, MemoryError) as error:
            outcome.error = f"{type(error).__name__}: {error}"
        return outcome

    async def _play(self, segments: Sequence[Segment], outcome: Outcome, *, has_windows: bool) -> None:
        cleaning = CleaningRound(
            self.bounds,
            [each.source for each in segments],
            aborted=self.aborted,
            producers=self.producers,
            records=COMPILED_FILTERS.new(SECRET, self.buffer_bytes, 10_000),
        )
        by_base = {each.source.base: each for each in segments}
        while walk := cleaning.next_walk():
            for source in walk:
                async for parts in self._pieces(by_base[source.base], has_windows=has_windows):
                    cleaning.pass_keys(parts)
        for at in range(0, len(segments), self.group_size):
            group = segments[at : at + self.group_size]
            written: list[bytes] = []
            outcome.files.append(b"")
            cleaning.begin_file([each.source for each in group], lambda data, to=written: to.append(bytes(data)))  # type: ignore[misc]
            try:
                for each in group:
                    async for parts in self._pieces(each, has_windows=has_windows):
                        cleaning.clean(parts)
                outcome.facts.append(cleaning.end_file())
            finally:
                outcome.files[-1] = b"".join(written)

    async def _pieces(self, segment: Segment, *, has_windows: bool) -> Any:
        fs = MemoryFileSystem(MemoryStorage(), "reader")
        await write_once(fs, "/log", segment.data)
        base, end_offset, _ = segment.source
        reader = SourceReader(
            fs, "/log", base=base, end_offset=end_offset, length=len(segment.data), piece_bytes=self.piece_bytes
        )
        while not reader.is_over:
            await reader.read()
            yield reader.parts() if has_windows else reader.batches()


def plain_log(rng: Random, count: int, *, keys: int = 40) -> Log:
    """Return a log most of whose batches are plain, with batches and markers of all kinds between them."""
    log = Log(base=rng.choice([0, 7, 1 << 40]))
    sequence = 0
    while count > 0:
        if rng.random() < 0.1:
            extend_log(rng, log, rng.randint(1, 4), keys=keys)
        if rng.random() < 0.2:
            log.roll()
        if rng.random() < 0.1:
            log.epoch += 1
        tombstones = rng.choice([0, 0, 0.2])
        for _ in range(rng.randint(1, 12)):
            records = [
                (
                    None if rng.random() < 0.05 else b"k%d" % rng.randrange(keys),
                    None if rng.random() < tombstones else rng.randbytes(rng.choice([0, 8, 60, 300])),
                )
                for _ in range(rng.choice([1, 1, 3, 40]))
            ]
            pid = rng.choice([-1, -1, 11, 12])
            log.add(*records, pid=pid, sequence=sequence, timestamp=NOW_MS - rng.randint(0, 999))
            sequence += len(records)
            if rng.random() < 0.1:
                log.segments[-1][-1].set_append_time(NOW_MS - 3)
            if rng.random() < 0.1:
                end = log.end + rng.randint(1, 5)
                log.segments[-1] += [Batch(memoryview(gap)) for gap in build_gap(log.end, end, log.epoch)]
            count -= 1
    log.roll()
    log.is_cleaned = rng.random() < 0.7
    return log


def random_plan(rng: Random, log: Log, segments: Sequence[Segment]) -> Plan:
    lasts = [(batch.producer_id, batch) for batch in log.batches if batch.producer_id >= 0 and not batch.is_control]
    known = rng.sample(lasts, min(len(lasts), rng.randint(0, 3)))
    offsets = [segments[0].source.base, *(each.source.end_offset for each in segments)]
    return Plan(
        bounds=RoundBounds(
            first_dirty=rng.choice([0, rng.choice(offsets), rng.randint(offsets[0], offsets[-1])]),
            end=offsets[-1],
            now_ms=NOW_MS + rng.choice([0, 2 * DAY_MS]),
            delete_retention_ms=DAY_MS,
        ),
        producers={pid: ProducerEnd(batch.last_offset, 0) for pid, batch in known} | {99: ProducerEnd(-1, 3)},
        aborted=log.aborted,
        group_size=rng.randint(1, 3),
        buffer_bytes=rng.choice([BUFFER_BYTES, BUFFER_BYTES, 12 * ENTRY_BYTES]),
        piece_bytes=rng.choice([100, 3_000, 1 << 20]),
    )


def segments_of(log: Log) -> list[Segment]:
    return [
        Segment(source, b"".join(bytes(batch.data) for batch in log.batches_of([source])))
        for source in log.sources(log.end)
    ]


@pytest.fixture(params=[200, 3_000, 1 << 18])
def window_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the bytes of a window, which may end in a batch."""
    size = int(request.param)
    monkeypatch.setattr(source_reader, "WINDOW_BYTES", size)
    return size


@pytest.mark.parametrize("seed", seeds(12, 400))
@pytest.mark.usefixtures("window_bytes")
async def test_rounds_with_windows_write_the_same_files(seed: int) -> None:
    rng = Random(seed)
    log = plain_log(rng, rng.choice([5, 60, 150]))
    for _ in range(2):  # the second log has gaps, horizons and headers that stayed
        segments = segments_of(log)
        plan = random_plan(rng, log, segments)
        expected = await plan.play(segments, has_windows=False)
        assert await plan.play(segments, has_windows=True) == expected
        assert expected.error == ""
        log.segments = [list(batches_of(data)) for data in expected.files]
        log.check()


def batches_of(data: bytes) -> Iterator[Batch]:
    view = memoryview(data)
    while view:
        size = Batch(view).size
        yield Batch(view[:size])
        view = view[size:]


def mutated(rng: Random, segment: Segment) -> Segment:
    """Return the segment with a fault in a batch: of its bytes alone, or with a CRC that is right."""
    data = bytearray(segment.data)
    starts = [0]
    for batch in batches_of(segment.data):
        starts.append(starts[-1] + batch.size)
    number = rng.randrange(len(starts) - 1)
    start, stop = starts[number : number + 2]
    kind = rng.randrange(5)
    if kind == 0:
        at, form = rng.choice(list(HEADER_FIELDS.items()))
        bits = 8 * struct.calcsize(form)
        value = rng.choice([-1, 0, 1, 2, 3, 61, 1 << (bits - 2), (1 << (bits - 1)) - 1, -(1 << (bits - 1))])
        struct.pack_into(form, data, start + at, value if bits > 8 else value % 128)
    elif kind == 1:
        struct.pack_into(">q", data, start, rng.choice([-1, 0, rng.randrange(1 << 62)]))
    elif kind == 2 and len(data) - start > HEADER_BYTES:
        data[rng.randrange(start + HEADER_BYTES - 20, stop)] ^= 1 << rng.randrange(8)
    elif kind == 3:
        del data[rng.randrange(start, stop) :]
    else:
        at = rng.randrange(start, stop)
        data[at:at] = rng.randbytes(rng.randint(1, 70))
    if rng.random() < 0.6 and len(data) >= stop:
        struct.pack_into(">I", data, start + 17, crc32c(memoryview(data)[start + CRC_START : stop]))
    return segment._replace(data=bytes(data))


@pytest.mark.parametrize("seed", seeds(6, 200))
@pytest.mark.usefixtures("window_bytes")
async def test_rounds_with_windows_end_at_damage_with_the_same_error(seed: int) -> None:
    rng = Random(seed)
    log = plain_log(rng, 25)
    sound = segments_of(log)
    errors = set()
    for _ in range(40):
        segments = list(sound)
        at = rng.randrange(len(segments))
        segments[at] = mutated(rng, segments[at])
        if not segments[at].data:
            continue
        plan = random_plan(rng, log, segments)
        expected = await plan.play(segments, has_windows=False)
        assert await plan.play(segments, has_windows=True) == expected
        errors.add(expected.error.partition(":")[0])
    assert "FormatError" in errors


@pytest.mark.parametrize("has_windows", [False, True])
async def test_a_batch_of_less_than_no_records_is_damage(has_windows: bool) -> None:
    """Otherwise the count moves the numbers of the records behind it, and marks of several passes hit other records."""
    log = Log()
    for number in range(30):
        log.add((b"k%d" % (number % 20), b"1"))
    (gap,) = build_gap(log.end, log.end + 5, 0)
    struct.pack_into(">i", gap, 57, -5)
    struct.pack_into(">I", gap, 17, crc32c(memoryview(gap)[CRC_START:]))
    log.segments[-1].append(Batch(memoryview(gap)))
    log.add((b"k", b"1"))
    plan = Plan(bounds=bounds_of(log), producers={}, aborted=(), buffer_bytes=12 * ENTRY_BYTES)
    outcome = await plan.play(segments_of(log), has_windows=has_windows)
    assert outcome.error == "FormatError: the batch at offset 30 has -5 records"


async def test_damage_behind_the_walk_over_keys_is_found() -> None:
    """Sources below the dirty part are not read for their keys: their damage is found as files are written."""
    log = Log()
    for number in range(200):
        log.add((b"k%d" % (number % 7), b"v" * 50))
    (segment,) = segments_of(log)
    plan = Plan(bounds=bounds_of(log, first_dirty=log.end), producers={}, aborted=())
    size = log.batches[0].size
    for number in range(0, 200, 9):
        at = number * size + 16 + number // 9 * 4 % (size - 16)  # of each field from the magic on
        data = bytearray(segment.data)
        data[at] ^= 4
        segments = [segment._replace(data=bytes(data))]
        expected = await plan.play(segments, has_windows=False)
        assert expected.error
        assert await plan.play(segments, has_windows=True) == expected


def bounds_of(log: Log, first_dirty: int = 0) -> RoundBounds:
    return RoundBounds(first_dirty=first_dirty, end=log.end, now_ms=NOW_MS, delete_retention_ms=DAY_MS)


async def parts_of(log: Log, *, producers: dict[int, ProducerEnd] | None = None) -> tuple[int, list[int]]:
    """Return the bytes that windows passed as the file was written, and the offsets of batches that went alone."""
    (segment,) = segments_of(log)
    plan = Plan(bounds=bounds_of(log), producers=producers or {}, aborted=log.aborted)
    expected = await plan.play([segment], has_windows=False)
    passed, alone = 0, list[int]()

    def noted(parts: Iterator[Batch | Window]) -> Iterator[Batch | Window]:
        nonlocal passed
        for part in parts:
            yield part
            if isinstance(part, Window):
                passed += part.passed
            else:
                alone.append(part.base_offset)

    cleaning = CleaningRound(
        plan.bounds,
        [segment.source],
        aborted=plan.aborted,
        producers=plan.producers,
        records=COMPILED_FILTERS.new(SECRET, BUFFER_BYTES, 10_000),
    )
    cleaning.next_walk()
    cleaning.pass_keys(log.batches)
    cleaning.next_walk()
    written: list[bytes] = []
    cleaning.begin_file([segment.source], lambda data: written.append(bytes(data)))
    async for parts in plan._pieces(segment, has_windows=True):
        cleaning.clean(noted(parts))
    cleaning.end_file()
    assert [b"".join(written)] == expected.files
    return passed, alone


async def test_a_run_goes_to_the_first_batch_that_is_not_plain() -> None:
    log = Log()

    def fill() -> None:
        for number in range(50):
            log.add((b"k%d" % (number % 9), b"value"), pid=5)

    fill()
    fill()
    alone = [0]
    alone.append(log.add((b"a", b"1"), codec="zstd"))
    fill()
    alone.append(log.add_transactional(3, (b"c", b"1")))
    alone.append(log.end_transaction(3, Marker.ABORT))
    fill()
    log.epoch += 1
    alone.append(log.end)
    fill()
    passed, found = await parts_of(log)
    assert found == alone
    assert passed == sum(batch.size for batch in log.batches if batch.base_offset not in alone)
    last = log.end - 1
    for known in ({5: ProducerEnd(last, 0)}, {5: ProducerEnd(40, 0)}, {5: ProducerEnd(last, 0), 6: ProducerEnd(40, 0)}):
        _, found = await parts_of(log, producers=known)
        assert found == sorted([*alone, *(end.last_offset for end in known.values())])


async def test_batches_with_tombstones_and_horizons_are_plain() -> None:
    log = Log()
    for number, attributes in enumerate((0, LOG_APPEND_TIME, DELETE_HORIZON, 0)):
        log.add((b"k%d" % number, None), (b"l%d" % number, b"1"), attributes=attributes)
    assert (await parts_of(log))[1] == [0]
    log.is_cleaned = False
    assert (await parts_of(log))[1] == [0, 4]


async def test_a_gap_of_more_offsets_than_a_batch_has_is_two() -> None:
    log = Log()
    log.add((b"k", b"1"))
    for _ in range(3):
        (gap,) = build_gap(log.end, log.end + (1 << 30), 0)
        log.segments[-1].append(Batch(memoryview(gap)))
    log.add((b"k", b"2"))
    log.add((b"l", b"2"))
    assert (await parts_of(log))[1] == [0, log.end - 2]


def test_the_header_of_a_lying_batch_is_not_followed() -> None:
    """No length, count or delta leads outside the window, also with a right CRC."""
    rng = Random(1)
    records = COMPILED_FILTERS.new(SECRET, BUFFER_BYTES, 1_000)
    sound = bytes(build_batch([Record(key=b"k%d" % at, value=b"v" * 20 if at else None) for at in range(5)]))
    for _ in range(3_000):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(8, len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[CRC_START:]))
        window = Window(memoryview(bytes(data) + sound)[: len(data)], 0, 1 << 40)
        records.map_run(window, 0)
        assert window.passed in (0, len(data))
        window = Window(memoryview(data), 0, 1 << 40)
        rules = RunRules(end_offset=1 << 40, epoch=-1, gap_from=0, now_ms=0, new_horizon=1, is_cleaned=True)
        run = records.keep_run(window, 0, rules)
        assert len(run.data) <= len(data) + HEADER_BYTES + 5 * REBASED_BYTES_MAX


def test_there_are_no_runs_without_an_instruction_for_the_crc() -> None:
    code = """
from bmq.storage.cleaning.compiled_filter import COMPILED_FILTERS
COMPILED_FILTERS.load_compiled()
print(COMPILED_FILTERS.new(bytes(16), 1 << 20, 10).runs)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_DISABLE_JIT": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "None\n", done.stderr
