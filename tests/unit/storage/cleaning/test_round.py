"""Rounds of cleaning (storage/cleaning/round.py): what readers find, and files that are left behind."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.records.batch import Batch, build_gap
from bmq.core.records.control import Marker
from bmq.storage.cleaning.key_offsets import ENTRY_BYTES
from bmq.storage.cleaning.record_filter import PACE_RECORDS, PythonRecordFilter
from bmq.storage.cleaning.retention import RoundBounds
from bmq.storage.cleaning.round import CleaningRound, Source
from tests.unit.storage.cleaning.logs import (
    DAY_MS,
    NOW_MS,
    Log,
    committed,
    keys_and_values,
    last_values,
    producers_of,
    records_of,
)
from tests.unit.storage.cleaning.random_logs import extend_log, opened_in, random_log, stable_end

SEEDS = st.integers(0, 1 << 32)


@pytest.mark.slow
@given(SEEDS)
def test_each_reader_finds_the_last_value_of_each_key(seed: int) -> None:
    rng = Random(seed)
    log = random_log(rng, 24)
    full = last_values(committed(log))
    end, stable = stable_end(log), log
    now = NOW_MS
    first_dirty = 0
    for _ in range(4):
        stable = stable.clean(
            first_dirty=first_dirty,
            end=end,
            now_ms=now,
            producers=producers_of(log),
            group_size=rng.randint(1, 3),
        )
        first_dirty = rng.choice([0, max((facts.end_offset for facts in stable.cleaned), default=0)])
        assert last_values(committed(stable)) == full
        assert stable.end == log.end
        assert [r for r in records_of(stable.batches) if r.offset >= end] == [
            r for r in records_of(log.batches) if r.offset >= end
        ]
        now += rng.choice([1, DAY_MS, 2 * DAY_MS])


@pytest.mark.slow
@given(SEEDS)
def test_a_second_round_changes_nothing_but_markers_horizons(seed: int) -> None:
    log = random_log(Random(seed), 24)
    once = log.clean(end=stable_end(log), producers=producers_of(log))
    again = once.clean(end=stable_end(log), producers=producers_of(log))
    assert keys_and_values(again) == keys_and_values(once)
    third = again.clean(end=stable_end(log), producers=producers_of(log))
    assert third.data == again.data, "the second round is the first that finds aborted data gone"
    changed = [new for new, old in zip(again.batches, once.batches, strict=True) if bytes(new.data) != bytes(old.data)]
    assert all(batch.is_control and batch.attributes & 0x40 for batch in changed)


@pytest.mark.slow
@given(SEEDS, st.integers(1, 5))
def test_passes_of_a_tiny_buffer_agree_with_one_pass(seed: int, room: int) -> None:
    log = random_log(Random(seed), 24, keys=12)
    end = stable_end(log)
    one = log.clean(end=end, producers=producers_of(log))
    many = log.clean(end=end, producers=producers_of(log), buffer_bytes=room * ENTRY_BYTES)
    assert one.passes == 1
    assert many.data == one.data


def test_a_tiny_buffer_takes_several_passes() -> None:
    log = Log()
    for number in range(40):
        log.add((b"k%d" % (number % 20), b"v%d" % number))
    after = log.clean(buffer_bytes=4 * ENTRY_BYTES)
    assert after.passes >= 5
    assert keys_and_values(after) == [(b"k%d" % number, b"v%d" % (number + 20)) for number in range(20)]


@pytest.mark.slow
@given(SEEDS)
def test_the_files_of_a_round_that_ended_early_lose_nothing(seed: int) -> None:
    """The owner may die between two files: readers, and the next round, find files of both rounds."""
    rng = Random(seed)
    log = random_log(rng, 24)
    full, end = last_values(committed(log)), stable_end(log)
    producers, now, first_dirty = producers_of(log), NOW_MS, 0
    for _ in range(4):
        log = log.clean(
            first_dirty=first_dirty,
            end=end,
            now_ms=now,
            producers=producers,
            files=rng.randint(0, 4),
        )
        assert last_values(committed(log)) == full
        now += rng.choice([1, DAY_MS])
    log = log.clean(first_dirty=first_dirty, end=end, now_ms=now, producers=producers)
    assert last_values(committed(log)) == full


@pytest.mark.slow
@given(SEEDS)
def test_tombstones_are_seen_by_whoever_began_in_time(seed: int) -> None:
    """A reader that goes through the log within ``delete.retention.ms`` ends with the log's values.

    Between its two reads there are rounds, and batches are appended.
    """
    rng = Random(seed)
    log = random_log(rng, 14, keys=4)
    now, first_dirty = NOW_MS, 0
    readers: list[tuple[int, int, dict[bytes, bytes]]] = []
    for _ in range(6):
        now += rng.choice([1, DAY_MS // 3, DAY_MS])
        at = rng.choice([0, *(batch.next_offset for batch in log.batches if batch.next_offset <= stable_end(log))])
        seen = [record for record in committed(log) if record.offset < at]
        readers.append((now, at, last_values(seen)))
        end = stable_end(log)
        log = log.clean(first_dirty=first_dirty, end=end, now_ms=now)
        first_dirty = max((facts.end_offset for facts in log.cleaned), default=0)
        extend_log(rng, log, rng.randint(0, 6), keys=4)
        stable = stable_end(log)
        rest = [record for record in committed(log) if record.offset < stable]
        for began, position, values in readers:
            if now < began + DAY_MS:
                ending = dict(values)
                for record in rest:
                    if record.offset >= position and record.key is not None:
                        if record.value is None:
                            ending.pop(record.key, None)
                        else:
                            ending[record.key] = record.value
                assert ending == last_values(rest)


def test_a_run_of_batches_that_vanish_is_one_batch_without_records() -> None:
    log = Log()
    for number in range(5):
        log.add((b"a", b"%d" % number))
    after = log.clean()
    assert after.data == [bytes(next(build_gap(0, 4, 0))), log.data[4]]
    assert after.clean().data == after.data
    log.add((b"a", b"last"))
    grown = after
    grown.add((b"a", b"last"))
    assert grown.clean().data == [bytes(next(build_gap(0, 5, 0))), log.data[5]], "runs of two rounds are joined"


def test_a_run_ends_where_a_leader_epoch_begins() -> None:
    log = Log()
    for epoch in (3, 3, 5, 6):
        log.epoch = epoch
        log.add((b"a", b"1"))
    log.add((b"a", b"2"))
    after = log.clean()
    assert [(batch.leader_epoch, batch.base_offset, batch.count) for batch in after.batches] == [
        (3, 0, 0),
        (5, 2, 0),
        (6, 3, 0),
        (6, 4, 1),
    ]
    assert after.cleaned[0].epochs == [(3, 0), (5, 2), (6, 3)]
    assert after.clean().cleaned[0].epochs == after.cleaned[0].epochs


def test_the_facts_are_those_of_the_cleaned_file() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"))
    log.add_transactional(7, (b"c", b"1"))
    log.add((b"b", None))
    log.roll()
    log.end_transaction(7, Marker.ABORT)
    log.add((b"a", b"2"))
    after = log.clean(group_size=2)
    (facts,) = after.cleaned
    assert (facts.base, facts.end_offset, facts.cleaned_up_to) == (0, 6, 6)
    assert (facts.records_before, facts.records_after) == (6, 3)
    assert (facts.tombstones, facts.markers) == (1, 1)
    assert facts.bytes_before == sum(batch.size for batch in log.batches)
    assert facts.bytes_after == sum(batch.size for batch in after.batches)
    assert facts.earliest_horizon == NOW_MS + DAY_MS
    assert facts.aborted == log.aborted, "a reader of the sources still needs it"
    (facts,) = after.clean(now_ms=NOW_MS + 5, group_size=2).cleaned
    assert facts.aborted == []
    assert facts.earliest_horizon == NOW_MS + DAY_MS


def test_a_clean_segment_loses_what_a_dirty_one_replaces() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"))
    log.roll()
    log.add((b"a", b"2"))
    after = log.clean(first_dirty=2)
    assert keys_and_values(after) == [(b"b", b"1"), (b"a", b"2")]


def test_kafka_13194_nothing_at_or_past_the_rounds_end_is_read() -> None:
    """Kafka cleaned past the high watermark: an unacknowledged record replaced a committed one."""
    log = Log()
    log.add((b"a", b"committed"))
    log.roll()
    log.add((b"a", b"not yet"))
    after = log.clean(end=1)
    assert after.data == log.data
    with pytest.raises(ValueError, match="behind the round's end 1"):
        round_of(log.sources(2), end=1)


def test_a_round_never_ends_within_a_segment_and_takes_none_of_its_batches() -> None:
    log = Log()
    log.add((b"a", b"1"))
    cleaning = round_of([Source(0, 1)], end=1)
    walk = cleaning.next_walk()
    assert walk == [Source(0, 1)]
    with pytest.raises(FormatError, match="a batch at offset 1, but the round ends at 1"):
        cleaning.pass_keys([*log.batches, Batch(memoryview(next(build_gap(1, 2, 0))))])


def test_a_batch_that_ends_behind_its_segment_is_an_error() -> None:
    log = Log()
    log.add((b"a", b"1"), (b"b", b"1"))
    cleaning = round_of([Source(0, 1), Source(1, 2)], end=2)
    cleaning.next_walk()
    with pytest.raises(FormatError, match="ends behind its segment's end 1"):
        cleaning.pass_keys(log.batches)


def test_a_segment_with_a_hole_or_cut_short_is_an_error() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add((b"a", b"2"))
    for batches, message in (
        (log.batches[1:], "but 0 is due"),
        (log.batches[:1], "ends at 1, but its end is 2"),
        ([], "the segment at 0 has no batches"),
    ):
        cleaning = round_of([Source(0, 2)], end=2)
        with pytest.raises(FormatError, match=message):
            map_keys(cleaning, batches)


def test_a_cleaned_file_whose_sources_are_cut_short_does_not_end() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.add((b"a", b"2"))
    cleaning = round_of([Source(0, 2)], end=2)
    map_keys(cleaning, log.batches)
    cleaning.begin_file([Source(0, 2)], lambda data: None)
    cleaning.clean(log.batches[:1])
    with pytest.raises(FormatError, match="ends at 1, but its end is 2"):
        cleaning.end_file()


def test_calls_out_of_order_are_refused() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.roll()
    log.add((b"a", b"2"))
    first, second = log.sources(2)
    cleaning = round_of([first, second], end=2)
    with pytest.raises(ValueError, match="no walk"):
        cleaning.pass_keys(log.batches)
    with pytest.raises(ValueError, match="not over"):
        cleaning.begin_file([first], lambda data: None)
    map_keys(cleaning, log.batches)
    with pytest.raises(ValueError, match="no walk"):
        cleaning.pass_keys(log.batches)
    with pytest.raises(ValueError, match="in their order"):
        cleaning.begin_file([second], lambda data: None)
    with pytest.raises(ValueError, match="overlap"):
        round_of([second, first], end=2)


def map_keys(cleaning: CleaningRound, batches: Sequence[Batch]) -> None:
    while cleaning.next_walk():
        cleaning.pass_keys(batches)


def round_of(sources: Sequence[Source], *, end: int) -> CleaningRound:
    bounds = RoundBounds(first_dirty=0, end=end, now_ms=NOW_MS, delete_retention_ms=DAY_MS)
    return CleaningRound(bounds, sources, aborted=[], producers={}, records=PythonRecordFilter(1 << 20))


def test_open_transactions_bound_the_round() -> None:
    log = Log()
    log.add((b"a", b"1"))
    log.roll()
    log.add_transactional(7, (b"a", b"2"))
    log.roll()
    assert opened_in(log) == ((7, 1),)
    assert log.clean(end=stable_end(log)).data == log.data


def test_a_round_pauses_within_a_large_batch() -> None:
    log = Log()
    log.add(*[(b"k", b"")] * (3 * PACE_RECORDS))
    pauses = 0

    def pace() -> None:
        nonlocal pauses
        pauses += 1

    log.clean(pace=pace)
    assert pauses == 2 * 3, "in each of the two walks"
