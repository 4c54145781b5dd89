"""Pauses of a thread that computes."""

from __future__ import annotations

import time

import pytest

from bmq.core.aio import pace


def test_a_pause_comes_after_some_work_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    paced = pace.Pace()
    for _ in range(10):
        now[0] += pace.WORK_S / 4
        paced()
    assert slept == [pace.REST_S, pace.REST_S]
