"""Tables of the Spark page: each way beside the same done with Apache Kafka, by the rounds that both have.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.comparison import compare_rounds
from bench.page import number, ratio, short, table
from bench.results import Results
from bench.spark_plan import NOTHING
from bench.spark_sites import Way

PARTS = {
    "jvm": "Spark's JVM",
    "python": "Python",
    "program": "the program",
    "own": "BMQ or Kafka",
    "storage": "HDFS",
    "etcd": "etcd",
}
"""The parts of processor time, by the first word of their metrics."""


def beside(results: Results, bench: str, ways: Sequence[Way], metric: str) -> str:
    """Return a table of one metric, a row for each case and each way but the last one, which is Kafka's; "" if there is
    nothing to compare."""
    *ours, base = ways
    rows = []
    for case in cases(results, bench):
        for way in ours:
            found = compare_rounds(results, bench, metric, before=(base.name, case), after=(way.name, case))
            if found is not None:
                rows.append((case, way.title, short(found.before), short(found.after), *ratio(found)))
    head = ("", "", base.title, "this one", "ratio", "quartiles", "")
    return table(head, rows) if rows else ""


def titled(parts: Mapping[str, str]) -> str:
    """Return paragraphs with what introduces each; those that are empty are left out."""
    return "\n\n".join(f"{title}\n\n{text}" if title else text for title, text in parts.items() if text)


def cases(results: Results, bench: str) -> list[str]:
    """Return the cases of a bench that have records."""
    return [case for case in results.cases(bench) if case != NOTHING]


def parts_of(results: Results, bench: str, ways: Sequence[Way], unit: str) -> str:
    """Return a table of where processor time goes, medians; "" if there is none."""
    known = [part for part in PARTS if _has(results, bench, f"{part}_cpu_{unit}")]
    rows = []
    for case in cases(results, bench):
        for way in ways:
            spreads = [results.spread(bench, way.name, case, f"{part}_cpu_{unit}") for part in known]
            if any(spreads):
                rows.append((case, way.title, *map(number, spreads)))
    return table(("", "", *(PARTS[part] for part in known)), rows) if rows else ""


def warmth(results: Results, part: str) -> str:
    """Return a sentence about the rounds of a part that came first."""
    found = results.plan["warm_up"].get(part)
    if found is None:
        return ""
    if found["is_warm"]:
        return f"Warm after {found['rounds']} rounds, which do not count."
    return f"**Not warm**: the rounds that do not count ended at {found['rounds']}, before rates had stopped rising."


def _has(results: Results, bench: str, metric: str) -> bool:
    return any(sample.bench == bench and metric in sample.metrics for sample in results.samples)
