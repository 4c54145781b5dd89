"""Operating-system processes for tests: started with a log, stopped by pid, never left behind.

A child dies with the test run that started it, also when that run is killed: Linux sends the child SIGKILL
(PR_SET_PDEATHSIG). Detached processes, which outlive the command that starts them, are found again by pid and creation
time, since a pid alone may have been given to a stranger meanwhile.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import psutil

KILL_TIMEOUT_S = 20.0
# The kernel's signal is tied to the *thread* that forked. A test may start a process from a worker thread that ends
# soon, so every child comes from this one thread, which lives as long as the run.
_SPAWNER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
# Sets the signal in the child, then becomes the command. A preexec_fn would do the same, unsafely where threads run.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "if os.getppid() != int(sys.argv[1]): os._exit(1)\n"  # the parent ended before the line above
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
_CPUCLOCK_SCHED = 2  # Linux, posix-timers.h: with a pid, the clock of that process's time on a processor


class NotReady(Exception):
    """A service did not reach the awaited state in time, or ended while it was awaited."""


class ServiceProcess:
    """One process that tests start, kill, pause and start again; each start appends to the same log."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        is_detached: bool = False,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.environment = dict(environment or {})
        self.is_detached = is_detached
        self.is_paused = False
        self._process: psutil.Process | None = None
        self._slow: _DutyCycle | None = None

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "slow" if self._slow else "running" if self.is_running else "ended"
        return f"{self.name}({self.pid}, {state})"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        """True while the process lives, also while it is paused; false for a zombie."""
        process = self._process
        if process is None:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            if isinstance(process, psutil.Popen):
                return process.poll() is None
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        return False

    @property
    def is_slow(self) -> bool:
        return self._slow is not None

    def start(self) -> None:
        """Start it; a fault of the process's former life does not carry over."""
        assert not self.is_running, f"{self!r} is running already"
        cores = os.sched_getaffinity(0) if sys.platform == "linux" else set()
        self._process = _SPAWNER.submit(self._spawn, cores).result()

    def _spawn(self, cores: set[int]) -> psutil.Process:
        if cores:  # those of the thread that starts the process, as without a thread for it
            os.sched_setaffinity(0, cores)
        command = self.command
        if not self.is_detached and sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return psutil.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,  # Ctrl-C is for the test run, which then stops its services in order
            )

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process, paused or not, is gone: its ports are free afterwards."""
        self._end_slow()
        if self._process is not None and self.is_running:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()
            # Not wait(): where process 1 is no proper init, the pid of a detached process never goes away.
            wait_for(lambda: not self.is_running, f"end of {self!r}", timeout_s=KILL_TIMEOUT_S, interval_s=0.005)
        self._process = None
        self.is_paused = False

    def terminate(self, *, timeout_s: float) -> int:
        """Send SIGTERM and wait; return the exit code. Raises NotReady if it does not end in time and still runs."""
        process = self._process
        assert isinstance(process, psutil.Popen), f"{self!r} is no child of this process"
        self.resume()
        process.terminate()
        try:
            code = process.wait(timeout=timeout_s)
        except psutil.TimeoutExpired:
            raise NotReady(f"{self!r} ignores SIGTERM; its log {self.log} ends in:\n{tail(self.log)}") from None
        self._process = None
        return int(code)

    def wait_end(self, *, timeout_s: float) -> int:
        """Wait until it ends by itself, and return the exit code. Raises NotReady if it still runs after that time."""
        process = self._process
        assert isinstance(process, psutil.Popen), f"{self!r} is no child of this process"
        try:
            code = process.wait(timeout=timeout_s)
        except psutil.TimeoutExpired:
            raise NotReady(f"{self!r} does not end; its log {self.log} ends in:\n{tail(self.log)}") from None
        self._process = None
        return int(code)

    @property
    def cpu_seconds(self) -> float:
        """Processor time that its present life has used, all threads, user and kernel."""
        assert self._process is not None
        if sys.platform == "linux":  # the process's own clock, in nanoseconds: the tables of /proc count in 10 ms
            return time.clock_gettime(~self._process.pid << 3 | _CPUCLOCK_SCHED)
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @property
    def rss_bytes(self) -> int:
        """Memory resident now."""
        assert self._process is not None
        return int(self._process.memory_info().rss)

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open and nothing responds, as on a machine that hangs.

        Return when every thread has stopped: on a busy machine a thread may respond once more behind the signal.
        """
        self._end_slow()
        self._signal(signal.SIGSTOP)
        self.is_paused = True
        if sys.platform == "linux":
            wait_for(self._has_stopped, f"{self.name} to stop", timeout_s=KILL_TIMEOUT_S, interval_s=0.001)

    def _has_stopped(self) -> bool:
        """Return whether the kernel has stopped all threads (proc(5): state T, and X or Z of threads that end)."""
        assert self._process is not None
        states = []
        for thread in Path(f"/proc/{self._process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
                states.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
        return all(state in "TtXZ" for state in states)

    def resume(self) -> None:
        """Undo `pause` and `slow`."""
        self._end_slow()
        self._signal(signal.SIGCONT)
        self.is_paused = False

    def slow(self, *, stopped: float, period_s: float) -> None:
        """Let it run only the rest of each period: slow responses without root, traffic control or a change to it."""
        assert 0.0 < stopped < 1.0, f"a share between 0 and 1, not {stopped}"
        self.resume()
        self._slow = _DutyCycle(self._signal, stopped=stopped, period_s=period_s)

    def _end_slow(self) -> None:
        if self._slow is not None:
            self._slow.end()
            self._slow = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or not self.is_running:
            raise NotReady(f"{self.name} has ended, no signal {number.name} for it")
        self._process.send_signal(number)

    def require_running(self) -> None:
        """Fail with the end of the log, rather than wait for a process that has died."""
        if not self.is_running:
            raise NotReady(f"{self.name} ended; its log {self.log} ends in:\n{tail(self.log)}")

    def state(self) -> dict[str, Any]:
        """Return the values that `adopt` needs, fit for JSON."""
        assert self._process is not None
        return {"pid": self._process.pid, "created": self._process.create_time()}

    def adopt(self, state: Mapping[str, Any]) -> Self:
        """Take over the process that another command started, if it still lives."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(state["pid"])
            if abs(process.create_time() - state["created"]) < 1.0:
                self._process = process
                self.is_paused = process.status() == psutil.STATUS_STOPPED
        return self


class _DutyCycle:
    """Thread that stops and continues a process by turns, until it is ended."""

    def __init__(self, send: Callable[[signal.Signals], None], *, stopped: float, period_s: float) -> None:
        self._send = send
        self._stopped_s = stopped * period_s
        self._running_s = period_s - self._stopped_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="duty-cycle", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_ending = False
        with contextlib.suppress(NotReady, psutil.NoSuchProcess):  # killed meanwhile: nothing left to slow down
            while not is_ending:
                self._send(signal.SIGSTOP)
                is_ending = self._ending.wait(self._stopped_s)
                self._send(signal.SIGCONT)
                is_ending = is_ending or self._ending.wait(self._running_s)

    def end(self) -> None:
        """Stop the turns, and return when the process runs freely again."""
        self._ending.set()
        self._thread.join()


def wait_for(condition: Callable[[], bool], what: str, *, timeout_s: float, interval_s: float = 0.1) -> None:
    """Poll until the condition holds; a condition that raises NotReady will never hold, and ends the wait."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise NotReady(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(interval_s)


def free_ports(count: int) -> list[int]:
    """Return ports without a listener, below the range that outgoing connections take theirs from.

    A service that is killed must get its port back at restart; from 32768 up some client could hold it by then. The
    choice ignores the seed of a test run, which is the same in workers that run side by side.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(20000, 32000), 4000):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise NotReady(f"no {count} free ports between 20000 and 32000")


def free_run(length: int) -> int:
    """Return the first of so many ports without a listener that follow one another."""
    for port in random.SystemRandom().sample(range(20000, 32000 - length), 4000):
        if all(is_free(port + number) for number in range(length)):
            return port
    raise NotReady(f"no {length} free ports one after another between 20000 and 32000")


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def tail(path: Path, lines: int = 30) -> str:
    """Return the last lines of a log, for an error message."""
    if not path.exists():
        return "(no log)"
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 20000))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
