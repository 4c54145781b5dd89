"""Segments as storage has them, for the console, while storage answers a part of what it is asked."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from bmq.console.listing import Page
from bmq.console.operations import NotPossible
from bmq.core.model import SegmentName
from bmq.server.queries import storage_facts
from bmq.server.queries.storage_facts import PARALLEL, TELL_S, segments_of
from bmq.storage.filesystem import BlockPlace, StorageUnavailable
from bmq.storage.log_segments import ListedSegment
from tests.harness.loop import run
from tests.unit.server.queries.joined import catalog_of, topic

SEGMENTS = 200


class Storage:
    """Storage of many segments.  It returns the blocks of the first ``answers`` files, and is silent then,
    or refuses after ``refuses_s`` seconds, as a NameNode's client does."""

    def __init__(self, answers: int, refuses_s: float | None = None) -> None:
        self._left = answers
        self._refuses_s = refuses_s
        self.asked = 0

    async def block_places(self, path: str) -> Sequence[BlockPlace]:
        self.asked += 1
        self._left -= 1
        if self._left < 0:
            if self._refuses_s is None:
                await asyncio.Event().wait()
            await asyncio.sleep(self._refuses_s or 0)
            raise StorageUnavailable("no answer")
        return [BlockPlace(position=0, length=7, nodes=("a:1",))]


async def listed(*_: object) -> AsyncIterator[ListedSegment]:
    for number in range(SEGMENTS):
        name = SegmentName(number * 10, 1, 0)
        yield ListedSegment(name, end=number * 10 + 10, length=7, modified_ms=0, has_idx=True)


async def listed_in_part(*_: object) -> AsyncIterator[ListedSegment]:
    """Yield the first three segments; then storage is silent."""
    async for each in listed():
        if each.name.base == 30:
            await asyncio.Event().wait()
        yield each


async def listed_never(*_: object) -> AsyncIterator[ListedSegment]:
    await asyncio.Event().wait()
    yield ListedSegment(SegmentName(0, 1, 0), None, 0, 0, has_idx=False)


def look(storage: Storage, monkeypatch: pytest.MonkeyPatch, walk: Any = listed) -> tuple[Any, float]:
    """Return the facts, and how many seconds it took to find them."""
    monkeypatch.setattr(storage_facts, "walk", walk)
    catalog = catalog_of(topic("orders", uuid.UUID(int=1)))

    async def main() -> tuple[Any, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        page = Page(after="", limit=SEGMENTS)
        return await segments_of(cast(Any, storage), catalog, "orders", 0, page), loop.time() - began

    return run(main())


def test_all_that_storage_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, _ = look(Storage(SEGMENTS), monkeypatch)
    assert all(each["blocks"] == [{"position": 0, "bytes": 7, "nodes": ("a:1",)}] for each in facts["segments"])
    assert facts["error"] == ""


@pytest.mark.parametrize("refuses_s", [None, 4.0])
def test_storage_that_falls_silent_is_waited_for_once(refuses_s: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait once, not once for every few segments: the listing is shown without the missing blocks."""
    storage = Storage(10, refuses_s)
    facts, took_s = look(storage, monkeypatch)
    assert took_s <= TELL_S
    assert [each["base_offset"] for each in facts["segments"]] == list(range(0, SEGMENTS * 10, 10))
    assert sum(each["blocks"] is not None for each in facts["segments"]) == 10
    assert facts["error"] == f"storage did not tell the blocks of 190 segments within {TELL_S:g} s"
    assert storage.asked <= 10 + 2 * PARALLEL


def test_what_is_listed_before_storage_falls_silent_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, took_s = look(Storage(SEGMENTS), monkeypatch, listed_in_part)
    assert took_s == pytest.approx(TELL_S)
    assert [(each["base_offset"], each["blocks"]) for each in facts["segments"]] == [(0, None), (10, None), (20, None)]
    assert facts["error"] == f"storage does not list all segments: no answer within {TELL_S:g} s"


def test_storage_that_lists_nothing_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotPossible, match="storage does not list the segments: no answer within 5 s") as refused:
        look(Storage(0), monkeypatch, listed_never)
    assert refused.value.status == 503
