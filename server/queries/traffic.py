"""Traffic of the whole cluster, by second: the sum of the rates that each proxy reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import NamedTuple

from bmq.console.operations import RateFacts
from bmq.core.aio.turns import Turns, next_turn
from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.rpc.messages.proxy import PartitionTraffic, TrafficRequest, TrafficResponse
from bmq.meta.catalog import Catalog
from bmq.meta.cluster.member import PROXY
from bmq.proxy.traffic_api import WHOLE_TOPIC, TrafficScope, traffic_of
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.member_queries import ask_members, others_with


class ClusterTraffic(NamedTuple):
    """Rates by second, without proxies that did not respond, or have not been up for a whole window yet."""

    members: Mapping[str, RateFacts]
    """Rates of each proxy that responded, by incarnation."""
    partitions: Mapping[tuple[str, int], RateFacts]
    """Rates by topic and partition, of those that had traffic; the partition is ``WHOLE_TOPIC`` for a topic."""
    silent: Sequence[str]
    """Proxies that did not respond."""


NO_RATES = RateFacts(records_in=0.0, bytes_in=0.0, bytes_out=0.0)


def sum_of(rates: Iterable[RateFacts]) -> RateFacts | None:
    """Return the sum; None if there are no rates."""
    each = iter(rates)
    first = next(each, None)
    return None if first is None else reduce(_added, each, first)


def _added(one: RateFacts, other: RateFacts) -> RateFacts:
    return RateFacts(
        records_in=round(one["records_in"] + other["records_in"], 3),
        bytes_in=round(one["bytes_in"] + other["bytes_in"], 3),
        bytes_out=round(one["bytes_out"] + other["bytes_out"], 3),
    )


def _by_second(window_ms: int, counts: TrafficResponse | PartitionTraffic) -> RateFacts:
    per_s = 1000 / window_ms
    return RateFacts(
        records_in=round(counts.records_in * per_s, 3),
        bytes_in=round(counts.bytes_in * per_s, 3),
        bytes_out=round(counts.bytes_out * per_s, 3),
    )


async def cluster_traffic(
    joined: ClusterMember, catalog: Catalog, own: TrafficMeter | None, asked: Sequence[tuple[str, int]]
) -> ClusterTraffic:
    """Return the rates of all proxies, and of the topics and partitions in ``asked``; an unknown topic has none.

    ``own`` measures this process's clients; None in a process without the proxy role.
    """
    topics = catalog.topics
    wanted = [TrafficScope(topics[name].topic_id, partition) for name, partition in asked if name in topics]
    names = {topics[name].topic_id: name for name, _ in asked if name in topics}
    others = others_with(joined, PROXY)
    request = TrafficRequest(partitions=tuple(wanted))
    responses = await ask_members(joined, others, request)
    if own is not None:
        responses[joined.view.own] = await traffic_of(own, catalog, wanted)
    silent = sorted(member.incarnation for member in others if member.incarnation not in responses)
    measured = {name: response for name, response in responses.items() if response.window_ms}
    turns, sums = Turns(), dict[tuple[str, int], RateFacts]()
    for response in measured.values():
        for row in response.partitions:
            if turns.is_over():
                await next_turn()
            if row.topic_id in names:
                key, rates = (names[row.topic_id], row.partition), _by_second(response.window_ms, row)
                known = sums.get(key)
                sums[key] = rates if known is None else _added(known, rates)
    members = {name: _by_second(response.window_ms, response) for name, response in measured.items()}
    return ClusterTraffic(members, sums, silent)


def rates_of(traffic: ClusterTraffic, topic: str, partition: int = WHOLE_TOPIC) -> RateFacts | None:
    """Return the rates of a topic or a partition; None while no proxy reports any."""
    if not traffic.members:
        return None
    return traffic.partitions.get((topic, partition), NO_RATES)
