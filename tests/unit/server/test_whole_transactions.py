"""A transaction through a whole process: records and a group's offsets, committed or aborted."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from bmq.console.listing import Order, Page
from bmq.console.state import TransactionFilter
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.features import TRANSACTION_VERSION
from bmq.core.model import PartitionKey
from bmq.core.net.request import Response
from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from bmq.core.records.control import Marker, marker_of
from bmq.core.records.cursor import read_batches
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from bmq.meta.cluster.member import Address
from bmq.meta.group_placement import shard_of
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.console_view import console_state
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeClient
from tests.harness.single_node import single_node
from tests.harness.waiting import until
from tests.unit.coordinator.txn_requests import txn_request
from tests.unit.server.test_transactions import World

READ_COMMITTED = 1


class Process(World):
    """A process with the topic ``orders``, and a producer of the transactional id "t"."""

    producer_id = epoch = -1
    storage: MemoryStorage

    async def start(self) -> None:
        metadata = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=None, name="orders")],
            allow_auto_topic_creation=True,
        )
        await self.ask(metadata, 9)
        await until(lambda: "orders" in self.node.catalog.topics)
        for key_type, key in ((0, "g"), (1, "t")):
            find = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            assert (await self.ask(find, 6)).coordinators[0].error_code == 0
        request = m.InitProducerIdRequest(
            version=5, transactional_id="t", transaction_timeout_ms=600_000, producer_id=-1, producer_epoch=-1
        )
        begun = await self.ask(request, 5)
        assert begun.error_code == 0
        self.producer_id, self.epoch = begun.producer_id, begun.producer_epoch

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(self.node.catalog.topics["orders"].topic_id, 0)

    async def write(self) -> None:
        """Add the partition to the transaction, and produce a record to it."""
        topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="orders", partitions=[0])
        request = m.AddPartitionsToTxnRequest(
            version=3, v3_and_below_transactional_id="t", v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=[topic],
        )  # fmt: skip
        (added,) = (await self.ask(request, 3)).results_by_topic_v3_and_below
        assert [each.partition_error_code for each in added.results_by_partition] == [0]
        assert await self.produce() == 0

    async def produce(self, version: int = 9, sequence: int = 0) -> int:
        """Return the error of a Produce of one record in the transaction."""
        batch = build_batch(
            [Record(value=b"paid")], producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )  # fmt: skip
        Topic = ProduceRequest.TopicProduceData
        part = Topic.PartitionProduceData(index=0, records=bytes(batch))
        request = ProduceRequest(
            transactional_id="t", acks=-1, timeout_ms=30_000, topic_data=[Topic(name="orders", partition_data=[part])]
        )
        frame = struct.pack(">hhihx", ProduceRequest.API_KEY, version, 1, -1) + bytes(request.encode(version=version))
        data = await self.exchange(frame)
        return int(ProduceResponse.decode(data[5:], version=version).responses[0].partition_responses[0].error_code)

    async def commit_offset(self, offset: int) -> None:
        """Add the group to the transaction, and commit an offset in it."""
        request = m.AddOffsetsToTxnRequest(
            version=3, transactional_id="t", producer_id=self.producer_id, producer_epoch=self.epoch, group_id="g"
        )
        assert (await self.ask(request, 3)).error_code == 0
        commit = txn_request("g", [("orders", 0, offset)], producer=self.producer_id, epoch=self.epoch)
        assert (await self.ask(commit, 3)).topics[0].partitions[0].error_code == 0

    async def end_request(self, version: int, *, commits: bool = True) -> Any:
        """Return the response to one EndTxn."""
        request = m.EndTxnRequest(
            version=version, transactional_id="t", producer_id=self.producer_id, producer_epoch=self.epoch,
            committed=commits,
        )  # fmt: skip
        return await self.ask(request, version)

    async def try_end(self, *, commits: bool) -> int:
        return int((await self.end_request(3, commits=commits)).error_code)

    async def end(self, *, commits: bool) -> None:
        """End the transaction, as a client does: it asks again while no coordinator takes the request."""
        E = ErrorCode
        retried = {E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_LOAD_IN_PROGRESS, E.CONCURRENT_TRANSACTIONS}
        for _ in range(600):
            code = await self.try_end(commits=commits)
            if code not in retried:
                break
            await asyncio.sleep(0.1)
        assert code == 0

    async def state(self) -> str:
        """Return the transaction's state, by Kafka's name."""
        found = await self.ask(m.DescribeTransactionsRequest(version=0, transactional_ids=["t"]), 0)
        return str(found.transaction_states[0].transaction_state)

    async def ended(self, state: str) -> None:
        """Wait until all markers are written."""
        assert self.node.coordinator is not None
        shards = self.node.coordinator.transactions.shards
        await until(lambda: shards.transactions_by_state()[state] == 1, 60)
        assert await self.state() == state

    async def offset(self) -> tuple[int, int]:
        """Return error and offset of an OffsetFetch for stable offsets."""
        topics = [m.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
        request = m.OffsetFetchRequest(version=7, group_id="g", topics=topics, require_stable=True)
        part = (await self.ask(request, 7)).topics[0].partitions[0]
        return part.error_code, part.committed_offset

    async def fetch(self) -> Any:
        """Return the partition's part of a Fetch of committed records from its start."""
        Topic = FetchRequest.FetchTopic
        wanted = Topic.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
            partition_max_bytes=1 << 20,
        )  # fmt: skip
        request = FetchRequest(
            replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=READ_COMMITTED, session_id=0,
            session_epoch=-1, topics=[Topic(topic_id=self.key.topic_id, partitions=[wanted])],
            forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        frame = struct.pack(">hhihx", FetchRequest.API_KEY, 13, 1, -1) + bytes(request.encode(version=13))
        data = await self.exchange(frame)
        return FetchResponse.decode(data[5:], version=13).responses[0].partitions[0]

    async def exchange(self, frame: bytes) -> bytes:
        """Return the response to a frame, both without their lengths."""
        response = self.node.proxy.client_endpoints["PLAINTEXT"](memoryview(bytearray(frame)), cast(Any, FakeClient()))
        if isinstance(response, Awaitable):
            response = await response
        assert isinstance(response, Response)
        data = b"".join(map(bytes, response.buffers))
        if response.release is not None:
            response.release()
        return data


@asynccontextmanager
async def process() -> AsyncIterator[Process]:
    """Yield a process once the level is in force."""
    storage = MemoryStorage(Random(0), datanodes=3)
    fs, kv = MemoryFileSystem(storage, "n"), MemoryKeyValue(MemoryStore())
    async with single_node(NodeConfig(), fs, kv, LoopClock()) as node:
        node.is_at({"PLAINTEXT": Address(host="here", port=9092)})
        await node.start()
        await until(lambda: node.view.levels.of(TRANSACTION_VERSION) == 2)
        made = Process(node, cast(Any, None))
        made.storage = storage
        await made.start()
        yield made


def batches_of(part: Any) -> list[Any]:
    return list(read_batches(memoryview(bytes(part.records or b""))))


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
async def test_records_and_offsets_of_a_transaction_become_visible_with_its_end(*, commits: bool) -> None:
    async with process() as p:
        await p.write()
        await p.commit_offset(5)
        assert await p.state() == "Ongoing"
        assert batches_of(await p.fetch()) == [], "undecided"
        assert await p.offset() == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)

        await p.end(commits=commits)
        await p.ended("CompleteCommit" if commits else "CompleteAbort")
        part = await p.fetch()
        data, marker = batches_of(part)
        assert (data.base_offset, marker.base_offset, part.last_stable_offset) == (0, 1, 2)
        assert marker_of(marker) is (Marker.COMMIT if commits else Marker.ABORT)
        aborted = [(each.producer_id, each.first_offset) for each in part.aborted_transactions or ()]
        assert aborted == ([] if commits else [(p.producer_id, 0)])
        assert await p.offset() == (0, 5 if commits else -1)


@pytest.mark.slow
async def test_no_record_is_taken_before_its_partition_is_in_the_transaction() -> None:
    async with process() as p:
        assert await p.produce() == ErrorCode.INVALID_TXN_STATE
        assert await p.produce(version=11) == ErrorCode.TRANSACTION_ABORTABLE
        await p.write()
        assert await p.produce(sequence=1) == 0, "further batches need no question"


@pytest.mark.slow
async def test_no_end_is_confirmed_with_fewer_copies_than_the_setting_asks_for() -> None:
    async with process() as p:
        assert p.node.catalog.topics[TRANSACTIONS_TOPIC].configs["min.insync.replicas"] == "2"
        await p.write()
        nodes = list(p.storage.datanodes)
        for name in nodes[1:]:
            p.storage.kill_datanode(name)
        for _ in range(2):
            assert await p.try_end(commits=True) == ErrorCode.COORDINATOR_NOT_AVAILABLE
        found = await p.ask(m.FindCoordinatorRequest(key_type=1, coordinator_keys=["t"]), 6)
        assert found.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        for name in nodes[1:]:
            p.storage.start_datanode(name)
        await p.end(commits=True)
        await p.ended("CompleteCommit")
        assert len(batches_of(await p.fetch())) == 2


@pytest.mark.slow
async def test_a_client_ends_a_hanging_transaction_of_a_group() -> None:
    async with process() as p:
        await p.commit_offset(5)
        number = shard_of("g", p.node.catalog.topics[OFFSETS_TOPIC].partitions)
        asked = m.WriteTxnMarkersRequest.WritableTxnMarker
        topics = [
            asked.WritableTxnMarkerTopic(name=name, partition_indexes=[number])
            for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
        ]
        marker = asked(
            producer_id=p.producer_id, producer_epoch=p.epoch, transaction_result=False, topics=topics,
            coordinator_epoch=0, transaction_version=0,
        )  # fmt: skip
        response = await p.ask(m.WriteTxnMarkersRequest(markers=[marker]), 1)
        codes = [topic.partitions[0].error_code for topic in response.markers[0].topics]
        assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]
        assert await p.offset() == (0, -1)


@pytest.mark.slow
async def test_offsets_that_come_after_the_end_of_their_transaction_are_refused() -> None:
    async with process() as p:
        await p.commit_offset(5)
        await p.end(commits=False)
        await p.ended("CompleteAbort")
        late = txn_request("g", [("orders", 0, 9)], producer=p.producer_id, epoch=p.epoch)
        assert (await p.ask(late, 3)).topics[0].partitions[0].error_code == ErrorCode.INVALID_TXN_STATE
        assert await p.offset() == (0, -1), "neither committed nor pending for ever"


@pytest.mark.slow
async def test_an_end_of_version_5_raises_the_epoch_and_its_repetition_says_so_again() -> None:
    async with process() as p:
        await p.write()
        ended = await p.end_request(5)
        assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, p.producer_id, p.epoch + 1)
        await p.ended("CompleteCommit")
        again = await p.end_request(5)
        assert (again.error_code, again.producer_id, again.producer_epoch) == (0, p.producer_id, p.epoch + 1)
        later = await p.end_request(5, commits=False)
        assert later.error_code == ErrorCode.INVALID_TXN_STATE, "the transaction before was committed"


@pytest.mark.slow
async def test_an_end_of_version_4_keeps_the_epoch() -> None:
    async with process() as p:
        await p.write()
        assert (await p.end_request(4)).error_code == 0
        await p.ended("CompleteCommit")
        assert (await p.end_request(4)).error_code == 0
        assert (await p.end_request(4, commits=False)).error_code == ErrorCode.INVALID_TXN_STATE


@pytest.mark.slow
async def test_the_console_shows_a_transaction_and_where_it_is_open() -> None:
    async with process() as p:
        console = console_state(p.node)
        assert await console.transaction("nobody") is None
        await p.write()
        await p.commit_offset(5)
        wanted = TransactionFilter(states=("Ongoing",))
        (listed,) = (await console.transactions(wanted, Order("transactional_id"), Page("", 10), None))["transactions"]
        assert (listed["transactional_id"], listed["producer_id"], listed["timeout_ms"]) == (
            "t",
            p.producer_id,
            600_000,
        )
        assert listed["started_ms"] is not None
        details = await console.transaction("t")
        assert details is not None
        number = shard_of("g", p.node.catalog.topics[OFFSETS_TOPIC].partitions)
        assert sorted(details["partitions"]) == [(OFFSETS_TOPIC, number), ("orders", 0)]
        waits = await console.marker_waits(sorted(details["partitions"]))
        assert [(each["process"], each["why"]) for each in waits] == [("n", ""), ("n", "")]
        found = await console.open_transactions("orders", 0)
        assert (found["last_stable_offset"], found["high_watermark"]) == (0, 1)
        assert [each["producer_id"] for each in found["transactions"]] == [p.producer_id]
        await p.end(commits=True)
        await p.ended("CompleteCommit")
        assert (await console.open_transactions("orders", 0))["transactions"] == []
        assert (await console.transactions(wanted, Order("transactional_id"), Page("", 10), None))["total"] == 0
