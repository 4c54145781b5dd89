"""The pictures of docs/benchmarks-failover.md: each act's median and longest pause, Kafka's and BMQ's, on one scale."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from bench import plots  # its settings: text stays text
from bench.failover_acts import ADD, PARTS, SITES, Act, acts_of
from bench.results import Results

# Okabe and Ito's blue and vermilion, told apart by all eyes; the marks differ as well.
STYLES = {"Kafka": ("#d55e00", "s"), "BMQ": ("#0072b2", "o")}
AIM_COLOUR = "#555555"
assert plots.COLOURS, "importing it is what sets matplotlib up"


def name_of(ours: str, size: str) -> str:
    """Return the name of a picture's file, without its ending."""
    return f"failover-{ours}-{size}"


def write(results: Results, folder: Path) -> None:
    """Write a picture for each pair of deployments and size that was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for kafka, ours in SITES.values():
        for size in results.plan["sizes"]:
            acts = [act for act in acts_of(ours) if results.of("failover", ours, act.case_at(size))]
            if acts:
                figure = draw(results, {"Kafka": kafka, "BMQ": ours}, acts, size)
                figure.savefig(folder / f"{name_of(ours, size)}.svg", metadata={"Date": None})


def draw(results: Results, names: dict[str, str], acts: list[Act], size: str) -> Figure:
    """Draw a line from the median pause to the longest one, for each act and deployment, and the aim."""
    figure = Figure(figsize=(4.6, 1.2 + 0.42 * len(acts)), layout="constrained")
    axis = figure.subplots()
    for place, act in enumerate(acts):
        axis.plot([act.aim_ms] * 2, [place - 0.4, place + 0.4], color=AIM_COLOUR, linewidth=1.5, linestyle=":")
        for offset, (title, name) in zip((-0.16, 0.16), names.items(), strict=True):
            middle = results.spread("failover", name, act.case_at(size), "produce_ms")
            longest = results.spread("failover", name, act.case_at(size), "produce_max_ms")
            if middle is None or longest is None:
                continue
            colour, mark = STYLES[title]
            axis.plot([middle.middle, longest.high], [place + offset] * 2, color=colour, linewidth=2)
            axis.plot([middle.middle], [place + offset], mark, color=colour, markersize=5)
            axis.plot([longest.high], [place + offset], "|", color=colour, markersize=9, markeredgewidth=2)
    for title, (colour, mark) in STYLES.items():
        axis.plot([], [], f"{mark}-", color=colour, label=title)
    axis.plot([], [], color=AIM_COLOUR, linestyle=":", label="aim")
    axis.set(xscale="log", xlabel="pause, ms: median to longest", ylim=(len(acts) - 0.5, -0.5))
    axis.set_yticks(range(len(acts)), [_label(act) for act in acts])
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def _label(act: Act) -> str:
    return f"one {PARTS[act.part]}\nmore" if act.how == ADD else f"{PARTS[act.part]}\n{act.how}"
