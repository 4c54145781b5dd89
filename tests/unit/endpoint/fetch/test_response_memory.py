"""A fetch's records are free when its response was sent, without the help of the cyclic garbage collector.

A response may hold 50 MB.  So the collector is off here, and what it would have had to free is looked through for
records and for whatever refers to them.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator

import pytest

from bmq.core.net.request import Response
from bmq.endpoint.fetch.partition_read import PartitionRead
from bmq.endpoint.fetch.result import FetchResult
from tests.unit.endpoint.serving import World, release, want

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def from_memory(w: World) -> None:
    w.flush("orders", size=5_000)
    release(await w.fetch([want("orders")]))


async def from_storage(w: World) -> None:
    await w.store("orders", size=5_000)
    release(await w.fetch([want("orders")]))


async def parked_and_woken(w: World) -> None:
    fetch = asyncio.ensure_future(w.fetch([want("orders")]))
    await asyncio.sleep(0.1)
    w.flush("orders", size=5_000)
    release(await fetch)


async def parked_and_dropped(w: World) -> None:
    fetch = asyncio.ensure_future(w.fetch([want("orders")], min_bytes=1 << 20))
    await asyncio.sleep(0.1)
    w.flush("orders", size=5_000)
    await asyncio.sleep(0.1)
    fetch.cancel()
    await asyncio.wait([fetch])


async def dropped_while_storage_is_read(w: World) -> None:
    await w.store("orders", size=5_000)
    w.fs.gate.clear()
    fetch = asyncio.ensure_future(w.fetch([want("orders")]))
    await asyncio.sleep(0.1)
    fetch.cancel()
    await asyncio.wait([fetch])
    w.fs.gate.set()
    await asyncio.sleep(0.1)


async def refused(w: World) -> None:
    w.flush("orders", size=5_000)
    release(await w.fetch([want("orders", offset=0), want("missing"), want("orders", 0, 77)]))


async def by_session(w: World) -> None:
    w.flush("orders", size=5_000)
    fetched = await w.fetch([want("orders")], session=(0, 0))
    release(fetched)
    for number in range(3):
        w.flush("orders", size=5_000)
        release(await w.fetch([want("orders", 0, number + 1)], session=(fetched.session_id, number + 1)))


STORIES = [
    from_memory,
    from_storage,
    parked_and_woken,
    parked_and_dropped,
    dropped_while_storage_is_read,
    refused,
    by_session,
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_records_are_free_when_the_response_was_sent(story: Callable[[World], Awaitable[None]]) -> None:
    w = World()
    w.topic("orders")
    await story(w)
    await asyncio.sleep(0.1)
    gc.collect(0)
    gc.collect()  # what the world's making left
    await story(w)
    await asyncio.sleep(0.1)
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    kept = [each for each in gc.garbage if isinstance(each, memoryview | PartitionRead | FetchResult | Response)]
    assert not kept, f"only the cyclic collector would free {[type(each).__name__ for each in kept]}"
