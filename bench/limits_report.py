"""The page docs/benchmarks-limits.md and its picture, drawn from the results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bench import machine
from bench.comparison import compare_rounds
from bench.limits_measure import BATCH_BYTES, BENCH, FILES, REPLICAS
from bench.page import VERDICTS, failed, listed, number, ratio, short, table
from bench.plots import PARTS, save
from bench.results import Results
from bench.warm_up import RISE_MAX

OBJECTIONS = Path(__file__).with_name("limits_objections.md")
PLOT = "limits"
YARDSTICKS = {
    "java-flush": "Hadoop's client, `hflush` after each packet",
    "java-stream": "Hadoop's client, `hflush` at the end only",
    "bare": "our HDFS client, without a broker",
}
"""What BMQ is compared with: bare clients of the same HDFS."""
OTHERS = {
    "put": "`hdfs dfs -put`, for orientation",
    "append": "a local file appended to, no copies",
    "loopback": "a loopback connection between two processes",
}
GROUPS = {"own_cpu": "client or BMQ", "etcd_cpu": "etcd", "namenode_cpu": "NameNode", "datanode_cpu": "datanodes"}
COLOURS = dict(zip(GROUPS, PARTS, strict=False))


def write(results: Results, out: Path) -> None:
    """Write the page and its picture into folder ``out``."""
    save(_figure(results), out / "benchmarks", PLOT)
    (out / "benchmarks-limits.md").write_text(page(results))


def page(results: Results) -> str:
    """Return the page."""
    parts = [_head(results), _all_sides(results), *_shares(results), _floor(results)]
    parts.append(failed(results))
    parts.append(OBJECTIONS.read_text().strip())
    return "\n\n".join(filter(None, parts)) + "\n"


def floor(loopback_s_gb: float, append_s_gb: float, *, hops: int, copies: int) -> float:
    """Return the processor seconds a GB of moving bytes over ``hops`` connections into ``copies`` files alone."""
    return hops * loopback_s_gb + copies * append_s_gb


def brokers(results: Results) -> list[str]:
    """Return the sides that go through BMQ."""
    return [name for name in results.adapters(BENCH) if name.startswith("bmq-")]


def _head(results: Results) -> str:
    plan, warm = results.plan, results.plan["warm_up"]
    warmth = (
        f"Warm after {warm['rounds']} rounds, which do not count."
        if warm.get("is_warm")
        else f"**Not warm**: the rounds that do not count ended at {warm.get('rounds', 0)}, before rates had stopped"
        " rising."
    )
    return f"""# The limit of storage, and BMQ's share of it

{results.head}

Written by `make bench-limits`; do not edit. Every round, with the command line of each process, is in
`benchmarks/{PLOT}.json`.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes. The same bytes, {plan["megabytes"]} MB into {FILES} files or
partitions at once, {REPLICAS} copies: by Hadoop's own client, by BMQ's HDFS client without a broker, and through BMQ
(`bmq-hdfs`: one process; `bmq-3`: three with all roles over etcd, min.insync.replicas=2). All write to one HDFS, and
each round measures all of them in turn, in another order each time. Rounds come first that do not count, until no rate
is more than {RISE_MAX:.0%} above its best before; then {plan["rounds"]} that do. {warmth} Shown are medians, with the
lowest and the highest round; ratios are of one round each.
{VERDICTS}

BMQ's mean flush under ready-made requests of {BATCH_BYTES >> 10} KB batches was {plan["packet_bytes"] / 1024:,.0f} KB.
Bare clients write packets of that size, with the checksum chunks that BMQ takes for such flushes
({plan["chunk_bytes"]:,} bytes). A packet is acknowledged by all datanodes, and a flush of BMQ is one packet.

BMQ's settings beside defaults: {listed(plan["settings"])}

{table(("", ""), machine.rows(results))}

Clients, servers and storage share these cores. Load average before each round:
{", ".join(f"{load:g}" for load in results.load)}."""


def _all_sides(results: Results) -> str:
    rows = []
    for name in results.adapters(BENCH):
        title = (YARDSTICKS | OTHERS).get(name, name)
        cells = [_cell(results, name, f"{group}_s_gb") for group in GROUPS]
        flush = results.spread(BENCH, name, "", "flush_bytes")
        shown = "-" if flush is None else f"{flush.middle / 1024:,.0f} KB"
        rows.append((title, _cell(results, name, "mb_s"), *cells, _cell(results, name, "all_cpu_s_gb"), shown))
    head = ("", "MB/s", *(f"{title}, CPU s/GB" for title in GROUPS.values()), "all, CPU s/GB", "mean flush")
    return f"## All sides\n\n![rates and costs](benchmarks/{PLOT}.svg)\n\n{table(head, rows)}"


def _cell(results: Results, name: str, metric: str) -> str:
    return number(results.spread(BENCH, name, "", metric))


def _shares(results: Results) -> list[str]:
    """Return a section for each yardstick."""
    sections = []
    for yardstick, title in YARDSTICKS.items():
        rows = []
        for name in brokers(results):
            for metric, unit in (("mb_s", "MB/s"), ("all_cpu_s_gb", "CPU s/GB, all")):
                found = compare_rounds(results, BENCH, metric, before=(yardstick, ""), after=(name, ""))
                if found is not None:
                    rows.append((name, unit, short(found.before), short(found.after), *ratio(found)))
        if rows:
            head = ("", "", "bare", "BMQ", "BMQ's share", "quartiles", "")
            sections.append(f"## BMQ beside {title}\n\n{table(head, rows)}")
    return sections


def _floor(results: Results) -> str:
    costs = {name: results.spread(BENCH, name, "", "all_cpu_s_gb") for name in ("loopback", "append")}
    loopback, append = costs["loopback"], costs["append"]
    if loopback is None or append is None:
        return ""
    rows = []
    for name in (*YARDSTICKS, *brokers(results)):
        spread = results.spread(BENCH, name, "", "all_cpu_s_gb")
        if spread is not None:
            hops = REPLICAS + (name not in YARDSTICKS)
            least = floor(loopback.middle, append.middle, hops=hops, copies=REPLICAS)
            rows.append((name, str(hops), short(least), short(spread.middle), f"{spread.middle / least:.1f}"))
    head = ("", "connections", "floor, CPU s/GB", "measured, all", "times the floor")
    return f"""## What moving the bytes costs alone

Each byte crosses a connection to each of {REPLICAS} datanodes, one more to BMQ, and is appended to {REPLICAS} files.
The floor is that number times what the kernel takes for it here: {short(loopback.middle)} s a GB for a connection,
both ends, and {short(append.middle)} s for a file. No checksum, no acknowledgement, no protocol is in it. Between
BMQ's three processes there is another connection for the partitions whose leader is not their owner.

{table(head, rows)}"""


def _figure(results: Results) -> Figure:
    """Draw rates as points on a logarithmic scale, and costs as bars of parts: one below the other, for a phone."""
    names = [name for name in results.adapters(BENCH) if name != "put"]
    figure = Figure(figsize=(4.4, 1.6 + 0.55 * len(names)), layout="constrained")
    rate, cost = figure.subplots(2, 1)
    places = list(range(len(names)))[::-1]
    for place, name in zip(places, names, strict=True):
        spread = results.spread(BENCH, name, "", "mb_s")
        if spread is not None:
            whiskers = [[spread.middle - spread.low], [spread.high - spread.middle]]
            rate.errorbar(spread.middle, place, xerr=whiskers, fmt="o", color=PARTS[0], capsize=3)
            rate.annotate(short(spread.middle), (spread.middle, place), (0, 5), textcoords="offset points", fontsize=7)
        _parts(cost, results, name, place)
    rate.set(title="MB/s (log): median, lowest to highest round", xscale="log")
    rate.margins(0.1, 0.15)
    cost.set(title="CPU seconds a GB")
    for axis in (rate, cost):
        axis.title.set_fontsize(9)
        axis.set_yticks(places, [name.replace(", ", ",\n") for name in names], fontsize=7)
    for group, title in GROUPS.items():
        cost.barh(places[0], 0, color=COLOURS[group], label=title)
    cost.legend(fontsize=7, loc="upper right")
    return figure


def _parts(axis: Any, results: Results, name: str, place: int) -> None:
    left = 0.0
    for group, colour in COLOURS.items():
        spread = results.spread(BENCH, name, "", f"{group}_s_gb")
        if spread is not None:
            axis.barh(place, spread.middle, left=left, color=colour)
            left += spread.middle
