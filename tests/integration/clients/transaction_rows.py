"""Rows of kafka-transactions.sh's tables."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.services.kafka_tools import ToolOutput, run_tool

Row = dict[str, str]
"""Values by the names of their columns."""


def transactions_tool(bootstrap: str, *arguments: str, codes: Sequence[int] = (0,)) -> ToolOutput:
    """Run kafka-transactions.sh with these arguments."""
    return run_tool("TransactionsCommand", "--bootstrap-server", bootstrap, *arguments, codes=codes)


def transactions(bootstrap: str, *arguments: str) -> list[Row]:
    """Return the rows that kafka-transactions.sh prints."""
    output = transactions_tool(bootstrap, *arguments)
    if not output.lines:
        return []
    header, *found = (re.split(r"\s*\t\s*|\s+", line.strip()) for line in output.lines)
    return [dict(zip(header, row, strict=True)) for row in found]


def one(found: Sequence[Row], **wanted: str) -> Row:
    """Return the row that has these values."""
    (row,) = (each for each in found if wanted.items() <= each.items())
    return row
