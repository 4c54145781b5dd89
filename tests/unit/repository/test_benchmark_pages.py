"""Each page of figures says at its top which code the figures are of, as the results that it is drawn from do."""

from __future__ import annotations

import pytest

from bench.results import Results
from bench.stale import DOCS, PAGES, measured, page_fault


@pytest.mark.parametrize("page", measured())
def test_a_page_of_figures_says_at_its_top_what_was_measured(page: str) -> None:
    results = Results.load_from(DOCS / "benchmarks" / PAGES[page])
    assert page_fault((DOCS / page).read_text(), results) == ""


def test_every_page_of_figures_has_its_results_named() -> None:
    assert {path.name for path in DOCS.glob("benchmarks*.md")} == set(measured())
