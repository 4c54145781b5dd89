"""A process of load: it does what it is told, says why it failed, and does not outlive its context."""

from __future__ import annotations

import time

import psutil
import pytest

from bench import load_process
from bench.load_process import LoadFailed, LoadProcess, Parent

pytestmark = pytest.mark.slow


def echo(parent: Parent, *, word: str) -> None:
    parent.tell(f"{word} {parent.wait()}")


def fail(parent: Parent) -> None:
    parent.wait()
    raise ValueError("out of paper")


def vanish(_: Parent) -> None:
    raise SystemExit(3)


def linger(parent: Parent) -> None:
    parent.tell(psutil.Process().pid)
    while True:
        time.sleep(1)


def test_it_gets_its_arguments_and_its_word_and_tells_its_result() -> None:
    with LoadProcess(echo, word="hello") as process:
        process.send("there")
        assert process.expect() == "hello there"


def test_a_failure_has_its_reason() -> None:
    with LoadProcess(fail) as process:
        process.send("begin")
        with pytest.raises(LoadFailed, match="out of paper"):
            process.expect()


def test_one_that_ends_without_a_result_has_failed() -> None:
    with LoadProcess(vanish) as process, pytest.raises(LoadFailed, match="without a result"):
        process.expect()


def test_one_that_goes_on_is_killed_with_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_process, "GRACE_S", 0.1)
    with LoadProcess(linger) as process:
        pid = process.expect()
    assert not psutil.pid_exists(pid)


def test_one_that_is_silent_is_killed_so_that_its_late_value_is_nobodys() -> None:
    with LoadProcess(linger) as process:
        process.expect()
        with pytest.raises(TimeoutError, match="told nothing"):
            process.expect(0.01)
        with pytest.raises(LoadFailed, match="without a result"):
            process.expect()
