"""The internal request PartitionsNotServed: partitions that a broker should serve and cannot, with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from itertools import chain
from typing import NamedTuple

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.broker import Broker
from bmq.core.aio.steps import batched
from bmq.core.aio.turns import ELEMENTS_A_TURN, next_turn
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.broker import NotServedPartition, PartitionsNotServedRequest, PartitionsNotServedResponse
from bmq.core.rpc.server import InternalCall

NAMED_MAX = 100
"""Partitions that one broker names, the first by topic and number: where more are stopped, they share a cause."""
REASON_MAX = 500
"""Characters of a reason at most."""


class NotServed(NamedTuple):
    """Partitions that are OFFLINE, or whose opening failed: ``total`` of them, of which some are named."""

    storage_trouble: str
    """Reason why storage acknowledges nothing; "" while it does."""
    total: int
    partitions: Sequence[NotServedPartition]


async def not_served(broker: Broker, assigned: AssignedPartitions) -> NotServed:
    """Return the partitions that this broker should serve and cannot now: all of them, if its storage is gone."""
    total, first = 0, list[tuple[str, int, str]]()
    for some in batched(assigned.not_served(), ELEMENTS_A_TURN):
        if total:
            await next_turn()
        total += len(some)
        first = nsmallest(NAMED_MAX, chain(first, ((path.topic, path.partition, why) for path, why in some)))
    named = [NotServedPartition(topic, number, why[:REASON_MAX]) for topic, number, why in first]
    return NotServed(broker.storage_trouble[:REASON_MAX], total, named)


class NotServedApi:
    """Handler of ``InternalKey.PARTITIONS_NOT_SERVED``."""

    def __init__(self, broker: Broker, assigned: AssignedPartitions) -> None:
        self._broker = broker
        self._assigned = assigned

    async def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded response.  Raises FormatError if ``body`` is not such a request."""
        PartitionsNotServedRequest.decode(body)
        found = await not_served(self._broker, self._assigned)
        return PartitionsNotServedResponse(
            storage_trouble=found.storage_trouble, total=found.total, partitions=tuple(found.partitions)
        ).encode()
