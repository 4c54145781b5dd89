"""A deterministic asyncio loop on virtual time: ``run(main(), seed)``.

Nothing waits.  When no callback is ready the clock jumps to the next timer, so a simulated hour costs only the work
done in it.  The same seed gives the same run, on every machine and under every PYTHONHASHSEED: time is virtual,
``random`` and ``uuid.uuid4`` are seeded, threads become plain calls, and tasks and futures hash by creation order,
since asyncio keeps them in sets (``TaskGroup`` cancels its children, ``asyncio.wait`` returns its tasks, in that
order).  Code under test must not iterate over sets of strings or of objects of its own, nor read a real clock.

A simulated process (``PROCESS``) can be stopped as by SIGSTOP: no callback of it runs until it goes on, and then those
that came due meanwhile run in their order.  A dead one's timers never run again.

No socket, signal or process works here; the loop's own self-pipe is never read.
"""

from __future__ import annotations

import asyncio
import heapq
import random
import selectors
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLEANUP_S = 3600.0  # virtual seconds that cancelled tasks have to end
RESOLUTION_S = 1e-9  # timers that near to one another are due together, as asyncio has it
TIMERS_KEPT = 200  # before cancelled ones are looked for
TURNS_MAX = 1_000_000  # loop turns at one instant: far above any burst, reached in seconds by a spinning task


class Stuck(AssertionError):
    """The simulated world cannot go on: deadlock, a spin without time passing, or past its time limit."""


class _VirtualClock(selectors.BaseSelector):
    """The time, in the place of a selector: files never become ready, and waiting moves the clock."""

    def __init__(self, limit_s: float) -> None:
        self.now = 0.0
        self.limit_s = limit_s
        self._turns = 0
        self._keys: dict[int, selectors.SelectorKey] = {}

    def move_to(self, when: float | None) -> None:
        """Go on at the next timer; None: there is none.  Raises Stuck."""
        if when is None:
            raise Stuck(f"deadlock at {self.now:.6f} s: nothing is ready and no timer runs")
        if when > self.now:
            self.now = when
            self._turns = 0
            if when > self.limit_s:
                raise Stuck(f"not done after {self.limit_s} simulated seconds")
        else:
            self.stay()

    def stay(self) -> None:
        """Count one more turn at the same instant.  Raises Stuck if there are too many."""
        self._turns += 1
        if self._turns > TURNS_MAX:
            raise Stuck(f"{TURNS_MAX} turns at {self.now:.6f} s: something spins")

    def go_on_for(self, seconds: float) -> None:
        """Set a new limit, and forget the turns that were taken at this instant."""
        self.limit_s = self.now + seconds
        self._turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        raise AssertionError("the virtual loop waits for no file")

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


CANCELS_MAX = 100
"""Rounds: more than a process has parts to close."""
PROCESS: ContextVar[str] = ContextVar("PROCESS", default="")
"""The simulated process that runs; tasks and callbacks inherit it, as they inherit a context."""


class _Task(asyncio.Task[Any]):
    """A task; its loop sets both of its fields before it is initialised, since asyncio hashes it meanwhile."""

    __slots__ = ("number", "process")
    number: int
    process: str

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[Any]):
    """A future; its loop sets its number."""

    __slots__ = ("number",)
    number: int

    def __hash__(self) -> int:
        return self.number


class _Gates:
    """The processes that do not run."""

    __slots__ = ("dead", "stopped")

    def __init__(self) -> None:
        self.stopped: dict[str, list[asyncio.Handle]] = {}
        self.dead: dict[str, list[asyncio.Task[Any]]] = {}  # their tasks: some wait for ever, known to nobody else


class _Handle(asyncio.Handle):
    """A callback of some process: kept while that is stopped."""

    __slots__ = ()
    _repr = None
    _source_traceback = None

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: VirtualLoop, context: Context | None
    ) -> None:
        """Set what asyncio's own sets, in half of its time: debug mode has no part in a simulation."""
        self._context = copy_context() if context is None else context
        self._loop = loop
        self._callback: Callable[..., object] | None = callback
        self._args: tuple[Any, ...] | None = args  # type: ignore[assignment]
        self._cancelled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None

    def _run(self) -> None:
        gates = self._loop.gates
        if gates.stopped:
            held = gates.stopped.get(self._context.get(PROCESS, ""))
            if held is not None:
                held.append(self)
                return
        super()._run()


class _TimerHandle(_Handle, asyncio.TimerHandle):
    """A timer of some process: kept while that is stopped, dropped when it is dead.  Its loop sets its time."""

    __slots__ = ()
    _when: float
    _scheduled: bool

    def _run(self) -> None:
        if self._context.get(PROCESS, "") not in self._loop.gates.dead:
            super()._run()


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop itself.  ``failures`` holds what no task could be told: exceptions of callbacks, of lost tasks."""

    def __init__(self, *, limit_s: float = 86_400.0) -> None:
        self.clock = _VirtualClock(limit_s)
        self._number = 0
        self._timers: list[tuple[float, int, _TimerHandle]] = []
        self._timers_max = TIMERS_KEPT
        self.failures: list[BaseException] = []
        self.gates = _Gates()
        super().__init__(self.clock)
        # asyncio asks for each task and each future; a method of C answers in a tenth of the time.
        self.get_debug = False.__bool__  # type: ignore[method-assign]
        self.set_exception_handler(_keep_failure)

    # The three below make handles as asyncio's own do, of our kinds: there is no other place where a callback could be
    # kept back and still be cancelled.  ``_run_once`` runs them in asyncio's order, in half of its time.

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.clock.now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        if self._closed:  # type: ignore[attr-defined]
            self._check_closed()  # type: ignore[attr-defined]
        timer = _TimerHandle(callback, args, self, context)
        timer._when, timer._scheduled = when, True
        self._number += 1
        heapq.heappush(self._timers, (when, self._number, timer))
        return timer

    def _run_once(self) -> None:
        """Take one turn, as asyncio's own takes it, without files to look at: due timers, then all that was ready.

        Timers of one instant run in the order in which they were set.
        """
        ready, timers, clock = self._ready, self._timers, self.clock  # type: ignore[attr-defined]
        if len(timers) > self._timers_max:
            timers[:] = [each for each in timers if not each[2]._cancelled]
            heapq.heapify(timers)
            self._timers_max = 2 * len(timers) + TIMERS_KEPT
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if ready or self._stopping:  # type: ignore[attr-defined]
            clock.stay()
        else:
            clock.move_to(timers[0][0] if timers else None)
        end = clock.now + RESOLUTION_S
        while timers and timers[0][0] < end:
            when, _, timer = heapq.heappop(timers)
            clock.now = max(clock.now, when)  # else who compares the time with its deadline waits again, for ever
            ready.append(timer)
        stopped, dead, take = self.gates.stopped, self.gates.dead, ready.popleft
        for _ in range(len(ready)):
            handle = take()
            if handle._cancelled:
                continue
            if stopped or (dead and isinstance(handle, _TimerHandle)):
                handle._run()
                continue
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001  # as ``Handle._run``
                message = f"exception in callback {handle!r}"
                self.call_exception_handler({"message": message, "exception": error, "handle": handle})

    def stop_process(self, process: str) -> None:
        """Stop a process, as SIGSTOP does."""
        self.gates.stopped.setdefault(process, [])

    def resume_process(self, process: str) -> None:
        """Let a stopped process go on, as SIGCONT does: what came due meanwhile runs now."""
        self._ready.extend(self.gates.stopped.pop(process, ()))  # type: ignore[attr-defined]

    def time(self) -> float:
        """Return the virtual seconds since the run began."""
        return self.clock.now

    def create_task(self, coro: Any, *, name: object = None, **kwargs: Any) -> asyncio.Task[Any]:
        self._number = number = self._number + 1
        task = _Task.__new__(_Task)
        task.number, task.process = number, PROCESS.get()
        # asyncio's own counter of names would go on from seed to seed.
        task.__init__(coro, loop=self, name=name or f"Task-{number}", **kwargs)  # type: ignore[misc]
        return task

    def create_future(self) -> asyncio.Future[Any]:
        future = _Future(loop=self)
        self._number = future.number = self._number + 1
        return future

    def run_in_executor(self, executor: Any, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Call ``func`` now: a thread's timing has no place in a deterministic run."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001  # whoever awaits the "thread" gets it
            future.set_exception(error)
        return future


def kill_tasks(process: str) -> None:
    """Cancel all tasks of a process: of kill -9 what asyncio knows.

    None goes on, but for what it does when it is cancelled.
    """
    assert process
    for task in tasks_of(process):
        task.cancel()


def tasks_of(process: str) -> list[asyncio.Task[Any]]:
    """Return the tasks of a process, oldest first."""
    return [task for task in _tasks(asyncio.get_running_loop()) if isinstance(task, _Task) and task.process == process]


def kill(process: str) -> None:
    """Kill a process (kill -9) that is cut off from everything: neither its tasks nor its timers go on."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.gates.dead[process] = tasks_of(process)
    loop.resume_process(process)
    kill_tasks(process)


def _keep_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualLoop)
    if PROCESS.get() in loop.gates.dead:
        return  # cut off in the middle of something: nobody would have seen it
    loop.failures.append(context.get("exception") or RuntimeError(context["message"]))


def run(main: Coroutine[Any, Any, T], seed: int = 0, *, limit_s: float = 86_400.0) -> T:
    """Run ``main`` on a fresh loop and return its result; what is left over is then cancelled, oldest first.

    ``seed`` seeds the module ``random`` for the time of the run (its state is restored).  Raises ``Stuck`` on a
    deadlock, on a spin and after ``limit_s`` virtual seconds; and, if ``main`` itself passed, the first failure that no
    task could be told.
    """
    saved, uuid4 = random.getstate(), uuid.uuid4
    random.seed(seed)
    ids = random.Random(seed)
    uuid.uuid4 = lambda: uuid.UUID(int=ids.getrandbits(128), version=4)
    loop = VirtualLoop(limit_s=limit_s)
    try:
        try:
            result = loop.run_until_complete(main)
        except Stuck as stuck:
            stuck.add_note("\n".join(_describe(task) for task in _tasks(loop)))
            raise
        finally:
            _cancel_rest(loop)
        if loop.failures:
            raise loop.failures[0]
        return result
    finally:
        loop.close()
        random.setstate(saved)
        uuid.uuid4 = uuid4


def _tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[Any]]:
    return sorted(asyncio.all_tasks(loop), key=hash)


def _describe(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    where = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "not started"
    return f"{task.get_name()} at {where}"


def _cancel_rest(loop: VirtualLoop) -> None:
    """Cancel all tasks, again and again until none is left.

    A dead process that was closing what it had goes on to the next part when it is cancelled, and may wait for ever
    there too.
    """
    loop.clock.go_on_for(CLEANUP_S)
    for _ in range(CANCELS_MAX):
        rest = _tasks(loop)
        if not rest:
            break
        for task in rest:
            task.cancel()
        try:
            outcomes = loop.run_until_complete(_gather(rest))
        except Stuck:
            if all(isinstance(task, _Task) and task.process in {"", *loop.gates.dead} for task in _tasks(loop)):
                continue
            raise
        loop.failures += [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    loop.run_until_complete(loop.shutdown_asyncgens())


async def _gather(tasks: list[asyncio.Task[Any]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)
