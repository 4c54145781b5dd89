"""Run each mutation's test on a copy of the tree that has the mutation's mistake in it.

A copy is made once for each worker.  Its tests import the copy's code: `.links` of the copy comes before an editable
installation, and that is checked before anything else runs.  Then the chosen tests must pass on the copy as it is;
without that, a failure would show nothing.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.mutants.catalogue import ROOT, Mutation

_PASSED, _FAILED = 0, 1  # pytest's exit codes; any other one means that the test did not run
_LEFT_OUT = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist"
)
_OUTPUT_CHARS = 4_000
_LOCATE = "import importlib, sys\nfor name in sys.argv[1:]: print(importlib.import_module(name).__file__)"


class Verdict(Enum):
    KILLED = "killed"
    SURVIVED = "SURVIVED"
    TIMED_OUT = "TIMED OUT"
    BROKEN = "BROKEN"  # the test did not run: the mutation is no mistake that a reader of the code would miss


class UnfitCopy(RuntimeError):
    """A copy in which no verdict would mean anything."""


@dataclass(frozen=True, slots=True)
class Outcome:
    mutation: Mutation
    verdict: Verdict
    seconds: float
    output: str
    """The end of what pytest printed."""


class Worker:
    """A copy of the tree, and pytest runs in it, one at a time."""

    def __init__(self, folder: Path, time_limit_s: float) -> None:
        self._tree = folder / "tree"
        self._time_limit_s = time_limit_s
        shutil.copytree(ROOT, self._tree, symlinks=True, ignore=_LEFT_OUT)
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith("BMQ_")}
        scratch = folder / "tmp"  # its own: pytest runs that share a folder remove each other's old ones
        scratch.mkdir()
        self._environment["TMPDIR"] = str(scratch)
        self._environment["PYTHONPATH"] = os.pathsep.join([str(self._tree / ".links"), str(self._tree)])

    def check_imports(self) -> None:
        """Raise UnfitCopy unless the tests of the copy import its code, of every package, and its tests."""
        packages = [f"bmq.{link.name}" for link in sorted((self._tree / ".links" / "bmq").iterdir())]
        run = self._run([sys.executable, "-c", _LOCATE, *packages, "tests"])
        places = run.output.split()
        if run.code != 0 or len(places) != len(packages) + 1:
            raise UnfitCopy(f"the copy's packages cannot be imported:\n{run.output}")
        foreign = [place for place in places if not Path(place).is_relative_to(self._tree)]
        if foreign:
            raise UnfitCopy(f"the copy in {self._tree} would test other code: {', '.join(foreign)}")

    def check_tests(self, tests: Sequence[str]) -> None:
        """Raise UnfitCopy unless the tests pass on the code as it is."""
        run = self._pytest(list(dict.fromkeys(tests)), self._time_limit_s * len(tests))
        if run.code != _PASSED:
            raise UnfitCopy(f"the tests do not pass without a mutation:\n{run.output}")

    def judge(self, mutation: Mutation) -> Outcome:
        """Run the mutation's test with its mistake in the copy.  Raises StaleMutation."""
        begun = time.monotonic()
        with self._mistake(mutation):
            run = self._pytest([mutation.killed_by], self._time_limit_s)
        verdict = {None: Verdict.TIMED_OUT, _PASSED: Verdict.SURVIVED, _FAILED: Verdict.KILLED}.get(
            run.code, Verdict.BROKEN
        )
        return Outcome(mutation, verdict, time.monotonic() - begun, run.output)

    @contextmanager
    def _mistake(self, mutation: Mutation) -> Iterator[None]:
        path = self._tree / mutation.file
        text = path.read_text()
        mutated = mutation.applied(text)
        try:
            _write_source(path, mutated)
            yield
        finally:
            _write_source(path, text)

    def _pytest(self, tests: Sequence[str], time_limit_s: float) -> _Run:
        # Hypothesis draws the same examples each time: else chance would have a part in the verdict.
        options = ["-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
        return self._run([sys.executable, "-m", "pytest", *options, *tests], time_limit_s)

    def _run(self, command: Sequence[str], time_limit_s: float | None = None) -> _Run:
        process = subprocess.Popen(
            command,
            cwd=self._tree,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=time_limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return _Run(None, output[-_OUTPUT_CHARS:])
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        return _Run(process.returncode, output[-_OUTPUT_CHARS:])


@dataclass(frozen=True, slots=True)
class _Run:
    """An ended process; `code` None: it was ended by the time limit."""

    code: int | None
    output: str


def _write_source(path: Path, text: str) -> None:
    """Write it, and remove what was compiled of it, which Python trusts if size and second of writing are the same."""
    path.write_text(text)
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def judge_all(
    mutations: Sequence[Mutation],
    folder: Path,
    *,
    workers: int,
    time_limit_s: float,
    on_outcome: Callable[[Outcome], None],
) -> list[Outcome]:
    """Judge every mutation and return the outcomes, in the list's order.

    `folder` holds the copies; `on_outcome` is called with each, one at a time.  Raises UnfitCopy,
    StaleMutation.
    """
    free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for number in range(min(workers, len(mutations))):
        worker = Worker(folder / str(number), time_limit_s)
        worker.check_imports()
        if number == 0:
            worker.check_tests([mutation.killed_by for mutation in mutations])
        free.put(worker)

    def judge(mutation: Mutation) -> Outcome:
        worker = free.get()
        try:
            return worker.judge(mutation)
        finally:
            free.put(worker)

    outcomes = []
    with ThreadPoolExecutor(workers) as pool:
        try:
            for outcome in pool.map(judge, mutations):
                on_outcome(outcome)
                outcomes.append(outcome)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return outcomes
