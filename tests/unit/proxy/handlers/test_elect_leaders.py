"""ElectLeaders in every version: no election is ever needed."""

from __future__ import annotations

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire.messages import ElectLeadersRequest
from bmq.proxy.handlers import elect_leaders
from tests.unit.proxy.handlers.admin_requests import CREATE, create, new, versions
from tests.unit.proxy.handlers.admin_serving import serving

ELECT = elect_leaders.APIS[0]


@pytest.mark.parametrize("version", versions(ELECT))
async def test_elect_leaders_finds_nothing_to_elect(version: int) -> None:
    async with serving() as w:
        await w.ask(CREATE, 7, create(new("t", 2)))
        Asked = ElectLeadersRequest.TopicPartitions
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
