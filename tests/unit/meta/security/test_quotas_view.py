"""The watched view of quotas: what it shows, and that writes of several processes do not undo each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from bmq.core.errors import FormatError
from bmq.meta.kv import Delete, KvUnknown, Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.security import quotas_view
from bmq.meta.security.client_quotas import CLIENT_ID, IP, USER, Entity, Holder, InvalidQuota, quotas_key
from bmq.meta.security.quotas_view import QuotasView
from tests.harness.waiting import until

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
ALICE: Entity = ((USER, "alice"),)


@asynccontextmanager
async def views(store: MemoryStore, count: int = 1, faults: KvFaults | None = None) -> AsyncIterator[list[QuotasView]]:
    kv = MemoryKeyValue(store, random=Random(1), faults=faults or KvFaults())
    found = [QuotasView(kv, "c") for _ in range(count)]
    for view in found:
        await view.start()
    try:
        yield found
    finally:
        for view in found:
            await view.close()
        await kv.close()


async def test_quotas_are_found_once_they_are_written() -> None:
    async with views(MemoryStore()) as (view,):
        calls: list[int] = []
        view.subscribe(lambda: calls.append(len(view.entities)))
        assert view.find(PRODUCER, "alice", "app") is None
        assert not view.has(PRODUCER)
        await view.alter({ALICE: {PRODUCER: 10.0}, ((CLIENT_ID, None),): {CONSUMER: 5.0}})
        assert view.find(PRODUCER, "alice", "app") == (Holder("alice", ""), 10.0)
        assert view.find(CONSUMER, "alice", "app") == (Holder("", "app"), 5.0)
        assert view.has(PRODUCER)
        await view.alter({ALICE: {PRODUCER: None}})
        assert view.find(PRODUCER, "alice", "app") is None
        assert not view.has(PRODUCER)
        assert calls[-1] == len(view.entities) == 1


async def test_the_last_value_removes_the_key() -> None:
    store = MemoryStore()
    async with views(store) as (view,):
        await view.alter({ALICE: {PRODUCER: 10.0, CONSUMER: 1.0}})
        await view.alter({ALICE: {PRODUCER: None}})
        assert view.entities == {ALICE: {CONSUMER: 1.0}}
        await view.alter({ALICE: {CONSUMER: None, PRODUCER: None}})
        assert view.entities == {}
        kv = MemoryKeyValue(store, random=Random(1), faults=KvFaults())
        assert await kv.get(quotas_key("c", ALICE)) is None


async def test_an_ip_has_its_own_rate_or_the_default() -> None:
    async with views(MemoryStore()) as (view,):
        rate = "connection_creation_rate"
        assert view.find_ip(rate, "10.0.0.1") is None
        await view.alter({((IP, "0:0::1"),): {rate: 3.0}, ((IP, None),): {rate: 9.0}})
        assert view.find_ip(rate, "::1") == 3.0
        assert view.find_ip(rate, "10.0.0.1") == view.find_ip(rate, "unknown") == 9.0


async def test_a_write_that_others_have_overtaken_is_done_on_what_the_store_has() -> None:
    store = MemoryStore()
    async with views(store, 2) as (one, two):
        await asyncio.gather(one.alter({ALICE: {PRODUCER: 1.0}}), two.alter({ALICE: {CONSUMER: 2.0}}))
        await asyncio.gather(one.alter({ALICE: {PRODUCER: 3.0}}), two.alter({ALICE: {CONSUMER: None}}))
        revision = await MemoryKeyValue(store, random=Random(1), faults=KvFaults()).revision()
        for view in (one, two):
            await view._watcher.wait_revision(revision)
            assert view.entities == {ALICE: {PRODUCER: 3.0}}


async def test_a_change_that_a_view_behind_the_store_has_already_is_written() -> None:
    async with views(MemoryStore(), 2) as (one, two):
        await one.alter({ALICE: {PRODUCER: 1.0}})
        await one.alter({ALICE: {PRODUCER: None}})
        await until(lambda: not two.entities)
        two._entities[ALICE] = {PRODUCER: 1.0}  # as if its view did not show the second change yet
        await two.alter({ALICE: {PRODUCER: 1.0}, ((USER, "bob"),): {PRODUCER: 2.0}})
        await until(lambda: len(one.entities) == 2)
        assert one.entities[ALICE] == {PRODUCER: 1.0}
        del two._entities[ALICE]
        await two.alter({ALICE: {PRODUCER: None}})
        await until(lambda: ALICE not in one.entities)


@pytest.mark.parametrize("seed", range(20))
async def test_writes_with_unknown_outcomes_are_done_once_they_return(seed: int) -> None:
    store = MemoryStore()
    kv = MemoryKeyValue(
        store, random=Random(seed), faults=KvFaults(unknown_applied=0.2, unknown_lost=0.2, unknown_late=0.1)
    )
    view = QuotasView(kv, "c")
    await view.start()
    for number in range(10):
        try:
            await view.alter({ALICE: {PRODUCER: float(number + 1)}})
        except KvUnknown:
            continue
        assert view.entities == {ALICE: {PRODUCER: float(number + 1)}}
    await view.close()
    await kv.close()


async def test_many_entities_are_written_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with views(MemoryStore()) as (view,):
        await view.alter({((USER, f"u{number}"),): {PRODUCER: 1.0} for number in range(250)})
        assert len(view.entities) == 250
        monkeypatch.setattr(quotas_view, "ENTITIES_MAX", 250)
        await view.alter({((USER, "u1"),): {PRODUCER: 2.0}})
        with pytest.raises(InvalidQuota, match="at most 250"):
            await view.alter({((USER, "one more"),): {PRODUCER: 2.0}})


async def test_a_record_that_cannot_be_read_leaves_the_others_and_is_not_overwritten() -> None:
    store = MemoryStore()
    async with views(store) as (view,):
        await view.alter({ALICE: {PRODUCER: 1.0}})
        kv = MemoryKeyValue(store, random=Random(1), faults=KvFaults())
        key = quotas_key("c", ALICE)
        done = await kv.commit([], [Put(key, b'{"format":9}'), Put("/c/quotas/color=red", b"")])
        await view._watcher.wait_revision(done.revision)
        assert view.entities == {ALICE: {PRODUCER: 1.0}}
        assert set(view.unreadable) == {key, "/c/quotas/color=red"}
        with pytest.raises(FormatError):
            await view.alter({ALICE: {PRODUCER: 2.0}})
        await kv.commit([], [Delete(key)])
        await view.alter({ALICE: {CONSUMER: 2.0}})
        assert view.entities == {ALICE: {CONSUMER: 2.0}}
