"""Rounds count once no server's rate rises; and each server takes each place in turn."""

from collections import Counter

import pytest

from bench.warm_up import is_warm, ordered


@pytest.mark.parametrize(
    ("rates", "warm"),
    [
        ({}, False),
        ({"kafka": []}, False),
        ({"kafka": [40.0]}, False),
        ({"kafka": [40.0, 60.0]}, False),
        ({"kafka": [40.0, 44.0]}, True),
        ({"kafka": [40.0, 44.1]}, False),
        ({"kafka": [40.0, 60.0, 72.0]}, False),
        ({"kafka": [40.0, 60.0, 72.0, 73.0]}, True),
        ({"kafka": [60.0, 30.0]}, True),  # a slow round is no rise
        ({"kafka": [60.0, 30.0, 62.0]}, True),  # nor is the one after it
        ({"kafka": [60.0, 61.0], "bmq": [60.0, 90.0]}, False),
        ({"kafka": [60.0, 61.0], "bmq": [60.0]}, False),
        ({"kafka": [60.0, 61.0], "bmq": [90.0, 90.0]}, True),
    ],
)
def test_servers_are_warm_once_no_rate_rises(rates: dict[str, list[float]], warm: bool) -> None:
    assert is_warm(rates) == warm


def test_more_rounds_can_be_asked_for() -> None:
    assert not is_warm({"kafka": [60.0, 60.0]}, rounds_least=3)
    assert is_warm({"kafka": [60.0, 60.0, 60.0]}, rounds_least=3)


@pytest.mark.parametrize(("servers", "rounds"), [("ab", 2), ("abc", 6), ("abcd", 8), ("abcdefghij", 20)])
def test_each_server_is_as_often_in_each_place(servers: str, rounds: int) -> None:
    places = Counter((place, name) for number in range(rounds) for place, name in enumerate(ordered(servers, number)))
    assert len(places) == len(servers) ** 2
    assert set(places.values()) == {rounds // len(servers)}
