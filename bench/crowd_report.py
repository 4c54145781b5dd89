"""The page docs/benchmarks-crowd.md, written from the results."""

from __future__ import annotations

from pathlib import Path

from bench import machine
from bench.results import Results

ROLES = ("proxy", "broker", "controller", "coordinator")


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    (out / "benchmarks-crowd.md").write_text("\n\n".join([_head(results), _costs(results), _moves(results)]) + "\n")


def _head(results: Results) -> str:
    plan = results.plan
    return f"""# {plan["topics"] * plan["partitions"]:,} partitions in one cluster

{results.head}

Written by `python -m bench.crowd`; do not edit. The raw figures are in `benchmarks/crowd.json`.

    {results.command}

{results.started}, {results.took_s:.0f} seconds. {plan["topics"]} topics of {plan["partitions"]:,} partitions with three
replicas: three proxies, three brokers, two controllers and two coordinators, each a process on defaults, over one etcd
and an HDFS of four datanodes, and the client, all on one machine.

|  |  |
|---|---|
{chr(10).join(f"| {name} | {value} |" for name, value in machine.rows(results))}"""


def _costs(results: Results) -> str:
    cpu = ", ".join(ROLES)
    rows = [
        f"## What they cost\n\nCPU: the mean process of a role ({cpu}; etcd), in percent of a core. Memory: the largest"
        " process of each role, resident, in MB. Writes: transactions that changed something in etcd, a second."
        f" Records of 1 KB go to {results.plan['active']} of the partitions.\n",
        "| | " + " | ".join(f"{role}, %" for role in (*ROLES, "etcd")) + " | etcd writes/s | keys | MB in etcd | "
        + " | ".join(f"{role}, MB" for role in ROLES) + " |",
        "|---|" + "---|" * (2 * len(ROLES) + 4),
    ]  # fmt: skip
    for sample in results.samples:
        metrics = sample.metrics
        if "etcd_writes_s" not in metrics:
            continue
        names = [f"{role}_cpu" for role in (*ROLES, "etcd")] + ["etcd_writes_s", "keys", "etcd_mb"]
        names += [f"{role}_mb" for role in ROLES]
        reached = ""
        if "records_s" in metrics:
            reached = f" ({metrics['records_s']:,.0f} reached, each partition's first after {metrics['first_s']:.1f} s)"
        rows.append(f"| {sample.case}{reached} | " + " | ".join(_cell(metrics, name) for name in names) + " |")
    return "\n".join(rows)


def _cell(metrics: dict[str, float], name: str) -> str:
    value = metrics.get(name)
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2f}"


def _moves(results: Results) -> str:
    found = {sample.case: sample.metrics for sample in results.samples if "owned_s" in sample.metrics}
    made = found.pop("from scratch")
    rows = [
        "## How soon they are moved\n",
        f"From scratch: the topics were made in {made['created_s']:.1f} s, and {made['owned_s']:.1f} s after the"
        " beginning each partition was opened by its owner.\n",
        "All partitions move at once, and so do those of a watched topic with a record every 25 ms in each of its 24"
        " partitions, whose pauses are shown. *All owned* is the time until the last partition has its new owner. A"
        " broker that comes back is given load by measured bytes and requests, and so few of the idle partitions.\n",
        "| | the operation itself, s | all owned, s | partitions moved | pause median, ms | pause longest, ms |",
        "|---|---|---|---|---|---|",
    ]
    for case, metrics in found.items():
        rows.append(
            f"| {case} | {metrics['acted_s']:.2f} | {metrics['owned_s']:.2f} | {metrics['moved']:,.0f}"
            f" | {metrics['pause_ms']:,.0f} | {metrics['pause_max_ms']:,.0f} |"
        )
    loads = [sample.metrics["machine_load"] for sample in results.samples]
    rows.append(f"\nThe machine's load average was {min(loads):.1f} to {max(loads):.1f}, these processes included.")
    return "\n".join(rows)
