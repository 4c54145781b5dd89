"""The picture of the Spark page: each way's ratio to the same done with Apache Kafka, with its quartiles."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from bench import plots
from bench.comparison import Comparison, compare_rounds
from bench.results import Results
from bench.spark_job import BENCH as JOB_BENCH
from bench.spark_job import JOBS
from bench.spark_sink import BENCH as SINK_BENCH
from bench.spark_sites import BASE, READS, WRITES, Way
from bench.spark_streaming import DRAIN, WAYS
from bench.spark_tables import cases

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000", "#999933", "#882255")
"""Okabe and Ito's, and two of Tol's: told apart by colour-blind readers; each way has a shape of its own beside."""
MARKERS = "osD^vP*XH"
METRIC = "records_s"
ROW_INCHES = 0.42
Row = dict[Way, Comparison]


def rows(results: Results) -> dict[str, Row]:
    """Return the comparisons of each case, by its title."""
    benches = dict.fromkeys(sample.bench for sample in results.samples)
    found: dict[str, Row] = {}
    for bench in benches:
        ways = {SINK_BENCH: WRITES, JOB_BENCH: JOBS, DRAIN: WAYS}.get(bench, READS)
        for case in cases(results, bench):
            both = {
                way: compare_rounds(results, bench, METRIC, before=(BASE.name, case), after=(way.name, case))
                for way in ways[:-1]
            }
            row = {way: each for way, each in both.items() if each is not None}
            if row:
                found[f"{bench.replace('/', ', ')}\n{case}"] = row
    return found


def draw(results: Results, folder: Path, name: str) -> None:
    """Draw the picture ``name`` into a folder, a dot for each way of each case; without a case it is not drawn."""
    found = rows(results)
    if not found:
        return
    ways = list(dict.fromkeys(way for row in found.values() for way in row))
    figure = Figure(figsize=(plots.COLUMN_INCHES, 1.6 + ROW_INCHES * len(found)), layout="constrained")
    axis = figure.subplots()
    for index, way in enumerate(ways):
        places = [(place, row[way]) for place, row in enumerate(found.values()) if way in row]
        middles = [each.ratio for _, each in places]
        whiskers = [[each.ratio - each.low for _, each in places], [each.high - each.ratio for _, each in places]]
        shift = (index - (len(ways) - 1) / 2) * 0.1
        axis.errorbar(
            middles, [place + shift for place, _ in places], xerr=whiskers, fmt=MARKERS[index], color=COLOURS[index],
            markersize=4, linewidth=1, label=way.title.replace("`", ""),
        )  # fmt: skip
    axis.axvline(1, color="#555555", linestyle="--", linewidth=1)
    axis.set(xscale="log", title="Records a second, to Spark with Apache Kafka")
    axis.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["¼", "½", "1", "2", "4", "8"])
    axis.minorticks_off()
    axis.set_yticks(range(len(found)), list(found), fontsize=7)
    axis.invert_yaxis()
    figure.legend(loc="outside lower center", fontsize=7, ncols=1)
    plots.save(figure, folder, name)
