"""The results of the matrix: a file with one end for each cell, and the table of docs/spark.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from bmq.spark.pyspark_version import STREAM_READER, STREAM_WRITER
from tests.drawn_files import table
from tests.spark_matrix.cells import PARTS, VERSIONS, Cell

PATH = Path(__file__).with_name("results.json")
NOT_TRIED = "not tried"


class Result(TypedDict):
    """The end of a cell: numbers of tests, and ``error``, the end of a run that ended otherwise than its tests say."""

    passed: int
    failed: int
    skipped: int
    error: str
    seconds: int
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


def has_failed(result: Result) -> bool:
    """Return whether a test failed, or the run itself."""
    return bool(result["failed"] or result["error"])


def draw(results: Mapping[str, Result]) -> str:
    """Return the table: a row for each version, with its kinds of streaming queries, and a column for each part."""
    rows = [
        [version, _streams(version), *(_end(Cell(version, part), results) for part in PARTS)] for version in VERSIONS
    ]
    return table(["PySpark", "streaming queries", *(part.title for part in PARTS)], rows)


def describe(result: Result) -> str:
    """Return a result as the table has it."""
    numbers = {"passed": result["passed"], "failed": result["failed"], "left out": result["skipped"]}
    words = [f"{number} {word}" for word, number in numbers.items() if number]
    return ", ".join([*words, *(["the run failed"] if result["error"] else [])]) or "no test"


def _streams(version: str) -> str:
    can = {"write": STREAM_WRITER, "read": STREAM_READER}
    return ", ".join(word for word, feature in can.items() if feature.is_in(version)) or "none"


def _end(cell: Cell, results: Mapping[str, Result]) -> str:
    feature = cell.part.feature
    if feature is not None and not cell.is_possible():
        return f"needs {feature.since}"
    return describe(results[cell.key]) if cell.key in results else NOT_TRIED
