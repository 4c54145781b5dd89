"""The last hour of a process, and of the cluster: a small ring of samples in memory, for the console's charts.

A sample has the counts between two multiples of ``INTERVAL_MS`` of the wall clock.  So samples with the same number are
of the same time in all processes and can be added up.  For that reason latencies are kept as histograms: percentiles
cannot be added.  Pure: the caller reads counters and clocks.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypedDict

from bmq.core.errors import FormatError
from bmq.core.metrics.counters import LATENCY_BOUNDS_MS

INTERVAL_MS = 5_000
SAMPLES_MAX = 720
"""Samples of an hour.  A row has 37 numbers, so the ring takes about 300 kB."""
SETTLE_MS = 2_000
"""Age at which a sample is shown: by then every process has taken it."""
LAYOUT = 1
"""Version of the rows on the wire; to be raised when their columns change."""

_BUCKETS = len(LATENCY_BOUNDS_MS) + 1


class Totals(NamedTuple):
    """Counters of one process since its start; ``connections`` counts those that are open now."""

    records_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    produces: int = 0
    fetches: int = 0
    errors: int = 0
    connections: int = 0
    produce_buckets: Sequence[int] = (0,) * _BUCKETS
    flush_buckets: Sequence[int] = (0,) * _BUCKETS

    @property
    def counts(self) -> tuple[int, ...]:
        """The counts that are shown as rates, in their order on the wire."""
        return self.records_in, self.bytes_in, self.bytes_out, self.produces, self.fetches, self.errors


class HistoryRow(NamedTuple):
    """One sample: the counts of the interval that ends at ``number * INTERVAL_MS``."""

    number: int
    totals: Totals


class HistorySample(TypedDict):
    """One interval of the whole cluster.  Latencies are null if nothing was measured."""

    time_ms: int
    processes: int
    """Processes that are in the sums."""
    records_in_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float
    produces_per_s: float
    fetches_per_s: float
    errors_per_s: float
    connections: int
    produce_p50_ms: float | None
    produce_p99_ms: float | None
    flush_p50_ms: float | None
    flush_p99_ms: float | None


class MissingFacts(TypedDict):
    """A member whose samples are missing, and why."""

    member: str
    why: str


class HistoryFacts(TypedDict):
    """Recent samples of the whole cluster, and the members that are not in them."""

    interval_ms: int
    kept_ms: int
    samples: Sequence[HistorySample]
    missing: Sequence[MissingFacts]


class MetricsHistory:
    """The ring of one process."""

    def __init__(self) -> None:
        self._rows: deque[HistoryRow] = deque(maxlen=SAMPLES_MAX)
        self._before: Totals | None = None
        self._number = 0

    def __repr__(self) -> str:
        return f"<History {len(self._rows)} rows to {self._number}>"

    def add(self, now_ms: int, totals: Totals) -> None:
        """Add the counts since the last call, as the sample whose end is nearest to ``now_ms``.

        After a pause no row is added, since the counts are of more than one interval.  A clock that was set back clears
        the ring.
        """
        number = _nearest(now_ms)
        if self._before is not None and number == self._number:
            return
        if self._before is not None and number == self._number + 1:
            self._rows.append(HistoryRow(number, _between(self._before, totals)))
        elif number < self._number:
            self._rows.clear()
        self._before, self._number = totals, number

    def since(self, after_ms: int) -> list[HistoryRow]:
        """Return the rows that end later than ``after_ms``."""
        return [row for row in self._rows if row.number * INTERVAL_MS > after_ms]


def next_sample_s(now_ms: int) -> float:
    """Return the seconds until the end of the interval to be sampled next.

    An interval whose sample was taken a little early, by a timer that fired before its end, is not returned again.
    """
    return ((_nearest(now_ms) + 1) * INTERVAL_MS - now_ms) / 1000


def _nearest(now_ms: int) -> int:
    return (now_ms + INTERVAL_MS // 2) // INTERVAL_MS


def _between(before: Totals, now: Totals) -> Totals:
    """Return the counts between two totals.  A sum over topics may shrink when one is deleted: that counts as 0."""

    def grown(old: Sequence[int], new: Sequence[int]) -> tuple[int, ...]:
        return tuple(max(0, b - a) for a, b in zip(old, new, strict=True))

    records_in, bytes_in, bytes_out, produces, fetches, errors = grown(before.counts, now.counts)
    return Totals(
        records_in,
        bytes_in,
        bytes_out,
        produces,
        fetches,
        errors,
        now.connections,
        grown(before.produce_buckets, now.produce_buckets),
        grown(before.flush_buckets, now.flush_buckets),
    )


# ---------------------------------------------------------------------------------------------------------- the cluster


def merge(parts: Iterable[Sequence[HistoryRow]], now_ms: int) -> list[HistorySample]:
    """Return the samples of all processes, added up by time, without those that some processes have yet to take."""
    newest = (now_ms - SETTLE_MS) // INTERVAL_MS
    by_number: dict[int, list[Totals]] = {}
    for rows in parts:
        for row in rows:
            if row.number <= newest:
                by_number.setdefault(row.number, []).append(row.totals)
    numbers = sorted(by_number)[-SAMPLES_MAX:]
    return [_sample(number, by_number[number]) for number in numbers]


def _sample(number: int, counts: Sequence[Totals]) -> HistorySample:
    seconds = INTERVAL_MS / 1000
    rates = [sum(column) / seconds for column in zip(*(each.counts for each in counts), strict=True)]
    produce = [sum(column) for column in zip(*(each.produce_buckets for each in counts), strict=True)]
    flush = [sum(column) for column in zip(*(each.flush_buckets for each in counts), strict=True)]
    return HistorySample(
        time_ms=number * INTERVAL_MS,
        processes=len(counts),
        records_in_per_s=rates[0],
        bytes_in_per_s=rates[1],
        bytes_out_per_s=rates[2],
        produces_per_s=rates[3],
        fetches_per_s=rates[4],
        errors_per_s=rates[5],
        connections=sum(each.connections for each in counts),
        produce_p50_ms=quantile(produce, 0.5),
        produce_p99_ms=quantile(produce, 0.99),
        flush_p50_ms=quantile(flush, 0.5),
        flush_p99_ms=quantile(flush, 0.99),
    )


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """Return the latency in ms that ``share`` of the durations do not exceed; None if there are no durations.

    It is interpolated between two bounds, as by Prometheus' histogram_quantile, and at most the last bound.
    """
    total = sum(buckets)
    if not total:
        return None
    rank, below = share * total, 0
    for index, count in enumerate(buckets[:-1]):
        if count and below + count >= rank:
            low = LATENCY_BOUNDS_MS[index - 1] if index else 0
            part = max(0.0, rank - below) / count
            return round(low + (LATENCY_BOUNDS_MS[index] - low) * part, 3)
        below += count
    return float(LATENCY_BOUNDS_MS[-1])


# --------------------------------------------------------------------------------------------------------- on the wire

_ROW = struct.Struct(f">{8 + 2 * _BUCKETS}q")


def encode_rows(rows: Sequence[HistoryRow]) -> bytes:
    """Return the rows as they are sent between members."""
    return b"".join(
        _ROW.pack(
            row.number,
            *row.totals.counts,
            row.totals.connections,
            *row.totals.produce_buckets,
            *row.totals.flush_buckets,
        )
        for row in rows
    )


def decode_rows(data: bytes | memoryview) -> list[HistoryRow]:
    """Return the rows that ``encode_rows`` encoded.  Raises FormatError if the length does not fit."""
    if len(data) % _ROW.size:
        raise FormatError(f"{len(data)} bytes are no rows of {_ROW.size} bytes")
    return [_row(numbers) for numbers in _ROW.iter_unpack(data)]


def _row(numbers: tuple[int, ...]) -> HistoryRow:
    number, records_in, bytes_in, bytes_out, produces, fetches, errors, connections, *buckets = numbers
    produce, flush = tuple(buckets[:_BUCKETS]), tuple(buckets[_BUCKETS:])
    return HistoryRow(
        number, Totals(records_in, bytes_in, bytes_out, produces, fetches, errors, connections, produce, flush)
    )


def by_member(missing: Mapping[str, str]) -> list[MissingFacts]:
    """Return the reasons as facts, sorted by member."""
    return [MissingFacts(member=member, why=why) for member, why in sorted(missing.items())]
