"""Transactional producers of a simulated cluster.

Producers are of three ``Kind``s.  The version of a producer's transactions follows the cluster's level of
``transaction.version``, as in the library that the kind is named after:

| | adds partitions by | adds offsets by | ends by | after the end |
|---|---|---|---|---|
| 1 | AddPartitionsToTxn 3 | AddOffsetsToTxn 3 | EndTxn 3 | same epoch, the sequences go on |
| 2 | Produce 12 | TxnOffsetCommit 5 | EndTxn 5 | the epoch of the response, sequences from 0 |
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from bmq.core.errors import ErrorCode
from bmq.core.features import TRANSACTION_VERSION
from bmq.core.records.batch import TRANSACTIONAL, Record, build_batch
from tests.harness.network import Disconnected
from tests.simulation.kafka_clients import Client, Refused, World, pause
from tests.simulation.transaction_attempts import AGAIN, GROUP, SIDE, Applications, Claim, Dead, Key
from tests.simulation.transaction_pipelines import Batch, Pipeline

TIMEOUTS_MS = (700, 4_000, 15_000)
SEVERAL = 0.4
"""Share of the batches with two records."""
_DELETED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
_SEQUENCES = {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER}


class Kind(Enum):
    """Kinds of clients, by the version of their transactions."""

    OLD = "version 1 always"
    FOLLOWS = "version 2 while the level is 2, as Java's"
    RISES = "version 2 once the level was 2, as franz-go's"


KINDS = (Kind.OLD, Kind.FOLLOWS, Kind.FOLLOWS, Kind.RISES)
"""The kinds that instances are drawn from."""


class TransactionalProducer:
    """One run of a producer with a transactional id."""

    def __init__(self, world: World, known: Applications, name: str, transactional_id: str, rng: Random) -> None:
        self.world = world
        self.known = known
        self.name = name
        self.transactional_id = transactional_id
        self.rng = rng
        self.kind = rng.choice(KINDS)
        self.version = 1
        """Of the present transaction."""
        self.claim = Claim(0.0)
        self.began_s = math.inf
        """When its transaction may have begun."""
        self.used_s = 0.0
        """When the coordinator may have noted the last use of the transactional id, at the earliest."""
        self.timeout_ms = rng.choice(TIMEOUTS_MS)
        self.client = world.client()
        self.producer_id = self.epoch = -1
        self.sequences: dict[Key, int] = {}
        self.is_killed = False
        self.batches = Random(f"{name} of {world.rng.random()}")
        """Of the sizes of batches, and of their pipelines."""
        self._is_unsure = False
        """A batch was refused, and those behind it may be in the log: the sequences of this epoch are not known."""

    def kill(self) -> None:
        """Let it take no further step."""
        self.is_killed = True

    async def follow(self) -> None:
        """Let the version of the next transaction follow the level.

        On its way to 2 a client takes a new epoch, if it sees the level at the end of a transaction.  franz-go may see
        the level at the beginning of one, and keeps the epoch then.
        """
        before, self.version = self.version, await self.next_version()
        self.known.switched += before != self.version
        keeps_epoch = self.kind is Kind.RISES and self.rng.random() < 0.5
        if before < self.version and not keeps_epoch:
            await self.init(self.producer_id, self.epoch)

    async def next_version(self) -> int:
        if self.kind is Kind.OLD or (self.kind is Kind.RISES and self.version == 2):
            return self.version
        request = ApiVersionsRequest(client_software_name="simulated", client_software_version="1")
        response = await self._ask(lambda: request, ApiVersionsResponse, 4, lambda each: [each.error_code])
        levels = {each.name: each.max_version_level for each in response.finalized_features or ()}
        return 2 if levels.get(TRANSACTION_VERSION, 0) >= 2 else 1

    async def init(self, producer_id: int = -1, epoch: int = -1) -> None:
        """Get a producer id and an epoch; with those of before, as a client that goes on."""
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms, producer_id=producer_id,
            producer_epoch=epoch,
        )  # fmt: skip
        claim = self.claim = Claim(asyncio.get_running_loop().time())
        self.known.claims[self.transactional_id].append(claim)

        def make() -> Any:
            claim.sends += 1
            return request

        def codes_of(response: Any) -> list[int]:
            claim.answers += 1
            return [response.error_code]

        response = await self._ask(make, InitProducerIdResponse, 4, codes_of)
        self.used_s = claim.sent_s
        claim.answered_s = asyncio.get_running_loop().time()
        self.producer_id, self.epoch = response.producer_id, response.producer_epoch
        self.sequences = {}

    def _may_be_forgotten(self) -> bool:
        """Return whether the coordinator may have forgotten the transactional id: it was not used for long."""
        return asyncio.get_running_loop().time() - self.used_s >= self.known.expiration_s

    def _may_be_fenced(self) -> bool:
        """Return whether another InitProducerId, or the time-out, may have fenced this producer."""
        own = self.claim
        if asyncio.get_running_loop().time() - self.began_s >= self.timeout_ms / 1000:
            return True
        claims = self.known.claims[self.transactional_id]
        return any(each.sends > each.answers or (each is not own and each.answered_s >= own.sent_s) for each in claims)

    async def add(self, keys: set[Key]) -> None:
        """Add partitions to the transaction, as clients of version 1 must."""
        if self.version != 1:
            return
        Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
        topics = sorted({topic for topic, _ in keys})
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                Topic(name=topic, partitions=sorted(partition for each, partition in keys if each == topic))
                for topic in topics
            ],
        )  # fmt: skip
        await self._ask(
            lambda: request, AddPartitionsToTxnResponse, 3,
            lambda each: [
                part.partition_error_code
                for topic in each.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ],
            ends=_DELETED if SIDE in topics else frozenset(),
        )  # fmt: skip

    async def send(self, values: dict[Key, list[bytes]]) -> None:
        """Send records to partitions at once, a pipeline to each; return once all are acknowledged.

        Raises Dead, else Refused, once nothing is in flight.
        """
        pipelines = {key: self._pipeline(key, list(own)) for key, own in values.items()}
        ends = await asyncio.gather(*(each.run() for each in pipelines.values()), return_exceptions=True)
        for key, pipeline in pipelines.items():
            self.sequences[key] = pipeline.sequence
            self.known.pipelined += pipeline.pipelined
            self.known.repeated += pipeline.repeated
        errors = [each for each in ends if each is not None]
        self._is_unsure |= any(isinstance(each, Refused) for each in errors)
        for error in sorted(errors, key=lambda each: isinstance(each, Refused)):
            raise error

    def _pipeline(self, key: Key, values: list[bytes]) -> Pipeline:
        batches: list[Batch] = []
        sequence = self.sequences.get(key, 0)
        while values:
            count = 1 + (self.batches.random() < SEVERAL)
            batch = Batch(sequence, values[:count], len(batches))
            del values[:count]
            batches.append(batch)
            sequence += len(batch.values)
        begins_alone = self.version == 1 and batches[0].sequence == 0
        send = partial(self._append, key)
        return Pipeline(self.world, self.client, self.batches, batches, send, begins_alone=begins_alone)

    async def _append(self, key: Key, batch: Batch, client: Client) -> int | None:
        """Send a batch once; return its offset, or None if it must be sent again.

        If batches before it were in flight, its sequence may be out of order: they were refused, or have come later.
        """
        topic, partition = key
        data = build_batch(
            [Record(value=value) for value in batch.values], producer_id=self.producer_id, producer_epoch=self.epoch,
            base_sequence=batch.sequence, attributes=TRANSACTIONAL,
        )  # fmt: skip
        Topic = ProduceRequest.TopicProduceData
        part = Topic.PartitionProduceData(index=partition, records=bytes(data))
        request = ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=20_000,
            topic_data=[Topic(name=topic, partition_data=[part])],
        )  # fmt: skip
        again = frozenset() if batch.is_first else frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER})
        try:
            response = await self._ask_once(
                lambda: request, ProduceResponse, 12 if self.version == 2 else 9,
                lambda each: [each.responses[0].partition_responses[0].error_code],
                ends=_DELETED if topic == SIDE else frozenset(), again=again, client=client,
            )  # fmt: skip
        except Refused as refused:
            if refused.code in _SEQUENCES and topic != SIDE:
                text = f"{self.name}: {batch} to {key}, epoch {self.epoch}, is refused with {refused}"
                self.world.observed.errors.append(text)
            raise
        if response is None:
            return None
        offset = int(response.responses[0].partition_responses[0].base_offset)
        for at, value in enumerate(batch.values, offset):
            if topic != SIDE:
                known = self.known.acked[key].setdefault(at, value)
                if known != value:
                    self.world.observed.errors.append(f"{key}: {known!r} and {value!r} have offset {at}")
        return offset

    async def _add_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            group_id=GROUP,
        )  # fmt: skip
        await self._ask(lambda: request, AddOffsetsToTxnResponse, 3, lambda each: [each.error_code])

    async def send_offsets(self, source: Key, offset: int) -> None:
        """Commit the offset of a source in the transaction."""
        if self.version == 1:
            await self._add_offsets()
        topic, partition = source
        Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = Topic.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="",
        )  # fmt: skip
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id, group_id=GROUP, producer_id=self.producer_id,
            producer_epoch=self.epoch, topics=[Topic(name=topic, partitions=[part])],
        )  # fmt: skip
        await self._ask(
            lambda: request, TxnOffsetCommitResponse, 5 if self.version == 2 else 3,
            lambda each: [part.error_code for topic in each.topics for part in topic.partitions],
        )  # fmt: skip

    async def end(self, *, commits: bool) -> None:
        request = EndTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            committed=commits,
        )  # fmt: skip
        version = 5 if self.version == 2 else 3
        sent_s = asyncio.get_running_loop().time()
        response = await self._ask(lambda: request, EndTxnResponse, version, lambda each: [each.error_code])
        self.used_s = sent_s
        if self.version == 2:
            self.producer_id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences = {}
        elif self._is_unsure:
            await self.init(self.producer_id, self.epoch)
        self._is_unsure = False

    async def _ask(
        self,
        make: Callable[[], Any],
        response: type[Any],
        version: int,
        codes_of: Callable[[Any], list[int]],
        *,
        ends: frozenset[ErrorCode] = frozenset(),
    ) -> Any:
        """Ask until the response is final.  Raises Refused, and Dead if the producer is fenced or killed.

        ``ends``: codes after which it does not ask again, though others would.
        """
        while (found := await self._ask_once(make, response, version, codes_of, ends=ends)) is None:
            await pause(self.world)
        return found

    async def _ask_once(
        self,
        make: Callable[[], Any],
        response: type[Any],
        version: int,
        codes_of: Callable[[Any], list[int]],
        *,
        ends: frozenset[ErrorCode] = frozenset(),
        again: frozenset[ErrorCode] = frozenset(),
        client: Client | None = None,
    ) -> Any:
        """Ask once, as ``_ask``; return None if the response is not final.

        ``again``: further codes that are not final.
        """
        if self.is_killed or self.world.is_over:
            raise Dead("killed")
        try:
            found = await (client or self.client).call(make(), response, version)
        except Disconnected:
            return None
        if self.is_killed:
            raise Dead("killed")
        codes = [ErrorCode(code) for code in codes_of(found) if code]
        if not codes:
            return found
        if any(code in _FENCED for code in codes):
            is_forgotten = ErrorCode.INVALID_PRODUCER_ID_MAPPING in codes and self._may_be_forgotten()
            self.known.expired += is_forgotten
            if not (is_forgotten or self._may_be_fenced()):
                text = f"{self.name} is fenced by nobody: {response.__name__} {codes[0].name}"
                self.world.observed.errors.append(text)
            raise Dead(f"{response.__name__}: {codes[0].name}")
        final = [code for code in codes if code in ends or not (code.is_retriable or code in AGAIN or code in again)]
        if final:
            raise Refused(final[0])
        return None
