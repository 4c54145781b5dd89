"""The report that an audit makes of its counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bmq.spark.jobs.audit import write_table
from bmq.spark.jobs.audit_report import AuditReport, Gap
from tests.unit.spark.jobs.audit_cells import HOUR, cells

pytestmark = pytest.mark.slow


def report(*rows: dict[str, Any], end: int, gaps: tuple[Gap, ...] = ()) -> AuditReport:
    return AuditReport("orders", {0: (0, end)}, cells(*rows), gaps)


def test_every_offset_has_its_reason() -> None:
    whole = report({"records": 5, "stored": 7, "aborted": 2, "control": 1, "removed": 3, "compacted": 4}, end=15)
    assert whole.faults == []
    assert "every offset is accounted for" in whole.text()


def test_a_report_for_programs() -> None:
    gap = Gap(0, 5, 8)
    facts = json.loads(report({"records": 5, "stored": 5, "missing": 3}, end=8, gaps=(gap,)).json())
    assert facts["topic"] == "orders"
    assert (facts["partitions"]["0"]["start"], facts["partitions"]["0"]["end"]) == (0, 8)
    assert facts["partitions"]["0"]["records"] == facts["totals"]["records"] == 5
    assert facts["gaps"] == [{"partition": 0, "start": 5, "end": 8, "kind": "missing"}]
    assert facts["faults"] == ["partition 0: 3 offsets have no batch, for no known reason"]


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
def test_a_count_out_of_place_is_a_fault(row: dict[str, int], end: int, says: str) -> None:
    (fault,) = report(row, end=end).faults
    assert says in fault


def test_what_may_be_undecided_is_no_fault() -> None:
    for records in (3, 4, 5):
        assert report({"records": records, "stored": 5, "undecided": 2}, end=5).faults == []


def test_a_gap_behind_the_last_batch_counts() -> None:
    whole = report({"records": 5, "stored": 5}, end=8, gaps=(Gap(0, 5, 8, is_trailing=True),))
    assert whole.totals["missing"] == 3
    assert len(whole.faults) == 1
    assert "offsets 5 to 8 (3, missing)" in whole.text()


def test_a_topic_without_records_has_no_faults() -> None:
    nothing = AuditReport("orders", {0: (0, 0), 1: (0, 0)}, cells(), ())
    assert nothing.faults == []
    assert nothing.by_hour == []


def test_hours_and_partitions_add_up() -> None:
    rows = [{"partition": p, "hour": HOUR.replace(hour=h), "records": 1, "stored": 1} for p in (0, 1) for h in (3, 1)]
    whole = AuditReport("orders", {0: (0, 3), 1: (0, 2)}, cells(*rows, {"hour": None, "records": 1, "stored": 1}), ())
    assert [(each["hour"].hour, each["records"]) for each in whole.by_hour] == [(1, 2), (3, 2)]
    assert [each["records"] for each in whole.by_partition.values()] == [3, 2]
    assert whole.faults == []


def test_a_table_is_written_in_each_format(tmp_path: Path) -> None:
    table = cells({"records": 7})
    for suffix in (".parquet", ".csv", ".json"):
        write_table(table, tmp_path / f"audit{suffix}")
    assert pa.parquet.read_table(tmp_path / "audit.parquet").to_pylist() == table.to_pylist()
    assert (tmp_path / "audit.csv").read_text().splitlines()[1].startswith("0,2026-11-01 12:00:00")
    assert '"hour": "2026-11-01T12:00:00+00:00", "records": 7' in (tmp_path / "audit.json").read_text()
