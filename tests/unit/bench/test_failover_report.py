"""The page of the failover measurement, drawn from results as a run writes them: aims, ratios, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.failover_acts import Act
from bench.failover_figures import is_met, longest_pause
from bench.failover_report import EarlierForm, page, write
from bench.results import Results
from bench.stale import page_fault

FIXTURE = Path(__file__).with_name("failover.json")


@pytest.fixture
def results() -> Results:
    return Results.load_from(FIXTURE)


def test_the_page_says_which_code_it_is_of(results: Results) -> None:
    assert page_fault(page(results), results) == ""


def test_a_row_has_the_median_of_rounds_the_longest_of_all_and_the_ratio_of_each_round(results: Results) -> None:
    row = (
        "| process with all roles killed | 9,000 | 12,000 | 600 | 3,000 | **0.17** (0.14 to 0.21; itself 0.71 to 1.65) "
        "| better | 3,000 |"
    )
    assert row in page(results)


def test_an_aim_is_for_the_longest_pause_of_any_round_and_of_consumers_too(results: Results) -> None:
    killed = Act("node", "killed")
    assert longest_pause(results, "bmq-3", killed, "10MB") == 3100.0
    assert is_met(results, "bmq-3", killed, "10MB") == "**no**"
    assert is_met(results, "bmq-3", Act("node", "one more"), "10MB") == "yes"


def test_commits_are_judged_where_the_coordinator_is_lost(results: Results) -> None:
    assert longest_pause(results, "bmq-3", Act("coordinator", "paused"), "10MB") == 3500.0


def test_a_round_that_failed_does_not_meet_the_aim(results: Results) -> None:
    killed = Act("datanode", "killed")
    assert is_met(results, "bmq-3", killed, "10MB") == "**no**"
    assert "| datanode killed | 10MB | 1,300, and failed |" in page(results)
    results.failures = []
    assert is_met(results, "bmq-3", killed, "10MB") == "yes"


def test_what_was_not_measured_has_no_verdict(results: Results) -> None:
    assert is_met(results, "bmq-3", Act("node", "paused"), "10MB") == "-"


def test_unfavourable_figures_come_before_the_tables(results: Results) -> None:
    before, _, after = page(results).partition("## Three nodes, beside three nodes")
    assert "| three nodes | process with all roles killed | 10MB | 3,100 | 3,000 |" in before
    assert "| datanode killed | no such part |" in after


def test_copies_are_shown_as_far_as_they_are_exact(results: Results) -> None:
    assert "| 9.0 | 5.0 | 2,505 MB (at most 2,510) | under 5 MB |" in page(results)


def test_what_was_left_out_refused_and_failed_is_on_the_page(results: Results) -> None:
    text = page(results)
    assert "- No cable was pulled: network namespaces are made by root." in text
    assert "- 2 records were refused: round 2, bmq-3, node-one-more, 10MB." in text
    assert "- round 2, bmq-3, datanode-killed, 10MB: NotReady(" in text


def test_a_deployment_that_was_not_measured_has_no_section(results: Results) -> None:
    assert "## Roles apart" not in page(results)


def test_the_page_answers_objections(results: Results) -> None:
    assert "## What this page does not show" in page(results)
    assert "## What would a Kafka engineer object to, and the answer" in page(results)


@pytest.mark.slow
def test_the_picture_that_the_page_shows_is_drawn(results: Results, tmp_path: Path) -> None:
    write(results, tmp_path)
    text = (tmp_path / "benchmarks-failover.md").read_text()
    pictures = [path.name for path in (tmp_path / "benchmarks").iterdir()]
    assert pictures == ["failover-bmq-3-10MB.svg"]
    assert f"](benchmarks/{pictures[0]})" in text


def test_results_of_an_earlier_form_leave_the_page_alone(results: Results, tmp_path: Path) -> None:
    results.commit = ""
    with pytest.raises(EarlierForm, match="measure again"):
        write(results, tmp_path)
    assert list(tmp_path.iterdir()) == []
