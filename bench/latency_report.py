"""The page docs/benchmarks-latency.md and its picture, drawn from the results."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

from bench.comparison import Comparison, compare_rounds
from bench.deployments import NAMES
from bench.latency_measure import BEYOND, FLUSH, FLUSHES, IN_MEMORY, LADDER, ON_DISK, PARTITIONS, SATURATION
from bench.latency_plot import PICTURE, by_load
from bench.page import failed, listed, ms, number, ratio_cell, table, verdicts
from bench.plots import save
from bench.results import Results
from bench.rounds_page import beside_kafka, opening, pairs
from bench.saturation import GROWN_S, GROWTH

OBJECTIONS = Path(__file__).with_name("latency_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
PERCENTILES = ("p50", "p95", "p99", "p99.9", "p99.99")
KINDS = {"ack": "Produce: from due to acknowledged", "end": "End to end: from due until the consumer has it"}


def write(results: Results, out: Path) -> None:
    """Write the page and its picture into folder ``out``."""
    (out / "benchmarks-latency.md").write_text(page(results))
    if results.of_bench(LADDER):
        save(by_load(held_always(results)), out / "benchmarks", PICTURE)


def page(results: Results) -> str:
    """Return the page.  Raises ValueError for results that do not name their commit."""
    parts = [opening(results, "latency", "Latency against load", _what(results))]
    if results.of_bench(LADDER):
        parts += ["## Up to which load", _saturation(results), f"![percentiles against load](benchmarks/{PICTURE}.svg)"]
        parts += [_kind(results, kind) for kind in KINDS]
        parts.append(_cost(held_only(results)))
    if results.of_bench(FLUSH):
        parts.append(_flush(results))
    parts += [failed(results), OBJECTIONS.read_text().strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def held_only(results: Results) -> Results:
    """Return the results without loads at which the backlog grew: latencies there are as long as the run is."""
    return replace(results, samples=[each for each in results.samples if not each.metrics.get("is_saturated")])


def held_always(results: Results) -> Results:
    """Return the results of loads at which the backlog of a deployment grew in no round.

    Others are not compared: without the rounds in which it grew, a side would look better for them.
    """
    held = held_only(results)
    ladders = Counter(sample.adapter for sample in results.of_bench(SATURATION))
    rounds = Counter((each.adapter, each.case) for each in held.of_bench(LADDER))
    lost = {(each.adapter, each.case) for each in results.of_bench(FLUSH) if each.metrics["is_saturated"]}
    kept = [
        each
        for each in held.samples
        if (each.bench != LADDER or rounds[each.adapter, each.case] >= ladders[each.adapter])
        and (each.bench != FLUSH or (each.adapter, each.case) not in lost)
    ]
    return replace(results, samples=kept)


def _what(results: Results) -> str:
    plan = results.plan
    return f"""An open loop: records of 1,000 bytes are due at a fixed rate, whatever the servers do, in turns over
{PARTITIONS} partitions. *Produce* is from when a record was due to its acknowledgement by all replicas, *end to end*
until a consumer at the end of the log has it; what a record waits in the client counts. Each load runs for
{plan["step_s"]:g} s. Times are exact to 0.1 ms. A percentile is given where at least {BEYOND} values of a round lie
beyond it."""


def _saturation(results: Results) -> str:
    rows = []
    for name in results.adapters(SATURATION):
        held = results.spread(SATURATION, name, LADDER, "held_records_s")
        grew = results.spread(SATURATION, name, LADDER, "saturated_records_s")
        last = [sample for sample in results.of_bench(LADDER) if sample.adapter == name]
        cores = max(sample.metrics["client_cores"] for sample in last)
        rows.append((NAMES[name], number(held), number(grew) if grew else "never", f"{cores:.2f}"))
    compared = [
        f"{NAMES[name]}, beside {NAMES[kafka]}, in the load that it held: {ratio_cell(found)}."
        for kafka, name in pairs(results, SATURATION)
        if (found := beside_kafka(results, SATURATION, LADDER, kafka, name, "held_records_s")) is not None
    ]
    head = ("records/s", "held", "backlog grew at", "of a core, the producing thread took at most")
    steps = ", ".join(f"{step:,}" for step in results.plan["steps"])
    return f"""Loads are raised in steps ({steps} records/s) until the backlog grows: until all through the last
quarter of the run more than {GROWN_S:g} s of load were due and not acknowledged (or not read), and more than
{GROWTH:g} times the least of the second quarter. A ratio of what was held is as coarse as the steps are. A
producing thread that takes a whole core is the limit itself. Below, latencies are those of rounds in which the load was
held, and a load is compared, and drawn, only if both sides held it in every round.

{table(head, rows)}

{chr(10).join(compared)}"""


def _kind(results: Results, kind: str) -> str:
    held, always = held_only(results), held_always(results)
    parts = [f"## {KINDS[kind]}"]
    for name in results.adapters(LADDER):
        rows = []
        for case in _loads(results):
            cells = [ms(held.spread(LADDER, name, case, f"{kind}_{each}_us")) for each in PERCENTILES]
            if (rounds := len(held.of(LADDER, name, case))) > 0:
                rows.append((f"{int(case):,}", *cells, f"{rounds} of {results.plan['rounds']}"))
        parts.append(f"### {NAMES[name]}, ms\n\n{table(('records/s', *PERCENTILES, 'rounds held'), rows)}")
    for kafka, name in pairs(results, LADDER):
        found = {
            (case, each): beside_kafka(always, LADDER, case, kafka, name, f"{kind}_{each}_us")
            for case in _loads(results)
            for each in PERCENTILES
        }
        parts.append(_beside(found, f"{NAMES[name]}, beside {NAMES[kafka]}"))
    return "\n\n".join(parts)


def _beside(found: dict[tuple[str, str], Comparison | None], title: str) -> str:
    cases = dict.fromkeys(case for (case, _), comparison in found.items() if comparison is not None)
    if not cases:
        return ""
    rows = [(f"{int(case):,}", *(ratio_cell(found[case, each]) for each in PERCENTILES)) for case in cases]
    known = {f"{each} at {int(case):,}": value for (case, each), value in found.items() if value is not None}
    return f"### {title}\n\n{table(('records/s', *PERCENTILES), rows)}\n\nBMQ is\n\n{verdicts(known)}"


def _cost(results: Results) -> str:
    names = results.adapters(LADDER)
    rows = [
        (f"{int(case):,}", *(number(results.spread(LADDER, each, case, "all_cpu_us_record")) for each in names))
        for case in _loads(results)
    ]
    return (
        "## Processor time\n\nMicroseconds a record, all server processes, with one producer and one consumer:\n\n"
        + table(("records/s", *(NAMES[each] for each in names)), rows)
    )


def _flush(results: Results) -> str:
    plan, held, always = results.plan, held_only(results), held_always(results)
    metrics = [f"{kind}_{each}_us" for kind in KINDS for each in PERCENTILES]
    titles = {f"{kind}_{each}_us": f"{kind}, {each}" for kind in KINDS for each in PERCENTILES}
    parts = [_flush_head(plan["moderate_records_s"], plan["moderate_s"])]
    for name in results.adapters(FLUSH):
        rows = []
        for metric in metrics:
            before, after = (held.spread(FLUSH, name, case, metric) for case in (IN_MEMORY, ON_DISK))
            if before is not None or after is not None:
                found = compare_rounds(always, FLUSH, metric, before=(name, IN_MEMORY), after=(name, ON_DISK))
                rows.append((titles[metric], ms(before), ms(after), ratio_cell(found)))
        head = ("ms", IN_MEMORY, ON_DISK, "on disk to in memory")
        parts.append(f"### {NAMES[name]}\n\n{table(head, rows)}{_not_held(held, name)}")
    for kafka, name in pairs(results, FLUSH):
        compared: list[tuple[str, ...]] = []
        for metric in metrics:
            cells = [beside_kafka(always, FLUSH, case, kafka, name, metric) for case in FLUSHES]
            if any(cells):
                compared.append((titles[metric], *map(ratio_cell, cells)))
        if compared:
            parts.append(f"### {NAMES[name]}, beside {NAMES[kafka]}\n\n{table(('', *FLUSHES), compared)}")
    return "\n\n".join(parts)


def _flush_head(records_s: int, seconds: float) -> str:
    rows = [
        (case, *(listed(configs[kind]) or "default" for kind in ("kafka", "bmq"))) for case, configs in FLUSHES.items()
    ]
    return f"""## Acknowledged from memory, and from disk

{records_s:,} records/s for {seconds:g} s, on topics with these configs:

{table(("a record is acknowledged when all replicas have it", "Kafka", "BMQ"), rows)}"""


def _not_held(results: Results, name: str) -> str:
    """Return a sentence on rounds in which the backlog grew; their latencies are not in the table."""
    lost = {case: results.plan["rounds"] - len(results.of(FLUSH, name, case)) for case in FLUSHES}
    said = [f"{case} in {count}" for case, count in lost.items() if count]
    return f"\n\nRounds in which the backlog grew, or that failed: {', '.join(said)}." if said else ""


def _loads(results: Results) -> list[str]:
    return sorted(results.cases(LADDER), key=int)
