"""ElectLeaders in every version: no election is ever needed."""

from __future__ import annotations

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import ElectLeadersRequest
from bmq.proxy.handlers import elect_leaders
from tests.harness.scopes import Nobody, change
from tests.unit.proxy.handlers.admin_requests import CREATE, create, new, versions
from tests.unit.proxy.handlers.admin_serving import serving
from tests.unit.proxy.turns import Turns

ELECT = elect_leaders.APIS[0]
Asked = ElectLeadersRequest.TopicPartitions


@pytest.mark.parametrize("version", versions(ELECT))
async def test_elect_leaders_finds_nothing_to_elect(version: int) -> None:
    async with serving() as w:
        await w.ask(CREATE, 7, create(new("t", 2)))
        asked = [Asked(topic="t", partitions=[0, 2]), Asked(topic="gone", partitions=[0])]
        found = await w.ask(ELECT, version, ElectLeadersRequest(election_type=0, topic_partitions=asked))
        assert [
            (each.topic, [(one.partition_id, one.error_code) for one in each.partition_result])
            for each in found.replica_election_results
        ] == [
            ("t", [(0, ErrorCode.ELECTION_NOT_NEEDED), (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
            ("gone", [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]),
        ]
        found = await w.ask(ELECT, version, ElectLeadersRequest(election_type=0, topic_partitions=None))
        assert [len(each.partition_result) for each in found.replica_election_results] == [2]


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [0, 900])
@pytest.mark.parametrize("is_allowed", [True, False], ids=["with the right", "without the right"])
async def test_many_topics_take_many_turns_of_the_loop(partitions: int, is_allowed: bool) -> None:
    """No topic fills a turn by itself."""
    topics = 40 if partitions else 40_000
    async with serving() as w:
        if not is_allowed:
            w.scopes = change(w.scopes, authorizer=Nobody())
        asked = [Asked(topic=f"t{each}", partitions=[*range(partitions)]) for each in range(topics)]
        message = ElectLeadersRequest(version=2, election_type=0, topic_partitions=asked)
        turns = Turns()
        found = await ELECT.handle(w.scopes, w.request(ELECT.key, 2), message)
        assert await turns.end() >= 35
        assert len(found.replica_election_results) == topics
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for each in found.replica_election_results:
            assert [one.error_code for one in each.partition_result] == [code] * partitions
