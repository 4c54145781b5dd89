"""The report that an audit makes of its counts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bmq.spark.jobs.audit import write_table
from bmq.spark.jobs.audit_picture import draw
from bmq.spark.jobs.audit_report import COUNTS, AuditReport, Gap

pytestmark = pytest.mark.slow

HOUR = datetime(2026, 11, 1, 12, tzinfo=UTC)


def cells(*rows: dict[str, Any]) -> pa.Table:
    kinds = [
        ("partition", pa.int32()),
        ("hour", pa.timestamp("us", tz="UTC")),
        *((name, pa.int64()) for name in COUNTS),
    ]
    whole = [{"partition": 0, "hour": HOUR, **dict.fromkeys(COUNTS, 0), **row} for row in rows]
    return pa.Table.from_pylist(whole, pa.schema(kinds))


def report(*rows: dict[str, Any], end: int, gaps: tuple[Gap, ...] = ()) -> AuditReport:
    return AuditReport("orders", {0: (0, end)}, cells(*rows), gaps)


def test_every_offset_has_its_reason() -> None:
    whole = report({"records": 5, "stored": 7, "aborted": 2, "control": 1, "removed": 3, "compacted": 4}, end=15)
    assert whole.faults == []
    assert "every offset is accounted for" in whole.text()


def test_a_report_for_programs() -> None:
    gap = Gap(0, 5, 8, "missing")
    told = json.loads(report({"records": 5, "stored": 5, "missing": 3}, end=8, gaps=(gap,)).json())
    assert told["topic"] == "orders"
    assert (told["partitions"]["0"]["start"], told["partitions"]["0"]["end"]) == (0, 8)
    assert told["partitions"]["0"]["records"] == told["totals"]["records"] == 5
    assert told["gaps"] == [{"partition": 0, "start": 5, "end": 8, "kind": "missing"}]
    assert told["faults"] == ["partition 0: 3 offsets have no batch, for no known reason"]


@pytest.mark.parametrize(
    ("row", "end", "says"),
    [
        ({"records": 5, "stored": 5, "missing": 2}, 7, "2 offsets have no batch"),
        ({"records": 5, "stored": 5, "resent": 1}, 5, "1 records are in batches that are there twice"),
        ({"records": 4, "stored": 5}, 5, "1 records are stored and could not be read"),
        ({"records": 6, "stored": 5}, 5, "1 more records were read than headers count"),
        ({"records": 5, "stored": 5}, 6, "6 offsets, of which 5 are accounted for"),
    ],
)
def test_faults(row: dict[str, int], end: int, says: str) -> None:
    (fault,) = report(row, end=end).faults
    assert says in fault


def test_what_may_be_undecided_is_no_fault() -> None:
    for records in (3, 4, 5):
        assert report({"records": records, "stored": 5, "undecided": 2}, end=5).faults == []


def test_a_gap_behind_the_last_batch_counts() -> None:
    whole = report({"records": 5, "stored": 5}, end=8, gaps=(Gap(0, 5, 8, "missing", is_trailing=True),))
    assert whole.totals["missing"] == 3
    assert len(whole.faults) == 1
    assert "offsets 5 to 8 (3, missing)" in whole.text()


def test_a_topic_without_records() -> None:
    nothing = AuditReport("orders", {0: (0, 0), 1: (0, 0)}, cells(), ())
    assert nothing.faults == []
    assert nothing.by_hour == []


def test_hours_and_partitions_add_up() -> None:
    rows = [{"partition": p, "hour": HOUR.replace(hour=h), "records": 1, "stored": 1} for p in (0, 1) for h in (3, 1)]
    whole = AuditReport("orders", {0: (0, 3), 1: (0, 2)}, cells(*rows, {"hour": None, "records": 1, "stored": 1}), ())
    assert [(each["hour"].hour, each["records"]) for each in whole.by_hour] == [(1, 2), (3, 2)]
    assert [each["records"] for each in whole.by_partition.values()] == [3, 2]
    assert whole.faults == []


def test_pictures(tmp_path: Path) -> None:
    """Draw a picture of many cells, of one and of none."""
    many = [{"partition": p, "hour": HOUR.replace(hour=h), "records": h + 1} for p in range(40) for h in range(24)]
    for name, rows in (("many", many), ("one", [{"records": 1, "missing": 1}]), ("none", [])):
        path = tmp_path / f"{name}.png"
        draw(AuditReport("orders", dict.fromkeys(range(40), (0, 1)), cells(*rows), ()), path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_tables(tmp_path: Path) -> None:
    table = cells({"records": 7})
    for suffix in (".parquet", ".csv", ".json"):
        write_table(table, tmp_path / f"audit{suffix}")
    assert pa.parquet.read_table(tmp_path / "audit.parquet").to_pylist() == table.to_pylist()
    assert (tmp_path / "audit.csv").read_text().splitlines()[1].startswith("0,2026-11-01 12:00:00")
    assert '"hour": "2026-11-01T12:00:00+00:00", "records": 7' in (tmp_path / "audit.json").read_text()
