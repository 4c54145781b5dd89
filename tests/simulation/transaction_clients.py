"""Transactional clients of a simulated cluster: they consume, transform and produce, exactly once.

An ``Application`` has a transactional id and a partition of the input.  Its instances come and go: one dies in the
middle of anything, a second begins while the first goes on and is fenced, one leaves its transaction open until the
time-out.

Clients are of three ``Kind``s.  The version of a client's transactions follows the cluster's level of
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
from tests.simulation.kafka_clients import Refused, World, pause
from tests.simulation.transaction_attempts import (
    AGAIN,
    GROUP,
    INPUT,
    OUTPUT,
    OUTPUTS,
    SIDE,
    Applications,
    Attempt,
    Claim,
    Dead,
    Outcome,
)
from tests.simulation.transaction_readers import position_of

TIMEOUTS_MS = (700, 4_000, 15_000)
LATE = 0.3
"""Share of the transactions aborted by a client of version 1 that a late batch follows."""
SIDES = 0.15
"""Share of the transactions with a record in ``SIDE``."""
IDLE = 0.3
"""Share of the transactions before which a client does nothing for about as long as its transactional id is kept."""
_DELETED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_FENCED = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_ID_MAPPING}


class Kind(Enum):
    """Kinds of clients, by the version of their transactions."""

    OLD = "version 1 always"
    FOLLOWS = "version 2 while the level is 2, as Java's"
    RISES = "version 2 once the level was 2, as franz-go's"


KINDS = (Kind.OLD, Kind.FOLLOWS, Kind.FOLLOWS, Kind.RISES)
"""The kinds that instances are drawn from."""


class Instance:
    """One run of an application."""

    def __init__(self, world: World, known: Applications, name: str, partition: int, rng: Random) -> None:
        self.world = world
        self.known = known
        self.name = name
        self.transactional_id = f"t{partition}"
        self.partition = partition
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
        self.sequences: dict[tuple[str, int], int] = {}
        self.count = 0
        self.is_killed = False

    async def run(self, transactions: int) -> None:
        """Run until that many transactions were committed, or until it is fenced or dies."""
        try:
            self.version = await self._next_version()
            await self._init()
            position = await position_of(self.world, self.known, self.client, self.partition)
            while transactions > 0:
                position, is_done = await self._transaction(position)
                transactions -= is_done
                await self._follow()
                await asyncio.sleep(self.rng.choice((0.0, 0.05, 0.4)))
                if self.known.expiration_s < math.inf and self.rng.random() < IDLE:
                    await asyncio.sleep(self.known.expiration_s * self.rng.uniform(0.5, 2.0))
        except Dead as dead:
            self.known.refused.append(f"{self.name}: {dead}")
        finally:
            self.client.close()

    def kill(self) -> None:
        """Let it take no further step."""
        self.is_killed = True

    # -------------------------------------------------------------------------------------------------- transactions

    async def _transaction(self, position: int) -> tuple[int, bool]:
        """Run one transaction; return the next position, and whether it was committed."""
        end = min(position + self.rng.randint(1, 3), len(self.known.input[self.partition]))
        attempt = Attempt(f"{self.name}.{self.count}", self.partition, position, end)
        self.count += 1
        self.known.attempts[attempt.name] = attempt
        self.began_s = asyncio.get_running_loop().time()
        try:
            if end > position and self.rng.random() < 0.5:
                await self._send_offsets(attempt)
                await self._produce(attempt)
            else:
                await self._produce(attempt)
                if end > position:
                    await self._send_offsets(attempt)
            if self.rng.random() < 0.08:
                await asyncio.sleep(self.timeout_ms / 1000 + self.rng.random())  # it may be aborted by now
            commits = self.rng.random() < 0.75
        except Refused as refused:
            self.known.refused.append(f"{attempt.name}: {refused}")
            commits = False
        attempt.outcome = Outcome.COMMITTING if commits else Outcome.ABORTING
        try:
            await self._end(commits=commits)
        except Refused as refused:
            self.known.refused.append(f"{attempt.name}: {refused} at its end")
            await self._init()
            return await position_of(self.world, self.known, self.client, self.partition), False
        if commits:
            attempt.outcome = Outcome.COMMITTED
        self.began_s = math.inf
        if not commits and self.version == 1 and self.rng.random() < LATE:
            await self._append_late(attempt)
        return (end, True) if commits else (position, False)

    async def _append_late(self, attempt: Attempt) -> None:
        """Send a batch as if it had been on its way until after its transaction was aborted, then die.

        Before the marker the batch is aborted with its transaction.  Behind the marker no other marker will come for
        it, so it must be refused (rule 12).
        """
        late = Attempt(f"{attempt.name}-late", self.partition, attempt.end, attempt.end)
        self.known.attempts[late.name] = late
        partition = self.rng.randrange(OUTPUTS)
        try:
            await self._append(partition, late.name.encode() + b"|late")
        except Refused as refused:
            self.known.late += refused.code is ErrorCode.INVALID_TXN_STATE
            raise Dead(f"its late batch got {refused}") from None
        raise Dead("its late batch came before the marker")

    async def _produce(self, attempt: Attempt) -> None:
        inputs = self.known.input[self.partition]
        values = [inputs[offset] for offset in range(attempt.begin, attempt.end)] or [b"nothing"]
        partitions = {self.rng.randrange(OUTPUTS) for _ in values}
        has_side = self.rng.random() < SIDES
        if self.version == 1:
            await self._add(partitions, has_side=has_side)
        if has_side:
            await self._append(0, attempt.name.encode(), SIDE)
            self.known.sides += 1
        for value in values:
            partition = self.rng.choice(sorted(partitions))
            record = b"%s|%s" % (attempt.name.encode(), value)
            await self._append(partition, record)
            attempt.records.setdefault(partition, []).append(record)

    async def _follow(self) -> None:
        """Let the version of the next transaction follow the level.

        On its way to 2 a client takes a new epoch, if it sees the level at the end of a transaction.  franz-go may see
        the level at the beginning of one, and keeps the epoch then.
        """
        before, self.version = self.version, await self._next_version()
        self.known.switched += before != self.version
        keeps_epoch = self.kind is Kind.RISES and self.rng.random() < 0.5
        if before < self.version and not keeps_epoch:
            await self._init(self.producer_id, self.epoch)

    async def _next_version(self) -> int:
        if self.kind is Kind.OLD or (self.kind is Kind.RISES and self.version == 2):
            return self.version
        request = ApiVersionsRequest(client_software_name="simulated", client_software_version="1")
        response = await self._ask(lambda: request, ApiVersionsResponse, 4, lambda each: [each.error_code])
        levels = {each.name: each.max_version_level for each in response.finalized_features or ()}
        return 2 if levels.get(TRANSACTION_VERSION, 0) >= 2 else 1

    async def _init(self, producer_id: int = -1, epoch: int = -1) -> None:
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

    async def _add(self, partitions: set[int], *, has_side: bool) -> None:
        Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id, v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                Topic(name=OUTPUT, partitions=sorted(partitions)),
                *([Topic(name=SIDE, partitions=[0])] if has_side else []),
            ],
        )  # fmt: skip
        await self._ask(
            lambda: request, AddPartitionsToTxnResponse, 3,
            lambda each: [
                part.partition_error_code
                for topic in each.results_by_topic_v3_and_below
                for part in topic.results_by_partition
            ],
            ends=_DELETED if has_side else frozenset(),
        )  # fmt: skip

    async def _append(self, partition: int, value: bytes, topic: str = OUTPUT) -> None:
        sequence = self.sequences.get((topic, partition), 0)
        batch = build_batch(
            [Record(value=value)], producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )  # fmt: skip
        Topic = ProduceRequest.TopicProduceData
        part = Topic.PartitionProduceData(index=partition, records=bytes(batch))
        request = ProduceRequest(
            transactional_id=self.transactional_id, acks=-1, timeout_ms=20_000,
            topic_data=[Topic(name=topic, partition_data=[part])],
        )  # fmt: skip
        await self._ask(
            lambda: request, ProduceResponse, 12 if self.version == 2 else 9,
            lambda each: [each.responses[0].partition_responses[0].error_code],
            ends=_DELETED if topic == SIDE else frozenset(),
        )  # fmt: skip
        self.sequences[topic, partition] = sequence + 1

    async def _add_offsets(self) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id, producer_id=self.producer_id, producer_epoch=self.epoch,
            group_id=GROUP,
        )  # fmt: skip
        await self._ask(lambda: request, AddOffsetsToTxnResponse, 3, lambda each: [each.error_code])

    async def _send_offsets(self, attempt: Attempt) -> None:
        if self.version == 1:
            await self._add_offsets()
        Topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        part = Topic.TxnOffsetCommitRequestPartition(
            partition_index=self.partition, committed_offset=attempt.end, committed_leader_epoch=-1,
            committed_metadata="",
        )  # fmt: skip
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id, group_id=GROUP, producer_id=self.producer_id,
            producer_epoch=self.epoch, topics=[Topic(name=INPUT, partitions=[part])],
        )  # fmt: skip
        await self._ask(
            lambda: request, TxnOffsetCommitResponse, 5 if self.version == 2 else 3,
            lambda each: [part.error_code for topic in each.topics for part in topic.partitions],
        )  # fmt: skip

    async def _end(self, *, commits: bool) -> None:
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

    async def _ask(
        self,
        make: Callable[[], Any],
        response: type[Any],
        version: int,
        codes_of: Callable[[Any], list[int]],
        *,
        ends: frozenset[ErrorCode] = frozenset(),
    ) -> Any:
        """Ask until the answer is final.  Raises Refused, and Dead if the producer is fenced or killed.

        ``ends``: codes after which it does not ask again, though others would.
        """
        while True:
            if self.is_killed or self.world.is_over:
                raise Dead("killed")
            try:
                found = await self.client.call(make(), response, version)
            except Disconnected:
                await pause(self.world)
                continue
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
            final = [code for code in codes if code in ends or not (code.is_retriable or code in AGAIN)]
            if final:
                raise Refused(final[0])
            await pause(self.world)
