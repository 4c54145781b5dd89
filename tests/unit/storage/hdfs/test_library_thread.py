"""The thread of calls that may block for minutes."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from bmq.storage.hdfs.library_thread import LibraryThread

EXIT_S = 60.0
_SILENT = """
import threading
from bmq.storage.hdfs.library_thread import LibraryThread

thread, is_blocked = LibraryThread("silent"), threading.Event()
thread.submit(lambda: (is_blocked.set(), threading.Event().wait()))
is_blocked.wait()
thread.close()
"""


def test_calls_run_in_order_in_one_thread() -> None:
    thread = LibraryThread("calls")
    order: list[tuple[int, str]] = []
    futures = [
        thread.submit(lambda number=number: order.append((number, threading.current_thread().name)))  # type: ignore[misc]
        for number in range(5)
    ]
    for future in futures:
        future.result(timeout=EXIT_S)
    assert order == [(number, "calls") for number in range(5)]
    thread.close()


def test_an_error_is_the_calls_and_not_the_threads() -> None:
    thread = LibraryThread("errors")
    with pytest.raises(ZeroDivisionError):
        thread.submit(lambda: 1 // 0).result(timeout=EXIT_S)
    assert thread.submit(lambda: 7).result(timeout=EXIT_S) == 7
    thread.close()


def test_the_end_cancels_what_waits_and_takes_nothing_more() -> None:
    thread, may_go_on = LibraryThread("closing"), threading.Event()
    first = thread.submit(may_go_on.wait)
    second = thread.submit(lambda: None)
    thread.close()
    thread.close()
    with pytest.raises(CancelledError):
        second.result(timeout=EXIT_S)
    with pytest.raises(RuntimeError, match="closing is closed"):
        thread.submit(lambda: None)
    may_go_on.set()
    assert first.result(timeout=EXIT_S)


def test_an_idle_thread_calls_again_and_again_until_its_end() -> None:
    turns: queue.SimpleQueue[str] = queue.SimpleQueue()
    thread = LibraryThread("idle", on_idle=lambda: turns.put(threading.current_thread().name), idle_s=0.001)
    assert turns.empty(), "it has not started"
    assert thread.submit(lambda: 7).result(timeout=EXIT_S) == 7
    assert [turns.get(timeout=EXIT_S) for _ in range(3)] == ["idle"] * 3
    assert thread.submit(lambda: 8).result(timeout=EXIT_S) == 8
    thread.close()


@pytest.mark.slow
def test_a_process_ends_beside_a_call_that_never_returns() -> None:
    done = subprocess.run([sys.executable, "-c", _SILENT], timeout=EXIT_S, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_idle_work_that_fails_is_logged_and_calls_go_on(caplog: pytest.LogCaptureFixture) -> None:
    has_failed = threading.Event()

    def fail() -> None:
        has_failed.set()
        raise OSError("no memory cache")

    thread = LibraryThread("idle", on_idle=fail, idle_s=0.001)
    assert thread.submit(lambda: 1).result(10) == 1
    assert has_failed.wait(10)
    assert thread.submit(lambda: 2).result(10) == 2
    thread.close()
    assert "the idle work of a library's thread failed" in caplog.text
