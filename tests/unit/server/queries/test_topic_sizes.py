"""Bytes by topic of the whole cluster: the sums of its brokers, asked for once for all readers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast
from uuid import UUID

import pytest

from bmq.broker import log_sizes_api
from bmq.broker.log_sizes import LogSizes
from bmq.broker.log_sizes_api import LogSizesApi
from bmq.console.state import TopicSizes
from bmq.core.rpc.messages.broker import LogSizesRequest, LogSizesResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.cluster.member import BROKER, PROXY, Member
from bmq.server.queries import topic_sizes
from bmq.server.queries.collected_metrics import Collected
from bmq.server.queries.topic_sizes import ClusterTopicSizes
from tests.harness.fakes import FakeCatalog
from tests.harness.loop_stops import is_short, loop_stops
from tests.unit.server.queries.joined import catalog_of, joined, member, topic

IDS = {name: UUID(int=number) for number, name in enumerate(("orders", "events", "audit"), 1)}
CATALOG = catalog_of(*(topic(name, topic_id) for name, topic_id in IDS.items()))


def counted(sums: dict[str, int], unknown: int = 0) -> LogSizes:
    sizes = LogSizes(list, 1)
    sizes.of_all_topics, sizes.partitions_unknown, sizes.is_counted = Counter(sums), unknown, True
    return sizes


class Peers:
    """Brokers with what they have counted; others stand still."""

    def __init__(self, **brokers: LogSizes) -> None:
        self.brokers = brokers
        self.asked: list[str] = []

    async def ask(self, to: Member, request: Any, timeout_s: float) -> LogSizesResponse:
        assert isinstance(request, LogSizesRequest)
        self.asked.append(to.incarnation)
        if to.incarnation not in self.brokers:
            raise PeerLost("it stands still", was_sent=True)

        async def count() -> LogSizes:
            return self.brokers[to.incarnation]

        body = memoryview(b"".join(map(bytes, request.encode())))
        response = await LogSizesApi(count, CATALOG).handle(body, cast(Any, None))
        return LogSizesResponse.decode(memoryview(b"".join(map(bytes, response))))


class OwnSizes(Collected):
    """The collected numbers of a process whose logs are counted; None: of a process that is no broker."""

    def __init__(self, sizes: LogSizes | None) -> None:
        """Collect nothing."""
        self.log_sizes = sizes

    async def count_log_sizes(self) -> LogSizes:
        assert self.log_sizes is not None
        return self.log_sizes


def sizes_of(peers: Peers, own: LogSizes | None, *members: Member, catalog: Catalog = CATALOG) -> ClusterTopicSizes:
    return ClusterTopicSizes(joined(*members, ask=peers.ask), catalog, OwnSizes(own))


async def test_the_brokers_sums_are_added_up_and_those_that_do_not_answer_are_named() -> None:
    peers = Peers(b=counted({"orders": 5, "events": 7, "deleted": 9}, unknown=2))
    members = (member("own", BROKER), member("b", BROKER), member("still", BROKER), member("p", PROXY))
    sizes = await sizes_of(peers, counted({"orders": 10, "audit": 0}, unknown=1), *members).facts()
    assert sizes == TopicSizes({"orders": 15, "events": 7, "audit": 0}, partitions_unknown=3, silent=["still"])
    assert sorted(peers.asked) == ["b", "still"]


async def test_brokers_are_asked_once_for_all_who_look() -> None:
    peers = Peers(b=counted({"orders": 5}))
    sizes = sizes_of(peers, None, member("own", PROXY), member("b", BROKER))

    await asyncio.gather(*(sizes.facts() for _ in range(5)))
    assert peers.asked == ["b"]
    await asyncio.sleep(topic_sizes.KEPT_S)
    await sizes.facts()
    assert peers.asked == ["b", "b"]


def test_a_broker_names_its_largest_topics(monkeypatch: Any) -> None:
    monkeypatch.setattr(log_sizes_api, "TOPICS_MAX", 2)
    answered = log_sizes_api.log_sizes(counted({"orders": 5, "events": 7, "audit": 6}), CATALOG)
    assert answered.topics == ((IDS["events"], 7), (IDS["audit"], 6))


@pytest.mark.slow
async def test_sizes_of_many_topics_of_many_brokers_do_not_stop_the_loop() -> None:
    by_id = {UUID(int=number): topic(f"topic-{number}", UUID(int=number)) for number in range(10_000)}
    response = LogSizesResponse(topics=tuple((topic_id, 1) for topic_id in by_id))

    class Indexed(FakeCatalog):
        def by_id(self, topic_id: UUID) -> Topic | None:
            return by_id.get(topic_id)

    class Full(Peers):
        async def ask(self, to: Member, request: Any, timeout_s: float) -> LogSizesResponse:
            return response

    sizes = sizes_of(Full(), None, *(member(f"b{n}", BROKER) for n in range(20)), catalog=Indexed())
    with loop_stops() as stops:
        found = await sizes.facts()
    assert set(found.by_topic.values()) == {20}
    assert is_short(stops.longest_s), stops.longest_s
