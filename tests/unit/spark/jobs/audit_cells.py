"""Counts of an audit, as a table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from bmq.spark.jobs.audit_report import COUNTS

HOUR = datetime(2026, 11, 1, 12, tzinfo=UTC)


def cells(*rows: dict[str, Any]) -> pa.Table:
    kinds = [
        ("partition", pa.int32()),
        ("hour", pa.timestamp("us", tz="UTC")),
        *((name, pa.int64()) for name in COUNTS),
    ]
    whole = [{"partition": 0, "hour": HOUR, **dict.fromkeys(COUNTS, 0), **row} for row in rows]
    return pa.Table.from_pylist(whole, pa.schema(kinds))
