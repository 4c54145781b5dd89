"""The store as a proxy writes to it for its clients: after a standstill no client that has gone writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from bmq.core.aio.children import Children
from bmq.core.aio.standstill import DOUBT_S, Standstill
from bmq.core.clock import LoopClock
from bmq.meta.kv import Commit, Compare, Put, Write
from bmq.meta.kv_for_clients import KvForClients
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore


class SendingKeyValue(MemoryKeyValue):
    """A client of the store that sends a commit in the call, as a connection with room does."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.sent = 0

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        self.sent += 1
        return await super().commit(compares, writes)


class Store:
    """A store for clients, in a process that stands still when asked to."""

    def __init__(self) -> None:
        self.kv = SendingKeyValue()
        self.standstill = Standstill(LoopClock())
        self.for_clients = KvForClients(self.kv, self.standstill)
        self.standstill.start()

    async def write(self) -> None:
        await self.for_clients.commit([Compare("/k", 0)], [Put("/k", b"1")])

    async def write_in_a_child(self) -> None:
        children = Children()
        try:
            children.add(asyncio.create_task(self.write()))
            await children.fall_below(1)
        finally:
            await children.cancel()

    def stand_still(self) -> None:
        loop: Any = asyncio.get_running_loop()
        loop.clock.now += DOUBT_S + 0.5


def cancel(task: asyncio.Task[None], _: float) -> None:
    task.cancel()


async def test_a_write_of_a_client_that_has_gone_meanwhile_is_not_sent() -> None:
    for has_children in (False, True):
        store = Store()
        writing = asyncio.create_task(store.write_in_a_child() if has_children else store.write())
        store.standstill.on_doubt.add(partial(cancel, writing))
        if has_children:
            await asyncio.sleep(0)  # the child begins in the next turn
        store.stand_still()
        await asyncio.wait((writing,))
        assert writing.cancelled()
        assert store.standstill.doubts == 1
        assert not store.kv.sent


async def test_a_write_of_a_client_that_waits_goes_on() -> None:
    store = Store()
    store.stand_still()
    await store.write()
    assert store.standstill.doubts == 1
    assert await store.kv.get("/k") is not None


async def test_all_else_is_the_stores_and_a_close_leaves_the_store_open() -> None:
    store = Store()
    kv = store.for_clients
    await kv.commit([], [Put("/a/1", b"1")])
    entry = await kv.get("/a/1")
    assert entry is not None
    assert entry == await store.kv.get("/a/1")
    assert [each async for each in kv.list("/a/")] == [entry]
    assert await kv.revision() == await store.kv.revision()
    lease = await kv.grant(10)
    assert 0 < await kv.keep_alive(lease) <= 10
    await kv.revoke(lease)
    changes = await anext(kv.watch("/a/", after_revision=entry.revision - 1))
    assert [each.entry for each in changes] == [entry]
    await kv.close()
    assert await store.kv.get("/a/1") == entry
