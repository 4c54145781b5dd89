"""docs/metrics.md has every metric that the code names, and every one that another page sends its readers to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmq.console.exposition import own_name

ROOT = Path(__file__).resolve().parents[3]
LISTED = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "metrics.md").read_text(), re.MULTILINE))
OTHERS = sorted(
    {ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")} - {ROOT / "docs/metrics.md"}
)
_NAME = re.compile(r"\b((?:bmq|kafka|process)_[a-z_]+[a-z])\b(?!_?\*|\()")
_QUOTED = re.compile(r"`([^`\n]+)`")
_SERIES = re.compile(r"_(?:bucket|sum|count)$")
NO_METRICS = {"kafka_exporter", "kafka_clients", "kafka_client"}


def own_names() -> Iterator[str]:
    """Yield the names of all OwnMetric, OwnHistogram and OwnSeries calls of the server."""
    for path in (ROOT / "server").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("OwnMetric", "OwnHistogram", "OwnSeries"):
                name = node.args[0]
                assert isinstance(name, ast.Constant), "name a metric where it is made"
                assert isinstance(name.value, str)
                yield own_name(name.value)


@pytest.mark.slow
def test_every_metric_is_on_the_page() -> None:
    exposition = (ROOT / "console" / "exposition.py").read_text()
    named = {*own_names(), *re.findall(r'"((?:kafka|bmq)_[a-z_]+)"', exposition)}
    assert len(named) > 50
    assert not {name for name in named if not {name, f"{name}_total"} & LISTED}


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_metric_that_a_page_names_is_there(page: Path) -> None:
    quoted = [text for text in _QUOTED.findall(page.read_text()) if "bmq_…" not in text and not text.endswith("_")]
    named = {name for text in quoted for name in _NAME.findall(text)} - NO_METRICS
    assert {name for name in named if not {name, _SERIES.sub("", name)} & LISTED} == set()
