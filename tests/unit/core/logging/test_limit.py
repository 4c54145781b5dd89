"""Repeated log lines: written once an interval, with the number of those left out."""

from __future__ import annotations

from bmq.core.logging.limit import BURST, REPEAT_S, EventLimits


def test_a_line_that_repeats_is_written_once_an_interval_with_the_number_of_the_others() -> None:
    limits = EventLimits[str]()
    assert limits.admit("event", "p0", 0.0) == 0
    for second in range(1, 10):
        assert limits.admit("event", "p0", float(second)) is None
        limits.keep("event", f"line {second}")
    assert limits.admit("event", "p0", REPEAT_S) == 9
    assert limits.due(2 * REPEAT_S) == [], "all is said"


def test_what_was_left_out_is_said_though_nothing_comes_any_more() -> None:
    limits = EventLimits[str]()
    limits.admit("event", "p0", 0.0)
    for number in range(3):
        assert limits.admit("event", "p0", 1.0) is None
        limits.keep("event", f"line {number}")
    assert limits.due(1.0 + REPEAT_S - 0.1) == []
    assert limits.due(1.0 + REPEAT_S) == [("line 2", 2)]
    assert limits.due(100.0) == []
    assert len(limits) == 0


def test_other_subjects_of_an_event_are_written_at_once_up_to_the_burst_and_then_one_a_second() -> None:
    limits = EventLimits[str]()
    written = [limits.admit("event", f"p{number}", 0.0) for number in range(BURST)]
    assert written == [0] * BURST
    for number in range(BURST, 1_000):
        assert limits.admit("event", f"p{number}", 0.0) is None
        limits.keep("event", f"p{number}")
    assert limits.admit("event", "p1000", 1.0) == 1_000 - BURST
    assert limits.admit("event", "p1001", 1.0) is None


def test_one_event_does_not_silence_another() -> None:
    limits = EventLimits[str]()
    for number in range(10 * BURST):
        if limits.admit("noisy", number, 0.0) is None:
            limits.keep("noisy", "line")
    assert limits.admit("quiet", 0, 0.0) == 0


def test_subjects_and_events_that_are_over_are_forgotten() -> None:
    limits = EventLimits[str]()
    for number in range(10_000):
        now = number / 100
        if limits.admit("event", number, now) is None:
            limits.keep("event", "line")
    (event,) = limits._events.values()
    assert len(event.subjects) <= BURST + REPEAT_S
    limits.due(200.0)
    limits.due(200.0 + REPEAT_S)
    assert len(limits) == 0
