"""The picture of an audit: of many cells, of one and of none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from bmq.spark.jobs.audit_picture import draw
from bmq.spark.jobs.audit_report import AuditReport
from tests.unit.spark.jobs.audit_cells import HOUR, cells

pytestmark = pytest.mark.slow


def test_a_picture_is_drawn_of_any_number_of_cells(tmp_path: Path) -> None:
    """Draw a picture of many cells, of one and of none."""
    many = [{"partition": p, "hour": HOUR.replace(hour=h), "records": h + 1} for p in range(40) for h in range(24)]
    for name, rows in (("many", many), ("one", [{"records": 1, "missing": 1}]), ("none", [])):
        path = tmp_path / f"{name}.png"
        draw(AuditReport("orders", dict.fromkeys(range(40), (0, 1)), cells(*rows), ()), path)
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("first", [1970, 2023, 9999])
def test_a_picture_ends_with_the_last_hour_that_has_a_date(tmp_path: Path, first: int) -> None:
    rows = [{"hour": datetime(year, 12, 31, 23, tzinfo=UTC), "records": 1} for year in {first, 9999}]
    draw(AuditReport("orders", {0: (0, len(rows))}, cells(*rows), ()), tmp_path / "last.png")
    assert (tmp_path / "last.png").read_bytes().startswith(b"\x89PNG")
