"""Connections by their times, beside a sorted list."""

from __future__ import annotations

import random

import pytest

from bmq.core.net.earliest_first import EarliestFirst


def test_the_earliest_comes_first_and_equal_times_in_the_order_of_additions() -> None:
    found = EarliestFirst[str]()
    for name, at in (("late", 3.0), ("early", 1.0), ("second", 1.0)):
        found.add(name, at)
    assert found.first() == ("early", 1.0)
    assert [found.pop() for _ in range(3)] == [("early", 1.0), ("second", 1.0), ("late", 3.0)]
    assert found.first() is None
    with pytest.raises(KeyError):
        found.pop()


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_calls_is_as_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    found, model = EarliestFirst[int](), dict[int, tuple[float, int]]()
    for step in range(2_000):
        number = rng.randrange(50)
        match rng.randrange(4):
            case 0 | 1:
                at = float(rng.randrange(100))
                found.add(number, at)
                model[number] = (at, step)
            case 2:
                found.remove(number)
                model.pop(number, None)
            case _ if model:
                first = min(model, key=lambda each: model[each])
                assert found.pop() == (first, model.pop(first)[0])
        earliest = min(model, key=lambda each: model[each], default=None)
        assert found.first() == (None if earliest is None else (earliest, model[earliest][0]))
        assert found.time_of(number) == (model[number][0] if number in model else None)
        assert len(found) == len(model)


def test_removed_connections_keep_no_memory() -> None:
    found = EarliestFirst[int]()
    found.add(-1, 0.0)  # stays the first, so that no entry behind it is ever the first
    for number in range(10_000):
        found.add(number, 1.0 + number)
        found.remove(number)
    assert len(found._heap) < 100
