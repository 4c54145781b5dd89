"""The page docs/benchmarks-flames.md and its flame graphs, drawn from the results and the sampled stacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bench import machine
from bench.flame_graph import COLOURS, Stacks, draw, parse_folded, self_shares
from bench.page import failed, short, table
from bench.results import Results

BENCH = "flames"
NOTES = Path(__file__).with_name("flames_notes.md")
FUNCTIONS_SHOWN = 12
TITLES = {
    "produce": "Producing records of 1 KB",
    "fetch": "Consuming what the tail cache holds",
    "catch-up": "Consuming what no cache holds",
    "idle": "At rest",
}


def folder_of(out: Path) -> Path:
    """Return the folder of the stacks and the pictures."""
    return out / "benchmarks" / "flames"


def write(results: Results, out: Path) -> None:
    """Write the page and its pictures into folder ``out``."""
    folder = folder_of(out)
    stacks = {}
    for case in results.cases(BENCH):
        stacks[case] = parse_folded((folder / f"{case}.folded").read_text().splitlines())
        (folder / f"{case}.svg").write_text(draw(stacks[case], TITLES[case]))
    (out / "benchmarks-flames.md").write_text(page(results, stacks))


def page(results: Results, stacks: Mapping[str, Stacks]) -> str:
    """Return the page."""
    parts = [_head(results), _costs(results), *(_case(case, found) for case, found in stacks.items())]
    parts.append(failed(results))
    parts.append(NOTES.read_text().strip())
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(results: Results) -> str:
    plan = results.plan
    return f"""# Where the processor time goes

{results.head}

Written by `make bench-flames`; do not edit.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes. One `bmq serve` over HDFS with three copies, Kafka's perf tools as
clients, {plan["partitions"]} partitions, after {plan["warm_rounds"]} rounds that warm all of them up. py-spy noted
{plan["samples_s"]} times a second the stack of the thread that holds the interpreter's lock: Python, and what C does
without giving the lock away, as the event loop's reads and writes of sockets. What threads do without the lock, and
waiting, is not in the graphs. A frame is as wide as its share of these samples and stands on its caller; colours are
packages: {", ".join(COLOURS)}, grey for others. Open a picture by itself to read narrow frames by pointing at them.

{table(("", ""), machine.rows(results))}"""


def _costs(results: Results) -> str:
    rows = []
    for case in results.cases(BENCH):
        found = results.of_bench(BENCH)
        metrics = next(sample.metrics for sample in found if sample.case == case)
        rate, cost = ("-" if name not in metrics else short(metrics[name]) for name in ("mb_s", "cpu_s_gb"))
        busy = metrics["cpu_s"] / metrics["seconds"]
        rows.append(
            (TITLES[case], rate, cost, f"{busy:.1%}", f"{metrics['kernel_share']:.0%}", f"{metrics['samples']:.0f}")
        )
    head = ("load", "MB/s, clients' start included", "CPU s/GB", "of a core", "in the kernel", "samples")
    return f"""All threads of the process, under the profiler, which costs some of it:

{table(head, rows)}"""


def _case(case: str, stacks: Stacks) -> str:
    rows = [(f"`{frame}`", f"{share:.1%}") for frame, share in list(self_shares(stacks).items())[:FUNCTIONS_SHOWN]]
    return f"""## {TITLES[case]}

![flame graph](benchmarks/flames/{case}.svg)

{table(("function itself, without what it calls", "share"), rows)}"""
