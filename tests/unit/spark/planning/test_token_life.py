"""The rule by which a driver replaces its executors' token: half the life, or a minute."""

from __future__ import annotations

import pytest

from bmq.spark.planning.token_life import is_due, is_good, may_retry

DAY = 86_400.0


@pytest.mark.parametrize(
    ("life", "age", "due", "good"),
    [
        (DAY, 0, False, True),
        (DAY, DAY / 2, False, True),
        (DAY, DAY / 2 + 1, True, True),
        (DAY, DAY - 61, True, True),
        (DAY, DAY - 59, True, False),
        (100, 39, False, True),  # of a short life a minute is more than half
        (100, 41, True, True),
        (100, 76, True, False),
        (60, 14, False, True),  # a life of a minute always has less than a minute left
        (60, 16, True, True),
        (60, 46, True, False),
        (0, 0, False, True),
        (DAY, 2 * DAY, True, False),
        (None, 0, True, True),  # of a file: its writer renews it
        (None, 9 * DAY, True, True),
    ],
)
def test_when_a_token_is_replaced_and_how_long_it_serves_if_it_cannot_be(
    life: float | None, age: float, due: bool, good: bool
) -> None:
    assert (is_due(life, age), is_good(life, age)) == (due, good)


@pytest.mark.parametrize(
    ("life", "since", "expected"),
    [(DAY, 59, False), (DAY, 60, True), (60, 5, False), (60, 6, True), (None, 59, False), (None, 60, True)],
)
def test_a_failed_attempt_is_made_again_after_a_minute(life: float | None, since: float, expected: bool) -> None:
    assert may_retry(life, since) is expected
