"""The cost of a program holds the time of processes that outlive it; a program that takes too long leaves none."""

from __future__ import annotations

import sys

import pytest

from bench.process_cost import run

pytestmark = pytest.mark.slow

BUSY_S = 0.4
BUSY = f"import time; end = time.process_time() + {BUSY_S}\nwhile time.process_time() < end: pass"
LEAVES = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}], start_new_session=True)"
HANGS = "import time, os; os.fork(); time.sleep(600)"
TIMEOUT_S = 60.0


def test_an_orphan_counts_and_is_waited_for() -> None:
    cost = run([sys.executable, "-c", LEAVES], timeout_s=TIMEOUT_S)
    assert cost.status == 0
    assert cost.cpu_s >= BUSY_S


def test_seconds_are_those_of_the_program_alone() -> None:
    sleeps = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}]).wait()"
    cost = run([sys.executable, "-c", sleeps], timeout_s=TIMEOUT_S)
    assert cost.seconds >= BUSY_S


def test_a_program_that_fails_is_an_error_with_its_output() -> None:
    with pytest.raises(RuntimeError, match="no such table"):
        run([sys.executable, "-c", "import sys; sys.exit('no such table')"], timeout_s=TIMEOUT_S)


def test_a_program_that_hangs_is_killed_with_all_that_it_started() -> None:
    with pytest.raises(RuntimeError, match="ended with -9"):
        run([sys.executable, "-c", HANGS], timeout_s=1.0)
