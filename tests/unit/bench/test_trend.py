"""Does a figure rise?  Lines, noise, outliers, and what a beginning does not count for."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bench.trend import DAY_S, trend

TIMES = [60.0 * number for number in range(240)]
NOISE = random.Random(0)


def noisy(values: Sequence[float], by: float) -> list[float]:
    return [value + NOISE.uniform(-by, by) for value in values]


def test_a_line_rises_by_its_slope() -> None:
    found = trend(TIMES, [100 + 2 * at / DAY_S for at in TIMES])
    assert found is not None
    assert found.rise_day == pytest.approx(2)
    assert found.verdict == "rises"


def test_a_falling_line_falls() -> None:
    found = trend(TIMES, [100 - at for at in TIMES])
    assert found is not None
    assert found.verdict == "falls"


def test_a_constant_is_steady() -> None:
    found = trend(TIMES, [7.0] * len(TIMES))
    assert found is not None
    assert (found.rise_day, found.unseen_day, found.verdict) == (0, 0, "steady")


def test_noise_is_steady_and_says_what_it_would_hide() -> None:
    found = trend(TIMES, noisy([100.0] * len(TIMES), 5))
    assert found is not None
    assert found.verdict == "steady"
    # a spread of about 8 over two hours is about 96 a day
    assert 80 < found.unseen_day < 110


def test_a_rise_beyond_the_noise_is_seen() -> None:
    found = trend(TIMES, noisy([100 + 200 * at / DAY_S for at in TIMES], 5))
    assert found is not None
    assert found.verdict == "rises"
    assert found.rise_day == pytest.approx(200, rel=0.1)


def test_the_beginning_does_not_count() -> None:
    half = len(TIMES) // 2
    found = trend(TIMES, [float(number) for number in range(half)] + [120.0] * half)
    assert found is not None
    assert found.verdict == "steady"


def test_a_few_outliers_do_not_make_a_rise() -> None:
    values = noisy([10.0] * len(TIMES), 0.1)
    for number in (200, 220, 235):
        values[number] = 1000.0
    found = trend(TIMES, values)
    assert found is not None
    assert found.verdict == "steady"


@pytest.mark.parametrize("count", [0, 1, 10, 14])
def test_few_samples_say_nothing(count: int) -> None:
    assert trend(TIMES[:count], [1.0] * count) is None


def test_fifteen_samples_are_enough() -> None:
    assert trend(TIMES[:15], [1.0] * 15) is not None
