"""The list of versions fits to pyproject.toml, its cells to the tests that exist, and the page's table to the list."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from bmq.spark.pyspark_version import STREAM_READER, STREAM_WRITER
from tests.services.spark import chosen_version
from tests.spark_matrix.cells import PARTS, VERSIONS, Cell, all_cells
from tests.spark_matrix.results import Result, describe, draw, has_failed, read_results

ROOT = Path(__file__).resolve().parents[3]
PASSED = Result(passed=7, failed=0, skipped=0, error="", seconds=1, commit="0123abcd", date="2026-01-01")


def minor(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def test_the_versions_are_one_of_each_minor_version_from_the_oldest_allowed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (oldest,) = (text.removeprefix("pyspark>=") for text in extras["spark"] if text.startswith("pyspark>="))
    minors = [minor(version) for version in VERSIONS]
    assert minors == [(minor(oldest)[0], minor(oldest)[1] + each) for each in range(len(VERSIONS))]
    assert chosen_version() in VERSIONS, "the version that all other tests run with"


def test_a_version_is_there_for_each_first_version_of_a_feature() -> None:
    assert {minor(feature.since) for feature in (STREAM_READER, STREAM_WRITER)} <= set(map(minor, VERSIONS))


def test_the_paths_of_the_parts_exist() -> None:
    paths = [path for part in PARTS for path in part.paths]
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_cells_without_their_feature_are_not_run() -> None:
    keys = [cell.key for cell in all_cells()]
    assert "4.1.4 streams" not in keys
    assert "4.2.0 streams" in keys
    assert len(set(keys)) == len(keys)


def test_results_are_of_cells_of_the_list() -> None:
    """Results of a version that left the list leave the file with it."""
    assert set(read_results()) <= {cell.key for cell in all_cells()}


def test_the_page_has_a_row_for_each_version() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    rows = re.findall(r"^\| (\d+\.\d+\.\d+) \|", page, re.MULTILINE)
    assert rows == list(VERSIONS)


def test_the_table_tells_what_was_tried() -> None:
    failed: Result = {**PASSED, "failed": 2}
    lines = draw({Cell(VERSIONS[0], PARTS[0]).key: PASSED, Cell(VERSIONS[1], PARTS[0]).key: failed}).splitlines()
    assert lines[2].startswith("| 4.0.5 | none | 7 passed | not tried | needs 4.2 | ")
    assert lines[3].startswith("| 4.1.4 | write | 7 passed, 2 failed | ")
    assert lines[4].startswith("| 4.2.0 | write, read | not tried | ")


def test_a_run_that_ended_otherwise_than_its_tests_has_failed() -> None:
    assert not has_failed(PASSED)
    assert describe({**PASSED, "skipped": 3}) == "7 passed, 3 left out"
    broken = Result(passed=0, failed=0, skipped=0, error="pytest ended with 2 ", seconds=1, commit="", date="")
    assert has_failed(broken)
    assert describe(broken) == "the run failed"
