"""A round in parts, as a job does it (storage/cleaning/last_offsets.py): beside the round of an owner."""

from __future__ import annotations

from collections.abc import Container
from random import Random
from typing import Any

import numpy as np
import pytest

from bmq.core.errors import FormatError
from bmq.core.records.batch import HEADER_BYTES, Batch, Record, build_gap
from bmq.storage.cleaning.batch_writer import cut_records
from bmq.storage.cleaning.compiled_filter import COMPILED_FILTERS
from bmq.storage.cleaning.last_offsets import ANY_PRODUCER, KeyHashes, LastOffsetsFilter, has_keys
from bmq.storage.cleaning.retention import AbortedRanges, RoundBounds
from bmq.storage.cleaning.round import CleanedFacts, CleaningRound, Source
from bmq.storage.transactions import Transactions
from tests.harness.seeds import seeds
from tests.unit.storage.cleaning.logs import DAY_MS, NOW_MS, Log, committed, last_values, producers_of
from tests.unit.storage.cleaning.random_logs import extend_log, random_log, stable_end
from tests.unit.storage.cleaning.test_batch_writer import with_count
from tests.unit.storage.cleaning.test_compiled_filter import batch_of, random_batches

pytestmark = pytest.mark.slow

assert COMPILED_FILTERS.load_compiled()
SECRET = bytes(range(16))


def hashes_of(batches: list[Batch]) -> dict[tuple[int, int], list[int]]:
    """Return the offsets of each hash, in order."""
    hashes = KeyHashes(SECRET)
    found: dict[tuple[int, int], list[int]] = {}
    for batch in batches:
        for first, second, offset in zip(*(each.tolist() for each in hashes.of(batch)), strict=True):
            found.setdefault((first, second), []).append(offset)
    return found


def last_offsets(log: Log, end: int) -> list[int]:
    """Return the offset of each key's last committed record below ``end``."""
    aborted = AbortedRanges(log.aborted)
    judged = [batch for batch in log.batches if batch.next_offset <= end and has_keys(batch, aborted)]
    return [offsets[-1] for offsets in hashes_of(judged).values()]


def clean_in_parts(
    log: Log, end: int, *, group_size: int, now_ms: int, knows_producers: bool = True
) -> tuple[Log, list[CleanedFacts]]:
    """Return the log after a round whose files were written apart from each other."""
    sources = log.sources(end)
    end = sources[-1].end_offset if sources else log.base
    lasts = np.array(last_offsets(log, end), np.int64)
    bounds = RoundBounds(first_dirty=end, end=end, now_ms=now_ms, delete_retention_ms=DAY_MS)
    known = {each.last_offset: each for each in log.aborted}
    after = Log(log.base, [], log.epoch, indexed=known, dropped=set(log.dropped))
    facts = []
    for at in range(0, len(sources), group_size):
        group = sources[at : at + group_size]
        opened = open_before(log, group[0].base) if knows_producers else ANY_PRODUCER
        batches, found = clean_part(log, group, bounds, lasts, opened)
        after.segments.append(batches)
        facts.append(found)
        inside = {last for last in known if found.base <= last < found.end_offset}
        after.dropped |= inside - {each.last_offset for each in found.aborted}
    after.segments += [segment for segment in log.segments if segment][len(sources) :]
    after.check()
    return after, facts


def clean_part(
    log: Log, group: list[Source], bounds: RoundBounds, lasts: Any, opened: Container[int]
) -> tuple[list[Batch], CleanedFacts]:
    base, end_offset = group[0].base, group[-1].end_offset
    records = LastOffsetsFilter(base, end_offset)
    for some in np.array_split(lasts[(base <= lasts) & (lasts < end_offset)], 3):
        records.add(some)
    cleaning = CleaningRound(
        bounds, group, aborted=log.aborted, producers=producers_of(log), records=records, open_before=opened
    )
    assert cleaning.next_walk() == [], "the keys are known"
    written: list[bytes] = []
    cleaning.begin_file(group, lambda data: written.append(bytes(data)))
    cleaning.clean(log.batches_of(group))
    facts = cleaning.end_file()
    return [Batch(memoryview(data)) for data in written], facts


def open_before(log: Log, offset: int) -> set[int]:
    """Return the producers with an open transaction there, as the index of the segment before tells them."""
    transactions = Transactions()
    for batch in log.batches:
        if batch.next_offset <= offset:
            transactions.pass_batch(batch)
    return {producer_id for producer_id, _ in transactions.opened}


@pytest.mark.parametrize("seed", seeds(40, 2_000))
def test_files_written_apart_are_those_of_an_owners_round(seed: int) -> None:
    """Also over later rounds: delete horizons, markers and empty batches of producers are alike."""
    rng = Random(seed)
    log, now_ms = random_log(rng, 30, keys=rng.choice([3, 8])), NOW_MS
    for _ in range(4):
        end, group_size = stable_end(log), rng.randint(1, 3)
        local = log.clean(end=end, now_ms=now_ms, producers=producers_of(log), group_size=group_size)
        parts, facts = clean_in_parts(log, end, group_size=group_size, now_ms=now_ms)
        assert parts.data == local.data
        for one, expected in zip(facts, local.cleaned, strict=True):
            extra = set(one.aborted) - set(expected.aborted)
            assert set(expected.aborted) <= set(one.aborted)
            assert all(each.first_offset < one.base for each in extra), "their data would lie in a file before"
            one.aborted = expected.aborted
            assert one == expected
        log, now_ms = local, now_ms + rng.choice([1, DAY_MS, 2 * DAY_MS])
        extend_log(rng, log, rng.randint(0, 8))


@pytest.mark.parametrize("seed", seeds(20, 1_000))
def test_a_part_that_does_not_know_open_producers_loses_nothing(seed: int) -> None:
    """A marker stays longer then, and an aborted transaction stays listed."""
    rng = Random(seed)
    log, now_ms = random_log(rng, 30), NOW_MS
    full = last_values(committed(log))
    for _ in range(3):
        log, _ = clean_in_parts(
            log, stable_end(log), group_size=rng.randint(1, 3), now_ms=now_ms, knows_producers=False
        )
        assert last_values(committed(log)) == full
        now_ms += rng.choice([1, 2 * DAY_MS])


@pytest.mark.parametrize("seed", seeds(6, 200))
def test_a_hash_stands_for_a_key(seed: int) -> None:
    batches = random_batches(Random(seed), 12)
    expected: dict[bytes, list[int]] = {}
    for batch in batches:
        for record in records_with_keys(batch):
            expected.setdefault(record[0], []).append(record[1])
    assert sorted(hashes_of(batches).values()) == sorted(expected.values())


def records_with_keys(batch: Batch) -> list[tuple[bytes, int]]:
    return [(bytes(record.key), record.offset) for record in cut_records(batch) if record.key is not None]


def test_a_batch_without_records_or_keys_has_no_hash() -> None:
    gap = Batch(memoryview(next(iter(build_gap(0, 5, 0)))))
    assert not has_keys(gap, AbortedRanges([]))
    keyless = batch_of([Record(key=None, value=b"v")])
    assert hashes_of([keyless]) == {}


def test_a_damaged_record_is_refused_with_the_batchs_offset() -> None:
    data = bytearray(batch_of([Record(key=b"k", value=b"v")], base_offset=70).data)
    data[HEADER_BYTES] = 0x7F  # the record's length: behind the batch's end
    batch = Batch(memoryview(data))
    with pytest.raises(FormatError, match="offset 70 cannot be cleaned"):
        KeyHashes(SECRET).of(batch)
    with pytest.raises(FormatError, match="offset 70 cannot be cleaned"):
        LastOffsetsFilter(70, 71).keep(batch, 0, keeps_tombstones=True, horizon=-1)


def test_a_count_that_lies_reads_and_writes_nothing_behind_the_records() -> None:
    """The header may name two billion records: the loops stop at the bytes."""
    batch = with_count(batch_of([Record(key=b"k", value=b"v")], base_offset=70), 2_000_000_000)
    with pytest.raises(FormatError):
        KeyHashes(SECRET).of(batch)
    with pytest.raises(FormatError):
        LastOffsetsFilter(70, 71).keep(batch, 0, keeps_tombstones=True, horizon=-1)
