"""Results of a request's parts: one each, whatever their owners do, and no response before the last."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, cast

from kafka.protocol.producer import ProduceRequest

from bmq.core.aio.timers import Deadlines
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.batch import HEADER_BYTES, Record, build_batch
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce import PartitionAnswer
from bmq.endpoint.partitions import Owner, PartitionView
from bmq.proxy.routing.produce_route import ProduceRoute
from bmq.proxy.routing.produce_route_events import Answered, RoutedBatch
from bmq.proxy.routing.produce_sender import _event_of
from bmq.proxy.routing.remote_owner import RemoteOwner
from tests.unit.broker.world import batch, idempotent, produced, world

Data = ProduceRequest.TopicProduceData


class SilentLink:
    """A ``ProduceSender`` to a broker that sends no response by itself."""

    incarnation = "b2"
    is_up = True

    def __init__(self) -> None:
        self.sent: list[RoutedBatch] = []

    def join(self, sender: RemoteOwner) -> None: ...

    def leave(self, sender: RemoteOwner) -> None: ...

    def send(self, sender: RemoteOwner, parts: Sequence[RoutedBatch]) -> None:
        self.sent += parts


class RemoteOwners:
    """``endpoint.partitions.Owners``, all in another process."""

    def __init__(self) -> None:
        self.link = SilentLink()
        self._owners: dict[PartitionKey, RemoteOwner] = {}

    def get(self, key: PartitionKey) -> Owner | None:
        return self.remote(key)

    def remote(self, key: PartitionKey) -> RemoteOwner:
        owner = self._owners.get(key)
        if owner is None:
            owner = self._owners[key] = RemoteOwner(key, ProduceRoute(1 << 20), cast(Any, None), Deadlines())
            owner.assign(cast(Any, self.link))
        return owner

    async def wait(self, key: PartitionKey, timeout_s: float) -> Owner:
        return self.remote(key)

    def follow(self, key: PartitionKey) -> PartitionView | None:
        raise NotImplementedError


async def test_a_part_that_fails_with_the_one_before_it_counts_once() -> None:
    """A part that is given up takes its producer's next one with it.  The third, in flight, must not seem accepted."""
    async with world() as w:
        w.topic(partitions=2, assign=False)
        owners = RemoteOwners()
        w.change(owners=owners)
        first = w.produce({("orders", 0): batch()})
        parts = [
            Data.PartitionProduceData(index=0, records=bytes(idempotent(0))),
            Data.PartitionProduceData(index=0, records=bytes(idempotent(1))),
            Data.PartitionProduceData(index=1, records=bytes(batch())),
        ]
        topics = [Data(name="orders", partition_data=parts)]
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=1_000, topic_data=topics)
        response = asyncio.ensure_future(produced(w.send(request, 11), 11))
        _, *refused, _ = owners.link.sent
        assert len(refused) == 2
        for part in refused:
            owners.remote(w.key()).handle(Answered(part, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        codes = [part.error_code for part in await response]
        assert codes[0] == codes[2] == ErrorCode.REQUEST_TIMED_OUT
        assert codes[1] == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert w.metrics.api(ApiKey.PRODUCE).errors[ErrorCode.REQUEST_TIMED_OUT] == 2
        first.cancel()


def two_good_and_a_bad() -> bytearray:
    """Return a batch of three records, of which the second has no key."""
    return build_batch([Record(key=b"k"), Record(), Record(key=b"k")], base_timestamp=1_700_000_000_000)


async def test_a_refused_batch_names_its_bad_records() -> None:
    """KIP-467, from version 8 on; below, the response has no place for them."""
    async with world() as w:
        w.topic(cleanup_policy="compact,delete")
        for version in (8, 9, 11):
            result = await w.produce_one(two_good_and_a_bad(), version=version)
            assert result.error_code == ErrorCode.INVALID_RECORD
            (named,) = result.record_errors
            assert named.batch_index == 1
            assert named.batch_index_error_message == "Compacted topic cannot accept message without key"
            assert result.error_message.startswith("One or more records have been rejected due to 1 record errors")
        result = await w.produce_one(two_good_and_a_bad(), version=7)
        assert result.error_code == ErrorCode.INVALID_RECORD
        assert (await w.produce_one(build_batch([Record(key=b"")]))).error_code == ErrorCode.NONE


async def test_the_bad_records_that_another_process_names_reach_the_client() -> None:
    async with world() as w:
        w.topic(assign=False)
        owners = RemoteOwners()
        w.change(owners=owners)
        response = w.produce({("orders", 0): two_good_and_a_bad()})
        await asyncio.sleep(0)
        (part,) = owners.link.sent
        event = _event_of(part, PartitionAnswer(0, ErrorCode.INVALID_RECORD, -1, -1, -1, "no", [(1, "bad")]))
        owners.remote(w.key()).handle(event)
        (result,) = await response
        assert (result.error_code, result.error_message) == (ErrorCode.INVALID_RECORD, "no")
        assert [(each.batch_index, each.batch_index_error_message) for each in result.record_errors] == [(1, "bad")]


async def test_a_small_message_of_an_old_format_is_invalid() -> None:
    """CORRUPT_MESSAGE would be sent again until the time-out."""
    async with world() as w:
        w.topic()
        for magic in (0, 1):
            message = struct.pack(">qiIb", 0, 22, 0, magic).ljust(34, b"v")
            assert (await w.produce_one(message, version=3)).error_code == ErrorCode.INVALID_RECORD


async def test_bytes_too_few_for_a_batch_go_to_no_owner() -> None:
    """A remote owner would only find out later, and the count of records is read before."""
    async with world() as w:
        w.topic(assign=False)
        owners = RemoteOwners()
        w.change(owners=owners)
        for size in (1, 22, HEADER_BYTES - 1):
            (result,) = await w.produce({("orders", 0): bytes(batch()[:size])})
            assert result.error_code == ErrorCode.CORRUPT_MESSAGE
        assert not owners.link.sent
