"""docs/metrics.md has every metric that the code names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from bmq.console.exposition import own_name

ROOT = Path(__file__).resolve().parents[3]


def own_names() -> Iterator[str]:
    """Yield the names of all OwnMetric, OwnHistogram and OwnSeries calls of the command."""
    for path in (ROOT / "cli").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("OwnMetric", "OwnHistogram", "OwnSeries"):
                name = node.args[0]
                assert isinstance(name, ast.Constant), "name a metric where it is made"
                assert isinstance(name.value, str)
                yield own_name(name.value)


def test_every_metric_is_on_the_page() -> None:
    exposition = (ROOT / "console" / "exposition.py").read_text()
    named = {*own_names(), *re.findall(r'"((?:kafka|bmq)_[a-z_]+)"', exposition)}
    listed = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
    assert len(named) > 50
    assert not {name for name in named if not {name, f"{name}_total"} & listed}
