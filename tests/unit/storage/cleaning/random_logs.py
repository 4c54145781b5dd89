"""Random logs of everything that a compacted topic may have, for properties of the cleaning."""

from __future__ import annotations

from random import Random

from bmq.core.records.control import Marker
from bmq.storage.transactions import Transactions
from tests.unit.storage.cleaning.logs import NOW_MS, Log

CODECS = ("none", "none", "gzip", "snappy", "lz4", "zstd")
PRODUCERS = range(1, 4)


def random_log(rng: Random, count: int, *, keys: int = 6, has_keyless: bool = True) -> Log:
    """Return a log of ``count`` batches and markers, in segments; transactions may be open at its end."""
    log = Log()
    extend_log(rng, log, count, keys=keys, has_keyless=has_keyless)
    return log


def extend_log(rng: Random, log: Log, count: int, *, keys: int = 6, has_keyless: bool = True) -> None:
    """Append ``count`` batches and markers."""
    opened = {pid for pid, _ in opened_in(log)}
    sequences = dict.fromkeys(PRODUCERS, 0)
    for batch in log.batches:
        if batch.producer_id in sequences and not batch.is_control:
            sequences[batch.producer_id] = batch.last_sequence + 1
    for _ in range(count):
        if rng.random() < 0.2:
            log.roll()
        if rng.random() < 0.05:
            log.epoch += 1
        pid = rng.choice([-1, *PRODUCERS])
        if pid in opened and rng.random() < 0.5:
            log.end_transaction(pid, rng.choice([Marker.COMMIT, Marker.ABORT]))
            opened.discard(pid)
            continue
        records = [_record(rng, keys, has_keyless) for _ in range(rng.randint(1, 4))]
        codec, timestamp = rng.choice(CODECS), NOW_MS - rng.randint(0, 1_000)
        if pid < 0:
            log.add(*records, codec=codec, timestamp=timestamp)
            continue
        log.add(*records, pid=pid, sequence=sequences[pid], codec=codec, timestamp=timestamp, attributes=0x10)
        opened.add(pid)
        sequences[pid] += len(records)
    log.roll()


def opened_in(log: Log) -> tuple[tuple[int, int], ...]:
    """Return producer id and first offset of each open transaction."""
    transactions = Transactions()
    for batch in log.batches:
        transactions.pass_batch(batch)
    return transactions.opened


def stable_end(log: Log) -> int:
    """Return the last stable offset."""
    return min((first for _, first in opened_in(log)), default=log.end)


def _record(rng: Random, keys: int, has_keyless: bool) -> tuple[bytes | None, bytes | None]:
    key = None if has_keyless and rng.random() < 0.1 else b"k%d" % rng.randrange(keys)
    value = None if rng.random() < 0.25 else b"v%d" % rng.randrange(1_000_000)
    return key, value
