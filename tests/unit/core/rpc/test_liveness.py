"""The times at which a connection is asked for a sign of life, and at which it is given up (core/rpc/liveness.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.rpc.liveness import Liveness, LivenessVerdict

FINE, PING, LOST = LivenessVerdict
TICK_S = 0.25


class Watch:
    """Ticks as the timer does; ``verdicts`` are (time, verdict) of all that were not FINE."""

    def __init__(self, stuck_s: float = 10.0) -> None:
        self.liveness = Liveness(0.0, 1.0, 2.0, stuck_s)
        self.now = 0.0
        self.unsent = 0
        self.verdicts: list[tuple[float, LivenessVerdict]] = []

    def wait(self, until: float) -> list[tuple[float, LivenessVerdict]]:
        """Return the verdicts of the time up to ``until``."""
        self.verdicts = []
        while self.now < until:
            self.now += TICK_S
            verdict = self.liveness.tick(self.now, self.unsent)
            if verdict is not FINE:
                self.verdicts.append((self.now, verdict))
        return self.verdicts

    def hear(self) -> None:
        self.liveness.received(self.now)


def test_two_pings_without_an_answer() -> None:
    assert Watch().wait(3.0) == [(1.0, PING), (2.0, PING), (3.0, LOST)]


def test_every_second_while_nothing_else_is_said() -> None:
    watch = Watch()
    for second in range(1, 20):
        assert watch.wait(second) == [(second, PING)]
        watch.hear()


def test_who_speaks_is_not_asked() -> None:
    watch = Watch()
    for quarter in range(1, 100):
        assert watch.wait(quarter * TICK_S) == []
        watch.hear()


def test_bytes_that_the_kernel_takes_late_are_a_sign_of_life() -> None:
    """A slow network: megabytes are under way to the peer, which has nothing to say."""
    watch = Watch()
    for size in range(1_000, 0, -1):
        watch.unsent = size
        assert watch.wait(watch.now + TICK_S) == []


def test_a_kernel_that_takes_no_more() -> None:
    watch = Watch()
    watch.unsent = 5
    assert watch.wait(3.0)[-1] == (3.0, LOST)


def test_a_peer_that_speaks_and_does_not_listen() -> None:
    watch = Watch(stuck_s=5.0)
    watch.unsent = 5
    watch.wait(TICK_S)
    while not watch.verdicts:
        watch.hear()
        watch.wait(watch.now + TICK_S)
    assert watch.verdicts == [(5.0 + TICK_S, LOST)]


def test_each_time_that_all_is_taken_begins_anew() -> None:
    watch = Watch(stuck_s=5.0)
    for _ in range(10):
        watch.unsent = 9
        assert all(verdict is PING for _, verdict in watch.wait(watch.now + 2.5))
        watch.liveness.drained(watch.now)


def test_another_connection_vouches_for_one_that_is_not_read() -> None:
    """Bounded: silent itself for ``stuck_s``, it is given up all the same."""
    watch = Watch(stuck_s=20.0)
    verdicts: list[tuple[float, LivenessVerdict]] = []
    while LOST not in [verdict for _, verdict in verdicts]:
        watch.liveness.vouched(watch.now)
        verdicts = watch.wait(watch.now + TICK_S)
    assert watch.now == 20.0


def test_what_vouches_falls_silent_as_well() -> None:
    watch = Watch(stuck_s=20.0)
    for quarter in range(1, 21):
        watch.liveness.vouched(watch.now)
        assert watch.wait(quarter * TICK_S) == []
    assert watch.wait(20.0)[:3] == [(5.75, PING), (6.75, PING), (7.75, LOST)]


def test_our_own_pause_does_not_count() -> None:
    watch = Watch()
    watch.wait(0.5)
    watch.now += 60.0
    assert watch.liveness.tick(watch.now, 0) is FINE
    assert watch.wait(watch.now + 3.0)[-1][1] is LOST


@pytest.mark.slow
@given(st.lists(st.tuples(st.floats(0, 10), st.booleans(), st.integers(0, 9)), max_size=60))
def test_never_lost_right_after_a_sign_and_always_after_enough_silence(
    steps: list[tuple[float, bool, int]],
) -> None:
    """Whatever came before and however late the ticks were."""
    watch = Watch()
    for pause_s, hears, unsent in steps:
        watch.now += pause_s
        if hears:
            watch.hear()
            assert watch.liveness.tick(watch.now, 0) is FINE
        else:
            watch.liveness.tick(watch.now, unsent)
    verdicts = watch.wait(watch.now + 3.0 + 2 * TICK_S)
    assert LOST in [verdict for _, verdict in verdicts]
