"""A broker from which something is only read: what a trial of storage shows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bmq.broker.storage_watch import READ_LATE_MS, READ_TRIAL_REST_MS
from bmq.core.errors import RequestError
from bmq.core.model import PartitionKey
from bmq.storage.filesystem import CorruptData, FileStatus, NoSuchFile, StorageError, StorageUnavailable
from bmq.storage.journal import OVERHEAD
from bmq.storage.journal_writer import JournalWriter
from bmq.storage.layout import JOURNALS
from tests.harness.waiting import until
from tests.unit.broker.cluster import Cluster, cluster
from tests.unit.broker.world import batch

pytestmark = pytest.mark.slow

BOUND_S = 12.0
"""From a read that waits to the stall: it is late (2 s), and what is written then is not acknowledged (5 s)."""


async def written(c: Cluster) -> PartitionKey:
    """Return a partition of ``a`` that holds a record and has nothing more to write."""
    c.topic()
    (key,) = c.keys()
    c.give("a", key)
    assert await c.write("a", key, batch()) == 0
    await asyncio.sleep(60)
    assert c["a"].broker.is_serving, "idle is not stalled"
    return key


@asynccontextmanager
async def reading(c: Cluster, key: PartitionKey) -> AsyncIterator[list[str]]:
    """Ask ``a`` for the record's timestamp again and again.  Yield the errors."""
    errors: list[str] = []

    async def read() -> None:
        while True:
            owner = await c["a"].assigned.wait(key, 10.0)
            try:
                await owner.offset_for_timestamp(0)
            except RequestError as error:
                errors.append(str(error))
            await asyncio.sleep(0.5)

    task = asyncio.create_task(read())
    try:
        yield errors
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, RequestError):  # it may have lost the partition
            await task


def fail_reads(c: Cluster, error: StorageError, *, lists: bool = False) -> None:
    """Fail the reads of ``a``, and its listings if ``lists``."""

    async def read(path: str, position: int, length: int) -> bytes:
        raise error

    async def list_(path: str, *, after: str = "") -> AsyncIterator[FileStatus]:
        raise error
        yield

    setattr(c["a"].fs, "read", read)  # noqa: B010  (mypy: no plain assignment to a method)
    if lists:
        setattr(c["a"].fs, "list", list_)  # noqa: B010


async def journals(c: Cluster) -> list[str]:
    return [file.path async for file in c["b"].fs.list(JOURNALS)]


async def test_a_broker_that_is_only_read_from_says_that_it_does_not_reach_storage() -> None:
    async with cluster("a", "b") as c:
        key = await written(c)
        c["a"].fs.pause()
        await asyncio.sleep(60)
        assert c["a"].broker.is_serving, "nobody has asked for anything"
        async with reading(c, key):
            await until(lambda: not c["a"].broker.is_serving, BOUND_S)
            assert "storage acknowledges nothing" in c["a"].broker.storage_trouble
        c.give("b", key)
        assert await c.write("b", key, batch()) == 1
        await asyncio.sleep(60)
        assert not c["a"].broker.is_serving, "it has nothing to read any more, which shows nothing"
        c["a"].fs.resume()
        await until(lambda: c["a"].broker.is_serving, 5)
        assert not c["a"].broker.storage_trouble


async def test_reads_that_fail_at_once_are_a_reason_too() -> None:
    """Storage refuses connections instead of being silent."""

    async with cluster("a", "b") as c:
        key = await written(c)
        c["a"].fs.pause()
        fail_reads(c, StorageUnavailable("no route to host"), lists=True)
        async with reading(c, key) as errors:
            await until(lambda: not c["a"].broker.is_serving, BOUND_S - READ_LATE_MS / 1000)
            assert errors
            assert c["a"].broker.storage_trouble == "storage acknowledges nothing: no route to host"


async def test_a_file_whose_datanodes_are_gone_costs_a_few_bytes_now_and_then() -> None:
    """Lose all datanodes of one file: only that file is at fault, since storage takes what the journal writes."""

    async with cluster("a", "b") as c:
        key = await written(c)
        journal, files = c["a"].broker.journal, await journals(c)
        before = journal.bytes_written
        fail_reads(c, StorageUnavailable("no datanode of it answers"))
        async with reading(c, key) as errors:
            for _ in range(300):
                await asyncio.sleep(1)
                assert c["a"].broker.is_serving
        assert len(errors) > 200
        tried = (journal.bytes_written - before) / OVERHEAD
        assert 1 <= tried <= 300_000 / READ_TRIAL_REST_MS + 1
        assert await journals(c) == files


@pytest.mark.parametrize("error", [NoSuchFile("gone"), CorruptData("no sound replica")])
async def test_a_damaged_or_missing_file_is_no_reason(error: StorageError) -> None:
    async with cluster("a", "b") as c:
        key = await written(c)
        before = c["a"].broker.journal.bytes_written
        fail_reads(c, error)
        async with reading(c, key) as errors:
            await asyncio.sleep(60)
            assert c["a"].broker.is_serving
        assert errors
        assert c["a"].broker.journal.bytes_written == before


async def test_a_namenode_that_is_away_is_no_stall_for_reads() -> None:
    """The NameNode is away for all brokers, and those that have nothing to read would be given this one's partitions.
    The journal's datanodes respond, so the broker keeps serving."""

    async with cluster("a", "b") as c:
        key = await written(c)
        before = c["a"].broker.journal.bytes_written
        c.storage.restart_namenode(120.0)
        async with reading(c, key) as errors:
            for _ in range(100):
                await asyncio.sleep(1)
                assert c["a"].broker.is_serving
        assert errors
        assert c["a"].broker.journal.bytes_written > before
        await asyncio.sleep(60)


async def test_reads_beside_flushes_are_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage acknowledges what is produced, so it is reached."""
    tried: list[JournalWriter] = []
    plain = JournalWriter.probe

    def probe(journal: JournalWriter) -> asyncio.Future[None]:
        tried.append(journal)
        return plain(journal)

    monkeypatch.setattr(JournalWriter, "probe", probe)

    async with cluster("a", "b") as c:
        key = await written(c)
        fail_reads(c, StorageUnavailable("no datanode of it answers"))
        async with reading(c, key) as errors:
            for _ in range(300):
                await c.write("a", key, batch())
                await asyncio.sleep(0.2)
            assert errors
            assert not tried
            await asyncio.sleep(5)
            assert len(tried) == 1, "nothing is flushed any more"
