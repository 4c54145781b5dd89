"""The page docs/benchmarks-transactions.md, written from the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.comparison import Comparison, compare_rounds
from bench.deployments import NAMES
from bench.page import failed, ms, number, ratio_cell, short, table, verdicts
from bench.results import Results
from bench.rounds_page import beside_kafka, opening
from bench.transactions_ids import ADAPTER, FEW, FEW_LOADED, FEW_MADE, LOADED, MADE
from bench.transactions_plan import (
    AIMS,
    COMMITTED,
    COST,
    FLUSHES,
    ID_BYTES_AIM,
    IDS,
    LARGE,
    LOAD_S_AIM,
    MANY,
    ONE,
    PARTITIONS,
    READ,
    READS,
    RECORD_BYTES,
    SITES,
    TRANSACTIONS,
    UNCOMMITTED,
)

OBJECTIONS = Path(__file__).with_name("transactions_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
REASONS = Path(__file__).with_name("transactions_reasons.md")
"""Why aims are missed: measured apart from the page."""
FIGURES = {"transactions_s": "transactions/s", "p50_us": "commit p50, ms", "p99_us": "commit p99, ms"}
OWN = {COST: (FLUSHES, TRANSACTIONS, "transactions_s"), READS: (UNCOMMITTED, COMMITTED, "records_s")}
"""The benches whose cases are compared within a deployment: the case before, the case after, and the rate."""

_IDLE = (FEW_LOADED, FEW_MADE, MADE, LOADED)


@dataclass(frozen=True, slots=True)
class Aimed:
    """One figure that has an aim."""

    what: str
    where: str
    shown: str
    aim: str
    is_met: bool


@dataclass(frozen=True, slots=True)
class Idle:
    """The cost of idle transactional ids."""

    made_bytes: float
    """Resident memory of an id in the process that made it."""
    loaded_bytes: float
    """Resident memory of an id in a process that loaded it."""
    load_s: float
    """Seconds from the start of a process to the load of all shards, less those of a process with few ids."""


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``."""
    (out / "benchmarks-transactions.md").write_text(page(results))


def page(results: Results) -> str:
    """Return the page.  Raises ValueError for results that do not name their commit."""
    parts = [opening(results, "transactions", "Transactions", _what(results), warmed_by="transactions"), _aims(results)]
    if not all(each.is_met for each in aimed(results)):
        parts.append(REASONS.read_text().strip())
    sections = {ONE: _beside, MANY: _beside, COST: _own, READS: _own}
    for bench, section in sections.items():
        if results.of_bench(bench):
            title, text = _words(results)[bench]
            parts += [f"## {title}", text, *section(results, bench)]
    if (idle := idle_ids(results)) is not None:
        parts.append(_idle(results, idle))
    parts += [failed(results), OBJECTIONS.read_text().strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def pairs(results: Results, bench: str) -> list[tuple[str, str]]:
    """Return the two deployments of each site that was measured whole, Kafka's first."""
    return [site for site in SITES.values() if set(site) <= set(results.adapters(bench))]


def own_ratio(results: Results, bench: str, name: str) -> Comparison | None:
    """Return the comparison of the two cases of ``COST`` or ``READS`` within a deployment."""
    before, after, metric = OWN[bench]
    return compare_rounds(results, bench, metric, before=(name, before), after=(name, after))


def idle_ids(results: Results) -> Idle | None:
    """Return the cost of an idle id; None if it was not measured to its end."""
    found = {case: results.of(IDS, ADAPTER, case) for case in _IDLE}
    if not all(found.values()):
        return None
    few_loaded, few_made, made, loaded = (samples[-1].metrics for samples in found.values())
    ids = results.plan["ids"]
    return Idle(
        made_bytes=(made["rss_bytes"] - few_made["rss_bytes"]) / ids,
        loaded_bytes=(loaded["rss_bytes"] - few_loaded["rss_bytes"]) / ids,
        load_s=loaded["seconds"] - few_loaded["seconds"],
    )


def aimed(results: Results) -> Iterator[Aimed]:
    """Yield each figure that has an aim."""
    for bench, metric, title in (
        (ONE, "transactions_s", "rate"),
        (MANY, "transactions_s", "rate"),
        (MANY, "p99_us", "p99"),
    ):
        for kafka, name in pairs(results, bench):
            for case in results.cases(bench):
                found = beside_kafka(results, bench, case, kafka, name, metric)
                if found is not None:
                    yield _of_ratio(f"{title}, {case}, to Kafka's", name, found, "p99" if metric == "p99_us" else bench)
    titles = {COST: "rate in transactions, to plain idempotence", READS: f"rate of {COMMITTED}, to {UNCOMMITTED}"}
    for bench, title in titles.items():
        for name in results.adapters(bench):
            found = own_ratio(results, bench, name)
            if found is not None and name.startswith("bmq"):
                yield _of_ratio(title, name, found, bench)
    if (idle := idle_ids(results)) is not None:
        where, aim = NAMES[ADAPTER], f"at most {ID_BYTES_AIM:,} bytes"
        for words, size in (("made", idle.made_bytes), ("loaded", idle.loaded_bytes)):
            is_met = size <= ID_BYTES_AIM
            yield Aimed(f"memory of an idle id, {words}", where, f"{short(size)} bytes", aim, is_met)
        is_met = idle.load_s <= LOAD_S_AIM
        what = f"load of {results.plan['ids']:,} ids"
        yield Aimed(what, where, f"{short(idle.load_s)} s", f"at most {LOAD_S_AIM:g} s", is_met)


def _of_ratio(what: str, name: str, found: Comparison, aim: str) -> Aimed:
    limit = AIMS[aim]
    is_met = found.ratio <= limit if aim == "p99" else found.ratio >= limit
    return Aimed(what, NAMES[name], ratio_cell(found), f"at {'most' if aim == 'p99' else 'least'} {limit:g}", is_met)


def _what(results: Results) -> str:
    return f"""The page compares transactions of BMQ and of Apache Kafka at two sites. The first site has a process of
BMQ with a local folder, and a Kafka broker. The second site has three processes of BMQ over HDFS and etcd, and three
Kafka brokers, with three copies. The topic of transactions has as many copies as the site keeps, and 50 partitions, on
both sides. Records of {RECORD_BYTES} bytes, not compressed, go to {PARTITIONS} partitions in turn.
A producer starts its next transaction when
the commit before has returned. Loads last {results.plan["measured_s"]:g} s, those of many producers
{results.plan["many_s"]:g} s. A first transaction and {results.plan["warm_s"]:g} s come before, and do not count."""


def _aims(results: Results) -> str:
    rows = [
        (each.what, each.where, each.shown, each.aim, "yes" if each.is_met else "**no**") for each in aimed(results)
    ]  # fmt: skip
    if not rows:
        return ""
    return f"## Aims\n\n{table(('figure', 'of', 'measured', 'aim', 'met'), rows)}"


def _words(results: Results) -> dict[str, tuple[str, str]]:
    plan = results.plan
    return {
        ONE: (
            "One producer",
            f"Transactions of one record, and of {LARGE} records. The client's call of commit is timed. The call"
            " includes the acknowledgements of the records.",
        ),
        MANY: (
            f"{plan['producers']} producers at once",
            "A process of Kafka's Java client has a thread and a transactional id per producer.",
        ),
        COST: (
            "What transactions cost",
            f"A Java producer sends bundles of {LARGE} records in transactions. A plain idempotent producer sends the"
            " same bundles, and flushes after every bundle. The order of both alternates from round to round.",
        ),
        READS: (
            "Readers",
            f"A consumer reads a log of {plan['read_records']:,} records. Transactions of {READ:,} records wrote the"
            " log before the rounds. The order of the isolations alternates from round to round.",
        ),
    }


def _beside(results: Results, bench: str) -> Iterator[str]:
    """Yield a table of figures for each deployment, and a table of ratios for each site."""
    for name in results.adapters(bench):
        rows = [(case, *_cells(results, bench, name, case)) for case in results.cases(bench)]
        yield f"### {NAMES[name]}\n\n{table(('', *FIGURES.values()), rows)}"
    for kafka, name in pairs(results, bench):
        found = {
            (case, metric): beside_kafka(results, bench, case, kafka, name, metric)
            for case in results.cases(bench)
            for metric in FIGURES
        }
        rows = [(case, *(ratio_cell(found[case, metric]) for metric in FIGURES)) for case in results.cases(bench)]
        known = {
            f"{FIGURES[metric].removesuffix(', ms')} ({case})": each for (case, metric), each in found.items() if each
        }
        title = f"### {NAMES[name]}, beside {NAMES[kafka]}"
        yield f"{title}\n\n{table(('', *FIGURES.values()), rows)}\n\nBMQ is\n\n{verdicts(known)}"


def _cells(results: Results, bench: str, name: str, case: str) -> list[str]:
    return [
        (ms if metric.endswith("_us") else number)(results.spread(bench, name, case, metric)) for metric in FIGURES
    ]  # fmt: skip


def _own(results: Results, bench: str) -> Iterator[str]:
    """Yield one table: the rate of both cases and their ratio, a row for each deployment."""
    before, after, metric = OWN[bench]
    rows = []
    for name in results.adapters(bench):
        rates = [number(results.spread(bench, name, case, metric)) for case in (before, after)]
        rows.append((NAMES[name], *rates, ratio_cell(own_ratio(results, bench, name))))
    unit = "bundles/s" if bench == COST else "records/s"
    yield table(("", f"{before}, {unit}", f"{after}, {unit}", "ratio"), rows)


def _idle(results: Results, idle: Idle) -> str:
    rows = []
    for case in _IDLE:
        metrics = results.of(IDS, ADAPTER, case)[-1].metrics
        seconds = short(metrics["seconds"]) if "seconds" in metrics else "-"
        rows.append((case, f"{metrics['rss_bytes'] / 1e6:.0f}", seconds))
    return f"""## Idle transactional ids

A process of BMQ has a local folder and the smallest caches, since caches would count as memory of ids.
First, {FEW} ids bring all shards into use. They are loaded, and served again. Then {results.plan["ids"]:,}
other ids commit a transaction each. The process is killed and started again. The seconds are from the start of the
process until it lists the transactions of all its shards.

{table(("", "resident memory, MB", "start, s"), rows)}

An idle id takes {short(idle.made_bytes)} bytes in its first process, and {short(idle.loaded_bytes)} bytes after a
restart. The ids add {short(idle.load_s)} s to a start."""
