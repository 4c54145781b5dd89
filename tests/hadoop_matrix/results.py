"""The results of the matrix: a file with one end for each cell, and the table of docs/operations/hdfs.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from tests.drawn_files import table
from tests.hadoop_matrix.cells import AUTHENTICATION, PROTECTIONS, VERSIONS, Cell

PATH = Path(__file__).with_name("results.json")
NOT_TRIED = "not tried"


class Result(TypedDict):
    """The end of a cell: the steps that passed, and the error of the step behind them; "" if all passed."""

    steps: list[str]
    error: str
    commit: str
    date: str


def read_results() -> dict[str, Result]:
    """Return the results by the keys of cells; none before the first run."""
    found: dict[str, Result] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return found


def keep_result(cell: Cell, result: Result) -> None:
    """Write a cell's result into the file."""
    results = {**read_results(), cell.key: result}
    PATH.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def draw(results: Mapping[str, Result]) -> str:
    """Return the table: a row for each version that was tried, a column for each protection."""
    columns = [(protection, False) for protection in PROTECTIONS] + [(AUTHENTICATION, True)]
    head = ["Hadoop", *(_title(protection.calls, protection.text, is_ha=is_ha) for protection, is_ha in columns)]
    rows = [
        [version, *(_end(results.get(Cell(version, protection, is_ha).key)) for protection, is_ha in columns)]
        for version in VERSIONS
        if any(key.split()[0] == version for key in results)
    ]
    return table(head, rows)


def _title(calls: str, text: str, *, is_ha: bool) -> str:
    title = f"{calls} / {text}" if calls else text
    return f"{title}, automatic failover" if is_ha else title


def _end(result: Result | None) -> str:
    if result is None:
        return NOT_TRIED
    return "passed" if not result["error"] else f"failed behind {', '.join(result['steps']) or 'nothing'}"
