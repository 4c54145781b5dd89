"""The chart's rules as Prometheus reads them: alerts fire, and clear; recorded ones say what their names say."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.monitoring.world import RULES, queries, rules
from tests.services.prometheus import PromtoolRefuses, promtool

CASES = Path(__file__).with_name("rules_test.yaml")
DAYS = Path(__file__).with_name("rules_days_test.yaml")


def test_every_rule_is_taken() -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert f"SUCCESS: {len(rules())} rules found" in said


def test_every_alert_fires_and_clears_in_time() -> None:
    said = promtool("test", "rules", str(CASES))
    assert "SUCCESS" in said


def test_a_cluster_that_is_down_is_alerted_of_for_days() -> None:
    said = promtool("test", "rules", str(DAYS))
    assert "SUCCESS" in said


def test_a_rule_that_is_changed_fails_its_case(tmp_path: Path) -> None:
    """Change the condition of each alert so that it never holds: its case must fail."""
    text = RULES.read_text()
    cases = yaml.safe_load(CASES.read_text())
    changed = tmp_path / "rules.yaml"
    cases["rule_files"] = [str(changed)]
    case_file = tmp_path / "rules_test.yaml"
    for rule in rules():
        if "alert" not in rule:
            continue
        assert text.count(f"expr: {rule['expr']}\n") == 1, rule["alert"]
        changed.write_text(text.replace(f"expr: {rule['expr']}\n", f"expr: ({rule['expr']}) and on () vector(1) < 0\n"))
        case_file.write_text(yaml.safe_dump(cases))
        with pytest.raises(PromtoolRefuses, match=rule["alert"]):
            promtool("test", "rules", str(case_file))


def test_every_expression_of_a_dashboard_is_parsed(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:number_{number}:x", "expr": expr} for number, (_, expr) in enumerate(queries())]
    path = tmp_path / "panels.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"SUCCESS: {len(recorded)} rules found" in promtool("check", "rules", str(path))
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": [{"record": "a", "expr": "sum(a"}]}]}))
    with pytest.raises(PromtoolRefuses, match="parse"):
        promtool("check", "rules", str(path))
