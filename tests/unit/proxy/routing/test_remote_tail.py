"""A partition of another broker as this proxy reads it: what it asks of the owner, when, and what it says without."""

from __future__ import annotations

import asyncio

import pytest

from bmq.broker.partition.owner import PartitionOwner
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.peers import ConnectionKind
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.kv_memory import KvFaults
from bmq.proxy.routing.remote_tail import CONFIRM_EVERY_S, RemoteTail
from bmq.storage.memory import Faults
from tests.unit.endpoint.serving import append
from tests.unit.proxy.cluster import answers, batches_of, cluster, errors_of, idempotent, plain, value_of

pytestmark = pytest.mark.slow


async def test_a_parked_fetch_wakes_with_the_flush_and_reads_no_storage() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        loop = asyncio.get_running_loop()
        for number in range(5):
            parked = asyncio.ensure_future(world.fetch(world.want(number), max_wait_s=30))
            await asyncio.sleep(1)
            sent, began = world.send(plain()), loop.time()
            fetched = await parked
            assert loop.time() - began < 0.02
            assert [batch.base_offset for batch in batches_of(fetched)] == [number]
            await sent
        assert world.metrics.storage_read_bytes == 0
        assert world.network.links["b1", ConnectionKind.TAIL].requests[ApiKey.FETCH] < 40


async def test_a_partition_that_joins_does_not_wait_for_a_parked_request() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        await asyncio.sleep(0.1)  # the session's request is parked at the broker
        loop = asyncio.get_running_loop()
        parked = asyncio.ensure_future(world.fetch(world.want(0, 1), max_wait_s=30))
        await asyncio.sleep(0.01)
        began = loop.time()
        await world.send(plain(), 1)
        assert [batch.base_offset for batch in batches_of(await parked)] == [0]
        assert loop.time() - began < 0.05


async def test_old_records_are_read_from_storage_with_one_question_for_all() -> None:
    async with cluster() as world:
        await answers([world.send(plain(b"%d" % number, 3000)) for number in range(50)])
        await world.fetch(world.want(50))
        asked = world.network.asked[InternalKey.ACTIVE_SEGMENT]
        found = await asyncio.gather(*[world.fetch(world.want(0), max_wait_s=5) for _ in range(8)])
        assert min(len(batches_of(each)) for each in found) >= 40, "all at once share the room for responses"
        assert world.network.asked[InternalKey.ACTIVE_SEGMENT] - asked == 1
        for each in found:
            assert each.release is not None
            each.release()
        again = await world.fetch(world.want(7))
        assert world.network.asked[InternalKey.ACTIVE_SEGMENT] - asked == 1
        assert len(batches_of(again)) == 43


async def test_the_index_of_the_active_segment_comes_in_pieces() -> None:
    async with cluster() as world:
        await world.fetch(world.want(0))
        known = []
        for _ in range(4):
            await answers([world.send(plain(b"x", 50_000)) for _ in range(8)])
            followed = world.owners.follow(world.key())
            assert followed is not None
            active = await followed.ask_active_segment()
            own = world.broker("b1").assigned.get(world.key())
            assert active is not None
            assert own is not None
            assert own.active_segment is not None
            assert active.index.entries == own.active_segment.index.entries
            assert active.end_offset >= followed.high_watermark
            known.append(active.index)
        assert len(known[-1]) > 8
        assert all(each is known[0] for each in known)


async def test_rule_2_out_of_range_only_after_the_owner_was_asked() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        asked = world.network.asked[InternalKey.ASK]
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_NOT_AVAILABLE"]
        await asyncio.sleep(0.1)
        assert world.network.asked[InternalKey.ASK] == asked + 1
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_OUT_OF_RANGE"]
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_NOT_AVAILABLE"]
        await asyncio.sleep(5)  # that word is old by now
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0)) == ["OFFSET_NOT_AVAILABLE"]


async def test_rule_2_a_parked_fetch_out_of_range_ends_in_time() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        assert errors_of(await world.fetch(world.want(5), max_wait_s=0.5)) == ["OFFSET_OUT_OF_RANGE"]


async def test_rule_2_a_fenced_owner_calls_no_offset_out_of_range() -> None:
    """Send a consumer that has read further through another proxy to one that is cut off together with the old owner.

    OFFSET_OUT_OF_RANGE would make it jump, and read again or skip.  Only the store knows who owns the partition.
    """

    async with cluster() as world:
        await answers([world.send(plain()) for _ in range(3)])
        await world.fetch(world.want(0))
        world.broker("b1").kv.faults = KvFaults(unavailable=1.0)
        for _ in range(3):
            assert errors_of(await world.fetch(world.want(7), max_wait_s=0.3)) == ["OFFSET_NOT_AVAILABLE"]
        world.open(0, "b2")
        owner = await world.broker("b2").assigned.wait(world.key(), 5)
        for _ in range(5):
            await asyncio.ensure_future(_appended(owner))
        world.broker("b1").kv.faults = KvFaults()
        for _ in range(3):
            found = errors_of(await world.fetch(world.want(7), max_wait_s=0.3))
            assert "OFFSET_OUT_OF_RANGE" not in found
        world.view.assign("b2", world.key())
        await asyncio.sleep(1)
        assert errors_of(await world.fetch(world.want(7), max_wait_s=5)) == []


async def test_a_fetch_past_the_end_waits_for_the_confirmation_only() -> None:
    """Whatever it may wait: kafka-go's has no end."""

    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        now = asyncio.get_running_loop().time
        begin = now()
        assert errors_of(await world.fetch(world.want(5), max_wait_s=3600, min_bytes=1 << 20)) == [
            "OFFSET_OUT_OF_RANGE"
        ]
        assert now() - begin < 1
        world.broker("b1").kv.faults = KvFaults(unavailable=1.0)
        waiting = asyncio.ensure_future(world.fetch(world.want(5), max_wait_s=3600))
        await asyncio.sleep(30)
        assert not waiting.done(), "without the store nobody can prove it"
        world.broker("b1").kv.faults = KvFaults()
        begin = now()
        assert errors_of(await waiting) == ["OFFSET_OUT_OF_RANGE"]
        assert now() - begin < 3


async def test_repeated_fetches_past_the_end_do_not_load_the_store() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        asked, begin = world.network.asked[InternalKey.ASK], asyncio.get_running_loop().time()
        for _ in range(100):
            assert errors_of(await world.fetch(world.want(5), max_wait_s=60)) == ["OFFSET_OUT_OF_RANGE"]
        took_s = asyncio.get_running_loop().time() - begin
        assert world.network.asked[InternalKey.ASK] - asked <= took_s / CONFIRM_EVERY_S + 1


async def test_a_reader_behind_the_proxy_reaches_the_acknowledged_end() -> None:
    async with cluster() as world:
        world.storage.faults = Faults(ack_s=(0.5, 0.5))
        assert await answers([world.send(plain(), acks=1) for _ in range(2)]) == [("NONE", 0), ("NONE", 1)]
        remote = await world.owners.wait(world.key(), 5)
        assert (await remote.ends()).high_watermark == 0
        assert (await remote.flushed_ends()).high_watermark == 2
        assert await answers([world.send(plain(), acks=1)]) == [("NONE", 2)]
        assert await remote.delete_before(-1) == 3
        assert await answers([world.send(plain(), acks=1)]) == [("NONE", 3)]
        assert await remote.delete_before(4) == 4


async def _appended(owner: PartitionOwner) -> None:
    await append(owner, plain())


async def test_rule_2_without_the_owner_no_offset_is_out_of_range() -> None:
    async with cluster() as world:
        await answers([world.send(plain())])
        await world.fetch(world.want(1))
        world.network.links["b1", ConnectionKind.CONTROL].cut()
        world.network.unreachable.add("b1")
        for _ in range(5):
            assert errors_of(await world.fetch(world.want(5), max_wait_s=0.3)) == ["OFFSET_NOT_AVAILABLE"]


async def test_a_reader_goes_on_with_the_next_owner() -> None:
    """Move a partition, then kill its owner, under a reader: nothing comes twice or out of order."""

    async with cluster() as world:
        offset = 0
        seen: list[str] = []

        async def read() -> None:
            nonlocal offset
            while len(seen) < 90:
                fetched = await world.fetch(world.want(offset), max_wait_s=1)
                assert set(errors_of(fetched)) <= {"NOT_LEADER_OR_FOLLOWER", "OFFSET_NOT_AVAILABLE"}
                for batch in batches_of(fetched):
                    assert batch.base_offset == offset
                    offset = batch.next_offset
                    seen.append(value_of(batch))
                if fetched.release is not None:
                    fetched.release()

        reader = asyncio.ensure_future(read())
        for number in range(90):
            await world.send(idempotent(number))
            if number == 30:
                world.move(0, "b2")
            if number == 60:
                world.kill("b2")
                world.bury("b2", "b1")
        await reader
        assert seen == [f"7/{number}" for number in range(90)]


async def test_a_reader_notices_that_the_log_start_has_moved() -> None:
    async with cluster() as world:
        await answers([world.send(plain()) for _ in range(5)])
        await world.fetch(world.want(5))
        owner = await world.owners.wait(world.key(), 5)
        await owner.delete_before(3)
        await asyncio.sleep(0.6)
        followed = world.owners.follow(world.key())
        assert followed is not None
        assert followed.log_start == 3
        assert errors_of(await world.fetch(world.want(1))) == ["OFFSET_OUT_OF_RANGE"]


async def test_a_question_that_was_never_sent_fails_with_its_connection() -> None:
    """Their owner goes in the very turn in which they were asked."""

    async with cluster() as world:
        for _ in range(3):
            await world.send(plain())
        await world.fetch(world.want(3))
        tail = world.remote_owners.follow(world.key())
        assert isinstance(tail, RemoteTail)
        (link,) = world.remote_owners._tail_links.values()
        assert not tail.ask_end()
        tail._active_upto = -1
        asking = asyncio.ensure_future(tail.ask_active_segment())
        await asyncio.sleep(0)
        link.shut()
        with pytest.raises(RequestError) as error:
            await asking
        assert error.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert not tail._is_confirming
