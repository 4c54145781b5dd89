"""Threads for calls that may not end: whose call costs a thread, who waits for it, and how many there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bmq.storage.hdfs.library_thread import LibraryThread
from bmq.storage.hdfs.timed_threads import NoOutcome, TimedThreads
from bmq.storage.overdue_calls import OVERDUE_CALLS, OverdueCalls
from tests.harness.waiting import until

pytestmark = pytest.mark.loops("asyncio")
LONG_S = 60.0
USABLE, MOST = 2, 5


class Calls:
    """Calls that hang until ``end``, counted when they begin."""

    def __init__(self) -> None:
        self.begun = 0
        self.end = threading.Event()

    def __call__(self) -> str:
        self.begun += 1
        assert self.end.wait(LONG_S)
        return "late"


@pytest.fixture
def hung() -> Iterator[Calls]:
    calls = Calls()
    yield calls
    calls.end.set()


@asynccontextmanager
async def timed_threads(
    usable: int = USABLE, most: int = MOST, counter: OverdueCalls = OVERDUE_CALLS
) -> AsyncIterator[TimedThreads]:
    """Make threads that are closed within the loop."""
    threads = TimedThreads("calls", usable=usable, most=most, counter=counter)
    try:
        yield threads
    finally:
        threads.close()


async def leave(threads: TimedThreads, calls: Calls, count: int, timeout_s: float) -> None:
    """Begin hung calls, and have their callers leave."""
    expected = calls.begun + count
    callers = [asyncio.create_task(threads.run(calls, timeout_s)) for _ in range(count)]
    await until(lambda: calls.begun == expected)
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    assert all(caller.cancelled() for caller in callers)


async def test_a_call_has_its_result_or_its_error() -> None:
    async with timed_threads() as threads:
        assert await threads.run(lambda: 7, LONG_S) == 7
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: 1 // 0, LONG_S)
        with pytest.raises(TimeoutError, match="the library's own"):
            await threads.run(_raise(TimeoutError("the library's own")), LONG_S)


def _raise(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


async def test_idle_threads_are_used_again() -> None:
    async with timed_threads() as threads:
        names = [await threads.run(lambda: threading.current_thread().name, LONG_S) for _ in range(5)]
        assert names == ["calls-0"] * 5


async def test_a_call_waits_for_a_thread_in_order(hung: Calls) -> None:
    """Let one thread do all calls: the calls of several threads have no order."""
    async with timed_threads(usable=1) as threads:
        order: list[int] = []
        first = asyncio.create_task(threads.run(hung, LONG_S))
        await until(lambda: hung.begun == 1)
        later = [asyncio.create_task(threads.run(lambda each=each: order.append(each), LONG_S)) for each in range(4)]  # type: ignore[misc]
        await until(lambda: threads.waiting == len(later))
        later[1].cancel()
        await asyncio.wait([later[1]])
        assert threads.waiting == 3, "a call leaves with its caller"
        hung.end.set()
        assert await first == "late"
        await asyncio.gather(later[0], *later[2:])
        assert order == [0, 2, 3]


async def test_the_age_of_a_call_decides_and_not_who_waits_for_it(hung: Calls) -> None:
    async with timed_threads() as threads:
        await leave(threads, hung, USABLE, timeout_s=0.05)
        assert await threads.run(lambda: 7, 5.0) == 7
        await until(lambda: threads.overdue == USABLE)
        hung.end.set()
        await until(lambda: threads.overdue == 0)


async def test_overdue_calls_are_counted_until_they_end_or_the_end_of_the_threads(hung: Calls) -> None:
    """Count the calls of all threads in one place."""
    counter = OverdueCalls()
    others = Calls()
    async with (
        timed_threads(counter=counter) as threads,
        timed_threads(counter=counter) as closed,
    ):
        await leave(threads, hung, USABLE, timeout_s=0.05)
        await until(lambda: counter.number == USABLE)
        await leave(closed, others, 1, timeout_s=0.05)
        await until(lambda: counter.number == USABLE + 1)
        hung.end.set()
        await until(lambda: counter.number == 1)
        assert (threads.overdue, closed.overdue) == (0, 1)
        closed.close()
        assert counter.number == 0
        others.end.set()
    assert counter.number == 0


async def test_a_call_that_its_thread_never_began_gives_its_place_back(
    hung: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold a new thread back for longer than its call's time, as a standstill of the process may."""
    held, run, errors = threading.Event(), LibraryThread._run, list[dict[str, Any]]()

    def run_when_free(thread: LibraryThread) -> None:
        if "calls-0" in repr(thread):
            assert held.wait(LONG_S)
        run(thread)

    monkeypatch.setattr(LibraryThread, "_run", run_when_free)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with timed_threads(usable=2, most=2) as threads:
        never_begun = asyncio.create_task(threads.run(lambda: 1, 0.01))
        running = asyncio.create_task(threads.run(hung, LONG_S))
        waiting = asyncio.create_task(threads.run(lambda: 7, 5.0))
        with pytest.raises(NoOutcome):
            await never_begun
        assert await waiting == 7
        assert threads.overdue == 0
        hung.end.set()
        assert await running == "late"
        held.set()
    assert not errors


async def test_a_call_whose_caller_has_left_in_time_costs_no_thread(hung: Calls) -> None:
    async with timed_threads() as threads:
        await leave(threads, hung, USABLE, timeout_s=LONG_S)
        hung.end.set()
        names = await asyncio.gather(*(threads.run(lambda: threading.current_thread().name, LONG_S) for _ in range(9)))
        assert set(names) <= {"calls-0", "calls-1"}


async def test_a_wait_for_a_thread_has_the_call_s_time(hung: Calls) -> None:
    async with timed_threads() as threads:
        await leave(threads, hung, USABLE, timeout_s=LONG_S)
        with pytest.raises(NoOutcome, match=r"no response within 0\.01 s"):
            await threads.run(lambda: 7, 0.01)
        assert threads.waiting == 0
        assert threads.overdue == 0, "the others' time is longer"


async def test_calls_are_refused_at_once_while_all_threads_hang(hung: Calls) -> None:
    async with timed_threads() as threads:
        for count in range(MOST):
            await leave(threads, hung, 1, timeout_s=0.01)
            await until(lambda expected=count + 1: threads.overdue == expected)  # type: ignore[misc]
        for _ in range(200):
            with pytest.raises(NoOutcome, match="the calls of all 5 threads do not end"):
                await threads.run(lambda: 7, 1.0)
        assert (hung.begun, threads.waiting) == (MOST, 0)
        hung.end.set()
        await until(lambda: threads.overdue < MOST)
        assert await threads.run(lambda: 7, LONG_S) == 7


async def test_a_waiting_call_is_refused_when_the_last_thread_hangs(hung: Calls) -> None:
    overdue: list[int] = []
    threads = TimedThreads("calls", usable=1, most=1, on_overdue=lambda: overdue.append(threads.overdue))
    try:
        first = asyncio.create_task(threads.run(hung, 0.05))
        await until(lambda: hung.begun == 1)
        with pytest.raises(NoOutcome, match="the calls of all 1 threads do not end"):
            await threads.run(lambda: 7, LONG_S)
        assert overdue == [1]
        with pytest.raises(NoOutcome, match="no response within"):
            await first
    finally:
        threads.close()


async def test_the_end_refuses_all_calls(hung: Calls) -> None:
    async with timed_threads() as threads:
        running = [asyncio.create_task(threads.run(hung, LONG_S)) for _ in range(USABLE)]
        waiting = asyncio.create_task(threads.run(lambda: 7, LONG_S))
        await until(lambda: hung.begun == USABLE)
        threads.close()
        threads.close()
        with pytest.raises(NoOutcome, match="calls is closed"):
            await threads.run(lambda: 7, LONG_S)
        outcomes = await asyncio.gather(*running, waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [NoOutcome] * (USABLE + 1)


def test_a_call_that_ends_after_the_loop_harms_nobody(hung: Calls, caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())

    async def leave_behind() -> None:
        threads = TimedThreads("calls", usable=USABLE, most=MOST)
        await leave(threads, hung, USABLE, timeout_s=0.01)
        await until(lambda: threads.overdue == USABLE)
        threads.close()

    asyncio.run(leave_behind())
    hung.end.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(LONG_S)
        assert not thread.is_alive()
    assert not caplog.records
