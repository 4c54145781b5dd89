"""The page docs/benchmarks-scaling.md, written from the results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench import machine, scaling_plot
from bench.comparison import compare_rounds
from bench.page import VERDICTS, failed, listed, number, parts, ratio, short, table
from bench.results import Results
from bench.scaling_control import ADAPTER as CONTROLLERS
from bench.scaling_control import BENCH as CONTROL
from bench.scaling_planning import ADAPTER as PLANNER
from bench.scaling_planning import BENCH as PLANNING
from bench.scaling_planning import BUSY_EACH

OBJECTIONS = Path(__file__).with_name("scaling_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
PICTURE = "scaling"
ADAPTER = "bmq"
BENCHES = {"produce": "Producing", "consume": "Consuming, each consumer all of it"}
PLANNED = {
    "all_seconds": "plan of all, s",
    "all_step_ms": "its longest step, ms",
    "lost_seconds": "after a lost broker, s",
    "lost_step_ms": "its longest step, ms",
    "none_seconds": "next plan, s",
    "bytes_partition": "bytes a partition",
}
STEPS = {
    "first": "from the start of the controllers until every partition has a broker",
    "lost": "from the death of a broker until none of its partitions is left to it",
    "left": "the same after a polite stop",
}
STEP_METRICS = {"seconds": "s", "cpu_s": "CPU, s", "stop_ms": "longest stop, ms", "rss_mb": "memory, MB"}


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``, and its picture."""
    is_drawn = scaling_plot.draw(results, out / "benchmarks", PICTURE)
    (out / "benchmarks-scaling.md").write_text(page(results, has_picture=is_drawn))


def page(results: Results, *, has_picture: bool = True) -> str:
    """Return the page."""
    sections = [_head(results)]
    if has_picture:
        sections.append(f"![throughput by processes, and a plan by partitions](benchmarks/{PICTURE}.svg)")
    sections += [_processes(results), _planning(results), _control(results)]
    sections.append(failed(results))
    sections.append(OBJECTIONS.read_text().strip())
    return "\n\n".join(filter(None, sections)) + "\n"


def _head(results: Results) -> str:
    plan = results.plan
    clients = "\n".join(f"    {line}" for line in plan["clients"].values())
    return f"""# Scaling

{results.head}

Written by `python -m bench.scaling`; do not edit. Every round, with the command line of each process, is in
`benchmarks/scaling.json`.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes. Cores: {plan["cores"]}. Clients of the first part:

{clients}

| settings, beside defaults | |
| --- | --- |
{chr(10).join(f"| {name} | {listed(values)} |" for name, values in plan["settings"].items())}

{table(("", ""), machine.rows(results))}

Load average before each round: {", ".join(f"{load:g}" for load in results.load)}."""


def _processes(results: Results) -> str:
    tables = [_of_processes(results, bench) for bench in BENCHES]
    if not any(tables):
        return ""
    plan, amounts = results.plan, results.plan["amounts"]
    cores, shared = plan["server_cores"], "" if plan["are_apart"] else ", and clients share them"
    text = f"""## Processes

One cluster at a time: so many `bmq serve` with all roles, or one command with `--workers`, over an HDFS of three
datanodes with three copies and an etcd of three members. {amounts["producers"]} producers send records of 1 KB to 24
partitions as fast as they can; the rate is what the partitions acknowledged in {amounts["window_s"]:g} s in which all
of them were at work. Then as many consumers, each in a group of its own, read {amounts["consumed_mb"]} MB each at the
same time. {plan["rounds"]} rounds after one that does not count, each in another order. A ratio is to one
process in the same round.
{VERDICTS}

Servers, HDFS and etcd have {cores} core{"s" * (cores != 1)} here{shared}. **Where processes are as many as cores, a
rate cannot rise with them**: then read what a GB costs, and how busy the busiest process is. A process has one event
loop: near 1 it can do no more, far below 1 something else is the limit."""
    return "\n\n".join([text, *filter(None, tables)])


def _of_processes(results: Results, bench: str) -> str:
    cases = results.cases(bench)
    if not cases:
        return ""
    one, rates, costs = cases[0] if "1 process" not in cases else "1 process", [], []
    for case in sorted(cases, key=_shape_order):
        cells = [
            number(results.spread(bench, ADAPTER, case, name)) for name in ("records_s", "busiest_share", "all_share")
        ]
        rates.append((case, *cells, *_to_one(results, bench, "records_s", one, case)))
        cost = number(results.spread(bench, ADAPTER, case, "all_cpu_s_gb"))
        shown = parts(results, bench, ADAPTER, case)
        costs.append((case, cost, *_to_one(results, bench, "all_cpu_s_gb", one, case), shown))
    to_one = ("ratio to one", "quartiles", "")
    return (
        f"### {BENCHES[bench]}\n\nRecords a second, all clients together; cores that BMQ's processes use:\n\n"
        f"{table(('', 'records/s', 'busiest process', 'all processes', *to_one), rates)}\n\n"
        "Processor seconds a GB, BMQ's, HDFS's and etcd's:\n\n"
        f"{table(('', 's/GB', *to_one, 'of which'), costs)}"
    )


def _to_one(results: Results, bench: str, metric: str, one: str, case: str) -> tuple[str, str, str]:
    if case == one:
        return ("", "", "")
    found = compare_rounds(results, bench, metric, before=(ADAPTER, one), after=(ADAPTER, case))
    return ratio(found) if found is not None else ("-", "-", "")


def _shape_order(case: str) -> tuple[bool, int]:
    return case.startswith("--"), int("".join(filter(str.isdigit, case)))


def _planning(results: Results) -> str:
    cases = results.cases(PLANNING)
    if not cases:
        return ""
    rows = [_cells(results, PLANNING, PLANNER, case, PLANNED) for case in cases]
    moves = [_cells(results, PLANNING, PLANNER, case, {"all_moves": "", "lost_moves": ""}) for case in cases]
    return f"""## The planner

The code by which the leader of the controllers decides owners, alone in one process: no store, no network. First all
partitions are without a broker; then one in {BUSY_EACH} has traffic, and a plan is made of what is as it should be;
then one broker is gone. A plan is made in steps, between which the leader serves everything else: the longest one is
how long that waits. Bytes are those of the process's resident memory, for the table of owners and rates and the plan
itself. Median, lowest and highest of {results.plan["control_rounds"]} rounds.

{table(("", *PLANNED.values()), rows)}

Partitions placed: {"; ".join(f"{case}: {every}, after the loss {lost}" for case, every, lost in moves)}."""


def _control(results: Results) -> str:
    cases = results.cases(CONTROL)
    if not cases:
        return ""
    sections = []
    for step, title in STEPS.items():
        metrics = {f"{step}_{name}": shown for name, shown in STEP_METRICS.items()}
        rows = [_cells(results, CONTROL, CONTROLLERS, case, metrics) for case in cases]
        sections.append(f"### {title[0].upper()}{title[1:]}\n\n{table(('', *metrics.values()), rows)}")
    stored = [_cells(results, CONTROL, CONTROLLERS, case, {"keys": "", "store_bytes": ""}) for case in cases]
    text = f"""## The controllers and their store

Two controllers, each a process of its own, and a real etcd that does not sync to disk. Brokers are stubs: they are
registered, respond to the leader and do nothing with their partitions, so this is the controllers' time and not that of
opening partitions. CPU and memory are of the busier controller, the leader; the longest stop is the processor time of
its event loop in which nothing else had a turn (0: none above 20 ms). Median, lowest and highest of
{results.plan["control_rounds"]} rounds; times are exact to 0.1 s."""
    in_store = f"### In the store\n\n{table(('', 'keys', 'bytes in use'), stored)}"
    return "\n\n".join([text, *sections, in_store])


def _cells(results: Results, bench: str, adapter: str, case: str, metrics: Mapping[str, str]) -> tuple[str, ...]:
    return (case, *(_figure(results, bench, adapter, case, metric) for metric in metrics))


def _figure(results: Results, bench: str, adapter: str, case: str, metric: str) -> str:
    spread = results.spread(bench, adapter, case, metric)
    if spread is not None and spread.middle < 0.001 and spread.high < 0.001:
        return "0" if not spread.high else f"{short(1e6 * spread.middle)} µ"
    return number(spread)
