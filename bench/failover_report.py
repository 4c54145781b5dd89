"""The page docs/benchmarks-failover.md and its plot over time, drawn from the results."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from bench import machine, plots  # plots: its settings, text stays text
from bench.ack_meter import AFTER_S, BEFORE_S, BIN_S
from bench.results import Results
from bench.servers import KAFKA_HEAP_MB, KAFKA_PROPERTIES

COLOURS = {"bmq": plots.COLOURS["hdfs"], "kafka": plots.COLOURS["memory"]}
PLOT = "failover"
AIMS_MS = {"polite stop": 100.0, "kill -9": 3000.0, "kill -9 with a datanode": 3000.0, "one broker more": 1000.0}


def write(results: Results, out: Path) -> None:
    """Write the page and its plot into folder ``out``."""
    folder = out / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    figure = _over_time(results)
    figure.savefig(folder / f"{PLOT}.svg", metadata={"Date": None})
    (out / "benchmarks-failover.md").write_text("\n\n".join([_head(results), _table(results), _foot()]) + "\n")


def _head(results: Results) -> str:
    plan = results.plan
    properties = ", ".join(f"`{name}={value}`" for name, value in KAFKA_PROPERTIES.items())
    return f"""# A broker lost, a broker more

{results.head}

Written by `python -m bench.failover`; do not edit. The raw figures are in `benchmarks/{PLOT}.json`.

    {results.command}

{results.started}, {results.took_s:.0f} seconds. A topic of {plan["partitions"]} partitions gets a record every 25 ms in
each, from one idempotent librdkafka producer on its defaults (`linger.ms=0`), after it was filled with as much data as
the table shows. A partition's pause is the longest time between two of its acknowledgements; of the partitions that
were affected, the median and the longest are shown, over {plan["rounds"]} round(s).

BMQ: three proxies, three brokers, two controllers and two coordinators, each a process on defaults, over one etcd and
an HDFS of four datanodes. Kafka: three brokers and a fourth without partitions, each a controller too, heaps of
{KAFKA_HEAP_MB} MB, defaults except
{properties}, `min.insync.replicas=2`.
All processes of a cluster share one machine; the clusters run one after the other.

|  |  |
|---|---|
{chr(10).join(f"| {name} | {value} |" for name, value in machine.rows(results))}"""


def _table(results: Results) -> str:
    rows = [
        "| what | data | | partitions | pause median, ms | pause longest, ms | aim, ms | whole again, s |"
        " pause then, ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in results.cases("failover"):
        what, _, size = case.rpartition(", ")
        for name in results.adapters("failover"):
            if not results.of("failover", name, case):
                continue
            told = [_number(results, name, case, metric) for metric in ("affected", "pause_ms", "pause_max_ms")]
            aim = f"{AIMS_MS[what]:,.0f}" if name == "bmq" else ""
            told += [aim, _whole(results, name, case), _number(results, name, case, "return_ms")]
            rows.append(f"| {what} | {size} | {name} | {' | '.join(told)} |")
    return "\n".join(rows)


def _number(results: Results, name: str, case: str, metric: str) -> str:
    spread = results.spread("failover", name, case, metric)
    if spread is None:
        return "-"
    same = spread.low == spread.high
    return f"{spread.middle:,.0f}" if same else f"{spread.middle:,.0f} ({spread.low:,.0f} to {spread.high:,.0f})"


def _whole(results: Results, name: str, case: str) -> str:
    spread = results.spread("failover", name, case, "whole_s")
    return f"{spread.middle:.1f}" if spread is not None else "-"


def _foot() -> str:
    return f"""*Whole again*: from the start of the lost broker's process until it is complete: for Kafka every
replica in sync, for BMQ every partition with its owner; *pause then* is the longest of any partition in that time.
Partitions are spread evenly again after that time. For *one broker more* it is the time until the new one has its
share: of BMQ with the start of its process; Kafka's was running, and data is copied to it. The datanode that is killed
with a broker held a replica of three in four of the open segments; it is started again before the broker.

![acknowledgements over time](benchmarks/{PLOT}.svg)

Acknowledgements a second of all partitions, the last round; the fault is at 0."""


def _over_time(results: Results) -> Figure:
    cases = results.cases("failover")
    figure = Figure(figsize=(9.0, 2.0 * max(1, len(cases))), layout="constrained")
    axes = figure.subplots(max(1, len(cases)), 1, squeeze=False)[:, 0]
    for axis, case in zip(axes, cases, strict=False):
        for name in results.adapters("failover"):
            samples = results.of("failover", name, case)
            if samples:
                curve = samples[-1].series["acks_s"]
                places = [index * BIN_S - BEFORE_S for index in range(len(curve))]
                axis.plot(places, curve, color=COLOURS[name], linewidth=1.2, label=name)
        axis.axvline(0, color="#555555", linestyle="--", linewidth=1)
        axis.set(title=case, ylabel="acks/s", xlim=(-BEFORE_S, AFTER_S), ylim=(0, None))
    axes[0].legend()
    axes[-1].set_xlabel("seconds")
    return figure
