"""Transactional producers with a request that they give up; then they end the transaction and begin another."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from kafka.protocol.admin import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from bmq.core.wire.api_keys import ApiKey
from bmq.meta.shard_kinds import TRANSACTIONS, ShardKind
from tests.simulation.abandoned_requests import Message, committed
from tests.simulation.abandoning import TOPIC, Abandoning, OfALog
from tests.simulation.kafka_clients import produce_request

TIMEOUT_MS = 600_000
"""Longer than a history: no transaction is aborted by its time-out."""
ENDED = {"PrepareCommit", "CompleteCommit"}


class Transacting(Abandoning):
    """A producer whose transactional id and group have its name.  Its requests are of transactions of version 1."""

    shards: ClassVar[ShardKind | None] = TRANSACTIONS
    producer_id = epoch = -1

    async def prepare(self) -> None:
        await super().prepare()
        await self.begin()

    async def begin(self) -> None:
        """Get a producer id and an epoch, as a new instance does."""
        begun = await self.respond(self.init())
        self.producer_id, self.epoch = begun.producer_id, begun.producer_epoch

    def init(self) -> Message:
        request = InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS, producer_id=-1, producer_epoch=-1
        )
        return Message(request, InitProducerIdResponse, 4)

    def add(self, name: str = TOPIC, partition: int | None = None) -> Message:
        """Return the request that adds a partition: by default that of ``TOPIC``."""
        added = self.partition if partition is None else partition
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=[added])
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=[topic],
        )  # fmt: skip
        return Message(request, AddPartitionsToTxnResponse, 3)

    def add_offsets(self) -> Message:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=self.name
        )
        return Message(request, AddOffsetsToTxnResponse, 3)

    def commit_offset(self, offset: int) -> Message:
        Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = Topic.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        request = TxnOffsetCommitRequest(
            transactional_id=self.name, group_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch,
            topics=[Topic(name=TOPIC, partitions=[part])],
        )  # fmt: skip
        return Message(request, TxnOffsetCommitResponse, 3)

    def end(self) -> Message:
        request = EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=True
        )
        return Message(request, EndTxnResponse, 3)

    async def state(self) -> str:
        message = Message(DescribeTransactionsRequest(transactional_ids=[self.name]), DescribeTransactionsResponse, 0)
        return str((await self.respond(message)).transaction_states[0].transaction_state)


class Beginning(Transacting):
    """A new instance of an application."""

    apis = (ApiKey.INIT_PRODUCER_ID,)
    found_by = "the instance that began again is not fenced"

    async def give_up(self) -> None:
        await self.abandon(self.init())

    async def go_on(self) -> None:
        await self.begin()

    async def check(self) -> None:
        """Write in a transaction: an instance that was fenced gets an error that no repetition mends."""
        await self.respond(self.add())
        await self.respond(self.end())


class AddingPartitions(Transacting):
    """A producer that adds a partition, and commits the transaction."""

    apis = (ApiKey.ADD_PARTITIONS_TO_TXN,)
    found_by = "no transaction is open"

    async def give_up(self) -> None:
        await self.abandon(self.add())

    async def go_on(self) -> None:
        await self.respond(self.add())
        await self.respond(self.end())

    async def check(self) -> None:
        assert (state := await self.state()) in ENDED, f"{self.name}: the transaction was committed, then is {state}"


class AddingOffsets(AddingPartitions):
    """A producer that adds the offsets of a group, and commits the transaction."""

    apis = (ApiKey.ADD_OFFSETS_TO_TXN,)

    def add(self, name: str = "", partition: int | None = None) -> Message:
        return self.add_offsets()


class Ending(Transacting):
    """A producer that commits a transaction, and begins another."""

    apis = (ApiKey.END_TXN,)
    found_by = "the transaction of after it is open"

    async def prepare(self) -> None:
        await super().prepare()
        await self.respond(self.add())

    async def give_up(self) -> None:
        await self.abandon(self.end())

    async def go_on(self) -> None:
        await self.respond(self.end())
        await self.respond(self.add())

    async def check(self) -> None:
        assert (state := await self.state()) == "Ongoing", f"{self.name}: a transaction was begun, then is {state}"
        await self.respond(self.end())


class CommittingInTransactions(Transacting):
    """A producer that commits an offset in a transaction, and a later one in the next."""

    apis = (ApiKey.TXN_OFFSET_COMMIT,)
    found_by = "the later offset stands"

    async def prepare(self) -> None:
        await super().prepare()
        await self.respond(self.add_offsets())

    async def give_up(self) -> None:
        await self.abandon(self.commit_offset(100))

    async def go_on(self) -> None:
        for message in (
            self.commit_offset(100), self.end(), self.add_offsets(), self.commit_offset(200)
        ):  # fmt: skip
            await self.respond(message)

    async def check(self) -> None:
        await self.respond(self.end())
        found = await self.at.ask(partial(committed, group=self.name, topic=TOPIC))
        assert found == 200, f"{self.name}: committed 200, then {found}"


class Marking(Transacting, OfALog):
    """An administrator who takes a transaction for a hanging one, and thinks better of it."""

    apis = (ApiKey.WRITE_TXN_MARKERS,)
    found_by = "the transaction is open in its partition"
    shards = None

    async def prepare(self) -> None:
        await super().prepare()
        await self.respond(self.add(self.name, 0))
        await self.respond(self.append())

    def append(self) -> Message:
        batch = build_batch(
            [Record(value=b"v")], producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=0,
            attributes=TRANSACTIONAL,
        )  # fmt: skip
        request = produce_request(self.name, 0, bytes(batch), -1)
        request.transactional_id = self.name
        return Message(request, ProduceResponse, 9)

    async def give_up(self) -> None:
        Marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = Marker.WritableTxnMarkerTopic(name=self.name, partition_indexes=[0])
        marker = Marker(
            producer_id=self.producer_id, producer_epoch=self.epoch, transaction_result=False, topics=[topic],
            coordinator_epoch=0,
        )  # fmt: skip
        await self.abandon(Message(WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse, 1))

    async def go_on(self) -> None:
        self.was_open = await self.is_open()

    async def is_open(self) -> bool:
        """Return whether the transaction is open in the partition."""
        topic = DescribeProducersRequest.TopicRequest(name=self.name, partition_indexes=[0])
        message = Message(DescribeProducersRequest(topics=[topic]), DescribeProducersResponse, 0)
        (producer,) = (await self.respond(message)).topics[0].partitions[0].active_producers
        return bool(producer.current_txn_start_offset >= 0)

    async def check(self) -> None:
        was_open = self.was_open if self.at.has_begun else True
        assert await self.is_open() == was_open, f"{self.name}: its open transaction was ended"
        await self.respond(self.end())


KINDS = (Beginning, AddingPartitions, AddingOffsets, Ending, CommittingInTransactions, Marking)
