"""Kafka's own log cleaner as the second model: of the same log, the same rounds leave the same records."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from bmq.core.records.batch import Batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.storage.cleaning.compiled_filter import SECRET_BYTES, CompiledRecordFilter
from bmq.storage.cleaning.retention import DELETE_HORIZON
from tests.integration.history import report
from tests.services.kafka_cleaner import KafkaRound, cleaned, run_cleaner, write_log
from tests.unit.storage.cleaning.logs import DAY_MS, NOW_MS, Log, producers_of
from tests.unit.storage.cleaning.random_logs import random_log, stable_end

SECRET = bytes(range(SECRET_BYTES))
LOGS = 80
ROUNDS = 4
BYTES_RATIO_MAX = 1.02


def test_the_same_records_stay_as_with_kafkas_cleaner(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Records, markers, the empty batches of producers, horizons and timestamps agree, round by round.

    Every second log is cleaned by the compiled filter.  Two things are ours alone and left out: records without a key,
    which Kafka removes, and the batches that stand for offsets; Kafka keeps the last batch of a round for that.
    """
    ours: dict[int, list[Log]] = {}
    for number in range(LOGS):
        rng = Random(number)
        log = random_log(rng, 40, has_keyless=False)
        rounds, after = rounds_of(rng, log), [log]
        for each in rounds:
            after.append(
                after[-1].clean(
                    first_dirty=each.first_dirty,
                    end=each.end,
                    now_ms=each.now_ms,
                    producers=producers_of(log),
                    records=CompiledRecordFilter(SECRET, 1 << 20, log.end) if number % 2 else None,
                )
            )
        if not rounds:
            continue
        ours[number] = after[1:]
        write_log(
            tmp_path / f"{number:04d}",
            [b"".join(bytes(batch.data) for batch in segment) for segment in log.segments if segment],
            rounds,
        )
    run_cleaner(tmp_path, DAY_MS)
    records = 0
    for number, logs in ours.items():
        for at, log in enumerate(logs):
            theirs = list(read_batches(cleaned(tmp_path / f"{number:04d}", at)))
            what = f"log {number}, round {at}"
            assert facts(log.batches) == facts(theirs), what
            assert empty_batches(log.batches) - empty_batches(theirs) == set(), what
            records += sum(batch.count for batch in theirs)
    sizes = sum(batch.size for logs in ours.values() for batch in logs[-1].batches if not is_gap(batch))
    kafkas = sum(len(cleaned(tmp_path / f"{number:04d}", len(logs) - 1)) for number, logs in ours.items())
    assert sizes <= BYTES_RATIO_MAX * kafkas
    report(request, f"{LOGS} logs, {ROUNDS} rounds each: {records} records alike; {sizes} bytes, Kafka {kafkas}")


def rounds_of(rng: Random, log: Log) -> list[KafkaRound]:
    """Return rounds at rising ends, and over all again: Kafka leaves a log without anything dirty as it is.

    No round ends behind data of a transaction.  Kafka keeps the last batch of a round, if need be without records, and
    then counts it as data of the transaction: its marker waits a round longer.
    """
    last_batches = [segment[-1] for segment in log.segments if segment]
    ends = [batch.next_offset for batch in last_batches if batch.is_control or not batch.is_transactional]
    possible = [end for end in ends if end <= stable_end(log)]
    chosen = sorted(rng.sample(possible, min(2, len(possible))))
    found, first_dirty, now = list[KafkaRound](), 0, NOW_MS
    for end in chosen + possible[-1:] * (ROUNDS - len(chosen)):
        found.append(KafkaRound(first_dirty if first_dirty < end else 0, end, now))
        first_dirty = end
        now += rng.choice([1, DAY_MS - 1, DAY_MS, 3 * DAY_MS])
    return found


def facts(batches: list[Batch]) -> list[object]:
    """Return what readers can tell of the batches with records."""
    found: list[object] = []
    for batch in batches:
        if not batch.count:
            continue
        horizon = batch.base_timestamp if batch.attributes & DELETE_HORIZON else None
        header = (
            batch.base_offset, batch.last_offset, batch.leader_epoch, batch.producer_id, batch.producer_epoch,
            batch.base_sequence, batch.attributes, batch.max_timestamp, horizon,
        )  # fmt: skip
        found.append((header, list(read_records(batch))))
    return found


def empty_batches(batches: list[Batch]) -> set[bytes]:
    """Return the batches of producers without records."""
    return {bytes(batch.data) for batch in batches if not batch.count and not is_gap(batch)}


def is_gap(batch: Batch) -> bool:
    return not batch.count and bool(batch.producer_id < 0)
