"""Storage's room as the console shows it, and why some of it is missing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bmq.server.queries import storage_room
from bmq.server.queries.storage_room import KEPT_S, StorageRoom
from bmq.storage.filesystem import StorageUnavailable, Unsupported
from bmq.storage.health import StorageHealth

HEALTH = StorageHealth(
    capacity_bytes=1000, remaining_bytes=400, is_in_safe_mode=True, missing_blocks=2, root_names=7, root_bytes=90,
    root_bytes_quota=100,
)  # fmt: skip


class Hdfs:
    url = "hdfs://namenode/bmq"

    def __init__(self, health: Any = HEALTH, datanodes: Any = 4) -> None:
        self.asked = 0
        self._health = health
        self._datanodes = datanodes

    async def health(self) -> StorageHealth:
        self.asked += 1
        return await self._responded(self._health)  # type: ignore[no-any-return]

    async def replicas_max(self) -> int:
        return await self._responded(self._datanodes)  # type: ignore[no-any-return]

    @staticmethod
    async def _responded(response: Any) -> Any:
        if response is None:
            await asyncio.Event().wait()
        if isinstance(response, Exception):
            raise response
        return response


def room(fs: Any) -> StorageRoom:
    return StorageRoom("hdfs://user:secret@namenode/bmq", fs)


async def test_all_that_hdfs_tells() -> None:
    facts = await room(Hdfs()).facts()
    assert facts == {
        "root": "hdfs://***@namenode/bmq",
        "datanodes": 4,
        "space": {"capacity_bytes": 1000, "used_bytes": 600, "remaining_bytes": 400},
        "usage": {"bytes": 90, "bytes_quota": 100, "names": 7, "names_quota": None},
        "is_in_safe_mode": True,
        "missing_blocks": 2,
        "error": "",
    }


async def test_a_root_that_does_not_tell() -> None:
    facts = await room(SimpleNamespace(url="webhdfs://namenode/bmq")).facts()
    assert (facts["space"], facts["usage"], facts["datanodes"], facts["error"]) == (None, None, None, "")


async def test_datanodes_are_told_to_superusers_only() -> None:
    facts = await room(Hdfs(datanodes=Unsupported("not a superuser"))).facts()
    assert (facts["datanodes"], facts["error"]) == (None, "")
    assert facts["space"] is not None


@pytest.mark.parametrize(
    ("response", "error"),
    [(None, "storage did not answer within 0.01 s"), (StorageUnavailable("refused"), "StorageUnavailable: refused")],
)
async def test_why_some_of_it_is_missing(response: Any, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_room, "TELL_S", 0.01)
    facts = await room(Hdfs(health=response)).facts()
    assert (facts["space"], facts["error"]) == (None, error)


async def test_storage_is_asked_once_for_all_who_look() -> None:
    hdfs = Hdfs()
    of = room(hdfs)
    first, second = await asyncio.gather(of.facts(), of.facts())
    assert first is second
    assert hdfs.asked == 1
    await asyncio.sleep(KEPT_S)
    await of.facts()
    assert hdfs.asked == 2
