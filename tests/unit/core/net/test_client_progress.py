"""The verdicts about a client: idle, stuck, slow to send, slow to read."""

from __future__ import annotations

import pytest

from bmq.core.net.client_progress import ClientProgress
from bmq.core.net.request_budget import LEAST_RATE, STALL_S, STUCK_S


def opened() -> ClientProgress:
    progress = ClientProgress()
    progress.opened(100.0)
    return progress


def test_a_client_is_idle_once_nothing_has_happened_for_the_limit() -> None:
    progress = opened()
    assert not progress.is_idle(109.0, 10.0, is_active=False)
    assert progress.is_idle(110.0, 10.0, is_active=False)
    assert not progress.is_idle(110.0, 10.0, is_active=True)
    assert not progress.is_idle(119.0, 10.0, is_active=False), "the time begins again with the last activity"
    progress.seen = 130.0
    assert not progress.is_idle(139.0, 10.0, is_active=False)


@pytest.mark.parametrize("event", ["opened", "frame_began", "let_through", "blocked", "muted"])
def test_each_event_gives_a_client_that_keeps_bytes_its_time_again(event: str) -> None:
    progress = opened()
    assert progress.is_stuck(100.0 + STUCK_S)
    arguments = (5,) if event in ("let_through", "blocked") else ()
    getattr(progress, event)(110.0, *arguments, **({"keeps_bytes": True} if event == "blocked" else {}))
    assert not progress.is_stuck(109.0 + STUCK_S)
    assert progress.is_stuck(110.0 + STUCK_S)


def test_a_client_has_read_if_the_unsent_bytes_have_changed() -> None:
    progress = opened()
    assert progress.has_read(10)
    assert not progress.has_read(10)
    assert progress.has_read(9)


@pytest.mark.parametrize(
    ("age", "arrived", "rate"),
    [
        (STALL_S - 1, 0, None),
        (STALL_S, 0, 0.0),
        (STALL_S, int(STALL_S) * LEAST_RATE, None),
        (STALL_S, int(STALL_S) * LEAST_RATE - 10, LEAST_RATE - 1.0),
        (2 * STALL_S, int(STALL_S) * LEAST_RATE, LEAST_RATE / 2),
    ],
)
def test_the_rate_of_a_frame(age: float, arrived: int, rate: float | None) -> None:
    progress = opened()
    progress.frame_began(200.0)
    assert progress.slow_frame_rate(200.0 + age, arrived) == rate


def test_the_time_of_a_frame_that_is_fast_enough_begins_again() -> None:
    progress = opened()
    enough = int(STALL_S) * LEAST_RATE
    progress.frame_began(200.0)
    assert progress.slow_frame_rate(200.0 + STALL_S, enough) is None
    assert progress.slow_frame_rate(199.0 + 2 * STALL_S, enough) is None
    assert progress.slow_frame_rate(200.0 + 2 * STALL_S, enough) == 0.0


def test_bytes_from_before_a_pause_are_not_progress_after_it() -> None:
    progress = opened()
    progress.frame_began(200.0)
    progress.let_through(300.0, 1 << 20)
    assert progress.slow_frame_rate(300.0 + STALL_S, 1 << 20) == 0.0


@pytest.mark.parametrize(
    ("age", "read", "rate"),
    [
        (STUCK_S - 1, 0, None),
        (STUCK_S, 0, 0.0),
        (STUCK_S, int(STUCK_S) * LEAST_RATE, None),
        (2 * STUCK_S, int(STUCK_S) * LEAST_RATE, LEAST_RATE / 2),
    ],
)
def test_the_rate_at_which_responses_are_read(age: float, read: int, rate: float | None) -> None:
    progress = opened()
    progress.blocked(200.0, 1 << 30, keeps_bytes=False)
    assert progress.slow_read_rate(200.0 + age, (1 << 30) - read) == rate


def test_the_rate_of_a_client_that_keeps_bytes_is_over_all_its_pauses() -> None:
    """Take two responses of 1,000 bytes in 20 s each, with an hour between in which nothing is unsent."""
    progress = opened()
    progress.blocked(200.0, 1_000, keeps_bytes=True)
    progress.unblocked(220.0)
    progress.blocked(3_820.0, 1_000, keeps_bytes=True)
    assert progress.slow_read_rate(3_829.0, 500) is None
    assert progress.slow_read_rate(3_840.0, 500) == 1_500 / 40
    progress.forget_pauses()
    assert progress.slow_read_rate(3_820.0 + STUCK_S - 1, 500) is None
    assert progress.slow_read_rate(3_820.0 + STUCK_S, 500) == 500 / STUCK_S


def test_the_time_of_a_reader_that_is_fast_enough_begins_again() -> None:
    progress = opened()
    progress.blocked(200.0, 1 << 30, keeps_bytes=False)
    left = (1 << 30) - int(STUCK_S) * LEAST_RATE
    assert progress.slow_read_rate(200.0 + STUCK_S, left) is None
    assert progress.slow_read_rate(199.0 + 2 * STUCK_S, left) is None
    assert progress.slow_read_rate(200.0 + 2 * STUCK_S, left) == 0.0
