"""Run Spark's tests on several versions of PySpark: `python -m tests.spark_matrix [--only WORD ...]`.

Each cell runs a part of the tests in processes that see one version of PySpark, which is fetched once.  Results go to
results.json, and `make docs-tables` draws docs/spark.md from them.  Some 20 minutes for each version.  Exits with 1 if
a cell failed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests.services.pyspark_versions import environment
from tests.spark_matrix.cells import Cell, all_cells
from tests.spark_matrix.results import Result, describe, has_failed, keep_result, read_results

TIMEOUT_S = 3600.0
OF_PYSPARK = "ignore:unclosed <socket:ResourceWarning"
"""A warning that is no error here: PySpark before 4.2 leaves its sockets to the JVM to the garbage collector."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.spark_matrix", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--only", nargs="+", default=[], help="words that a cell's key must have, as 4.0.5 or batches")
    parser.add_argument("--missing", action="store_true", help="only cells without a result that passed")
    arguments = parser.parse_args()
    known = read_results()
    failed = 0
    for cell in all_cells():
        if not all(word in cell.key.split() for word in arguments.only):
            continue
        if arguments.missing and cell.key in known and not has_failed(known[cell.key]):
            continue
        result = run(cell)
        keep_result(cell, result)
        failed += has_failed(result)
        sys.stdout.write(f"{cell.key}: {describe(result)} {result['error']}({result['seconds']} s)\n")
        sys.stdout.flush()
    return int(failed > 0)


def run(cell: Cell) -> Result:
    """Run a cell's tests, and return their end; what they print stays on the terminal."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bmq-spark-matrix-") as folder:
        report = Path(folder) / "report.xml"
        options = ["-q", "-m", "not soak", "--durations=3", f"--junitxml={report}", "-W", OF_PYSPARK]
        command = [sys.executable, "-m", "pytest", *options, *cell.part.paths]
        try:
            status = subprocess.run(
                command, env=environment(cell.version, os.environ), timeout=TIMEOUT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        numbers = count(report) if report.exists() else {"passed": 0, "failed": 0, "skipped": 0}
    error = "" if status == 0 or (status == 1 and numbers["failed"]) else f"pytest ended with {status} "
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    return Result(
        passed=numbers["passed"],
        failed=numbers["failed"],
        skipped=numbers["skipped"],
        error=error,
        seconds=round(time.monotonic() - began),
        commit=commit.stdout.strip(),
        date=f"{datetime.now(UTC):%Y-%m-%d}",
    )


def count(report: Path) -> dict[str, int]:
    """Return the numbers of tests that passed, failed and were left out, from a report in JUnit's form."""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    return {"passed": total - failed - skipped, "failed": failed, "skipped": skipped}


if __name__ == "__main__":
    sys.exit(main())
