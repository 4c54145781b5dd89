"""The produce path from the bytes of a request to the bytes of its response, through endpoint, handler, owner, and a
broker on storage in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from kafka.protocol.producer import ProduceRequest

from bmq.broker.config import BrokerConfig
from bmq.broker.partition.recompress import Outcome
from bmq.core.errors import ErrorCode
from bmq.core.net.request import NO_RESPONSE, CloseConnection, Response
from bmq.core.records.batch import CONTROL, TRANSACTIONAL, Batch
from bmq.core.records.compression import Compression, recompress
from bmq.core.records.reader import read_records
from bmq.meta.kv_memory import KvFaults
from bmq.storage.memory import Faults
from tests.harness.fakes import FakeClient
from tests.simulation.world import read_log
from tests.unit.broker.world import batch, idempotent, world


@pytest.mark.parametrize("version", range(3, 14))
async def test_each_version_of_produce_is_served(version: int) -> None:
    async with world() as w:
        w.topic()
        for expected in (0, 3):
            response = await w.produce_one(batch(count=3), version=version)
            assert (response.index, response.error_code, response.base_offset) == (0, 0, expected)
            assert response.log_append_time_ms == -1
            if version >= 5:
                assert response.log_start_offset == 0
        stored = await read_log(w.fs, 6, w.path())
        assert [each.base_offset for each in stored] == [0, 3]


async def test_rule_1_acked_means_flushed() -> None:
    """A produce with acks=-1 waits for the flush, one with acks=1 does not, one with acks=0 gets no response."""

    async with world() as w:
        w.topic()
        owner = await w.owner()
        await w.produce_one(batch())
        w.storage.faults = Faults(ack_s=(1.0, 1.0))
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert (await w.produce_one(batch(), acks=1)).base_offset == 1
        assert await w.produce({("orders", 0): batch()}, acks=0) == []
        assert loop.time() == began
        assert owner.high_watermark == 1
        assert (await w.produce_one(batch())).base_offset == 3
        assert loop.time() >= began + 1.0
        assert owner.high_watermark == 4


async def test_the_response_has_each_partition_in_the_order_of_the_request() -> None:
    """One request gets a response in its own order; a partition that fails does not delay the others."""

    async with world() as w:
        w.topic("orders", 2)
        w.topic("other", 1)
        w.topic("__consumer_offsets", 1)
        answers = await w.produce(
            {
                ("other", 0): batch(),
                ("missing", 0): batch(),
                ("orders", 1): batch(count=2),
                ("orders", 7): batch(),
                ("__consumer_offsets", 0): batch(),
                ("orders", 0): None,
            }
        )
        assert [ErrorCode(each.error_code).name for each in answers] == [
            "NONE",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "NONE",
            "UNKNOWN_TOPIC_OR_PARTITION",
            "INVALID_TOPIC_EXCEPTION",
            "INVALID_RECORD",
        ]
        assert [each.base_offset for each in answers] == [0, -1, 0, -1, -1, -1], "an error never tells offset 0"
        assert all(each.error_message for each in answers if each.error_code)
        counters = w.metrics.topics["orders"]
        assert (counters.produces, counters.failed_produces, counters.messages_in) == (3, 2, 2)
        assert counters.bytes_in == len(batch(count=2))
        assert w.metrics.traffic is not None
        w.metrics.traffic.roll(1.0)
        window = w.metrics.traffic.last
        assert window.total.records_in == 3
        assert {topic: list(parts) for topic, parts in window.topics.items()} == {"other": [0], "orders": [1]}
        assert window.topics["orders"][1].bytes_in == len(batch(count=2))
        assert "missing" not in w.metrics.topics
        assert w.metrics.apis[0].errors == {3: 2, 17: 1, 87: 1}


async def test_a_topic_id_that_does_not_exist_is_refused() -> None:
    async with world() as w:
        w.topic()
        (response,) = await w.produce({("missing", 0): batch()}, version=13)
        assert response.error_code == ErrorCode.UNKNOWN_TOPIC_ID


@pytest.mark.parametrize("version", [12, 13])
async def test_a_batch_behind_one_refused_for_an_unknown_topic_is_refused_until_that_one_is_resent(
    version: int,
) -> None:
    """Metadata of another process had the topic already; the owner would take the second batch for the beginning."""

    async with world() as w:
        topic = w.topic()
        w.catalog.put("orders", None)
        refused = await w.produce_one(idempotent(0), version=version, topic_id=topic.topic_id)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID if version == 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert refused.error_code == unknown
        w.catalog.put("orders", topic)
        behind = await w.produce_one(idempotent(1), version=version)
        assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        answers = [await w.produce_one(idempotent(sequence), version=version) for sequence in (0, 1)]
        assert [(each.error_code, each.base_offset) for each in answers] == [(0, 0), (0, 1)]


async def test_bytes_that_are_not_a_produce_request_close_the_connection() -> None:
    async with world() as w:
        frame = bytearray.fromhex("0000 0009 00000001 ffff 00") + b"\x00" * 3
        with pytest.raises(CloseConnection):
            w.endpoint(memoryview(frame), w.client)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (bytes(batch())[:20], ErrorCode.CORRUPT_MESSAGE),
        (b"\x00" * 20, ErrorCode.INVALID_RECORD),
        (bytes(batch()) + bytes(batch()), ErrorCode.INVALID_RECORD),
        (bytes(batch())[:-1] + b"?", ErrorCode.CORRUPT_MESSAGE),
        (bytes(batch(attributes=CONTROL)), ErrorCode.INVALID_RECORD),
        (
            bytes(batch(attributes=TRANSACTIONAL, producer_id=1, producer_epoch=0, base_sequence=0)),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (bytes(batch(b"x" * 2_000_000)), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["empty", "short", "short of an old format", "two batches", "crc", "control", "transactional", "large"],
)
async def test_records_that_are_not_one_intact_batch_of_a_client_are_refused(records: bytes, code: ErrorCode) -> None:
    async with world() as w:
        w.topic()
        response = await w.produce_one(records)
        assert (response.error_code, response.base_offset, response.log_start_offset) == (code, -1, -1)
        assert (await w.owner()).high_watermark == 0


async def test_zstd_needs_version_7() -> None:
    async with world() as w:
        w.topic()
        squeezed = recompress(Batch(memoryview(batch())), Compression("zstd", 3))
        assert (await w.produce_one(squeezed, version=6)).error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        assert (await w.produce_one(squeezed, version=7)).error_code == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"acks": 2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"acks": -2}, ErrorCode.INVALID_REQUIRED_ACKS),
        ({"transactional_id": "t"}, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
async def test_bad_acks_and_transactional_ids_are_refused_for_every_partition(
    options: dict[str, Any], code: ErrorCode
) -> None:
    async with world() as w:
        w.topic("orders", 2)
        answers = await w.produce({("orders", 0): batch(), ("orders", 1): batch()}, **options)
        assert [each.error_code for each in answers] == [code, code]


async def test_a_failed_produce_without_acks_closes_the_connection() -> None:
    """Close the connection, as Kafka does: nothing else can show the client that it sends to the wrong broker."""

    async with world() as w:
        w.topic()
        with pytest.raises(CloseConnection):
            await w.produce({("missing", 0): batch()}, acks=0)


async def test_log_append_time_is_the_brokers_clock_and_a_duplicates_first_one() -> None:
    async with world() as w:
        w.topic(message_timestamp_type="LogAppendTime")
        response = await w.produce_one(idempotent(0))
        assert response.log_append_time_ms == w.scopes.process.clock.now_ms()
        again = await w.produce_one(idempotent(0))
        assert again.log_append_time_ms == response.log_append_time_ms
        assert (await w.produce_one(batch(), acks=1)).log_append_time_ms == w.scopes.process.clock.now_ms()


# ------------------------------------------------------------------------------------------------------- duplicates


async def test_rule_9_duplicates_wait_for_the_original() -> None:
    """Resent while the original is on its way: the first offset, when that is flushed, and written once."""

    async with world() as w:
        w.topic()
        await w.owner()
        await w.produce_one(idempotent(0, 2))
        w.storage.faults = Faults(ack_s=(1.0, 1.0))
        first = w.produce({("orders", 0): idempotent(2, 3)})
        second = w.produce({("orders", 0): idempotent(2, 3)})
        buffered = await w.produce_one(idempotent(2, 3), acks=1)
        assert buffered.base_offset == 2
        await asyncio.sleep(0.5)
        assert not second.done()
        assert [(await each)[0].base_offset for each in (first, second)] == [2, 2]
        late = await w.produce_one(idempotent(0, 2))
        assert (late.error_code, late.base_offset) == (0, 0)
        gap = await w.produce_one(idempotent(9))
        assert (gap.error_code, gap.base_offset) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
        assert [each.base_offset for each in await read_log(w.fs, 5, w.path())] == [0, 2]


async def test_rule_9_a_duplicate_with_acks_all_waits_for_an_original_with_acks_1() -> None:
    """The original asked for acks=1, its repetition for -1: that one waits."""

    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        w.storage.faults = Faults(ack_s=(1.0, 1.0))
        assert (await w.produce_one(idempotent(0), acks=1)).base_offset == 1
        began = asyncio.get_running_loop().time()
        assert (await w.produce_one(idempotent(0))).base_offset == 1
        assert asyncio.get_running_loop().time() >= began + 0.9


# ------------------------------------------------------------------------------------------------------------ order


async def test_pipelined_requests_keep_their_order() -> None:
    """Sent back to back without waiting, to a partition that is not even open yet."""

    async with world() as w:
        w.topic()
        sent = [w.produce({("orders", 0): idempotent(number)}) for number in range(20)]
        assert len(w.scopes.process.produce_queue) == 1
        assert [(await each)[0].base_offset for each in sent] == list(range(20))
        assert (len(w.scopes.process.produce_queue), w.scopes.process.produce_queue.held_bytes) == (0, 0)
        assert not w.client.calls, "nobody is told of the connection's end any more"


async def test_rule_9_held_produces_are_a_fifo_that_nothing_overtakes() -> None:
    """The partition opens while requests are held and others go on coming."""

    async with world() as w:
        w.topic(assign=False)
        w.topic("ready")
        assert (await w.produce({("ready", 0): batch()}))[0].error_code == 0
        w.storage.faults = Faults(call_s=(0.01, 0.02))
        w.assign()
        sent = []
        for number in range(60):
            sent.append(w.produce({("orders", 0): idempotent(number)}))
            await asyncio.sleep(0.001)
        assert [(await each)[0].base_offset for each in sent] == list(range(60))


async def test_rule_9_a_produce_at_the_moment_of_opening_goes_behind_the_held_ones() -> None:
    """A produce that arrives between the partition's opening and the turn of those held goes behind them."""

    async with world() as w:
        w.topic()
        sent = [w.produce({("orders", 0): idempotent(0)})]

        def arrive(*_: object) -> None:
            assert w.assigned.get(w.key()) is not None
            sent.append(w.produce({("orders", 0): idempotent(1)}))

        w.flush_listener.opened = arrive  # type: ignore[method-assign, assignment]
        await asyncio.gather(*sent)
        assert [(await each)[0].base_offset for each in sent] == [0, 1]


async def test_a_produce_held_for_held_produce_ms_gets_a_retriable_error() -> None:
    """held_produce_ms bounds the wait for an owner; another partition of the same request is written meanwhile."""

    async with world(held_produce_ms=500) as w:
        w.topic("orders", assign=False)
        w.topic("ready")
        await w.produce({("ready", 0): batch()})
        w.kv.faults = KvFaults(unavailable=1.0)
        w.assign()
        began = asyncio.get_running_loop().time()
        answers = await w.produce({("ready", 0): batch(), ("orders", 0): batch()})
        assert [each.error_code for each in answers] == [0, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert 0.5 <= asyncio.get_running_loop().time() - began < 0.7
        w.kv.faults = KvFaults()
        assert (await w.produce_one(batch())).base_offset == 0


async def test_a_produce_is_held_no_longer_than_the_requests_time_out() -> None:
    async with world() as w:
        w.topic()
        w.kv.faults = KvFaults(unavailable=1.0)
        began = asyncio.get_running_loop().time()
        response = await w.produce_one(batch(), timeout_ms=200)
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert asyncio.get_running_loop().time() - began < 0.4
        w.kv.faults = KvFaults()
        assert (await w.produce_one(batch())).base_offset == 0, "what timed out while it was held is not written"


async def test_a_batch_whose_request_timed_out_stays_in_the_log() -> None:
    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        w.storage.faults = Faults(ack_s=(1.0, 1.0))
        response = await w.produce_one(idempotent(0), timeout_ms=100)
        assert (response.error_code, response.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert (await w.produce_one(idempotent(0))).base_offset == 1


@pytest.mark.parametrize("is_closed", [True, False])
async def test_rule_9_held_produces_are_dropped_with_their_client(is_closed: bool) -> None:
    """The connection of a client that has gone may stay, for requests without a response."""
    async with world() as w:
        w.topic()
        w.kv.faults = KvFaults(unavailable=1.0)
        dropped = w.produce({("orders", 0): batch(b"dropped")})
        await asyncio.sleep(0)
        if is_closed:
            w.client.close()
            w.client = FakeClient()
        else:
            dropped.cancel()
            await asyncio.wait([dropped])
        kept = w.produce({("orders", 0): batch(b"kept")})
        w.kv.faults = KvFaults()
        assert (await kept)[0].base_offset == 0
        (stored,) = await read_log(w.fs, 1, w.path())
        assert b"kept" in bytes(stored.data)
        assert w.scopes.process.produce_queue.held_bytes == 0


async def test_held_bytes_are_bounded() -> None:
    """Produces for a partition without owner get a retriable error beyond a quarter of the bytes that may be without
    response."""

    async with world(queued_max_request_bytes=4096, socket_request_max_bytes=4096) as w:
        w.topic()
        w.kv.faults = KvFaults(unavailable=1.0)
        sent = [w.produce({("orders", 0): idempotent(number)}) for number in range(30)]
        assert w.scopes.process.produce_queue.held_bytes <= 4096 // 4
        w.kv.faults = KvFaults()
        answers = [(await each)[0] for each in sent]
        codes = [ErrorCode(each.error_code) for each in answers]
        refused = codes.index(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert 0 < refused < 30
        assert [each.base_offset for each in answers[:refused]] == list(range(refused))
        assert set(codes[refused:]) == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_produces_for_a_full_buffer_are_held_in_order_and_not_refused() -> None:
    """An owner without room: produces are held, in order, and never refused; the buffer's bound is kept."""

    async with world(broker=BrokerConfig(buffer_bytes=2000, flush_bytes=1000, flushes_per_partition=1)) as w:
        w.topic()
        await w.produce_one(idempotent(0))
        w.storage.faults = Faults(ack_s=(0.05, 0.05))
        driver = w.broker.get(w.key())
        assert driver is not None
        sent = [w.produce({("orders", 0): idempotent(number)}) for number in range(1, 101)]
        most = 0
        while not sent[-1].done():
            most = max(most, driver.machine.batches.buffered_bytes)
            await asyncio.sleep(0.01)
        assert [(await each)[0].base_offset for each in sent] == list(range(1, 101))
        assert most < 2000 + len(idempotent(0))


async def test_a_produce_whose_partition_is_lost_gets_a_retriable_error() -> None:
    """Redpanda #5355: never UNKNOWN_SERVER_ERROR.  Afterwards it is reopened, and the resent batch stands once."""

    async with world() as w:
        w.topic()
        await w.produce_one(batch())
        w.storage.faults = Faults(ack_s=(5.0, 5.0))
        sent = w.produce({("orders", 0): idempotent(0)})
        await asyncio.sleep(0.01)
        w.broker.fence_all()
        response = (await sent)[0]
        assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        w.storage.faults = Faults()
        again = await w.produce_one(idempotent(0))
        assert again.error_code == 0
        stored = await read_log(w.fs, again.base_offset + 1, w.path())
        assert [each.producer_id for each in stored].count(7) == 1


# ----------------------------------------------------------------------------------------------------- recompression


@pytest.mark.parametrize("target", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
async def test_batches_are_stored_under_the_topics_compression_type(target: str) -> None:
    """Batches are stored under the topic's codec, whatever they came with, in the order of the requests."""

    async def slowly(call: Callable[[], Outcome]) -> Outcome:
        await asyncio.sleep(0.01)
        return call()

    async with world(offload=slowly) as w:
        w.topic(compression_type=target)
        came = [Compression("none"), Compression("gzip", 6), Compression("zstd", 3), Compression("lz4", 9)]
        sent = []
        for number in range(12):
            data = recompress(Batch(memoryview(idempotent(2 * number, 2))), came[number % 4])
            sent.append(w.produce({("orders", 0): data}))
        assert [(await each)[0].base_offset for each in sent] == list(range(0, 24, 2))
        stored = await read_log(w.fs, 24, w.path())
        name = "none" if target == "uncompressed" else target
        assert {each.attributes & 7 for each in stored} == {Compression(name).number}
        assert [record.offset for each in stored for record in read_records(each)] == list(range(24))


async def test_recompression_may_make_a_batch_too_large() -> None:
    async with world() as w:
        w.topic(compression_type="uncompressed")
        small = recompress(Batch(memoryview(batch(b"x" * 2_000_000))), Compression("zstd", 3))
        assert (await w.produce_one(small)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await w.produce_one(small, acks=1)).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert (await w.produce_one(batch(), acks=1)).base_offset == 0


async def test_damaged_compressed_records_are_refused_and_the_next_batch_is_stored() -> None:
    """The CRC is right, the records are not: INVALID_RECORD, and those behind go on."""

    async with world() as w:
        w.topic(compression_type="gzip")
        bad = recompress(Batch(memoryview(batch())), Compression("none"))
        broken = batch(attributes=Compression("zstd").number)
        assert bad == batch()
        sent = [w.produce({("orders", 0): data}) for data in (broken, batch())]
        answers = [(await each)[0] for each in sent]
        assert [ErrorCode(each.error_code).name for each in answers] == ["INVALID_RECORD", "NONE"]


async def test_recompression_has_a_bound_and_ends_with_the_partition() -> None:
    async def stuck(call: Callable[[], Outcome]) -> Outcome:
        await asyncio.sleep(100)
        return call()

    async with world(offload=stuck, broker=BrokerConfig(buffer_bytes=2000, flush_bytes=1000)) as w:
        w.topic(compression_type="gzip")
        owner = await w.owner()
        sent = [w.produce({("orders", 0): idempotent(number)}) for number in range(100)]
        await asyncio.sleep(0.001)
        assert not owner.has_room
        assert len(w.scopes.process.produce_queue) == 1
        w.broker.fence_all()
        outcomes = {ErrorCode((await each)[0].error_code) for each in sent[:3]}
        assert outcomes == {ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_acks_1_and_0_on_an_open_partition_are_served_without_a_turn_of_the_loop() -> None:
    """acks=1 and acks=0 on an open partition need no task, no timer and no turn of the loop."""

    async with world() as w:
        w.topic()
        await w.owner()
        Data = ProduceRequest.TopicProduceData
        for acks in (1, 0):
            piece = Data.PartitionProduceData(index=0, records=bytes(batch()))
            request = ProduceRequest(acks=acks, timeout_ms=1, topic_data=[Data(name="orders", partition_data=[piece])])
            outcome = w.send(request, 9)
            assert isinstance(outcome, Response)
            assert (outcome is NO_RESPONSE) == (acks == 0)
