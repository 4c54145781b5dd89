"""A pytest plugin that runs `async def test_…`, on virtual time unless a test asks for another loop.

| marker | the test runs |
|---|---|
| none | on the virtual loop (tests/harness/loop.py): nothing waits, and each run is the same |
| `loops("asyncio")` | on that loop: needed for sockets, threads and processes |
| `loops("asyncio", limit_s=600)` | there, for no longer than that; without it for `LIMIT_S` |
| `loops("asyncio", "uvloop", "virtual")` | once on each of these loops |
| `seed(7)`, or `parametrize("seed", …)` | with `random` and `uuid.uuid4` seeded so; 0 without it |
| `leaves_tasks` | as with no marker, but it may leave tasks: those of a process that the test kills or never stops |

A test fails if it leaves a task that nobody has cancelled, if a callback or a lost task raises, and if it does not end:
at a deadlock or after a day of virtual time (`run` in tests/harness/loop.py), and after `LIMIT_S` on the other loops.
pytest-asyncio runs tests on any loop too, but passes a test that leaves a task or whose callback raises, and cannot
seed a run.  tests/conftest.py loads this plugin.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.harness.loop import run

LIMIT_S = 120.0
"""Seconds after which a test on a real loop is given up: several times what the slowest takes."""
GRACE_S = 1.0
"""Seconds for tasks that end by themselves: what a closed connection still has under way."""

VIRTUAL = "virtual"
REAL_LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


class LeftTasks(AssertionError):
    """Tasks that a test has left running."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    config.addinivalue_line(
        "markers", "loops(*names, limit_s): run an async test on these loops: virtual, asyncio, uvloop"
    )
    config.addinivalue_line("markers", "seed(number): what an async test on virtual time is seeded with")
    config.addinivalue_line("markers", "leaves_tasks: tasks of the test may run when it ends")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Repeat an async test on each of its loops, if it names several."""
    names = _loops_of(metafunc.definition)
    if len(names) > 1 and inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("loop_name")
        metafunc.parametrize("loop_name", names)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test; None leaves any other test to pytest."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    loop_name = _loop_of(pyfuncitem)
    may_leave = pyfuncitem.get_closest_marker("leaves_tasks") is not None
    main = _without_leftovers(test(**arguments), may_leave=may_leave)
    if loop_name == VIRTUAL:
        marker = pyfuncitem.get_closest_marker("seed")
        run(main, arguments.get("seed", marker.args[0] if marker is not None else 0))
    else:
        marker = pyfuncitem.get_closest_marker("loops")
        assert marker is not None
        run_real(main, REAL_LOOPS[loop_name], marker.kwargs.get("limit_s", LIMIT_S))
    return True


def run_real(
    test: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop], limit_s: float
) -> None:
    """Run `test` on a loop with real time, and raise the first exception that the loop was told of meanwhile."""
    failures: list[BaseException] = []

    def keep(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context.get("exception") or RuntimeError(context["message"]))

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(keep)
        async with asyncio.timeout(limit_s):
            await test

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(bounded())
    if failures:
        raise failures[0]


def _loops_of(item: pytest.Item) -> tuple[str, ...]:
    marker = item.get_closest_marker("loops")
    return marker.args if marker is not None else (VIRTUAL,)


def _loop_of(item: pytest.Function) -> str:
    """Return the loop of one run of a test.

    ``funcargs`` lacks its name: no argument of the test has the name, and pytest prunes the names to the arguments.
    """
    names = _loops_of(item)
    return names[0] if len(names) == 1 else str(item.callspec.params["loop_name"])


async def _without_leftovers(test: Coroutine[Any, Any, None], *, may_leave: bool) -> None:
    await test
    if may_leave or not (left := _running()):
        return
    await asyncio.wait(left, timeout=GRACE_S)
    if left := _running():
        names = ", ".join(sorted(f"{task.get_name()} ({task.get_coro().__qualname__})" for task in left))  # type: ignore[union-attr]
        raise LeftTasks(f"the test left {len(left)} tasks: {names}")


def _running() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.cancelling()]
