"""Async tests run on the loop they ask for, and fail for what they leave behind (tests/harness/plugin.py)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
BEGIN = "import asyncio, time, threading, pytest\n"


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty folder of tests, run by pytest in a process of its own with the plugin alone."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / ".links"), str(ROOT)]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p tests.harness.plugin --strict-markers -p no:cacheprovider")
    return pytester


def run(tests: pytest.Pytester, source: str) -> pytest.RunResult:
    tests.makepyfile(BEGIN + source)
    return tests.runpytest_subprocess("-v", "-rP")


def test_time_is_virtual_unless_a_test_asks_for_another_loop(tests: pytest.Pytester) -> None:
    result = run(
        tests,
        """
async def loop_kind():
    begin, loop = time.monotonic(), asyncio.get_running_loop()
    await asyncio.sleep(0.001)
    return type(loop).__module__.split(".")[0]

async def test_of_itself():
    await asyncio.sleep(80_000)
    assert await loop_kind() == "tests"

@pytest.mark.loops("asyncio")
async def test_one():
    assert await loop_kind() == "asyncio"
    assert await asyncio.to_thread(threading.current_thread) is not threading.main_thread()

@pytest.mark.loops("asyncio", "uvloop", "virtual")
@pytest.mark.parametrize("number", [1, 2])
async def test_several(loop_name, number, tmp_path):
    assert await loop_kind() == {"virtual": "tests"}.get(loop_name, loop_name)
    assert tmp_path.is_dir()

def test_without_a_loop():
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()

@pytest.mark.loops("asyncio", "uvloop", "virtual")
async def test_that_does_not_ask_for_the_name():
    print("a run on", await loop_kind())
""",
    )
    result.assert_outcomes(passed=1 + 1 + 6 + 1 + 3)
    result.stdout.fnmatch_lines(["a run on asyncio*", "a run on uvloop*", "a run on tests*"])
    result.stdout.fnmatch_lines(["*test_several?asyncio-1? PASSED*", "*test_several?virtual-2? PASSED*"])


def test_what_a_test_leaves_behind_fails_it(tests: pytest.Pytester) -> None:
    result = run(
        tests,
        """
pytestmark = pytest.mark.loops("virtual", "asyncio", "uvloop")
kept = []

async def forever():
    await asyncio.Event().wait()

async def test_a_failure():
    assert 1 == 2

async def test_a_task():
    kept.append(asyncio.create_task(forever(), name="left behind"))

async def test_a_failing_callback():
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)
    await asyncio.sleep(0)

async def test_a_task_whose_failure_nobody_takes():
    async def fails():
        raise KeyError("lost")
    asyncio.create_task(fails())
    await asyncio.sleep(0.01)

async def test_a_task_that_fails_when_it_is_cancelled():
    async def fails():
        try:
            await forever()
        finally:
            raise LookupError("while cancelled")
    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    task.cancel()
""",
    )
    result.assert_outcomes(failed=5 * 3)
    result.stdout.fnmatch_lines(
        [
            *["E *assert 1 == 2"] * 3,
            *["E *LeftTasks: the test left 1 tasks: left behind (forever)"] * 3,
            *["E *ZeroDivisionError: division by zero"] * 3,
            *["E *KeyError: 'lost'"] * 3,
            *["E *LookupError: while cancelled"] * 3,
        ]
    )


def test_what_ends_by_itself_is_not_left_behind(tests: pytest.Pytester) -> None:
    result = run(
        tests,
        """
pytestmark = pytest.mark.loops("virtual", "asyncio", "uvloop")
kept = []

async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)

async def test_a_task_of_a_few_turns():
    kept.append(asyncio.create_task(turns(5)))

async def test_a_cancelled_task():
    kept.append(asyncio.create_task(asyncio.Event().wait()))
    kept[-1].cancel()

@pytest.mark.leaves_tasks
async def test_that_may():
    kept.append(asyncio.create_task(asyncio.Event().wait()))
""",
    )
    result.assert_outcomes(passed=3 * 3)


def test_what_cannot_end_fails(tests: pytest.Pytester) -> None:
    result = run(
        tests,
        """
import tests.harness.loop
tests.harness.loop.TURNS_MAX = 10_000

async def test_deadlock():
    await asyncio.Event().wait()

async def test_more_than_a_day():
    await asyncio.sleep(90_000)

async def test_with_nothing_that_time_would_change():
    while True:
        await asyncio.sleep(0)

@pytest.mark.loops("asyncio", limit_s=0.05)
async def test_on_a_real_loop():
    await asyncio.Event().wait()
""",
    )
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(
        [
            "E *Stuck: deadlock at *",
            "E *Stuck: not done after 86400* simulated seconds",
            "E *Stuck: 10000 turns at *: something spins",
            "E *TimeoutError",
        ]
    )


def test_a_seed_draws_its_numbers_and_without_one_they_are_always_the_same(tests: pytest.Pytester) -> None:
    result = run(
        tests,
        """
import random, uuid
drawn = []

@pytest.mark.parametrize("number", range(2))
async def test_draws(number):
    drawn.append((random.random(), uuid.uuid4()))
    assert len(set(drawn)) == 1

@pytest.mark.parametrize("seed", [1, 2, 0])
async def test_draws_of_a_seed(seed):
    drawn.append((random.random(), uuid.uuid4()))
    assert len(set(drawn)) == min(seed + 1, 3) or (seed == 0 and drawn[-1] == drawn[0])

@pytest.mark.seed(2)
async def test_draws_of_a_marked_seed():
    assert (random.random(), uuid.uuid4()) == drawn[3]
""",
    )
    result.assert_outcomes(passed=6)
