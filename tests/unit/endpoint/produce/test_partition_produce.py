"""Results of a request's parts: one each, whatever their owners do, and no response before the last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from kafka.protocol.producer import ProduceRequest

from bmq.core.aio.timers import Deadlines
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.batch import HEADER_BYTES
from bmq.core.wire.api_keys import ApiKey
from bmq.endpoint.partitions import Owner, PartitionView
from bmq.proxy.routing.produce_route import ProduceRoute
from bmq.proxy.routing.produce_route_events import Answered, RoutedBatch
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
        w.services.owners = owners
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


async def test_bytes_too_few_for_a_batch_go_to_no_owner() -> None:
    """A remote owner would only find out later, and the count of records is read before."""
    async with world() as w:
        w.topic(assign=False)
        owners = RemoteOwners()
        w.services.owners = owners
        for size in (1, 22, HEADER_BYTES - 1):
            (answer,) = await w.produce({("orders", 0): bytes(batch()[:size])})
            assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
        assert not owners.link.sent
