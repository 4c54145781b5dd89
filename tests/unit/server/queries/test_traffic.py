"""Rates of the whole cluster: each proxy's window, asked for over the internal protocol, in one sum."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, NamedTuple, cast

import pytest

from bmq.core.metrics.traffic import TrafficMeter
from bmq.core.rpc.messages.proxy import PartitionTraffic, TrafficRequest, TrafficResponse
from bmq.core.rpc.peers import PeerLost
from bmq.core.rpc.server import InternalCall
from bmq.meta.cluster.member import BROKER, PROXY, Member
from bmq.proxy.traffic_api import WHOLE_TOPIC, TrafficApi
from bmq.server.cluster_member import ClusterMember
from bmq.server.queries.traffic import ClusterTraffic, cluster_traffic, rates_of, sum_of
from tests.harness.loop_stops import is_short, run_measured, without_collector
from tests.unit.server.queries.joined import catalog_of, joined, member, topic

CATALOG = catalog_of(*(topic(name, uuid.UUID(int=number)) for number, name in enumerate("tu", 1)))
CALL = cast(InternalCall, None)


class Peers:
    """Proxies by incarnation, each with its meter; one without a meter is stopped."""

    def __init__(self, **meters: TrafficMeter) -> None:
        self.meters = meters

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        assert isinstance(message, TrafficRequest)
        meter = self.meters.get(member.incarnation)
        if meter is None:
            raise PeerLost("it stands still", was_sent=True)
        body = b"".join(map(bytes, message.encode()))
        response = await TrafficApi(meter, CATALOG).handle(memoryview(body), CALL)
        return TrafficResponse.decode(memoryview(b"".join(map(bytes, response))))


class Process(NamedTuple):
    """A process: its membership, and its meter if it is a proxy."""

    joined: ClusterMember
    traffic: TrafficMeter | None


def node(own: TrafficMeter | None, peers: Peers, *members: Member) -> Process:
    return Process(joined(*members, ask=peers.ask), own)


def meter(seconds: float, *wrote: tuple[str, int, int, int]) -> TrafficMeter:
    made = TrafficMeter()
    for each in wrote:
        made.wrote(*each)
    made.read("t", 1, 50)
    made.roll(seconds)
    return made


def ask(of: Process, *wanted: tuple[str, int]) -> ClusterTraffic:
    return asyncio.run(cluster_traffic(of.joined, CATALOG, of.traffic, wanted))


def test_rates_are_summed_over_the_proxies() -> None:
    own, other = meter(10.0, ("t", 0, 10, 1000), ("u", 0, 5, 500)), meter(5.0, ("t", 0, 10, 1000))
    of = node(own, Peers(p=other), member("own", PROXY), member("p", PROXY), member("b", BROKER))
    traffic = ask(of, ("t", WHOLE_TOPIC), ("t", 0), ("t", 1), ("t", 2), ("u", WHOLE_TOPIC), ("gone", WHOLE_TOPIC))
    assert traffic.silent == []
    assert traffic.members == {
        "own": {"records_in": 1.5, "bytes_in": 150.0, "bytes_out": 5.0},
        "p": {"records_in": 2.0, "bytes_in": 200.0, "bytes_out": 10.0},
    }
    assert sum_of(traffic.members.values()) == {"records_in": 3.5, "bytes_in": 350.0, "bytes_out": 15.0}
    assert rates_of(traffic, "t") == {"records_in": 3.0, "bytes_in": 300.0, "bytes_out": 15.0}
    assert rates_of(traffic, "t", 0) == {"records_in": 3.0, "bytes_in": 300.0, "bytes_out": 0.0}
    assert rates_of(traffic, "t", 1) == {"records_in": 0.0, "bytes_in": 0.0, "bytes_out": 15.0}
    assert rates_of(traffic, "t", 2) == {"records_in": 0.0, "bytes_in": 0.0, "bytes_out": 0.0}
    assert rates_of(traffic, "u") == {"records_in": 0.5, "bytes_in": 50.0, "bytes_out": 0.0}


def test_a_proxy_that_stands_still_is_named_and_not_counted() -> None:
    own = meter(10.0, ("t", 0, 10, 1000))
    traffic = ask(node(own, Peers(), member("own", PROXY), member("p", PROXY)), ("t", WHOLE_TOPIC))
    assert (traffic.silent, list(traffic.members)) == (["p"], ["own"])


def test_in_its_first_seconds_a_process_tells_no_rates() -> None:
    fresh = TrafficMeter()
    fresh.wrote("t", 0, 1, 1)
    traffic = ask(node(fresh, Peers(), member("own", PROXY)), ("t", WHOLE_TOPIC))
    assert (traffic.members, rates_of(traffic, "t"), sum_of(traffic.members.values())) == ({}, None, None)


def test_a_process_that_is_not_a_proxy_asks_the_others() -> None:
    of = node(None, Peers(p=meter(10.0, ("t", 0, 10, 1000))), member("own", BROKER), member("p", PROXY))
    assert list(ask(of, ("t", 0)).members) == ["p"]


@pytest.mark.slow
def test_rates_of_many_topics_of_many_proxies_do_not_stop_the_loop() -> None:
    topics = [topic(f"t{n}", uuid.UUID(int=n + 1)) for n in range(5_000)]
    row = PartitionTraffic(uuid.UUID(int=1), WHOLE_TOPIC, 10, 1_000, 0)
    rows = tuple(row._replace(topic_id=each.topic_id) for each in topics)
    response = TrafficResponse(window_ms=10_000, records_in=50_000, bytes_in=5_000_000, bytes_out=0, partitions=rows)

    class Busy(Peers):
        async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
            return response

    of = node(None, Busy(), *(member(f"p{n}", PROXY) for n in range(10)))
    wanted = [(each.name, WHOLE_TOPIC) for each in topics]
    with without_collector():
        traffic, longest_s = run_measured(cluster_traffic(of.joined, catalog_of(*topics), None, wanted))
    assert rates_of(traffic, "t4999") == {"records_in": 10.0, "bytes_in": 1_000.0, "bytes_out": 0.0}
    assert is_short(longest_s), longest_s
