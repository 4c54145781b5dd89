"""The choice of keys that have series of their own: the largest, and those that have had them."""

from __future__ import annotations

import pytest

from bmq.core.metrics import series_bound
from bmq.core.metrics.series_bound import SeriesBound


def test_all_are_shown_while_there_is_room() -> None:
    bound: SeriesBound[str] = SeriesBound(3)
    assert bound.choose({"a": 0, "b": 5}) == {"a", "b"}
    assert bound.choose({"a": 0, "b": 5, "c": 1}) == {"a", "b", "c"}


def test_the_largest_are_shown_first() -> None:
    bound: SeriesBound[str] = SeriesBound(2)
    assert bound.choose({"a": 1, "b": 5, "c": 3}) == {"b", "c"}


def test_a_shown_key_keeps_its_series_while_it_exists() -> None:
    bound: SeriesBound[str] = SeriesBound(2)
    assert bound.choose({"a": 1, "b": 5}) == {"a", "b"}
    assert bound.choose({"a": 0, "b": 0, "c": 100}) == {"a", "b"}
    assert bound.choose({"b": 0, "c": 100, "d": 50}) == {"b", "c"}


def test_costs_are_kept_to() -> None:
    bound: SeriesBound[str] = SeriesBound(10)
    values, costs = {"wide": 100.0, "mid": 10.0, "thin": 1.0}, {"wide": 11, "mid": 8, "thin": 2}
    assert bound.choose(values, costs) == {"mid", "thin"}, "one that fits by no means takes no room"


def test_grown_keys_are_chosen_again() -> None:
    bound: SeriesBound[str] = SeriesBound(4)
    assert bound.choose({"a": 1, "b": 2}, {"a": 2, "b": 2}) == {"a", "b"}
    assert bound.choose({"a": 1, "b": 2}, {"a": 2, "b": 3}) == {"b"}


def test_a_limit_of_zero_shows_nothing() -> None:
    assert SeriesBound[str](0).choose({"a": 1}) == set()


def test_many_keys_are_chosen_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare with a sort of all keys, which prefers the first of equal values."""
    monkeypatch.setattr(series_bound, "KEYS_PER_STEP", 10)
    values = {number: float(number * 7 % 25) for number in range(100)}
    bound: SeriesBound[int] = SeriesBound(5)
    steps = bound.choose_in_steps(values)
    assert len(list(steps)) == 10
    assert bound.choose(values) == set(sorted(values, key=values.__getitem__, reverse=True)[:5])
    assert list(bound.choose_in_steps(values)) == [], "no room: nothing is compared"
