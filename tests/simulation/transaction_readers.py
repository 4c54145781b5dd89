"""Readers of a simulated cluster that see committed transactions only: of records, and of a group's offsets."""

from __future__ import annotations

from typing import Any

from kafka.protocol.consumer import FetchRequest, FetchResponse, OffsetFetchRequest, OffsetFetchResponse

from bmq.core.records.control import Marker, marker_of
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from tests.harness.network import Disconnected
from tests.simulation.kafka_clients import BYTES_MAX, Client, Refused, World, check, pause
from tests.simulation.transaction_attempts import AGAIN, GROUP, Applications, Dead, Key, Outcome, writer_of
from tests.simulation.transaction_isolation import Log

READ_COMMITTED = 1
"""The isolation level in fetches."""


async def position_of(world: World, known: Applications, client: Client, source: Key) -> int:
    """Return the stable committed offset of a source, and compare it with what may be committed."""
    while not world.is_over:
        least = known.committed(source)
        try:
            offset = await stable_offset(client, source)
        except Disconnected:
            await pause(world)
        except Refused as refused:
            if not refused.code.is_retriable and refused.code not in AGAIN:
                raise
            await pause(world)
        else:
            if offset < least or offset not in known.may_be_committed(source):
                allowed = f"{least} is acknowledged, {sorted(known.may_be_committed(source))} may be committed"
                world.observed.errors.append(f"the offset of {source} is {offset}: {allowed}")
            return offset
    raise Dead("the world is over")


async def stable_offset(client: Client, source: Key) -> int:
    """Return the committed offset of a source.  Raises Disconnected, and Refused while it is unstable."""
    topic, partition = source
    Topic = OffsetFetchRequest.OffsetFetchRequestTopic
    topics = [Topic(name=topic, partition_indexes=[partition])]
    request = OffsetFetchRequest(group_id=GROUP, topics=topics, require_stable=True)
    response = await client.call(request, OffsetFetchResponse, 7)
    check(response.error_code)
    part = response.topics[0].partitions[0]
    check(part.error_code)
    return max(int(part.committed_offset), 0)


class CommittedReader:
    """A consumer of one partition at read_committed, which leaves out what Kafka's leaves out."""

    def __init__(self, world: World, known: Applications, key: Key) -> None:
        self.world = world
        self.known = known
        self.key = key
        self.where = f"{key[0]}-{key[1]}"
        self.offset = 0
        self.values: dict[int, bytes] = {}
        self.log = Log()
        """All that the reader gets, with what it leaves out."""
        self.last_stable_offset = self.high_watermark = -1
        self._version = world.rng.choice((4, 7, 11, 12))

    async def follow(self) -> None:
        """Read until the world is over."""
        client = self.world.client()
        while not self.world.is_over:
            await self.poll(client)
            await pause(self.world)
        client.close()

    async def poll(self, client: Client) -> None:
        topic, partition = self.key
        Topic = FetchRequest.FetchTopic
        listed = Topic.FetchPartition(
            partition=partition, current_leader_epoch=-1, fetch_offset=self.offset,
            partition_max_bytes=self.world.rng.choice((50, 4000)),
        )  # fmt: skip
        request = FetchRequest(
            replica_id=-1, max_wait_ms=self.world.rng.choice((0, 50, 500)), min_bytes=1, max_bytes=BYTES_MAX,
            isolation_level=READ_COMMITTED, session_id=0, session_epoch=-1,
            topics=[Topic(topic=topic, partitions=[listed])], forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        try:
            response = await client.call(request, FetchResponse, self._version)
            check(response.error_code)
            part = response.responses[0].partitions[0]
            check(part.error_code)
        except Disconnected:
            return
        except Refused as refused:
            if not refused.code.is_retriable:
                self.world.observed.errors.append(f"reader of {self.where}: {refused}")
            return
        self.last_stable_offset, self.high_watermark = part.last_stable_offset, part.high_watermark
        self._take(part)

    def _take(self, part: Any) -> None:
        waiting = sorted((each.first_offset, each.producer_id) for each in part.aborted_transactions or ())
        hidden: set[int] = set()
        start = self.offset
        for batch in read_batches(memoryview(bytes(part.records or b""))):
            self.offset = max(self.offset, batch.next_offset)
            while waiting and waiting[0][0] <= batch.next_offset - 1:
                hidden.add(waiting.pop(0)[1])
            if batch.is_control:
                marker = marker_of(batch)
                self.log.markers[batch.base_offset] = (batch.producer_id, marker)
                if marker is Marker.ABORT:
                    hidden.discard(batch.producer_id)
                continue
            is_hidden = batch.is_transactional and batch.producer_id in hidden
            for record in read_records(batch, bytes_max=BYTES_MAX):
                if record.offset < start:
                    continue
                value = bytes(record.value or b"")
                self.log.values[record.offset] = value
                if batch.is_transactional:
                    self.log.producers[record.offset] = batch.producer_id
                if not is_hidden:
                    self._see(record.offset, value, is_transactional=batch.is_transactional)

    def _see(self, offset: int, value: bytes, *, is_transactional: bool) -> None:
        """Note a record, whose transaction must have been asked to commit by now."""
        known = self.values.setdefault(offset, value)
        if known != value:
            self.world.observed.errors.append(f"{self.where}: offset {offset} was {known!r}, is {value!r}")
        if not is_transactional:
            if value not in self.known.seeds:
                self.world.observed.errors.append(f"{self.where}: {value!r} at {offset} is of no transaction")
            return
        seen = self.known.seen[self.key]
        seen[offset] = min(seen.get(offset, self.high_watermark), self.high_watermark)
        attempt = self.known.attempts[writer_of(value)]
        if attempt.outcome not in (Outcome.COMMITTING, Outcome.COMMITTED):
            self.world.observed.errors.append(
                f"{self.where}: a reader of committed records sees {value!r} at {offset}, whose"
                f" transaction is {attempt.outcome.value} (rule 13)"
            )
