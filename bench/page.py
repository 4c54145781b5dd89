"""The parts that pages of figures share: tables, numbers with their spread, ratios with their verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.comparison import Comparison
from bench.results import Results, Spread

GROUPS = {"cpu": "BMQ's processes", "storage_cpu": "HDFS", "etcd_cpu": "etcd"}
"""The first parts of the metrics of processor time, and whose it is."""
VERDICTS = """Shown are the median of the ratios and their quartiles. "Itself" has the quartiles of a side's
change from round to round. A ratio is "equal" when 1 lies within its quartiles, or the ratio within
"itself"; "better" or "WORSE" when not."""
"""What ``ratio`` shows, for the top of a page."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def short(value: float) -> str:
    """Return three digits, or a whole number from 1,000 on."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def number(spread: Spread | None) -> str:
    """Return a median with its lowest and its highest round; "-" for none."""
    if spread is None:
        return "-"
    shown = short(spread.middle)
    return f"{shown} ({short(spread.low)} to {short(spread.high)})" if spread.low != spread.high else shown


def ratio(found: Comparison) -> tuple[str, str, str]:
    """Return the cells of a comparison: the ratio, its quartiles with those of a side beside itself, the verdict."""
    spread = f"{found.low:.2f} to {found.high:.2f}; itself {found.own_low:.2f} to {found.own_high:.2f}"
    return f"**{found.ratio:.2f}**", spread, found.verdict


def ratio_cell(found: Comparison | None) -> str:
    """Return a comparison in one cell; "-" for none."""
    if found is None:
        return "-"
    return f"**{found.ratio:.2f}** ({found.low:.2f} to {found.high:.2f}) {found.verdict}"


def ms(spread: Spread | None) -> str:
    """Return microseconds as milliseconds, as ``number`` does."""
    return number(spread and Spread(spread.middle / 1000, spread.low / 1000, spread.high / 1000))


def listed(properties: Mapping[str, str]) -> str:
    """Return settings in one line."""
    return " ".join(f"`{name}={value}`" for name, value in properties.items())


def verdicts(found: Mapping[str, Comparison]) -> str:
    """Return nested lists of what is better, equal and worse; the keys name what was compared."""
    lines = []
    for verdict in ("better", "equal", "WORSE"):
        names = [name for name, comparison in found.items() if comparison.verdict == verdict]
        lines += [f"- {verdict}:{'' if names else ' nothing'}", *(f"  - {name}" for name in names)]
    return "\n".join(lines)


def parts(results: Results, bench: str, name: str, case: str) -> str:
    """Return how many processor seconds a GB each group of BMQ's processes used, in words."""
    spreads = {title: results.spread(bench, name, case, f"{group}_s_gb") for group, title in GROUPS.items()}
    return ", ".join(f"{title} {short(each.middle)}" for title, each in spreads.items() if each is not None)


def failed(results: Results) -> str:
    """Return the section of failures; "" without any."""
    return "## Failed\n\n" + "\n".join(f"- {each}" for each in results.failures) if results.failures else ""
