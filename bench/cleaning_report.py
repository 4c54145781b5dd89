"""The page docs/benchmarks-cleaning.md, written from the results."""

from __future__ import annotations

from pathlib import Path

from bench import machine
from bench.cleaning_measure import BATCH_BYTES, BENCH, SEGMENTS, SIDES
from bench.comparison import compare_rounds
from bench.page import failed, number, ratio_cell, table
from bench.results import Results

OBJECTIONS = Path(__file__).with_name("cleaning_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
METRICS = {"mb_s": "MB/s", "cpu_s_gb": "processor time, s/GB", "bytes_after_share": "bytes after, of those before"}


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    (out / "benchmarks-cleaning.md").write_text(page(results))


def page(results: Results) -> str:
    """Return the page.  Raises ValueError for results that do not name their commit."""
    if not results.commit:
        raise ValueError(f"{results.measured_at} Measure again.")
    sections = [_section(results, metric, words) for metric, words in METRICS.items()]
    return (
        "\n\n".join(filter(None, [_opening(results), *sections, failed(results), OBJECTIONS.read_text().strip()]))
        + "\n"
    )


def _opening(results: Results) -> str:
    plan = results.plan
    return f"""# A round of compaction, beside Kafka's log cleaner

{results.head}

Written by `python -m bench.cleaning`; do not edit. Every round is in `benchmarks/cleaning.json`.

    {results.command}

The logs have {SEGMENTS} closed segments and {plan["megabytes"]} MB, in batches of at most {BATCH_BYTES >> 10} KB.
Keys have {plan["updates_a_key"]} records, at places drawn by chance. Kafka's `Cleaner.doClean` runs in a Java process,
BMQ's round in a Python process, and a map has {plan["map_bytes"] >> 20} MB. Both read the segments, map the keys, write
the cleaned file to the same disk, and sync it.

{results.started}, {results.took_s / 60:.0f} minutes. A round takes the logs in turn, in a new order, with both cleaners
one after the other. After {plan["warm_rounds"]} rounds of warm-up, {plan["rounds"]} count. Figures are medians of the
rounds, with the lowest and the highest round. Ratios are the median of the rounds' ratios, with their quartiles. A
ratio is "equal" when 1 lies within its quartiles, or the ratio within the quartiles of a cleaner's change from round to
round; else it is "better" or "WORSE".

{table(("", ""), machine.rows(results))}

Load average before each round: {", ".join(f"{load:g}" for load in results.load)}."""


def _section(results: Results, metric: str, words: str) -> str:
    kafka, bmq = SIDES
    rows = []
    for case in results.cases(BENCH):
        found = compare_rounds(results, BENCH, metric, before=(kafka, case), after=(bmq, case))
        spreads = [number(results.spread(BENCH, side, case, metric)) for side in SIDES]
        rows.append((case, *spreads, ratio_cell(found)))
    return f"## {words[0].upper()}{words[1:]}\n\n{table(('values', 'Kafka', 'BMQ', 'BMQ to Kafka'), rows)}"
