"""The picture of an audit: of many cells, of one and of none."""

from __future__ import annotations

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
