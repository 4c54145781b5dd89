"""What a long collection found alive is not gone through again; a short one changes nothing."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from bmq.core import collector
from bmq.core.collector import LongCollections


@pytest.fixture(autouse=True)
def _thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_what_a_long_collection_found_is_set_aside() -> None:
    async def main() -> None:
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

    asyncio.run(main())


class Node:
    """In a cycle with itself."""

    def __init__(self) -> None:
        self.me = self


def test_what_was_set_aside_is_gone_through_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that was alive when it was set aside is collected in the end."""
    monkeypatch.setattr(collector, "THAW_EVERY", 3)

    async def main() -> None:
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

    asyncio.run(main())


def test_a_short_one_changes_nothing() -> None:
    async def main() -> None:
        collections = LongCollections(limit_s=3_600.0)
        collections.start()
        gc.collect()
        await asyncio.sleep(0)
        assert collections.set_aside == 0
        collections.stop()

    asyncio.run(main())
