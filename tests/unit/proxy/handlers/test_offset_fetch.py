"""OffsetFetch of a client whose rights are checked: what the coordinator is asked, and no stop of the loop."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.security.acls import ResourceType
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.handlers import offset_fetch
from tests.harness.fakes import request_of
from tests.harness.loop_stops import TurnCounter, is_short, loop_stops
from tests.harness.scopes import make_scopes
from tests.unit.proxy.turns import Turns

Group = m.OffsetFetchRequest.OffsetFetchRequestGroup
GroupTopic = Group.OffsetFetchRequestTopics
Topic = m.OffsetFetchRequest.OffsetFetchRequestTopic
REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class GroupsOnly:
    """An authorizer that allows all of groups and nothing of topics, and counts its calls by turn of the loop."""

    is_on = True

    def __init__(self) -> None:
        self.calls = TurnCounter()

    def is_allowed(self, session: Any, host: str, operation: Any, kind: ResourceType, name: str) -> bool:
        self.calls.count()
        return kind is not ResourceType.TOPIC


async def fetch(message: Any, authorizer: Any) -> m.OffsetFetchResponse:
    """Return the handler's response, from a coordinator with an empty response for each group."""

    async def coordinator(asked: Any, client: Any) -> Any:
        groups = m.OffsetFetchResponse.OffsetFetchResponseGroup
        if asked.API_VERSION < 8:
            return m.OffsetFetchResponse(topics=[])
        return m.OffsetFetchResponse(groups=[groups(group_id=each.group_id, topics=[]) for each in asked.groups])

    scopes = make_scopes(coordinator=SimpleNamespace(offset_fetch=coordinator), authorizer=authorizer)
    request = request_of(ApiKey.OFFSET_FETCH, message.API_VERSION, client_id="c")
    return await offset_fetch.handle(scopes, request, message)


@pytest.mark.parametrize("is_stable", [True, False])
@pytest.mark.parametrize("version", [7, 8, 10])
async def test_a_request_for_stable_offsets_stays_one(version: int, is_stable: bool) -> None:
    """The coordinator gets another request than the client's: without hidden topics, and with merged groups."""
    asked: list[bool] = []

    async def coordinator(request: Any, client: Any) -> Any:
        asked.append(request.require_stable)
        return m.OffsetFetchResponse(topics=[]) if version < 8 else m.OffsetFetchResponse(groups=[])

    scopes = make_scopes(coordinator=SimpleNamespace(offset_fetch=coordinator), authorizer=GroupsOnly())
    if version < 8:
        topics = [Topic(name="secret", partition_indexes=[0])]
        message = m.OffsetFetchRequest(version=version, group_id="g", topics=topics, require_stable=is_stable)
    else:
        groups = [Group(group_id=each, topics=None) for each in ("g", "h", "g")]
        message = m.OffsetFetchRequest(version=version, groups=groups, require_stable=is_stable)
    await offset_fetch.handle(scopes, request_of(ApiKey.OFFSET_FETCH, version, client_id="c"), message)
    assert asked == [is_stable]


@pytest.mark.slow
async def test_groups_with_a_topic_each_are_handled_in_turns() -> None:
    authorizer, count = GroupsOnly(), 12_000
    groups = [
        Group(group_id=f"g{each}", topics=[GroupTopic(name="secret", partition_indexes=[0])]) for each in range(count)
    ]
    message = m.OffsetFetchRequest(version=9, groups=groups, require_stable=False)
    with loop_stops() as stops:
        response = await fetch(message, authorizer)
    assert max(authorizer.calls.take()) <= 1_000
    assert is_short(stops.longest_s), stops.longest_s
    assert [each.topics[0].partitions[0].error_code for each in response.groups] == [REFUSED] * count


@pytest.mark.slow
async def test_a_group_that_is_named_many_times_is_merged_once() -> None:
    authorizer, count = GroupsOnly(), 25_000
    topic = GroupTopic(name="secret", partition_indexes=[0])
    groups = [Group(group_id=f"g{each % 2}", topics=[topic]) for each in range(count)]
    message = m.OffsetFetchRequest(version=9, groups=groups, require_stable=False)
    with loop_stops() as stops:
        response = await fetch(message, authorizer)
    assert is_short(stops.longest_s), stops.longest_s
    assert [len(each.topics) for each in response.groups] == [count // 2] * 2


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [0, 900])
async def test_refused_topics_of_one_group_take_turns(partitions: int) -> None:
    count = 30 if partitions else 30_000
    topics = [Topic(name=f"t{each}", partition_indexes=[*range(partitions)]) for each in range(count)]
    message = m.OffsetFetchRequest(version=7, group_id="g", topics=topics, require_stable=False)
    turns = Turns()
    response = await fetch(message, GroupsOnly())
    assert await turns.end() >= (50 if not partitions else 27)
    assert len(response.topics) == count
    for topic in response.topics:
        assert [each.error_code for each in topic.partitions] == [REFUSED] * partitions
