"""The garbage collector's long collections: the objects that one found alive are not gone through again; a short one
changes nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from bmq.core import garbage_collector
from bmq.core.garbage_collector import LongCollections

pytestmark = pytest.mark.slow


async def test_what_a_long_collection_found_is_set_aside() -> None:
    collections = LongCollections(limit_s=0.0)
    collections.start()
    before = gc.get_freeze_count()
    kept = [[number] for number in range(10_000)]
    gc.collect(1)
    await asyncio.sleep(0)
    assert collections.set_aside == 0, "only full ones are long"
    gc.collect()
    await asyncio.sleep(0)
    assert collections.set_aside == 1
    assert gc.get_freeze_count() >= before + len(kept)
    collections.stop()
    collections.stop()
    gc.collect()
    await asyncio.sleep(0)
    assert collections.set_aside == 1


class Node:
    """An object in a cycle with itself."""

    def __init__(self) -> None:
        self.me = self


async def test_what_was_set_aside_is_gone_through_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that was alive when it was set aside is collected in the end."""
    monkeypatch.setattr(garbage_collector, "THAW_EVERY", 3)

    collections = LongCollections(limit_s=0.0)
    collections.start()
    node = Node()
    gone = weakref.ref(node)
    gc.collect()
    await asyncio.sleep(0)
    del node
    for _ in range(2):
        assert gone() is not None
        gc.collect()
        await asyncio.sleep(0)
    assert gone() is None
    collections.stop()


async def test_a_short_one_changes_nothing() -> None:
    collections = LongCollections(limit_s=3_600.0)
    collections.start()
    gc.collect()
    await asyncio.sleep(0)
    assert collections.set_aside == 0
    collections.stop()


async def test_no_full_collection_goes_through_much() -> None:
    """Load a view of hundreds of thousands of objects, as 100,000 topics are, and measure the collections meanwhile."""
    gone_through: list[int] = []

    def called(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            gone_through.append(len(gc.get_objects()))  # without those that are set aside

    before = gc.get_threshold()
    collections = LongCollections(limit_s=0.0)
    collections.start()
    gc.callbacks.append(called)
    view: list[list[list[int]]] = []
    try:
        for number in range(3_000):
            view.append([[number] for _ in range(100)])
            if number % 25 == 0:
                await asyncio.sleep(0)
    finally:
        gc.callbacks.remove(called)
        collections.stop()
    assert gc.get_threshold() == before
    view = view
    assert len(view) * len(view[0]) > 10 * garbage_collector.NEW_MAX
    assert len(gone_through) > 10
    assert max(gone_through) <= garbage_collector.NEW_MAX + 1_000
