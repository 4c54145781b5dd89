"""The part that is SQLite's own: the lock, death at any moment, group commit, back-pressure, reopening, a failing
disk."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bmq.meta.kv import Compare, Delete, Entry, Event, KvError, KvUnavailable, KvUnknown, LeaseNotFound, Put
from bmq.meta.kv_sqlite import SqliteKeyValue, StoreLocked
from tests.harness.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

Scenario = Callable[[SqliteKeyValue], Awaitable[None]]


class Disk(sqlite3.Connection):
    """A connection whose disk stands still, or fails: statements that begin with ``failing`` raise ``code``."""

    failing = ""
    code = sqlite3.SQLITE_FULL
    has_bug = False
    asked = threading.Event()
    goes = threading.Event()

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        if sql == "BEGIN":
            self.asked.set()
            assert self.goes.wait(30)
            if self.has_bug:
                raise LookupError("a bug in the thread")
        if self.failing and sql.startswith(self.failing):
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorcode = self.code
            raise error
        return super().execute(sql, *args)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> type[Disk]:
    connect = sqlite3.connect
    monkeypatch.setattr(Disk, "failing", "")
    monkeypatch.setattr(Disk, "has_bug", False)
    Disk.goes.set()
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kw: connect(*args, factory=Disk, **kw))
    return Disk


@asynccontextmanager
async def opened(path: Path, **bounds: int) -> AsyncIterator[SqliteKeyValue]:
    kv = await SqliteKeyValue.open(str(path), **bounds)
    try:
        yield kv
    finally:
        await kv.close()


async def open_and_close(path: Path) -> None:
    async with opened(path) as kv:
        assert await kv.revision() >= 1


def child(script: str, *args: str) -> subprocess.Popen[str]:
    """Start a real process, to be killed: it runs ``script`` with asyncio, SqliteKeyValue and ``args`` in sys.argv."""
    head = "import asyncio, resource, sys\nfrom bmq.meta.kv import *\nfrom bmq.meta.kv_sqlite import SqliteKeyValue\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(script), *args], stdout=subprocess.PIPE, text=True
    )


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"the child ended with {process.wait()}"
    return line.strip()


HOLD = """
    async def main():
        kv = await SqliteKeyValue.open(sys.argv[1])
        print("open", flush=True)
        await asyncio.Event().wait()
    asyncio.run(main())
"""


async def test_a_second_process_is_told_who_has_the_file_until_that_one_dies(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "kv.db"
    with child(HOLD, str(path)) as holder:
        try:
            assert read_line(holder) == "open"
            with pytest.raises(StoreLocked, match=rf"kv\.db is in use by pid {holder.pid} on .*; only one process"):
                await SqliteKeyValue.open(str(path))
        finally:
            holder.kill()
    await open_and_close(path)


async def test_a_second_open_in_one_process_is_refused_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "kv.db")

    async with opened(tmp_path / "kv.db") as kv:
        for name in ("kv.db", "link.db"):
            with pytest.raises(StoreLocked, match=f"pid {os.getpid()} "):
                await SqliteKeyValue.open(str(tmp_path / name))
        assert await kv.revision() == 1


async def test_a_cancelled_open_lets_go_of_the_file(tmp_path: Path) -> None:
    problems: list[dict[str, Any]] = []

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    opening = asyncio.create_task(SqliteKeyValue.open(str(tmp_path / "kv.db")))
    await asyncio.sleep(0)  # its thread is started
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await (await SqliteKeyValue.open(str(tmp_path / "kv.db"))).close()
    assert problems == []


WRITE_FOR_EVER = """
    async def write(kv, who):
        for n in range(1_000_000):
            key = f"{who}/{n:07}"
            both = [Put("left/" + key, b"x" * 500), Put("right/" + key, b"y")]
            await kv.commit([], [*both, Put(f"last/{who}", key.encode())])
            print(key, flush=True)

    async def main():
        kv = await SqliteKeyValue.open(sys.argv[1])
        await asyncio.gather(*(write(kv, who) for who in range(8)))
    asyncio.run(main())
"""


@pytest.mark.parametrize("answers", [1, 100, 1500])
async def test_kill_9_loses_nothing_answered_and_halves_nothing(answers: int, tmp_path: Path) -> None:
    with child(WRITE_FOR_EVER, str(tmp_path / "kv.db")) as writer:
        answered = {read_line(writer) for _ in range(answers)}
        writer.send_signal(signal.SIGKILL)
        assert writer.stdout is not None
        answered.update(writer.stdout.read().split("\n")[:-1])

    async with opened(tmp_path / "kv.db") as kv:
        left = {entry.key.removeprefix("left/"): entry.revision async for entry in kv.list("left/")}
        right = {entry.key.removeprefix("right/"): entry.revision async for entry in kv.list("right/")}
        assert answered <= left.keys()
        assert left == right
        assert sorted(left.values()) == list(range(2, len(left) + 2))
        assert await kv.revision() == len(left) + 1
        last = {entry.value.decode() async for entry in kv.list("last/")}
        assert last == {max(key for key in left if key[0] == who) for who in {key[0] for key in left}}


async def test_a_thousand_concurrent_commits_take_few_transactions(tmp_path: Path) -> None:
    async with opened(tmp_path / "kv.db") as kv:
        commits = await asyncio.gather(*(kv.commit([Compare(f"k{n}", 0)], [Put(f"k{n}", b"")]) for n in range(1000)))
        assert sorted(commit.revision for commit in commits) == list(range(2, 1002))
        assert kv.groups < 100
        assert kv.queued == 0


async def test_callers_beyond_the_queue_wait_and_have_done_nothing(tmp_path: Path, disk: type[Disk]) -> None:
    async with opened(tmp_path / "kv.db", queue=4) as kv:
        await hold_thread(kv, disk)
        tasks = [asyncio.create_task(kv.commit([], [Put(f"k{n}", b"")])) for n in range(10)]
        await until(lambda: kv.queued == 4)
        for task in tasks[3:]:  # the first three are queued behind what holds the thread
            task.cancel()
        await asyncio.wait(tasks[3:])
        assert kv.queued == 4
        disk.goes.set()
        assert [(await task).revision for task in tasks[:3]] == [2, 3, 4]
        assert await kv.revision() == 4


async def hold_thread(kv: SqliteKeyValue, disk: type[Disk]) -> None:
    """Stop the store's thread, and return once it stands still with one call taken or queued."""
    disk.asked.clear()
    disk.goes.clear()
    holding = asyncio.create_task(kv.get("none"))
    await until(disk.asked.is_set)
    holding.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await holding


async def test_close_answers_what_was_queued(tmp_path: Path, disk: type[Disk]) -> None:
    async with opened(tmp_path / "kv.db") as kv:
        await hold_thread(kv, disk)
        task = asyncio.create_task(kv.commit([], [Put("a", b"")]))
        await until(lambda: kv.queued == 2)
        closing = asyncio.create_task(kv.close())
        await asyncio.sleep(0)
        disk.goes.set()
        await closing
        assert (await task).revision == 2


async def test_what_was_committed_is_there_when_reopened_history_too(tmp_path: Path) -> None:
    async with opened(tmp_path / "kv.db") as kv:
        await kv.commit([], [Put("a", b"1"), Put("b", b"2")])
        await kv.commit([], [Delete("b")])

    async with opened(tmp_path / "kv.db") as kv:
        assert await kv.revision() == 3
        assert [entry async for entry in kv.list("")] == [Entry("a", b"1", 2)]
        watch = kv.watch("b", after_revision=1)
        assert await anext(watch) == [Event("b", Entry("b", b"2", 2), 2)]
        assert await anext(watch) == [Event("b", None, 3)]
        assert (await kv.commit([], [Put("c", b"")])).revision == 4


async def test_entries_with_a_lease_end_with_the_process(tmp_path: Path) -> None:
    leases: list[int] = []

    async with opened(tmp_path / "kv.db") as kv:
        leases.append(await kv.grant(3600))
        await kv.commit([], [Put("kept", b""), Put("leader", b"", leases[0])])

    async with opened(tmp_path / "kv.db") as kv:
        assert [entry.key async for entry in kv.list("")] == ["kept"]
        assert await anext(kv.watch("leader", after_revision=2)) == [Event("leader", None, 3)]
        with pytest.raises(LeaseNotFound):
            await kv.keep_alive(leases[0])
        assert await kv.grant(3600) != leases[0]


async def test_a_lease_lasts_as_long_as_the_process_and_is_renewed_without_a_write(tmp_path: Path) -> None:
    async with opened(tmp_path / "kv.db") as kv:
        lease = await kv.grant(0.001)
        await kv.commit([], [Put("member", b"", lease)])
        written = (tmp_path / "kv.db-wal").stat()
        await asyncio.sleep(0.05)  # many times its ttl, as after a suspend
        assert await kv.get("member") == Entry("member", b"", 2, lease)
        assert await kv.keep_alive(lease) == math.inf
        assert await kv.revision() == 2
        now = (tmp_path / "kv.db-wal").stat()
        assert (now.st_size, now.st_mtime_ns) == (written.st_size, written.st_mtime_ns)


async def test_a_write_that_fails_takes_its_group_with_it_and_nothing_else(tmp_path: Path, disk: type[Disk]) -> None:
    async with opened(tmp_path / "kv.db") as kv:
        lease = await kv.grant(60)
        await kv.commit([], [Put("a", b"", lease)])
        await hold_thread(kv, disk)
        calls = (kv.revoke(lease), kv.commit([], [Put("b", b"")]), kv.get("a"))
        tasks = [asyncio.ensure_future(call) for call in calls]
        await until(lambda: kv.queued == 4)
        disk.failing = "INSERT OR REPLACE INTO entries"
        disk.goes.set()
        for task in tasks:
            with pytest.raises(KvUnavailable, match="injected"):
                await task
        disk.failing = ""
        assert await kv.revision() == 2
        assert await kv.keep_alive(lease) == math.inf  # the revoke was undone with the rest
        assert (await kv.commit([Compare("a", 2)], [Put("b", b"")])).revision == 3


async def test_a_commit_on_a_full_disk_is_unknown_and_the_store_goes_on(tmp_path: Path, disk: type[Disk]) -> None:
    async with opened(tmp_path / "kv.db") as kv:
        disk.failing = "COMMIT"
        with pytest.raises(KvUnknown):
            await kv.commit([], [Put("a", b"")])
        with pytest.raises(KvUnavailable):
            await kv.get("a")
        disk.failing = ""
        assert await kv.commit([Compare("a", 0)], [Put("a", b"")])


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_READONLY])
async def test_after_a_commit_that_failed_otherwise_the_file_is_opened_again(
    code: int, tmp_path: Path, disk: type[Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store opens the file again by itself: without this its callers would wait for ever."""
    monkeypatch.setattr(disk, "code", code)

    async with opened(tmp_path / "kv.db") as kv:
        lease = await kv.grant(60)
        await kv.commit([], [Put("leased", b"", lease)])
        watch = kv.watch("a", after_revision=2)
        disk.failing = "COMMIT"
        with pytest.raises(KvUnknown):
            await kv.commit([], [Put("a", b"")])
        for failing in ("PRAGMA journal_mode", "SELECT * FROM state", "PRAGMA wal_checkpoint"):
            disk.failing = failing
            for call in (kv.commit([], [Put("a", b"")]), kv.revision()):
                with pytest.raises(KvUnavailable, match="must be opened again, which fails: injected"):
                    await call
        disk.failing = ""
        assert (await kv.commit([Compare("a", 0)], [Put("a", b"1", lease)])).revision == 3
        assert await anext(watch) == [Event("a", Entry("a", b"1", 3, lease), 3)]
        assert await kv.keep_alive(lease) == math.inf
        assert await kv.get("leased") == Entry("leased", b"", 2, lease)
        disk.failing = "COMMIT"  # and again
        with pytest.raises(KvUnknown):
            await kv.commit([], [Put("b", b"")])
        disk.failing = ""
        assert (await kv.commit([Compare("b", 0)], [Put("b", b"")])).revision == 4

    await open_and_close(tmp_path / "kv.db")


async def test_a_commit_that_was_done_though_it_failed_is_found(
    tmp_path: Path, disk: type[Disk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk reports that the commit was not synced, and it is in the log all the same."""
    monkeypatch.setattr(disk, "code", sqlite3.SQLITE_IOERR_FSYNC)
    execute = disk.execute

    def done_and_failed(self: Disk, sql: str, *args: Any) -> sqlite3.Cursor:
        if disk.failing == sql == "COMMIT":
            sqlite3.Connection.execute(self, sql)
        return execute(self, sql, *args)

    monkeypatch.setattr(disk, "execute", done_and_failed)

    async with opened(tmp_path / "kv.db") as kv:
        watch = kv.watch("a", after_revision=1)
        disk.failing = "COMMIT"
        with pytest.raises(KvUnknown):
            await kv.commit([], [Put("a", b"1")])
        disk.failing = ""
        assert await kv.get("a") == Entry("a", b"1", 2)
        assert await anext(watch) == [Event("a", Entry("a", b"1", 2), 2)]
        assert not (await kv.commit([Compare("a", 0)], [Put("a", b"2")])).succeeded


FILL_THE_DISK = """
    async def main():
        kv = await SqliteKeyValue.open(sys.argv[1])
        await kv.commit([], [Put("a", b"kept")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        try:
            await kv.commit([], [Put("a", b"x" * 500_000)])
        except KvUnknown:
            print("unknown", flush=True)
        print((await kv.get("a")).value.decode(), flush=True)
        print((await kv.commit([Compare("b", 0)], [Put("b", b"small")])).succeeded, flush=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await kv.close()
    asyncio.run(main())
"""


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY, reason="file sizes are limited already"
)
async def test_a_real_write_error_in_the_commit_leaves_a_store_that_goes_on(tmp_path: Path) -> None:
    with child(FILL_THE_DISK, str(tmp_path / "kv.db")) as process:
        assert [read_line(process), read_line(process)] == ["unknown", "kept"]
        assert read_line(process) == "True"
        assert process.wait() == 0

    async with opened(tmp_path / "kv.db") as kv:
        assert await kv.get("a") == Entry("a", b"kept", 2)
        assert await kv.get("b") == Entry("b", b"small", 3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_bug_in_the_thread_leaves_nobody_waiting(tmp_path: Path, disk: type[Disk]) -> None:
    async with opened(tmp_path / "kv.db") as kv:
        watching = asyncio.ensure_future(anext(kv.watch("", after_revision=1)))
        assert await kv.revision() == 1
        disk.has_bug = True
        with pytest.raises(KvUnknown, match="the thread failed"):
            await kv.commit([], [Put("a", b"")])
        for call in (watching, kv.revision()):
            with pytest.raises(KvUnavailable):
                await call


async def test_what_is_not_our_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    text, newer, other = tmp_path / "text", tmp_path / "newer.db", tmp_path / "other.db"
    text.write_text("not a database, and longer than the header of one would be: " * 10)
    await open_and_close(newer)
    for path, statement in ((newer, "PRAGMA user_version = 2"), (other, "CREATE TABLE theirs (x)")):
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute(statement)
    cases = [
        (text, "file is not a database"),
        (newer, "has format 2, this version reads format 1 only"),
        (other, "has format 0"),
        (tmp_path, "cannot open"),
        (text / "below" / "kv.db", "cannot open"),
    ]
    for path, message in cases:
        with pytest.raises(KvError, match=message):
            await SqliteKeyValue.open(str(path))
    assert text.read_text().startswith("not a database")
