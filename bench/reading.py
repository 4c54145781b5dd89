"""Consumers at the tail and of a backlog, and what they do to each other; writes docs/benchmarks-reading.md.

    python -m bench.reading [--quick] [--only tail,backlog,effect] [--deployments kafka-3,bmq-3,bmq-hdfs] [--out docs]
    python -m bench.reading --add ...       keep what an earlier run of the same code measured and this one does not
    python -m bench.reading --render        draw again from the results that are there

The backlog is larger than all caches of BMQ, and is dropped from the page cache before it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import reading_report, rounds
from bench.reading_measure import FULL, QUICK, ROUNDS, clients, warm_up
from bench.rounds import Benchmark

BENCHMARK = Benchmark(
    name="reading",
    description="Measure consumers of the tail and of a backlog.",
    full=FULL,
    quick=QUICK,
    warm_up=warm_up,
    measurements=ROUNDS,
    write=reading_report.write,
    clients=clients,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    return rounds.main(BENCHMARK, arguments)


if __name__ == "__main__":
    sys.exit(main())
