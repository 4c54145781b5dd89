"""The result of an audit: totals, faults, and the text that is printed.  Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

COUNTS = (
    "records",
    "null_values",
    "null_keys",
    "key_bytes",
    "value_bytes",
    "largest_value",
    "batches",
    "stored_bytes",
    "stored",
    "control",
    "aborted",
    "undecided",
    "removed",
    "compacted",
    "missing",
    "resent",
    "same_content",
)
"""The columns by partition and hour.

``records`` counts the records for a reader of committed data, ``stored`` the records in the headers.  Offsets without a
record are ``removed`` in batches with other records, ``compacted`` in empty batches, and ``missing`` between batches.
``resent`` are records of batches that an idempotent producer's number shows to be in the log twice.
"""
_SHOWN = (
    ("records", "records"),
    ("control", "control"),
    ("aborted", "aborted"),
    ("removed", "removed"),
    ("compacted", "compacted"),
    ("missing", "missing"),
    ("resent", "resent"),
    ("value_bytes", "value bytes"),
    ("stored_bytes", "stored bytes"),
)
GAPS_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) that no batch covers.  ``is_trailing``: after the last batch, so in no hour."""

    partition: int
    start: int
    end: int
    is_trailing: bool = False


class AuditReport:
    """The report of an audit, made of ``cells``, the table by partition and hour."""

    def __init__(self, topic: str, ranges: Mapping[int, tuple[int, int]], cells: pa.Table, gaps: Sequence[Gap]) -> None:
        self.topic = topic
        self.ranges = ranges
        self.cells = cells
        self.gaps = gaps

    @cached_property
    def by_partition(self) -> dict[int, dict[str, int]]:
        """Totals by partition, empty partitions and trailing gaps included."""
        totals = {partition: dict.fromkeys(COUNTS, 0) for partition in self.ranges}
        for row in self._summed("partition"):
            totals[row.pop("partition")] = row
        for gap in self.gaps:
            if gap.is_trailing:
                totals[gap.partition]["missing"] += gap.end - gap.start
        return dict(sorted(totals.items()))

    @cached_property
    def by_hour(self) -> list[dict[str, Any]]:
        """Totals by hour, oldest first; records without a time are left out."""
        rows = [row for row in self._summed("hour") if row["hour"] is not None]
        return sorted(rows, key=lambda row: row["hour"])

    @cached_property
    def totals(self) -> dict[str, int]:
        """The sums over all partitions."""
        return {name: sum(each[name] for each in self.by_partition.values()) for name in COUNTS}

    def _summed(self, key: str) -> list[dict[str, Any]]:
        grouped = self.cells.group_by(key).aggregate([(name, "sum") for name in COUNTS])
        return [{key: row[key], **{name: row[f"{name}_sum"] or 0 for name in COUNTS}} for row in grouped.to_pylist()]

    @cached_property
    def faults(self) -> list[str]:
        """A text for each fault, partition by partition; empty if every offset is accounted for."""
        found = []
        for partition, each in self.by_partition.items():
            if each["missing"]:
                found.append(f"partition {partition}: {each['missing']:,} offsets have no batch, for no known reason")
            if each["resent"]:
                found.append(f"partition {partition}: {each['resent']:,} records are in batches that are there twice")
            damaged = each["stored"] - each["aborted"] - each["undecided"] - each["records"]
            if damaged > 0:
                found.append(f"partition {partition}: {damaged:,} records are stored and could not be read")
            elif each["records"] > each["stored"] - each["aborted"]:
                more = each["records"] - each["stored"] + each["aborted"]
                found.append(f"partition {partition}: {more:,} more records were read than headers count")
            start, end = self.ranges[partition]
            known = sum(each[name] for name in ("stored", "control", "removed", "compacted", "missing"))
            if known != end - start:
                found.append(f"partition {partition}: {end - start:,} offsets, of which {known:,} are accounted for")
        return found

    def text(self) -> str:
        """Return the report for people."""
        titles = ["partition", "offsets", *(title for _, title in _SHOWN)]
        rows = [
            [partition, "{:,} to {:,}".format(*self.ranges[partition]), *(each[name] for name, _ in _SHOWN)]
            for partition, each in self.by_partition.items()
        ]
        rows.append(["all", f"{sum(e - s for s, e in self.ranges.values()):,}", *(self.totals[n] for n, _ in _SHOWN)])
        lines = [f"topic {self.topic}", "", *_table(titles, rows), ""]
        if self.by_hour:
            first, last = self.by_hour[0]["hour"], self.by_hour[-1]["hour"]
            lines.append(f"hours    {len(self.by_hour)} with data, {first:%Y-%m-%d %H:00} to {last:%Y-%m-%d %H:00} UTC")
        if self.totals["same_content"]:
            lines.append(f"content  {self.totals['same_content']:,} records equal another in time, key and value")
        if self.totals["undecided"]:
            lines.append(f"open     {self.totals['undecided']:,} records of transactions that end after the range")
        lines += self._gap_lines()
        lines += [f"WRONG    {fault}" for fault in self.faults] or ["right    every offset is accounted for"]
        return "\n".join(lines) + "\n"

    def json(self) -> str:
        """Return the report for programs: one JSON object on a line."""
        content = {
            "topic": self.topic,
            "partitions": {
                str(partition): {"start": self.ranges[partition][0], "end": self.ranges[partition][1], **each}
                for partition, each in self.by_partition.items()
            },
            "totals": self.totals,
            "gaps": [
                {"partition": gap.partition, "start": gap.start, "end": gap.end, "kind": "missing"} for gap in self.gaps
            ],
            "faults": self.faults,
        }
        return json.dumps(content) + "\n"

    def _gap_lines(self) -> list[str]:
        largest = sorted(self.gaps, key=lambda gap: gap.start - gap.end)[:GAPS_SHOWN]
        lines = [
            f"gap      partition {gap.partition}: offsets {gap.start:,} to {gap.end:,} ({gap.end - gap.start:,},"
            " missing)"
            for gap in largest
        ]
        if len(self.gaps) > len(largest):
            lines.append(f"         and {len(self.gaps) - len(largest):,} smaller ones")
        return lines


def hours_and_partitions(cells: pa.Table) -> list[dict[str, Any]]:
    """Return the cells that have an hour."""
    rows: list[dict[str, Any]] = cells.filter(pc.is_valid(cells["hour"])).to_pylist()
    return rows


def _table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    texts = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(titles), *texts]) for i in range(len(titles))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in [titles, *texts]]
