"""The picture of docs/benchmarks-latency.md: percentiles against the offered load."""

from __future__ import annotations

from matplotlib.figure import Figure

from bench.deployments import NAMES
from bench.latency_measure import LADDER
from bench.plots import DEPLOYMENTS, column, log_of_ms
from bench.results import Results

PICTURE = "latency-load"
TITLES = {"ack": "Produce, until acknowledged", "end": "End to end, until a consumer has it"}
LINES = {"p50": ":", "p99": "-"}


def by_load(results: Results) -> Figure:
    """Return the picture: for each latency a panel, median and p99 of each deployment, as far as it held the load."""
    figure, panels = column([3.3] * 2, is_x_shared=True)
    loads = sorted({int(case) for case in results.cases(LADDER)})
    for axis, (kind, title) in zip(panels, TITLES.items(), strict=True):
        for name in results.adapters(LADDER):
            colour, marker = DEPLOYMENTS[name]
            for percentile, line in LINES.items():
                spreads = [results.spread(LADDER, name, str(load), f"{kind}_{percentile}_us") for load in loads]
                known = [(load, spread) for load, spread in zip(loads, spreads, strict=True) if spread is not None]
                places = [load for load, _ in known]
                middles, lows, highs = (
                    [getattr(spread, part) / 1000 for _, spread in known] for part in ("middle", "low", "high")
                )
                label = f"{NAMES[name].replace(' over ', chr(10) + 'over ')}, {percentile}"
                axis.plot(places, middles, line, color=colour, marker=marker, markersize=4, label=label)
                axis.fill_between(places, lows, highs, color=colour, alpha=0.15, linewidth=0)
        axis.set(xscale="log")
        log_of_ms(axis, title)
    panels[-1].set_xlabel("records/s due (lines end where a backlog grows)")
    panels[-1].set_xticks(loads, [f"{load / 1000:g}k" for load in loads], rotation=60)
    panels[-1].minorticks_off()
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    return figure
