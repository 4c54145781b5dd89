"""Latency of produce and from end to end, against the offered load up to saturation; writes docs/benchmarks-latency.md.

    python -m bench.latency [--quick] [--only ladder,flush] [--deployments kafka-3,bmq-3,bmq-hdfs] [--out docs]
    python -m bench.latency --add ...       keep what an earlier run of the same code measured and this one does not
    python -m bench.latency --render        draw again from the results that are there

An open loop: each record counts from when it was due.  Twelve partitions, records of 1,000 bytes, librdkafka.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import latency_report, rounds
from bench.latency_measure import FULL, QUICK, ROUNDS, clients, warm_up
from bench.rounds import Benchmark

BENCHMARK = Benchmark(
    name="latency",
    description="Measure latency against offered load.",
    full=FULL,
    quick=QUICK,
    warm_up=warm_up,
    measurements=ROUNDS,
    write=latency_report.write,
    clients=clients,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write the page, and return the exit status."""
    return rounds.main(BENCHMARK, arguments)


if __name__ == "__main__":
    sys.exit(main())
