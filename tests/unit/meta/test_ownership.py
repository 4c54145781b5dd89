"""The partition's record (meta/ownership.py): its codec, and a commit that succeeds, is refused, or is not known."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.errors import FormatError
from bmq.core.model import PartitionKey, SegmentName
from bmq.meta import ownership
from bmq.meta.kv import Compare, Delete, KvError, KvUnavailable, KvUnknown, Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.ownership import (
    N_MAX,
    NEVER,
    PartitionRecord,
    SegmentEntry,
    Stored,
    Swap,
    WriteRefused,
    decode,
    encode,
    partition_key,
)
from tests.harness.seeds import seeds

pytestmark = pytest.mark.slow

KEY = partition_key("c", PartitionKey(uuid.UUID(int=9), 3))

COUNT = st.integers(0, (1 << 63) - 1)
ENTRIES = st.builds(
    SegmentEntry,
    name=st.builds(SegmentName, COUNT, COUNT, COUNT, st.just(0) | COUNT),
    spare=st.text(max_size=30),
    holder=st.text(max_size=30),
    file_id=COUNT,
    length=st.integers(-1, 1 << 50),
    end_offset=st.integers(-1, 1 << 50),
)
RECORDS = st.builds(
    PartitionRecord,
    epoch=COUNT,
    owner=st.text(max_size=30),
    segments=st.lists(ENTRIES, max_size=4).map(tuple),
    journals=st.lists(st.text(max_size=30), max_size=4).map(tuple),
    last=st.just(NEVER) | st.tuples(COUNT, COUNT),
    swap=st.none()
    | st.builds(
        Swap,
        name=st.builds(SegmentName, COUNT, COUNT, COUNT, COUNT),
        draft=st.text(max_size=30),
        draft_index=st.text(max_size=30),
    ),
)


def record(epoch: int, owner: str = "1-aa") -> PartitionRecord:
    entry = SegmentEntry(name=SegmentName(5, epoch, 0), spare="/s", holder=owner, file_id=77)
    return PartitionRecord(epoch=epoch, owner=owner, segments=(entry,), journals=(owner,))


# --------------------------------------------------------------------------------------------------------- the codec


@given(RECORDS)
def test_encode_and_decode_are_inverse(wanted: PartitionRecord) -> None:
    assert decode(encode(wanted)) == wanted


@given(RECORDS)
def test_equal_records_have_equal_bytes(wanted: PartitionRecord) -> None:
    """An own commit is recognised by a comparison of bytes."""
    assert encode(decode(encode(wanted))) == encode(wanted)


def test_the_format_is_written_down() -> None:
    """An old broker's record must be read by a newer one: the bytes may not change unnoticed."""
    assert encode(replace(record(2), last=(2, 1))) == (
        b'{"format":1,"epoch":2,"owner":"1-aa","journals":["1-aa"],"segments":[[5,2,0,"/s","1-aa",77,-1,-1]],'
        b'"last":[2,1]}'
    )


def test_a_record_of_an_earlier_version_may_have_registered_any_number_under_its_epoch() -> None:
    """Take no file of its epoch for one of a later store: it does not say which registration was its last."""
    raw = json.loads(encode(record(2)))
    del raw["last"]
    found = decode(json.dumps(raw).encode())
    assert found.last_registered == (2, N_MAX)
    assert found == replace(record(2), last=(2, N_MAX))


def test_the_last_registration_is_no_earlier_than_any_that_the_record_lists() -> None:
    assert PartitionRecord().last_registered == NEVER
    assert record(2).last_registered == (2, 0)
    assert replace(record(2), last=(3, 7)).last_registered == (3, 7)


@pytest.mark.parametrize("number", [0, 2, 99, "1", None])
def test_a_later_format_is_refused(number: object) -> None:
    """A process that cannot read a record must not write one in its place."""
    raw = json.loads(encode(record(2)))
    raw["format"] = number
    with pytest.raises(FormatError, match=f"of format {number}"):
        decode(json.dumps(raw).encode())


@pytest.mark.parametrize("missing", ["format", "epoch", "owner", "journals", "segments"])
def test_a_record_that_lacks_something_is_refused(missing: str) -> None:
    raw = json.loads(encode(record(2)))
    del raw[missing]
    with pytest.raises(FormatError):
        decode(json.dumps(raw).encode())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b"[]", b"1", b'"x"', b"\xff\xfe", b'{"format":1,"segments":[[1,2,3]]}']
)
def test_what_is_no_record_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode(data)


@pytest.mark.parametrize("segments", [None, 5, [5], [[1, 2, 3]], [[1, 2, 3, "", "", 0, -1, -1, 9, 9]]])
def test_segments_of_another_shape_are_refused(segments: object) -> None:
    raw = json.loads(encode(record(2)))
    raw["segments"] = segments
    with pytest.raises(FormatError):
        decode(json.dumps(raw).encode())


@pytest.mark.parametrize("swap", [None, [], [1, 2, 3, 4, "/d"], [1, 2, 3, 4, "/d", 5], ["1", 2, 3, 4, "/d", "/i"]])
def test_swaps_of_another_shape_are_refused(swap: object) -> None:
    raw = json.loads(encode(record(2)))
    raw["swap"] = swap
    with pytest.raises(FormatError):
        decode(json.dumps(raw).encode())


@pytest.mark.parametrize(
    ("field", "value"),
    [("epoch", "7"), ("epoch", True), ("epoch", None), ("owner", 7), ("journals", [7]), ("journals", 7)],
)
def test_fields_of_another_type_are_refused(field: str, value: object) -> None:
    """Code that uses a decoded record need not check types."""
    raw = json.loads(encode(record(2)))
    raw[field] = value
    with pytest.raises(FormatError):
        decode(json.dumps(raw).encode())


@pytest.mark.parametrize("at", range(8))
def test_segment_fields_of_another_type_are_refused(at: int) -> None:
    raw = json.loads(encode(record(2)))
    raw["segments"][0][at] = None
    with pytest.raises(FormatError):
        decode(json.dumps(raw).encode())


def test_a_deeply_nested_value_is_refused() -> None:
    with pytest.raises(FormatError):
        decode(b"[" * 100_000)


def test_a_closed_entry_says_its_end() -> None:
    """An empty file is closed too: 0 is a length, -1 is not known."""
    (entry,) = record(2).segments
    assert not entry.is_closed
    closed = entry.closed(0, 5)
    assert closed.is_closed
    assert (closed.length, closed.end_offset, closed.name, closed.holder) == (0, 5, entry.name, entry.holder)


def test_keys_of_partitions_list_in_their_order() -> None:
    topic = uuid.UUID(int=1)
    keys = [partition_key("c", PartitionKey(topic, partition)) for partition in (0, 9, 10, 99_999)]
    assert keys == sorted(keys)
    assert partition_key("c", PartitionKey(topic, 9)) == f"/c/partitions/{topic}/00000009"


# ------------------------------------------------------------------------------------------------------------- store


def client(store: MemoryStore, faults: KvFaults | None = None, seed: int = 0) -> MemoryKeyValue:
    return MemoryKeyValue(store, random=random.Random(seed), faults=faults)


async def test_a_partition_that_nobody_owned_reads_as_empty() -> None:
    kv = client(MemoryStore())
    assert await ownership.read(kv, KEY) == (PartitionRecord(), 0)
    stored = await ownership.store(kv, KEY, record(1), 0)
    assert isinstance(stored, Stored)
    assert await ownership.read(kv, KEY) == (record(1), stored.revision)


async def test_each_store_needs_the_revision_of_the_one_before() -> None:
    kv = client(MemoryStore())
    first = await ownership.store(kv, KEY, record(1), 0)
    assert isinstance(first, Stored)
    second = await ownership.store(kv, KEY, record(2), first.revision)
    assert isinstance(second, Stored)
    assert second.revision > first.revision
    assert await ownership.store(kv, KEY, record(3), first.revision) == WriteRefused(record(2), second.revision)
    assert await ownership.read(kv, KEY) == (record(2), second.revision)


async def test_somebody_else_was_first() -> None:
    """The refusal returns the stored record, so that the loser can continue from it; nothing is overwritten."""

    store = MemoryStore()
    one, other = client(store), client(store)
    won = await ownership.store(one, KEY, record(1, "1-aa"), 0)
    assert isinstance(won, Stored)
    lost = await ownership.store(other, KEY, record(1, "2-bb"), 0)
    assert lost == WriteRefused(record(1, "1-aa"), won.revision)
    assert isinstance(await ownership.store(other, KEY, record(2, "2-bb"), won.revision), Stored)


async def test_a_record_that_was_deleted() -> None:
    """Delete the record: a store by its former owner is refused with an empty record, and does not create it again."""

    kv = client(MemoryStore())
    first = await ownership.store(kv, KEY, record(1), 0)
    assert isinstance(first, Stored)
    await kv.commit([Compare(KEY, first.revision)], [Delete(KEY)])
    assert await ownership.store(kv, KEY, record(2), first.revision) == WriteRefused(PartitionRecord(), 0)


async def test_an_own_earlier_unknown_commit_is_recognised() -> None:
    """Lose the response of a commit that was done: the same call again is refused by that commit, and returns
    Stored."""

    store = MemoryStore()
    kv = client(store, KvFaults(unknown_applied=1.0))
    with pytest.raises(KvUnknown):
        await ownership.store(kv, KEY, record(1), 0)
    kv.faults = KvFaults()
    again = await ownership.store(kv, KEY, record(1), 0)
    assert again == Stored(store.revision)
    assert await ownership.read(kv, KEY) == (record(1), store.revision)


async def test_an_unknown_commit_that_was_lost_is_done_by_the_second() -> None:
    kv = client(MemoryStore(), KvFaults(unknown_lost=1.0))
    with pytest.raises(KvUnknown):
        await ownership.store(kv, KEY, record(1), 0)
    kv.faults = KvFaults()
    assert await ownership.read(kv, KEY) == (PartitionRecord(), 0)
    assert isinstance(await ownership.store(kv, KEY, record(1), 0), Stored)


async def test_an_unknown_commit_that_somebody_overtook_is_refused() -> None:
    """Lost, and another owner wrote since: never taken for one's own."""

    store = MemoryStore()
    kv, other = client(store, KvFaults(unknown_lost=1.0)), client(store)
    with pytest.raises(KvUnknown):
        await ownership.store(kv, KEY, record(1, "1-aa"), 0)
    won = await ownership.store(other, KEY, record(1, "2-bb"), 0)
    assert isinstance(won, Stored)
    kv.faults = KvFaults()
    assert await ownership.store(kv, KEY, record(1, "1-aa"), 0) == WriteRefused(record(1, "2-bb"), won.revision)


async def test_an_unreachable_store_changes_nothing() -> None:
    store = MemoryStore()
    kv = client(store, KvFaults(unavailable=1.0))
    with pytest.raises(KvUnavailable):
        await ownership.store(kv, KEY, record(1), 0)
    with pytest.raises(KvUnavailable):
        await ownership.read(kv, KEY)
    assert store.get(KEY) is None


async def test_what_another_version_wrote_is_not_overwritten() -> None:
    """Neither read as something else, nor replaced."""

    store = MemoryStore()
    kv = client(store)
    await kv.commit([], [Put(KEY, b'{"format":2}')])
    with pytest.raises(FormatError):
        await ownership.read(kv, KEY)
    with pytest.raises(FormatError):
        await ownership.store(kv, KEY, record(1), 0)
    entry = store.get(KEY)
    assert entry is not None
    assert entry.value == b'{"format":2}'


@pytest.mark.parametrize("seed", seeds(16, 500))
async def test_racing_owners_under_faults_never_share_an_epoch(seed: int) -> None:
    """Three brokers claim again and again over a bad network, each repeating until the outcome is known: the epochs in
    the store rise by one, and no broker is granted an epoch whose record names another."""
    rng = random.Random(seed)

    store = MemoryStore()
    faults = KvFaults(
        latency_s=0.05, unavailable=0.2, unknown_applied=0.2, unknown_lost=0.2, unknown_late=0.2, late_s=0.3
    )
    notified: list[tuple[int, str]] = []

    async def claim(owner: str) -> None:
        kv = client(store, faults, rng.randrange(1 << 32))
        while True:
            try:
                found, revision = await ownership.read(kv, KEY)
            except KvError:
                continue
            if found.epoch >= 12:
                return
            wanted = record(found.epoch + 1, owner)
            while True:
                try:
                    result = await ownership.store(kv, KEY, wanted, revision)
                except KvError:
                    continue  # not known: the same again
                break
            if isinstance(result, Stored):
                notified.append((wanted.epoch, owner))

    history = client(store)
    watch = history.watch(KEY, after_revision=store.revision)
    async with asyncio.TaskGroup() as group:
        for owner in ("1-aa", "2-bb", "3-cc"):
            group.create_task(claim(owner))
    written: list[tuple[int, str]] = []
    async for changes in watch:
        for event in changes:
            assert event.entry is not None
            found = decode(event.entry.value)
            written.append((found.epoch, found.owner))
        if written[-1][0] >= 12:
            break
    await watch.aclose()
    assert [epoch for epoch, _ in written] == list(range(1, 13))
    assert len(notified) == len(set(notified))
    assert set(notified) <= set(written)
