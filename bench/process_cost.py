"""The whole cost of a program: all processor time of it and of every process that it started, also of those it left.

    python -m bench.process_cost TIMEOUT_S COMMAND...

runs the command, waits until nothing of it is left, and prints a line of JSON on standard error.  Spark's JVM outlives
the Python program that started it, so a parent's account of its children misses it: this process adopts what is
orphaned below it (PR_SET_CHILD_SUBREAPER, Linux).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER in linux/prctl.h."""
POLL_S = 0.02
SPARE_S = 30.0
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class ProcessCost:
    """The cost of a program.  ``seconds`` end with the program itself, processor time with the last process it left."""

    status: int
    seconds: float
    cpu_s: float


def run(command: Sequence[str], *, timeout_s: float, environment: Mapping[str, str] | None = None) -> ProcessCost:
    """Run a program and return its cost.  Raises RuntimeError, with the end of its output, if it fails or takes longer.

    No process of it is left in either case.
    """
    done = subprocess.run(
        [sys.executable, "-m", "bench.process_cost", str(timeout_s), *command], cwd=REPOSITORY,
        env={**os.environ, **(environment or {})}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=timeout_s + SPARE_S,
    )  # fmt: skip
    output = (done.stdout + done.stderr).rstrip().splitlines()
    if done.returncode or not output:
        raise RuntimeError(f"{' '.join(command[:4])} … failed:\n" + "\n".join(output[-30:]))
    cost = ProcessCost(**json.loads(done.stderr.rstrip().splitlines()[-1]))
    if cost.status:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {cost.status}:\n" + "\n".join(output[-30:]))
    return cost


def main(arguments: Sequence[str]) -> int:
    """Run the command and print its cost; return the exit status, which is 0 also if the command's is not."""
    timeout_s, command = float(arguments[0]), arguments[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")
    begun = time.monotonic()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    status, seconds = None, 0.0
    while True:
        try:
            pid, state = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == process.pid:
            status, seconds = os.waitstatus_to_exitcode(state), time.monotonic() - begun
        elif not pid:
            time.sleep(POLL_S)
            if time.monotonic() > begun + timeout_s:
                _kill_all()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert status is not None, "the command itself was waited for"
    print(json.dumps(asdict(ProcessCost(status, seconds, used.ru_utime + used.ru_stime))), file=sys.stderr, flush=True)
    return 0


def _kill_all() -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
