"""The top of a page of ``bench.rounds``: what was measured, how, on which machine, and whether servers were warm."""

from __future__ import annotations

from bench import machine
from bench.comparison import Comparison, compare_rounds
from bench.deployments import NAMES
from bench.page import VERDICTS, listed, table
from bench.results import Results
from bench.warm_up import RISE_MAX


def opening(results: Results, name: str, title: str, what: str, *, warmed_by: str = "producing") -> str:
    """Return the top of docs/benchmarks-NAME.md; ``what`` says what its figures are, ``warmed_by`` what came first.

    Raises ValueError for results that do not name their commit.
    """
    if not results.commit:
        raise ValueError(f"{results.measured_at} Measure again.")
    plan = results.plan
    clients = "\n".join(f"    {line}" for line in plan["clients"].values())
    settings = [(of, listed(values)) for of, values in plan["settings"].items()]
    return f"""# {title}

{results.head}

Written by `python -m bench.{name}`; do not edit. Every round, with the command line of each process, is in
`benchmarks/{name}.json`.

    {results.command}

{what}

{results.started}, {results.took_s / 60:.0f} minutes. All deployments run on the machine at the same time. A round
measures the deployments in turn, and the order alternates.
{_warmth(results, warmed_by)} Then a round of the measurements
below is dropped, and {plan["rounds"]} rounds count. Figures are medians of the rounds, with the lowest
and the highest one. Each round gives a ratio.
{VERDICTS}

Clients:

{clients}

{table(("settings, beside defaults", ""), settings)}

Kafka has the JVM options of its own start scripts, BMQ its default caches. CPU counts every server process of a side:
for BMQ on HDFS the NameNode, the datanodes and etcd too.

{table(("", ""), machine.rows(results))}

Clients, servers and storage share these cores. Load average before
each round: {", ".join(f"{load:g}" for load in results.load)}."""


def beside_kafka(results: Results, bench: str, case: str, kafka: str, name: str, metric: str) -> Comparison | None:
    """Return the comparison of one of BMQ's deployments with Kafka's, in one case."""
    return compare_rounds(results, bench, metric, before=(kafka, case), after=(name, case))


def pairs(results: Results, bench: str) -> list[tuple[str, str]]:
    """Return Kafka's deployment with each of BMQ's that was measured."""
    names = results.adapters(bench)
    ours = [name for name in NAMES if name in names and name.startswith("bmq")]
    return [(kafka, name) for kafka in names if kafka.startswith("kafka") for name in ours]


def _warmth(results: Results, warmed_by: str) -> str:
    found = results.plan["warm_up"]
    rule = f"no deployment's rate of {warmed_by} was more than {RISE_MAX:.0%} above its best before"
    if found["is_warm"]:
        return f"First come rounds of throughput, until {rule}: after {found['rounds']}."
    return f"**Not warm**: the rounds of throughput that come first ended at {found['rounds']}, before {rule}."
