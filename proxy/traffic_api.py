"""Traffic, an internal API: what clients of this process moved in its last window, by topic or partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from bmq.core.aio.turns import map_in_turns
from bmq.core.metrics.traffic import Counts, TrafficMeter, Window
from bmq.core.net.request import Buffer
from bmq.core.rpc.messages.proxy import PartitionTraffic, TrafficRequest, TrafficResponse
from bmq.core.rpc.server import InternalCall
from bmq.meta.catalog import Catalog

WHOLE_TOPIC = -1
"""Partition number that stands for all partitions of a topic."""
TOPICS_A_TURN = 10
"""Topics summed in one turn of the loop: of a thousand busy partitions each, a millisecond."""


class TrafficScope(NamedTuple):
    """A partition, or WHOLE_TOPIC."""

    topic_id: UUID
    partition: int


async def traffic_of(meter: TrafficMeter, catalog: Catalog, asked: Sequence[TrafficScope]) -> TrafficResponse:
    """Return the process's last window: its total, and a row for each of ``asked`` that had traffic."""
    window = meter.last
    rows = await map_in_turns(lambda each: _row(window, catalog, each), asked, TOPICS_A_TURN)
    total = window.total
    return TrafficResponse(
        window_ms=round(window.seconds * 1000), records_in=total.records_in, bytes_in=total.bytes_in,
        bytes_out=total.bytes_out, partitions=tuple(row for row in rows if row is not None),
    )  # fmt: skip


def _row(window: Window, catalog: Catalog, asked: TrafficScope) -> PartitionTraffic | None:
    topic = catalog.by_id(asked.topic_id)
    counts: Counts | None = None
    if topic is not None and asked.partition == WHOLE_TOPIC:
        counts = window.topic(topic.name)
    elif topic is not None:
        counts = window.partition(topic.name, asked.partition)
    if counts is None:
        return None
    return PartitionTraffic(*asked, counts.records_in, counts.bytes_in, counts.bytes_out)


class TrafficApi:
    """The API; register ``handle`` for ``InternalKey.TRAFFIC``."""

    def __init__(self, meter: TrafficMeter, catalog: Catalog) -> None:
        self._meter = meter
        self._catalog = catalog

    async def handle(self, body: memoryview, call: InternalCall) -> list[Buffer]:
        """Return the encoded response.  Raises FormatError if ``body`` is not a TrafficRequest."""
        request = TrafficRequest.decode(body)
        return (
            await traffic_of(self._meter, self._catalog, [TrafficScope(*each) for each in request.partitions])
        ).encode()
