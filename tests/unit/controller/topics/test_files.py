"""A new leader finds what the one before it left unwritten, without a rush on storage."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from bmq.controller.topics import files as topic_files
from bmq.controller.topics.files import PACE_S, Publisher
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.catalog import Catalog, Topic
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeCatalog


class Files(StoredTopics):
    """Topic files in memory; notes each read with its time."""

    def __init__(self, written: Mapping[str, int]) -> None:
        super().__init__(MemoryFileSystem(MemoryStorage(), "a"))
        self.written = dict(written)
        self.looked: list[tuple[float, str]] = []
        self.failing: set[str] = set()

    async def highest(self, name: str) -> int:
        self.looked.append((asyncio.get_running_loop().time(), name))
        if name in self.failing:
            raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "away")
        return self.written.get(name, 0)

    async def write(self, name: str, revision: int, *rest: Any, **named: Any) -> None:
        self.written[name] = revision

    async def withdraw(self, name: str, revision: int) -> None:
        raise AssertionError("nothing is deleted")


def catalog(topics: int) -> Catalog:
    return FakeCatalog(
        *(Topic(name=f"t{n}", topic_id=uuid.UUID(int=n + 1), partitions=1, revision=n + 1) for n in range(topics))
    )


async def test_the_newest_topic_files_are_checked_at_once_and_the_others_at_a_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_files, "NEWEST", 10)

    files = Files({f"t{n}": n + 1 for n in range(1_000) if n not in (5, 995)})
    files.failing = {"t7"}
    publisher = Publisher(files, catalog(1_000))
    publisher.start()
    await asyncio.sleep(PACE_S / 2)
    assert {name for _, name in files.looked[:10]} == {f"t{n}" for n in range(990, 1_000)}
    assert files.written["t995"] == 996
    assert len(files.looked) <= 11
    await asyncio.sleep(2_000 * PACE_S)
    files.failing.clear()
    await asyncio.sleep(60)
    assert files.written["t5"] == 6
    assert {name for _, name in files.looked} == {f"t{n}" for n in range(1_000)}
    assert sum(name == "t7" for _, name in files.looked) >= 2, "what failed is looked at again"
    times = [at for at, _ in files.looked[10:]]
    assert times[500] - times[0] >= 480 * PACE_S
    await publisher.close()


async def test_a_bug_in_the_writer_of_topic_files_is_reported_at_once() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    files = Files({})
    files.highest = bug  # type: ignore[method-assign]
    publisher = Publisher(files, catalog(1))
    publisher.start()
    await asyncio.sleep(1)
    assert [context["message"] for context in reported] == ["task writer of topics' files failed"]
    await publisher.close()


async def bug(name: str) -> int:
    raise AssertionError(f"{name} is where it cannot be")
