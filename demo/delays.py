"""Delays by carrier: the result that Spark is to find, computed from the data set in another way.

All delays are whole minutes, so sums are exact and means are the same numbers wherever they are computed: the two are
compared for equality.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import pyarrow as pa
from pyarrow import compute, csv

PROBLEMS_MAX = 10


@dataclass(frozen=True, slots=True)
class Day:
    """A carrier's flights of one day: ``arrived`` of them have a delay, ``delay`` minutes in all."""

    carrier: str
    day: date
    flights: int
    arrived: int
    delay: int

    @property
    def mean(self) -> float | None:
        """The mean delay in minutes; None if no flight arrived."""
        return self.delay / self.arrived if self.arrived else None


@dataclass(frozen=True, slots=True)
class Carrier:
    """Mean delays in minutes at arrival; the worst day is the one with the largest mean, the first of equals."""

    carrier: str
    flights: int
    mean: float | None
    worst_day: date | None
    worst_mean: float | None


def from_data_set(text: bytes, records: int) -> list[Carrier]:
    """Compute the delays of the first ``records`` lines of the CSV file, by Arrow's reader and its grouping."""
    options = csv.ConvertOptions(
        include_columns=["carrier", "year", "month", "day", "arr_delay"],
        column_types={"arr_delay": pa.int64()},
        null_values=["NA", ""],
    )
    table = csv.read_csv(io.BytesIO(text), convert_options=options).slice(0, records)
    sums = [("arr_delay", "count"), ("arr_delay", "sum"), ([], "count_all")]
    carriers = {row["carrier"]: row for row in table.group_by("carrier").aggregate(sums).to_pylist()}
    days = table.group_by(["carrier", "year", "month", "day"]).aggregate(sums)
    means = compute.divide(days["arr_delay_sum"].cast(pa.float64()), days["arr_delay_count"].cast(pa.float64()))
    order = [("carrier", "ascending"), ("mean", "descending")]
    order += [(name, "ascending") for name in ("year", "month", "day")]
    worst: dict[str, tuple[date, float]] = {}
    known = compute.greater(days["arr_delay_count"], 0)
    for row in days.append_column("mean", means).filter(known).sort_by(order).to_pylist():
        worst.setdefault(row["carrier"], (date(row["year"], row["month"], row["day"]), row["mean"]))
    return [
        Carrier(
            carrier,
            row["count_all"],
            row["arr_delay_sum"] / row["arr_delay_count"] if row["arr_delay_count"] else None,
            *worst.get(carrier, (None, None)),
        )
        for carrier, row in sorted(carriers.items())
    ]


def differences(found: Sequence[Carrier], expected: Sequence[Carrier]) -> list[str]:
    """Return a text for each difference; none if both are the same, to the last bit."""
    ours, theirs = _by_name(found), _by_name(expected)
    problems = [f"carrier {name} is in one only" for name in sorted(ours.keys() ^ theirs.keys())]
    problems += [
        f"Spark found {ours[name]}, the data set has {theirs[name]}"
        for name in sorted(ours.keys() & theirs.keys())
        if ours[name] != theirs[name]
    ]
    if len(ours) != len(found):
        problems.append("Spark returned a carrier twice")
    return problems[:PROBLEMS_MAX]


def print_delays(found: Sequence[Carrier], expected: Sequence[Carrier], airlines: Mapping[str, str]) -> None:
    """Print a line for each carrier, with a mark where ``found`` differs from ``expected``."""
    theirs = _by_name(expected)
    print(f"\n{'by Spark, from the segments':<32}{'flights':>10}{'mean delay':>12}{'worst day':>13}{'its mean':>12}")
    for each in sorted(found, key=lambda carrier: -carrier.flights):
        name = f"{each.carrier}  {airlines.get(each.carrier, '')}"
        mark = "" if theirs.get(each.carrier) == each else "  <- differs"
        print(
            f"{name:<32}{each.flights:>10,}{_minutes(each.mean):>12}{each.worst_day or '-'!s:>13}"
            f"{_minutes(each.worst_mean):>12}{mark}"
        )
    print()


def _minutes(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} min"


def _by_name(carriers: Sequence[Carrier]) -> dict[str, Carrier]:
    return {each.carrier: each for each in carriers}
