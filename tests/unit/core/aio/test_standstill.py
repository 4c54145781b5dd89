"""Standstills of the loop: found before anything else runs, counted once, and told apart by their length."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.controller.heartbeats import SUSPECT_S
from bmq.controller.patience import LEAST_S, MOST_S
from bmq.core.aio.standstill import CALM_S, DOUBT_S, GIVEN_UP_S, PAUSE_S, TICK_S, Standstill
from bmq.core.clock import LoopClock
from bmq.core.rpc.peer import PeerSettings


class Watched:
    """A watch, and what it has found."""

    def __init__(self) -> None:
        self.standstill = Standstill(LoopClock())
        self.doubts: list[float] = []
        self.found: list[float] = []
        self.standstill.on_doubt.add(self.doubts.append)
        self.standstill.on_found.add(self.found.append)
        self.standstill.start()


def stop_loop(seconds: float) -> None:
    """Move the loop's clock on, as if the process had stood still for so long."""
    loop: Any = asyncio.get_running_loop()
    loop.clock.now += seconds


def test_the_lengths_are_those_of_the_controller_and_of_internal_connections() -> None:
    assert (PAUSE_S, DOUBT_S, CALM_S) == (SUSPECT_S, LEAST_S, MOST_S)
    assert PeerSettings().ping_s + PeerSettings().ping_timeout_s == GIVEN_UP_S
    assert TICK_S < PAUSE_S, "the beat itself is not a pause"


async def test_a_loop_that_runs_has_no_standstill() -> None:
    watched = Watched()
    for _ in range(100):
        await asyncio.sleep(0.9 * TICK_S)
        watched.standstill.look()
    assert (watched.doubts, watched.found) == ([], [])


async def test_a_look_finds_a_standstill_before_the_late_beat_runs_and_the_beat_does_not_find_it_again() -> None:
    watched = Watched()
    await asyncio.sleep(1)
    stop_loop(GIVEN_UP_S)
    watched.standstill.look()
    assert len(watched.found) == len(watched.doubts) == 1
    assert GIVEN_UP_S <= watched.found[0] <= GIVEN_UP_S + TICK_S
    watched.standstill.look()
    await asyncio.sleep(1)
    assert len(watched.found) == watched.standstill.doubts == 1


async def test_the_beat_finds_a_standstill_that_nobody_looks_for() -> None:
    watched = Watched()
    await asyncio.sleep(1)
    stop_loop(10)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(watched.found) == 1


async def test_a_shorter_standstill_is_a_doubt_only() -> None:
    watched = Watched()
    await asyncio.sleep(1)
    stop_loop(1.01 * DOUBT_S)
    watched.standstill.look()
    assert (len(watched.doubts), watched.found) == (1, [])


@pytest.mark.parametrize(("calm_s", "doubts"), [(0.5 * CALM_S, 1), (1.5 * CALM_S, 0)])
async def test_two_pauses_soon_after_one_another_are_a_doubt(calm_s: float, doubts: int) -> None:
    watched = Watched()
    await asyncio.sleep(1)
    for _ in range(2):
        stop_loop(1.01 * PAUSE_S)
        await asyncio.sleep(calm_s)
    assert watched.standstill.doubts == doubts


@pytest.mark.parametrize("seconds", [1.01 * DOUBT_S, GIVEN_UP_S])
async def test_code_that_may_not_look_has_the_standstill_found_in_the_next_turn(seconds: float) -> None:
    watched = Watched()
    await asyncio.sleep(1)
    assert not watched.standstill.is_unnoticed
    stop_loop(seconds)
    assert watched.standstill.is_unnoticed
    assert watched.standstill.is_unnoticed, "until it is found"
    assert watched.doubts == []
    await asyncio.sleep(0)
    assert (len(watched.doubts), len(watched.found)) == (1, seconds == GIVEN_UP_S)
    assert not watched.standstill.is_unnoticed


async def test_a_watch_that_does_not_run_finds_nothing() -> None:
    watched = Watched()
    watched.standstill.stop()
    stop_loop(100)
    watched.standstill.look()
    assert not watched.standstill.is_unnoticed
    assert watched.doubts == []


async def test_the_beat_goes_on_after_a_subscriber_that_fails() -> None:
    """Let one fail once: without a beat each quiet time of the clients would count as a standstill."""
    loop, failed = asyncio.get_running_loop(), list[object]()
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))
    watched = Watched()
    forget = watched.standstill.on_found.add(fail)
    stop_loop(GIVEN_UP_S)
    await asyncio.sleep(2 * TICK_S)
    assert [str(error) for error in failed] == ["failed"]
    forget()
    watched.found.clear()
    await asyncio.sleep(10 * GIVEN_UP_S)
    watched.standstill.look()
    assert not watched.found
    watched.standstill.stop()


def fail(_: float) -> None:
    raise ValueError("failed")
