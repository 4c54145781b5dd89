"""Shares of open files: when there are any, how many there are, and how they are divided."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bmq.controller.file_shares import (
    LOWER_EVERY_S,
    SETTLE_S,
    STALE_S,
    FileShares,
    OpenFileReport,
    divide_by_weight,
)

MOST = 1_000


def report(held: int, waiting: int = 0, refused: int = 0, closing: int = 0, limit_max: int = MOST) -> OpenFileReport:
    return OpenFileReport(held=held, closing=closing, waiting=waiting, refused=refused, limit_max=limit_max)


def round_of(shares: FileShares, now: float, **reports: OpenFileReport) -> Mapping[str, int]:
    for name, reported in reports.items():
        shares.update(name, reported, now)
    return shares.divide(now)


def divided(**reports: OpenFileReport) -> FileShares:
    """Return the shares of two brokers or more at 0 s, when "a" was refused a file for the first time."""
    shares = FileShares()
    round_of(shares, -1.0, **reports)
    refused = reports["a"]._replace(refused=reports["a"].refused + 1)
    round_of(shares, 0.0, **reports | {"a": refused})
    return shares


# ---------------------------------------------------------------------------------------------------- rows of the table


def test_no_shares_while_nobody_is_refused() -> None:
    shares = FileShares()
    for now in range(100):
        assert round_of(shares, now, a=report(900, 500, refused=7), b=report(3)) == {}
    assert not shares.is_divided
    assert shares.share("a") is None


def test_a_refusal_lowers_the_room_and_shares_go_by_what_is_wanted() -> None:
    shares = divided(a=report(200, 100), b=report(80, 0, closing=10), c=report(0, 20))
    assert shares.room == 290 * 3 // 4
    assert {name: shares.share(name) for name in "abc"} == {"a": 163, "b": 43, "c": 11}


def test_a_broker_that_has_all_it_wants_gives_to_one_that_has_nothing() -> None:
    """Give one broker all files it wants: without a share it would keep them, as it never reaches its own bound."""
    shares = FileShares()
    round_of(shares, 0.0, a=report(100), b=report(0, 100))
    assert round_of(shares, 1.0, a=report(100), b=report(0, 100, refused=1)) == {"a": 38, "b": 37}


def test_one_broker_needs_no_share() -> None:
    shares = FileShares()
    for refused in range(5):
        assert round_of(shares, float(refused), a=report(100, 100, refused)) == {}
    shares = divided(a=report(100), b=report(0, 100))
    shares.forget("b")
    assert round_of(shares, 1.0, a=report(100, 100, refused=2)) == {}
    assert not shares.is_divided


def test_the_room_is_lowered_once_in_a_while_and_by_half_at_most() -> None:
    shares = divided(a=report(100), b=report(100))
    assert shares.room == 150
    for refused, now in ((2, 1.0), (3, LOWER_EVERY_S - 0.1)):
        round_of(shares, now, a=report(75, 0, refused), b=report(70))
        assert shares.room == 150, "freed room is not seen at once"
    round_of(shares, LOWER_EVERY_S, a=report(75, 0, 4), b=report(70, closing=5))
    assert shares.room == 150 * 3 // 4
    round_of(shares, 2 * LOWER_EVERY_S, a=report(0, 100, 5), b=report(1, 100))
    assert shares.room == 112 // 2, "a moment in which little is open is no measure"


def test_refusals_while_somebody_is_above_its_share_do_not_lower_the_room() -> None:
    """Keep one broker above its share: the refusals of others lower the room only once SETTLE_S is over."""
    shares = divided(a=report(0, 100), b=report(100))
    refused = 2
    began = LOWER_EVERY_S
    now = began
    while now < began + SETTLE_S:
        round_of(shares, now, a=report(0, 100, refused), b=report(90))
        assert shares.room == 75
        refused, now = refused + 1, now + 1.0
    round_of(shares, now, a=report(0, 100, refused), b=report(90))
    assert shares.room == 75 * 3 // 4


def test_the_room_grows_while_nobody_is_refused_until_it_bounds_nobody() -> None:
    shares = divided(a=report(16, 50), b=report(16, 50))
    assert shares.room == 24
    seen = []
    now = 1.0
    while shares.is_divided:
        round_of(shares, now, a=report(16, 50, refused=1), b=report(16, 50))
        seen.append(shares.room)
        now += 1.0
    assert seen[:3] == [26, 28, 30]
    assert seen[-2] < 2 * MOST
    assert seen[-1] == 0
    assert now < 100
    assert shares.share("a") is None


def test_room_to_spare_is_given_evenly_beside_what_is_wanted() -> None:
    shares = divided(a=report(60), b=report(20))
    for now in range(1, 20):
        round_of(shares, float(now), a=report(40, refused=1), b=report(10))
    spare = (shares.room - 50) // 2
    assert spare > 0
    assert (shares.share("a"), shares.share("b")) == (40 + spare, 10 + spare)


def test_a_silent_broker_keeps_its_share_for_a_while() -> None:
    shares = divided(a=report(50, 50), b=report(50, 50), c=report(50, 50))
    now = STALE_S
    found = round_of(shares, now, a=report(37, 60, 1), b=report(37, 60))
    assert found["c"] > 0
    assert set(round_of(shares, now + 1, a=report(37, 60, 1), b=report(37, 60))) == {"a", "b"}
    assert shares.share("c") is None


def test_a_first_report_says_nothing_of_refusals() -> None:
    """A new leader does not know since when they were counted."""
    shares = FileShares()
    assert round_of(shares, 0.0, a=report(50, 50, refused=100), b=report(50, 50, refused=5)) == {}
    assert round_of(shares, 1.0, a=report(50, 50, refused=100), b=report(50, 50, refused=5)) == {}
    assert round_of(shares, 2.0, a=report(50, 50, refused=100), b=report(50, 50, refused=6)) == {"a": 38, "b": 37}


# ---------------------------------------------------------------------------------------------------------- properties

reports = st.builds(
    OpenFileReport,
    held=st.integers(0, 3_000),
    closing=st.integers(0, 100),
    waiting=st.integers(0, 10_000),
    refused=st.integers(0, 5),
    limit_max=st.integers(1, 3_000),
)
rounds = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from("abcd"), reports, max_size=4), st.floats(0, 40), st.sampled_from(["", *"abcd"])
    ),
    max_size=12,
)


@pytest.mark.slow
@given(rounds)
@settings(max_examples=50)
def test_whatever_is_reported_each_broker_has_a_share_within_its_bounds(
    history: list[tuple[dict[str, OpenFileReport], float, str]],
) -> None:
    shares, now = FileShares(), 0.0
    for reported, seconds, gone in history:
        now += seconds
        if gone:
            shares.forget(gone)
        before = shares.room
        found = round_of(shares, now, **reported)
        assert shares.is_divided == bool(found)
        for name, share in found.items():
            assert share >= 1
            if name in reported:
                assert share <= reported[name].limit_max
        if found:
            assert len(found) >= 2
            assert sum(found.values()) <= max(shares.room, 1) + len(found)
        if before and shares.room:
            assert before // 2 <= shares.room <= before + before // 16 + 1 or shares.room == len(found)


@pytest.mark.slow
@given(
    st.integers(0, 10_000),
    st.dictionaries(st.sampled_from("abcdefg"), st.tuples(st.integers(0, 5_000), st.integers(1, 2_000)), min_size=1),
)
def test_room_is_divided_in_proportion(room: int, wanted: dict[str, tuple[int, int]]) -> None:
    weights = {name: weight for name, (weight, _) in wanted.items()}
    limits = {name: limit for name, (_, limit) in wanted.items()}
    parts = divide_by_weight(room, weights, limits)
    assert parts.keys() == weights.keys()
    assert all(1 <= parts[name] <= limits[name] for name in parts)
    assert sum(parts.values()) <= room + len(parts)
    free = [name for name in parts if parts[name] < limits[name] and weights[name]]
    for one in free:
        for other in free:
            fair = (parts[one] - 1) * weights[other] <= (parts[other] + 1) * weights[one]
            assert fair or parts[one] == 1, "who is not at its limit waits about as long as any other"


@pytest.mark.parametrize(
    ("room", "weights", "limits", "parts"),
    [
        (10, (10, 10), (99, 99), (5, 5)),
        (10, (20, 10), (99, 99), (7, 3)),
        (10, (98, 1, 1), (99, 99, 99), (9, 1, 1)),
        (10, (98, 1, 1), (6, 99, 99), (6, 2, 2)),
        (10, (50, 50), (2, 3), (2, 3)),
        (0, (5, 5), (9, 9), (1, 1)),
        (1, (5, 5, 5), (9, 9, 9), (1, 1, 1)),
        (9, (0, 3), (9, 9), (1, 9)),
        (9, (0, 0), (9, 9), (1, 1)),
    ],
)
def test_room_is_divided_into_whole_parts_within_their_limits(
    room: int, weights: tuple[int, ...], limits: tuple[int, ...], parts: tuple[int, ...]
) -> None:
    names = "abc"[: len(parts)]
    found = divide_by_weight(room, dict(zip(names, weights, strict=True)), dict(zip(names, limits, strict=True)))
    assert tuple(found[name] for name in names) == parts
