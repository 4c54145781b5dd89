"""Brokers that live and do not serve: when they are emptied, and how long they rest."""

from __future__ import annotations

from bmq.controller.stalled_brokers import REST_MAX_S, REST_S, StalledBrokers


def test_a_broker_that_serves_is_no_change() -> None:
    serving = StalledBrokers()
    assert not serving.update("a", True, 0.0)
    assert serving.stalled == serving.resting(0.0) == frozenset()


def test_a_stall_is_news_once_and_so_is_its_end() -> None:
    serving = StalledBrokers()
    assert [serving.update("a", word, at) for at, word in enumerate([False, False, True, True])] == [
        True,
        False,
        True,
        False,
    ]


def test_after_a_stall_it_rests_for_its_time() -> None:
    serving = StalledBrokers()
    serving.update("a", False, 0.0)
    assert (sorted(serving.stalled), sorted(serving.resting(0.0))) == (["a"], [])
    serving.update("a", True, 100.0)
    assert (sorted(serving.stalled), sorted(serving.resting(100.0 + REST_S - 1))) == ([], ["a"])
    assert serving.resting(100.0 + REST_S) == frozenset()


def rests(*gaps_s: float) -> list[float]:
    """Return the seconds of rest after each of several stalls; a gap leads from the end of a rest to the next stall."""
    serving, now, found = StalledBrokers(), 0.0, []
    for gap_s in (*gaps_s, 0.0):
        serving.update("a", False, now)
        serving.update("a", True, now)
        end = next(s for s in range(1, int(REST_MAX_S) + 2) if not serving.resting(now + s))
        found.append(float(end))
        now += end + gap_s
    return found


def test_soon_after_another_stall_it_rests_twice_as_long_up_to_the_most() -> None:
    assert rests(*[1.0] * 6) == [REST_S * 2**n for n in range(5)] + [REST_MAX_S] * 2


def test_long_after_another_stall_it_rests_as_after_the_first() -> None:
    assert rests(1.0, REST_MAX_S, 1.0) == [REST_S, 2 * REST_S, REST_S, 2 * REST_S]


def test_a_broker_that_was_forgotten_rests_as_after_its_first_stall() -> None:
    serving = StalledBrokers()
    serving.update("a", False, 0.0)
    serving.forget("a")
    assert serving.stalled == frozenset()
    assert not serving.update("a", True, 1.0)
