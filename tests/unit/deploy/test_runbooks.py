"""Each alert has its runbook page, and each page its alert; what a page quotes of a log is written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PAGES = ROOT / "docs" / "operations" / "runbooks"
SECTIONS = ("**Means**: ", "**Users see**: ", "**Look at**: ", "**Do**: ")


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


ALERTS = {
    rule["alert"]: rule
    for group in load(ROOT / "deploy" / "helm" / "bmq" / "files" / "rules.yaml")["groups"]
    for rule in group["rules"]
    if "alert" in rule
}


def test_each_page_has_its_alert_and_is_listed() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(ALERTS)
    listed = (PAGES / "README.md").read_text()
    for name, rule in ALERTS.items():
        assert f"| [{name}]({name}.md) | {rule['labels']['severity']} |" in listed


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_names_its_page_which_says_what_to_do(name: str) -> None:
    page = ROOT / ALERTS[name]["annotations"]["runbook"]
    assert page == PAGES / f"{name}.md"
    text = page.read_text()
    assert text.startswith(f"# {name}\n")
    assert [text.count(section) for section in SECTIONS] == [1] * len(SECTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_case_in_which_it_waits_fires_and_clears(name: str) -> None:
    """`make monitoring` has promtool run the cases."""
    cases = [
        checks
        for case in load(ROOT / "tests" / "monitoring" / "rules_test.yaml")["tests"]
        if (checks := [check for check in case.get("alert_rule_test", ()) if check["alertname"] == name])
    ]
    assert cases
    for checks in cases:
        assert [len(check["exp_alerts"]) for check in checks] == [0, 1, 0]
        assert checks[1]["exp_alerts"][0]["exp_labels"]["severity"] == ALERTS[name]["labels"]["severity"]


@pytest.mark.slow
def test_log_lines_that_pages_quote_are_written_by_the_code() -> None:
    quoted = {
        (page.stem, text) for page in PAGES.glob("*.md") for text in re.findall(r'"([^"\n]{8,})"', page.read_text())
    }
    assert len(quoted) >= 5
    rooms = (
        "broker",
        "cli",
        "console",
        "controller",
        "coordinator",
        "core",
        "endpoint",
        "meta",
        "proxy",
        "server",
        "storage",
    )
    sources = "\n".join(path.read_text() for room in rooms for path in (ROOT / room).rglob("*.py"))
    sources = re.sub(r'"\s*\n\s*f?"', "", sources)  # adjacent literals made one
    assert {(page, text) for page, text in quoted if text not in sources} == set()
