"""Group commit of partition records (meta/record_groups.py): few calls, each record's outcome as if it were alone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from bmq.core.errors import FormatError
from bmq.meta.kv import COMMIT_BYTES_MAX, Commit, Compare, Entry, KvError, KvUnavailable, KvUnknown, Put, Write
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.ownership import PartitionRecord, Stored, WriteRefused, decode, encode
from bmq.meta.record_groups import GROUP_MAX, GROUPS_IN_FLIGHT, RecordGroups
from tests.harness.seeds import seeds

KEYS = [f"/c/partitions/t/{number:08d}" for number in range(400)]


def record(epoch: int, owner: str = "1-aa") -> PartitionRecord:
    return PartitionRecord(epoch=epoch, owner=owner)


class Counted(MemoryKeyValue):
    """A client that notes how many keys each of its calls names, and how many calls are under way at most."""

    def __init__(self, store: MemoryStore, *, faults: KvFaults | None = None, seed: int = 0) -> None:
        super().__init__(store, random=random.Random(seed), faults=faults or KvFaults())
        self.calls: list[int] = []
        self.under_way = self.under_way_most = 0

    async def get(self, key: str) -> Entry | None:
        self.calls.append(1)
        return await super().get(key)

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        self.calls.append(len(compares))
        self.under_way += 1
        self.under_way_most = max(self.under_way_most, self.under_way)
        try:
            return await super().commit(compares, writes)
        finally:
            self.under_way -= 1


async def fill(store: MemoryStore, keys: Sequence[str], epoch: int = 1) -> int:
    """Give each key a record, and return the last revision."""
    kv = MemoryKeyValue(store)
    for key in keys:
        revision = (await kv.commit([], [Put(key, encode(record(epoch)))])).revision
    return revision


async def test_a_call_alone_is_sent_as_it_is() -> None:
    kv = Counted(MemoryStore())
    groups = RecordGroups(kv)
    assert await groups.read(KEYS[0]) == (PartitionRecord(), 0)
    stored = await groups.store(KEYS[0], record(1), 0)
    assert isinstance(stored, Stored)
    assert await groups.read(KEYS[0]) == (record(1), stored.revision)
    assert kv.calls == [1, 1, 1]


@pytest.mark.parametrize("exist", [0, 1, 199, 200])
async def test_reads_of_one_turn_share_calls(exist: int) -> None:
    """Read keys of which none, some or all exist: a compare that fails shows them, one that holds that none is."""
    store = MemoryStore()
    if exist:
        await fill(store, KEYS[:exist])
    kv = Counted(store)
    groups = RecordGroups(kv)
    found = await asyncio.gather(*map(groups.read, KEYS[:200]))
    assert [each[0].epoch for each in found] == [1] * exist + [0] * (200 - exist)
    assert [each[1] for each in found] == [number + 2 for number in range(exist)] + [0] * (200 - exist)
    assert len(kv.calls) == -(-200 // GROUP_MAX)


async def test_writes_share_calls_and_few_are_under_way() -> None:
    kv = Counted(store := MemoryStore(), faults=KvFaults(latency_s=0.01))
    groups = RecordGroups(kv)
    results = await asyncio.gather(*(groups.store(key, record(1), 0) for key in KEYS))
    assert all(isinstance(each, Stored) for each in results)
    assert all(store.get(key) is not None for key in KEYS)
    assert max(kv.calls) == GROUP_MAX
    assert len(kv.calls) == -(-len(KEYS) // GROUP_MAX)
    assert kv.under_way_most == GROUPS_IN_FLIGHT


async def test_what_comes_during_calls_goes_out_together() -> None:
    """The first calls are of one record each; all that came meanwhile is one call."""
    kv = Counted(MemoryStore(), faults=KvFaults(latency_s=0.01))
    groups = RecordGroups(kv)
    writing = []
    for key in KEYS[:40]:
        writing.append(asyncio.ensure_future(groups.store(key, record(1), 0)))
        await asyncio.sleep(0.0001)
    await asyncio.gather(*writing)
    assert kv.calls == [1] * GROUPS_IN_FLIGHT + [40 - GROUPS_IN_FLIGHT]


async def test_a_refused_record_does_not_refuse_the_others_of_its_group() -> None:
    """Each write is as if it were alone: it is done, or its own record is what was in its way."""
    store = MemoryStore()
    await fill(store, KEYS[:50], epoch=7)
    kv = Counted(store)
    groups = RecordGroups(kv)
    results = await asyncio.gather(*(groups.store(key, record(8), 0) for key in KEYS[:60]))
    assert results[:50] == [WriteRefused(record(7), number + 2) for number in range(50)]
    assert all(isinstance(each, Stored) for each in results[50:])
    written = [found for key in KEYS[:60] if (found := store.get(key)) is not None]
    assert [decode(found.value).epoch for found in written] == [7] * 50 + [8] * 10
    assert kv.calls == [60, 10]


async def test_a_record_that_cannot_be_decoded_fails_alone() -> None:
    store = MemoryStore()
    await MemoryKeyValue(store).commit([], [Put(KEYS[0], b"{")])
    groups = RecordGroups(MemoryKeyValue(store))
    first, second = await asyncio.gather(groups.read(KEYS[0]), groups.read(KEYS[1]), return_exceptions=True)
    assert isinstance(first, FormatError)
    assert second == (PartitionRecord(), 0)
    refused, stored = await asyncio.gather(
        groups.store(KEYS[0], record(1), 0), groups.store(KEYS[1], record(1), 0), return_exceptions=True
    )
    assert isinstance(refused, FormatError)
    assert isinstance(stored, Stored)


async def test_a_key_that_was_deleted_refuses_a_write_over_it() -> None:
    groups = RecordGroups(MemoryKeyValue(MemoryStore()))
    refused, stored = await asyncio.gather(groups.store(KEYS[0], record(2), 9), groups.store(KEYS[1], record(2), 0))
    assert refused == WriteRefused(PartitionRecord(), 0)
    assert isinstance(stored, Stored)


async def test_rule_3_an_unknown_group_is_settled_by_the_same_writes() -> None:
    """All of a group are unknown together.  Sent again, each finds itself done, also beside one that is refused."""
    store = MemoryStore()
    kv = MemoryKeyValue(store, random=random.Random(0), faults=KvFaults(unknown_applied=1.0))
    groups = RecordGroups(kv)
    lost = await asyncio.gather(*(groups.store(key, record(1), 0) for key in KEYS[:5]), return_exceptions=True)
    assert [type(each) for each in lost] == [KvUnknown] * 5
    kv.faults = KvFaults()
    again = await asyncio.gather(
        *(groups.store(key, record(1), 0) for key in KEYS[:5]), groups.store(KEYS[5], record(1), 3)
    )
    assert again == [Stored(store.revision)] * 5 + [WriteRefused(PartitionRecord(), 0)]


async def test_an_error_of_the_store_fails_all_of_the_group_and_no_later_one() -> None:
    kv = MemoryKeyValue(MemoryStore(), random=random.Random(0), faults=KvFaults(unavailable=1.0))
    groups = RecordGroups(kv)
    calls = (*map(groups.read, KEYS[:3]), *(groups.store(key, record(1), 0) for key in KEYS[:3]))
    failed = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in failed] == [KvUnavailable] * 6
    kv.faults = KvFaults()
    assert await groups.read(KEYS[0]) == (PartitionRecord(), 0)


async def test_two_writes_of_one_key_are_two_calls() -> None:
    """A commit writes each key once.  A partition that was given up and opened again may have both under way."""
    kv = Counted(MemoryStore())
    groups = RecordGroups(kv)
    stored, refused = await asyncio.gather(groups.store(KEYS[0], record(1), 0), groups.store(KEYS[0], record(2), 0))
    assert isinstance(stored, Stored)
    assert refused == WriteRefused(record(1), stored.revision)
    assert kv.calls == [1, 1]


async def test_a_caller_that_is_gone_takes_nobody_with_it() -> None:
    kv = Counted(store := MemoryStore(), faults=KvFaults(latency_s=0.01))
    groups = RecordGroups(kv)
    writing = [asyncio.ensure_future(groups.store(key, record(1), 0)) for key in KEYS[:3]]
    await asyncio.sleep(0)
    writing[0].cancel()  # before it is sent
    await asyncio.sleep(0.001)
    writing[1].cancel()  # on its way
    assert isinstance(await writing[2], Stored)
    assert [store.get(key) is not None for key in KEYS[:3]] == [False, True, True]


async def test_large_records_are_not_one_commit_past_its_bound() -> None:
    """Three records of two fifths of what a commit may have; and one that is as large as all of it, alone."""
    kv = Counted(store := MemoryStore())
    groups = RecordGroups(kv)
    large = record(1, "x" * (COMMIT_BYTES_MAX * 2 // 5))
    largest = record(1, "x" * (COMMIT_BYTES_MAX - 200))
    results = await asyncio.gather(
        *(groups.store(key, large, 0) for key in KEYS[:3]), groups.store(KEYS[3], largest, 0)
    )
    assert all(isinstance(each, Stored) for each in results)
    assert all(store.get(key) is not None for key in KEYS[:4])


async def test_close_cancels_what_is_under_way_and_what_waits() -> None:
    groups = RecordGroups(Counted(MemoryStore(), faults=KvFaults(latency_s=1000.0)))
    waiting = [asyncio.ensure_future(groups.store(key, record(1), 0)) for key in KEYS]
    reading = [asyncio.ensure_future(groups.read(key)) for key in KEYS]
    await asyncio.sleep(0.001)
    await groups.close()
    results = await asyncio.gather(*waiting, *reading, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in results)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(10, 100))
async def test_rule_3_each_acknowledged_write_is_there_once(seed: int) -> None:
    """Two brokers count epochs up in the same records, over a store that loses requests and responses.

    Each acknowledged claim has its epoch for itself, and the last one is what the store has, as with
    ``ownership.store``.
    """
    rng = random.Random(seed)
    store = MemoryStore()
    faults = KvFaults(latency_s=0.01, unavailable=0.1, unknown_applied=0.1, unknown_lost=0.1, unknown_late=0.1)
    claims: dict[str, list[int]] = {key: [] for key in KEYS[:30]}

    async def claim(groups: RecordGroups, key: str, owner: str) -> None:
        await asyncio.sleep(rng.uniform(0, 0.05))
        while True:
            try:
                found, revision = await groups.read(key)
                break
            except KvError:
                await asyncio.sleep(0.001)
        wanted = record(found.epoch + 1, owner)
        while True:
            try:
                result = await groups.store(key, wanted, revision)
            except KvError:  # not done, or not known: only the same write settles it
                await asyncio.sleep(rng.uniform(0, 0.02))
                continue
            if isinstance(result, Stored):
                claims[key].append(wanted.epoch)
                return
            wanted, revision = record(result.record.epoch + 1, owner), result.revision

    brokers = [RecordGroups(MemoryKeyValue(store, random=rng, faults=faults)) for _ in range(2)]
    await asyncio.gather(
        *(
            claim(groups, key, f"{number}-{turn}")
            for number, groups in enumerate(brokers)
            for key in claims
            for turn in "ab"
        )
    )
    for key, epochs in claims.items():
        assert len(set(epochs)) == 4
        entry = store.get(key)
        assert entry is not None
        assert decode(entry.value).epoch == max(epochs)
