"""A limit that a standstill of the whole machine does not use up (tests/harness/patience.py)."""

from __future__ import annotations

from tests.harness.patience import STEP_S, Patience


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def looks_until_over(patience: Patience, clock: Clock, every_s: float) -> int:
    """Look `every_s`; return how many looks it took until the limit was over."""
    looks = 1
    while not patience.is_over():
        clock.now_s += every_s
        looks += 1
    return looks


def test_a_loop_that_looks_in_time_waits_for_its_limit() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)
    looks_until_over(patience, clock, 0.25)
    assert clock.now_s == 10.0
    assert str(patience) == "10.0 s"


def test_a_standstill_counts_for_one_step() -> None:
    clock = Clock()
    patience = Patience(10.0, clock)
    clock.now_s = 60.0
    assert not patience.is_over()
    assert str(patience) == "1.0 s of its own, and 59.0 s in which this machine stood still"
    looks_until_over(patience, clock, 0.25)
    assert clock.now_s == 60.0 + 10.0 - STEP_S


def test_standstills_one_after_another_do_not_make_it_endless() -> None:
    clock = Clock()
    assert looks_until_over(Patience(10.0, clock), clock, 30.0) == 11
