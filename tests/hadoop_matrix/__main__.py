"""Play the matrix of Hadoop versions and protections: `python -m tests.hadoop_matrix [--only WORD ...]`.

Each cell starts an HDFS of its version and protection, and plays a story with a real `bmq serve`: produce, roll,
takeover, append, read, a query by Spark; with a pair of NameNodes also a failover.  Results go to results.json, and
`make docs-tables` draws docs/operations/hdfs.md from them.  A minute for each cell.  Exits with 1 if a cell failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime

from tests.hadoop_matrix.cells import Cell, all_cells
from tests.hadoop_matrix.results import Result, keep_result, read_results
from tests.hadoop_matrix.story import Story, cluster


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hadoop_matrix", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--only", nargs="+", default=[], help="words that a cell's key must have, such as 3.0.0 or ha")
    parser.add_argument("--missing", action="store_true", help="only cells without a result that passed")
    arguments = parser.parse_args()
    known = read_results()
    failed = 0
    for cell in all_cells():
        if not all(word in cell.key.split() for word in arguments.only):
            continue
        if arguments.missing and cell.key in known and not known[cell.key]["error"]:
            continue
        began = time.monotonic()
        result = play(cell)
        keep_result(cell, result)
        failed += bool(result["error"])
        end = result["error"] or "passed"
        took_s = time.monotonic() - began
        sys.stdout.write(f"{cell.key}: {', '.join(result['steps'])}: {end} ({took_s:.0f} s)\n")
        sys.stdout.flush()
    return int(failed > 0)


def play(cell: Cell) -> Result:
    """Play a cell's story, and return its end."""
    steps: list[str] = []
    error = ""
    try:
        with cluster(cell) as (hdfs, folder):
            steps.append("start")
            Story(cell, hdfs, folder).play(steps.append)
    except Exception as failure:  # noqa: BLE001 - the cell's end, which the table shows; other cells go on
        traceback.print_exc()
        error = f"{type(failure).__name__}: {str(failure)[:300]}"
    commit = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    return Result(steps=steps, error=error, commit=commit.stdout.strip(), date=f"{datetime.now(UTC):%Y-%m-%d}")


if __name__ == "__main__":
    sys.exit(main())
