"""The cases of the matrix: each axis has the centre, and differs from it in one way; corners in two."""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest

from bench.matrix_cases import FULL, QUICK, Case, Plan, axes, axis_of, centre, label_of

PLANS = pytest.mark.parametrize("plan", [FULL, QUICK], ids=["full", "quick"])


def load(case: Case) -> tuple[object, ...]:
    """Return the case without its name."""
    return astuple(replace(case, axis="", label=""))


def differences(case: Case, other: Case) -> int:
    return sum(mine != theirs for mine, theirs in zip(load(case), load(other), strict=True))


@PLANS
@pytest.mark.parametrize("axis", ["sizes", "partitions", "codecs", "clients"])
def test_an_axis_has_the_centre_and_one_thing_that_differs(plan: Plan, axis: str) -> None:
    cases = axes(plan)[axis]
    middle = centre(axes(plan))
    assert load(middle) in [load(case) for case in cases]
    assert all(differences(case, middle) <= (2 if case.is_spread else 1) for case in cases)
    assert len({load(case) for case in cases}) == len(cases) > 1


def test_the_corners_are_small_records_in_many_partitions_and_large_ones_in_one() -> None:
    assert [(case.record_bytes, case.partitions) for case in axes(FULL)["corners"]] == [(100, 1000), (1_000_000, 1)]


def test_the_axes_are_those_that_users_ask_for() -> None:
    found = {axis: [case.label for case in cases] for axis, cases in axes(FULL).items()}
    assert found == {
        "sizes": ["100 B", "1 KB", "10 KB", "1 MB"],
        "partitions": [
            "1 partition", "12 partitions", "100 partitions", "1,000 partitions",
            "100 partitions, each record to the next", "1,000 partitions, each record to the next",
        ],
        "codecs": ["none", "lz4", "zstd"],
        "clients": ["Java", "C"],
        "corners": ["100 B, 1,000 partitions", "1 MB, 1 partition"],
    }  # fmt: skip


@PLANS
def test_a_name_in_the_results_tells_the_axis_and_the_label(plan: Plan) -> None:
    cases = [case for of_axis in axes(plan).values() for case in of_axis]
    assert len({case.key for case in cases}) == len(cases)
    assert all((axis_of(case.key), label_of(case.key)) == (case.axis, case.label) for case in cases)


def test_amounts_are_of_bytes_with_a_least_number_of_records() -> None:
    small, large = (Case(axis="", label="", record_bytes=size) for size in (100, 10_000_000))
    assert FULL.count(small) == 2_500_000
    assert FULL.warm_count(small) == 375_000
    assert FULL.count(large) == FULL.records_least
    assert FULL.count(replace(small, is_spread=True)) == 625_000
