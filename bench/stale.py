"""The code that each page of figures is of, and how far the code has moved since.

    python -m bench.stale

Prints a line for each page.  Ends with 1 if a page does not say at its top what its results say: then it was changed by
hand, or the results were replaced and the page not drawn again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.provenance import UNKNOWN, commits_since
from bench.results import Results

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = {
    "benchmarks.md": "results.json",
    "benchmarks-kafka.md": "kafka.json",
    "benchmarks-matrix.md": "matrix.json",
    "benchmarks-scaling.md": "scaling.json",
    "benchmarks-failover.md": "failover.json",
    "benchmarks-crowd.md": "crowd.json",
    "benchmarks-hot.md": "hot.json",
    "benchmarks-spark.md": "spark.json",
    "benchmarks-latency.md": "latency.json",
    "benchmarks-reading.md": "reading.json",
    "benchmarks-limits.md": "limits.json",
    "benchmarks-storage.md": "storage.json",
    "benchmarks-soak.md": "soak.json",
    "benchmarks-flames.md": "flames.json",
    "benchmarks-security.md": "security.json",
    "benchmarks-transactions.md": "transactions.json",
    "benchmarks-cleaning.md": "cleaning.json",
}
"""The pages of figures, and the files in docs/benchmarks/ that they are drawn from.

A page whose results are not there has not been measured yet.
"""


def measured(docs: Path = DOCS) -> dict[str, str]:
    """Return the pages of ``PAGES`` that were measured: those whose results are there."""
    return {page: source for page, source in PAGES.items() if (docs / "benchmarks" / source).exists()}


def page_fault(text: str, results: Results) -> str:
    """Return what is wrong with the top of a page; "" if it says what its results say."""
    blocks = text.strip().split("\n\n")
    if not blocks[0].startswith("# "):
        return "the page does not begin with its title"
    wanted = results.head.split("\n\n")
    if blocks[1 : 1 + len(wanted)] != wanted:
        return f"below its title the page does not say: {' '.join(wanted)}"
    return ""


def age(results: Results) -> str:
    """Return how old the code is that was measured, in words, as far as this checkout's history shows it."""
    if not results.commit:
        return "its age is not known"
    since = None if results.commit == UNKNOWN else commits_since(results.commit)
    if since is None:
        return "that commit is not in this history"
    return "the newest" if since == 0 else f"{since} commits ago"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print each page's commit and what is wrong with its top, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.stale", description="Which code each page is of.")
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the pages")
    folder = parser.parse_args(arguments).docs
    status = 0
    for page, source in measured(folder).items():
        results = Results.load_from(folder / "benchmarks" / source)
        print(f"{page}: {results.measured_at} {age(results)}")
        if fault := page_fault((folder / page).read_text(), results):
            status = 1
            print(f"{page}: {fault}", file=sys.stderr)
    for page in sorted(PAGES.keys() - measured(folder)):
        print(f"{page}: not measured yet")
    return status


if __name__ == "__main__":
    sys.exit(main())
