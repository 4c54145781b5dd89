"""A table's log on storage: whatever a run does last, the next one finds every record once.

Storage is the one in memory, and a local folder.  A crash is an error that comes up instead of a call to storage (or
right behind it), and at every such point in turn.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bmq.spark.jobs import table
from bmq.spark.jobs.manifest import Append, FileRewrite, Identity, ManifestError
from bmq.spark.jobs.table import LOG, STAGING, JobRun, RunFenced, committed_files, read_state
from bmq.storage.filesystem import FileSystem, StorageError, write_once
from bmq.storage.layout import base_name
from bmq.storage.local.filesystem import LocalFileSystem
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.seeds import amount

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

IDENTITY = Identity(topic="orders", topic_id="1", layout="date", format="raw", schema=None)
END = 12
STEP = 3
"""Offsets of a commit, one file a day, two days."""


class Crash(Exception):
    """The process ends here."""


class Brittle:
    """A file system that crashes at a call: before it is done, or when it is done and its result is lost."""

    CHANGES = ("create", "rename", "delete", "replace")

    def __init__(self, fs: FileSystem, at: int, *, is_done: bool) -> None:
        self._fs = fs
        self._left = at
        self._is_done = is_done
        self.has_crashed = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._fs, name)
        return self._counted(call) if name in self.CHANGES else call

    def _counted(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self.has_crashed or (self._left < 0 and not self._is_done):
                self.has_crashed = True
                raise Crash
            response = await call(*args, **kwargs)
            if self._left < 0:
                self.has_crashed = True
                raise Crash
            return response

        return counted


async def write(fs: FileSystem, folder: str, records: dict[str, list[int]]) -> None:
    """Write as Spark does: a file for each day, and files that are not data."""
    for day, offsets in records.items():
        text = ",".join(map(str, offsets)).encode()
        await write_once(fs, f"{folder}/date={day}/part-{base_name(folder)}-{offsets[0]}.parquet", text)
        await write_once(fs, f"{folder}/date={day}/.part.crc", b"x")
    await write_once(fs, f"{folder}/_SUCCESS", b"x")


async def records_of(fs: FileSystem, paths: list[str]) -> Counter[int]:
    found: Counter[int] = Counter()
    for path in paths:
        found.update(map(int, (await fs.read("/" + path.removeprefix("/"), 0, 1 << 20)).split(b",")))
    return found


async def visible(fs: FileSystem) -> list[str]:
    """Return the files that a reader finds that does not read the log."""
    found = []
    days = [child.path async for child in fs.list("/") if not base_name(child.path).startswith("_")]
    for day in days:
        found += [child.path async for child in fs.list(day) if not base_name(child.path).startswith(".")]
    return found


async def job(fs: FileSystem, end: int = END) -> None:
    """Run a job: append up to ``end``, then merge each day's files."""
    run = await JobRun.begin(fs, IDENTITY)
    while (start := run.state.reached.get(0, 0)) < end:
        stop = min(start + STEP, end)
        folder = run.stage()
        days = {day: [n for n in range(start, stop) if n % 2 == day] for day in (0, 1)}
        await write(fs, folder, {str(day): offsets for day, offsets in days.items() if offsets})
        files = tuple(await run.staged(folder))
        await run.commit(Append(ranges={0: (start, stop)}, files=files, rows=stop - start))
    for day in ("date=0", "date=1"):
        paths = tuple(sorted(path for path in run.state.files if path.startswith(day)))
        if len(paths) > 1:
            folder = run.stage()
            offsets = sorted(await records_of(fs, list(paths)))
            await write(fs, folder, {day.removeprefix("date="): offsets})
            await run.commit(FileRewrite(files=tuple(await run.staged(folder)), removed=paths))
    await run.end()


@pytest.fixture(params=["memory", "local"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], FileSystem]:
    """Return a function that opens new storage at each call."""
    count = iter(range(10**6))

    def open_new() -> FileSystem:
        if request.param == "memory":
            return MemoryFileSystem(MemoryStorage(page=3), "test")
        return LocalFileSystem(tmp_path / str(next(count)), "test")

    return open_new


async def crash_points(open_new: Callable[[], FileSystem], step: int = 1, *, is_done: bool) -> int:
    """Crash at every ``step``-th call in turn; after each, readers see a whole number of commits, and the next run ends
    it."""
    at = int(is_done)  # so that the two ways of a crash meet different calls
    while True:
        fs = open_new()
        brittle: Any = Brittle(fs, at, is_done=is_done)
        try:
            await job(brittle)
        except Crash:
            state = await read_state(fs)
            reached = state.reached.get(0, 0)
            assert await records_of(fs, await committed_files(fs)) == Counter(range(reached)), at
            assert set(await records_of(fs, await visible(fs))) <= set(range(reached)), at
            await job(fs)
        assert await records_of(fs, await committed_files(fs)) == Counter(range(END)), at
        assert sorted(await committed_files(fs)) == sorted(path.removeprefix("/") for path in await visible(fs)), at
        assert [child.path async for child in fs.list(STAGING)] == [], at
        assert not [child.path async for child in fs.list(LOG) if base_name(child.path).startswith(".")], at
        await fs.close()
        if not brittle.has_crashed:
            return at
        at += step


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize(("state_every", "step"), [(1, 1), (3, amount(3, 1)), (32, amount(3, 1))])
async def test_a_crash_at_every_call(
    is_done: bool, state_every: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crash at every call where each commit writes the state, at every third of rarer states, and all of a soak."""
    monkeypatch.setattr(table, "STATE_EVERY", state_every)

    def open_new() -> FileSystem:
        return MemoryFileSystem(MemoryStorage(page=3), "test")

    assert await crash_points(open_new, step, is_done=is_done) > 50


async def test_what_a_failed_task_left_is_no_data(opened: Callable[[], FileSystem]) -> None:
    """Spark's committer keeps it in a folder of its own, which it may not live to remove."""

    fs = opened()
    run = await JobRun.begin(fs, IDENTITY)
    folder = run.stage()
    await write(fs, folder, {"0": [0, 2]})
    for left in ("_temporary/0/_temporary/attempt_0/date=0/part-0.parquet", "date=0/.hidden/part-1.parquet"):
        await write_once(fs, f"{folder}/{left}", b"7")
    assert [file.path for file in await run.staged(folder)] == [f"date=0/part-{base_name(folder)}-0.parquet"]


async def test_a_slow_run_is_stopped_by_the_next(
    opened: Callable[[], FileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it slept, and whatever became of the log meanwhile: it commits nothing, and breaks nothing."""
    monkeypatch.setattr(table, "STATE_EVERY", 1)

    fs = opened()
    slow = await JobRun.begin(fs, IDENTITY)
    folder = slow.stage()
    await write(fs, folder, {"0": [0, 1, 2]})
    files = tuple(await slow.staged(folder))
    await job(fs)
    await write(fs, folder, {"0": [0, 1, 2]})  # a task that was not stopped writes on
    with pytest.raises(RunFenced):
        await slow.commit(Append(ranges={0: (0, 3)}, files=files, rows=3))
    assert [child.path async for child in fs.list(STAGING)] == [], "nor does it leave anything behind"
    await slow.end()
    assert await records_of(fs, await committed_files(fs)) == Counter(range(END))
    assert len(await visible(fs)) == len(await committed_files(fs))
    await fs.close()


async def test_two_runs_at_once(opened: Callable[[], FileSystem]) -> None:
    """All but the last one to begin are stopped, wherever they are, or lose their files in staging."""

    fs = opened()
    ends = await asyncio.gather(*(job(fs) for _ in range(4)), return_exceptions=True)
    assert None in ends, "the last one to begin is stopped by nobody"
    assert all(end is None or isinstance(end, RunFenced | StorageError) for end in ends), ends
    assert await records_of(fs, await committed_files(fs)) == Counter(range(END))
    await job(fs)
    assert await records_of(fs, await visible(fs)) == Counter(range(END))
    await fs.close()


async def test_the_log_stays_short(opened: Callable[[], FileSystem], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "STATE_EVERY", 4)

    fs = opened()
    most = amount(16, 40)
    for end in range(1, most):
        await job(fs, end)
    names = [base_name(child.path) async for child in fs.list(LOG)]
    assert len(names) <= 10, names
    assert await records_of(fs, await committed_files(fs)) == Counter(range(most - 1))
    await fs.close()


async def test_runs_that_find_nothing_leave_nothing(
    opened: Callable[[], FileSystem], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "STATE_EVERY", 4)

    fs = opened()
    for _ in range(20):
        await job(fs)
    names = [base_name(child.path) async for child in fs.list(LOG)]
    assert len(names) <= 5, names
    assert await records_of(fs, await committed_files(fs)) == Counter(range(END))
    await fs.close()


async def test_a_folder_with_other_things_is_refused(opened: Callable[[], FileSystem]) -> None:
    fs = opened()
    await write_once(fs, "/date=1/part-0.parquet", b"x")
    with pytest.raises(ManifestError, match="a folder of its own"):
        await JobRun.begin(fs, IDENTITY)
    await fs.close()
