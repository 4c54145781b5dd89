"""A term's knowledge of the members that proxies cannot reach: the last report of each proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bmq.controller.unreachable_reports import UnreachableReports
from bmq.meta.cluster.unreachable import encode_unreachable, unreachable_key
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore


class Reports:
    """Reports that are followed, the store that holds them, and the number of calls of ``changed``."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.kv = MemoryKeyValue(self.store)
        self.changes = 0
        self.followed = UnreachableReports(self.kv, "c", self._changed)

    def _changed(self) -> None:
        self.changes += 1

    async def put(self, proxy: str, value: bytes) -> None:
        await self.kv.commit([], [Put(unreachable_key("c", proxy), value)])
        await asyncio.sleep(1)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.followed.run())
        try:
            await asyncio.sleep(1)
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


async def test_each_proxys_last_report_counts_until_it_is_deleted() -> None:
    reports = Reports()
    await reports.put("p1", encode_unreachable({"a"}))
    async with reports.running():
        assert reports.followed.by_proxy == {"p1": {"a"}}
        await reports.put("p1", encode_unreachable({"a", "b"}))
        await reports.put("p2", encode_unreachable({"b"}))
        assert reports.followed.by_proxy == {"p1": {"a", "b"}, "p2": {"b"}}
        before = reports.changes
        await reports.kv.commit([], [Delete(unreachable_key("c", "p1"))])
        await asyncio.sleep(1)
        assert reports.followed.by_proxy == {"p2": {"b"}}
        assert reports.changes == before + 1


async def test_a_report_that_cannot_be_read_is_ignored_with_the_one_before_it(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports()
    async with reports.running():
        await reports.put("p1", encode_unreachable({"a"}))
        await reports.put("p2", encode_unreachable({"a"}))
        await reports.put("p1", b"not a list")
        assert reports.followed.by_proxy == {"p2": {"a"}}
        assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
            "a proxy's list of unreachable members cannot be read, and is ignored"
        ]


@pytest.mark.slow
async def test_a_store_that_is_away_at_first_is_asked_until_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reports = Reports()
    await reports.put("p1", encode_unreachable({"a"}))
    reports.store.stop()
    async with reports.running():
        await asyncio.sleep(600)
        assert "could not read the members that proxies cannot reach, trying again" in caplog.messages
        assert not reports.followed.by_proxy
        reports.store.start(asyncio.get_running_loop().time())
        await asyncio.sleep(60)
        assert reports.followed.by_proxy == {"p1": {"a"}}
