"""The page docs/benchmarks-hot.md, written from the results."""

from __future__ import annotations

from pathlib import Path

from bench import machine
from bench.results import Results, Sample
from bench.servers import KAFKA_HEAP_MB

WITHIN = 0.2


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    rows = [
        "| | records/s | load by leader | broker CPU | bytes a disk | written per byte produced | leaders moved |",
        "|---|---|---|---|---|---|---|",
        *(_row(sample) for sample in results.samples),
    ]
    (out / "benchmarks-hot.md").write_text("\n\n".join([_head(results), "\n".join(rows), _foot(results)]) + "\n")


def _head(results: Results) -> str:
    plan = results.plan
    return f"""# One partition of four takes ten times the load

{results.head}

Written by `python -m bench.hot`; do not edit. The raw figures are in `benchmarks/hot.json`.

    {results.command}

{results.started}, {results.took_s:.0f} seconds. {plan["topics"]} topics of four partitions with three replicas; the
first partition of each gets ten times the records of each of the others, {plan["records_s"]:,} records of 1 KB a second
in all, from one idempotent librdkafka producer. After {plan["settle_s"]:.0f} s of it, measured for
{plan["measure_s"]:.0f} s.

BMQ: three proxies, three brokers, four datanodes. Kafka: three brokers of {KAFKA_HEAP_MB} MB that hold the topics,
where by its rule every broker has a replica of everything. Each cluster has the machine to itself.

|  |  |
|---|---|
{chr(10).join(f"| {name} | {value} |" for name, value in machine.rows(results))}"""


def _row(sample: Sample) -> str:
    metrics = sample.metrics
    shares = [f"{metrics[name]:.0%}" if name in metrics else "-" for name in ("load_off", "cpu_off", "bytes_off")]
    return (
        f"| {sample.adapter} | {metrics['records_s']:,.0f} | {' | '.join(shares)} | {metrics['written_per_byte']:.2f}"
        f" | {metrics['moved']:.0f} |"
    )


def _foot(results: Results) -> str:
    loads = [sample.metrics["machine_load"] for sample in results.samples]
    return f"""A share is the distance from the mean of the broker (or disk) that is furthest from it; the aim is
{WITHIN:.0%}. *Written per byte produced* is the growth of all disks: three replicas; nothing more is copied
when a partition moves. The machine's load average at the end: {", ".join(f"{load:.1f}" for load in loads)}."""
