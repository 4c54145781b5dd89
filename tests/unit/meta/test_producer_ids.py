"""Producer ids: never the same twice, whatever is lost, and the rebuild count in their high bits."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.meta.kv import Put
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.producer_ids import BLOCK, REBUILD_COUNT_MAX, ProducerIds, producer_ids_key
from tests.harness.loop import run


async def test_ids_count_up_from_block_to_block() -> None:
    store = MemoryStore()
    ids = ProducerIds(MemoryKeyValue(store), "c")
    assert [await ids.next() for _ in range(2 * BLOCK)] == list(range(2 * BLOCK))
    await asyncio.sleep(1)
    assert store.revision == 1 + 3, "one write a block, and the one fetched ahead"
    await ids.close()
    later = ProducerIds(MemoryKeyValue(store), "c")
    assert await later.next() == 3 * BLOCK, "what was left of a block is lost with its process"
    await later.close()


async def test_the_next_block_is_there_before_it_is_needed() -> None:
    kv = MemoryKeyValue(MemoryStore(), random=Random(0))
    ids = ProducerIds(kv, "c")
    for _ in range(BLOCK - 100):
        await ids.next()
    await asyncio.sleep(1)
    kv.faults = KvFaults(unavailable=1.0)
    assert [await ids.next() for _ in range(500)][-1] == BLOCK + 399
    await ids.close()


async def test_the_rebuild_count_is_in_the_high_bits() -> None:
    store = MemoryStore()
    ids = ProducerIds(MemoryKeyValue(store), "c", rebuild_count=REBUILD_COUNT_MAX)
    largest = await ids.next()
    assert largest == REBUILD_COUNT_MAX << 48
    assert largest < 1 << 62
    older = ProducerIds(MemoryKeyValue(store), "c", rebuild_count=3)
    assert await older.next() == largest + BLOCK, "the store's word counts when it is the later one"
    await ids.close()
    await older.close()


async def test_a_rebuilt_counter_starts_again_under_the_next_rebuild_count() -> None:
    store = MemoryStore()
    for rebuild_count in (0, 1):
        ids = ProducerIds(MemoryKeyValue(store), "c")
        ids.rebuild_count = rebuild_count
        assert await ids.next() == rebuild_count << 48
        await ids.close()


@pytest.mark.slow
def test_no_id_is_given_twice() -> None:
    """Several processes, unknown outcomes of every kind, and processes that die and start again."""

    async def main(seed: int) -> None:
        store = MemoryStore()
        given: list[int] = []
        refused: set[ErrorCode] = set()
        faults = KvFaults(latency_s=0.1, unavailable=0.1, unknown_applied=0.2, unknown_lost=0.1, unknown_late=0.2)

        async def process(number: int) -> None:
            random = Random(seed * 100 + number)
            for life in range(3):
                kv = MemoryKeyValue(store, random=Random(f"{seed}{number}{life}"), faults=faults)
                ids = ProducerIds(kv, "c")
                for _ in range(random.randrange(1, 2500)):
                    try:
                        given.append(await ids.next())
                    except RequestError as error:
                        refused.add(error.code)
                        await asyncio.sleep(0.1)
                await ids.close()

        await asyncio.gather(*(process(number) for number in range(4)))
        assert len(set(given)) == len(given)
        assert len(given) > 1_000
        assert refused <= {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

    for seed in range(5):
        run(main(seed), seed)


async def test_many_at_once_share_one_fetch() -> None:
    store = MemoryStore()
    ids = ProducerIds(MemoryKeyValue(store, random=Random(0), faults=KvFaults(latency_s=0.1)), "c")
    given = await asyncio.gather(*(ids.next() for _ in range(200)))
    assert sorted(given) == list(range(200))
    assert store.revision == 2
    await ids.close()


async def test_a_cancelled_producer_takes_nobody_elses_block() -> None:
    store = MemoryStore()
    ids = ProducerIds(MemoryKeyValue(store, random=Random(0), faults=KvFaults(latency_s=0.1)), "c")
    first, second = (asyncio.create_task(ids.next()) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    assert await second == 0
    await ids.close()


@pytest.mark.parametrize(
    "value",
    [
        b"", b"7", b'{"format":2}', b'{"format":1}', b'{"format":1,"incarnation":0,"next":281474976710655}',
        b'{"format":1,"incarnation":0,"next":1.5}', b'{"format":1,"incarnation":0,"next":-1}', b"[" * 100_000,
        b'{"format":1,"incarnation":-1,"next":0}', b'{"format":1,"incarnation":true,"next":0}',
        b'{"format":1,"incarnation":16384,"next":0}',
    ],
)  # fmt: skip
async def test_a_record_that_cannot_be_read_gives_no_id_and_is_not_overwritten(value: bytes) -> None:
    store = MemoryStore()
    kv = MemoryKeyValue(store)
    await kv.commit([], [Put(producer_ids_key("c"), value)])
    ids = ProducerIds(kv, "c")
    with pytest.raises(RequestError) as caught:
        await ids.next()
    assert caught.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    found = store.get(producer_ids_key("c"))
    assert found is not None
    assert found.value == value
    await ids.close()
