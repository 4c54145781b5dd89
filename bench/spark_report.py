"""The page docs/benchmarks-spark.md, written from the results."""

from __future__ import annotations

from pathlib import Path

from bench import machine, spark_plot, spark_report_flows, spark_report_reads
from bench.page import VERDICTS, failed, listed, table
from bench.results import Results
from bench.spark_plan import KEY_BYTES, KEYS, PARTITIONS, SEGMENT_BYTES, plan_of
from bench.warm_up import RISE_MAX

OBJECTIONS = Path(__file__).with_name("spark_objections.md")
"""What the page does not show, and what an expert would object to: true of the method, whatever the figures are."""
NOTES = Path(__file__).with_name("spark_notes.md")
"""The conclusions, written by hand: to be checked again after each change of the source or the decoder."""
PICTURE = "spark-ratios"


def write(results: Results, out: Path) -> None:
    """Write the page into folder ``out``, and its picture beside the results."""
    text = page(results)
    spark_plot.draw(results, out / "benchmarks", PICTURE)
    (out / "benchmarks-spark.md").write_text(text)


def page(results: Results) -> str:
    """Return the page.  Raises ValueError for results of before commits were recorded: they have another form."""
    if not results.commit:
        raise ValueError(f"{results.measured_at} Their form is an earlier one: measure again.")
    plan = plan_of(results)
    parts = [_head(results), *spark_report_reads.sections(results, plan), *spark_report_flows.sections(results, plan)]
    parts.append(failed(results))
    parts += [OBJECTIONS.read_text().strip(), NOTES.read_text().strip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _head(results: Results) -> str:
    rounds = results.plan["rounds"]
    settings = "\n".join(f"| {name} | {listed(each)} |" for name, each in results.plan["settings"].items())
    return f"""# Spark

{results.head}

Written by `make bench-spark`; do not edit. Every round, with the command line of each process, is in
`benchmarks/spark.json`.

    {results.command}

{results.started}, {results.took_s / 60:.0f} minutes. BMQ's source, sink and job, beside Spark's own Kafka source and
sink at Apache Kafka, on one machine: three Kafka brokers with three copies, three `bmq serve` with all roles over three
etcd and HDFS with three copies, and one `bmq serve` over an HDFS of its own; two of the copies have to be in sync. All
of them run all the time. Each round takes every way of doing the same in turn, and turns the order around. Rounds come
first that do not count, until no rate is more than {RISE_MAX:.0%} above its best before; then {rounds} that do. Each
round gives a ratio, of this way to Spark with Apache Kafka.
{VERDICTS}

![ratios](benchmarks/{PICTURE}.svg)

Keys are of {KEY_BYTES} B, {KEYS:,} different ones, values of words; batches of 64 KB, {PARTITIONS} partitions, segments
of {SEGMENT_BYTES >> 20} MB, the last of each still open. MB and GB are powers of ten, of keys and values before
compression. Spark's results are compared with what was written: a wrong one is a failure, not a figure.

"All columns" is `load()` without a schema: seven columns, of which a query uses one or two. "Columns selected" is
`.schema(...)` with these, which belongs to the `load()`: nothing that a query selects or filters is pushed down to the
source. Spark's Kafka source always builds its seven.

| settings, beside defaults | |
| --- | --- |
{settings}

{table(("", ""), machine.rows(results))}

Spark, loads, servers and storage share these cores: time that one uses is not there for the others. Load average before
each round: {", ".join(f"{load:g}" for load in results.load)}."""
