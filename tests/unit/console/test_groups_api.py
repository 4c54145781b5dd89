"""Groups over HTTP: their lag, and the reset of their offsets with a preview."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from bmq.console import groups_api
from bmq.console.groups_api import GroupsApi
from bmq.console.state import CommittedFacts, GroupDetails
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from tests.harness.loop_stops import is_short, loop_stops
from tests.unit.console import states
from tests.unit.console.asked import Called, get, post, refused
from tests.unit.console.served import ORDERS, TOPIC, create, serving
from tests.unit.console.states import GROUP, FakeRequests, list_offsets_response, state

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]


async def test_offsets_of_a_group_are_reset_after_a_preview() -> None:
    async with serving() as api:
        await create(api)
        for number in range(4):
            await api("POST", f"{TOPIC}/records{ORDERS}", {"partition": number % 2, "value": "v"})
        group, reset = "?id=billing", "/api/v1/groups/{id}/reset?id=billing"
        assert (await api("GET", f"/api/v1/groups/{{id}}{group}"))[0] == 404
        orders = [{"topic": "orders", "partitions": None}]
        status, body = await api("POST", reset, {"topics": orders, "to": "earliest"})
        assert (status, body["dry_run"]) == (200, True)
        assert [(each["current"], each["new"]) for each in body["offsets"]] == [(None, 0), (None, 0)]
        assert (await api("GET", f"/api/v1/groups/{{id}}{group}"))[0] == 404, "nothing was changed"
        assert (await api("POST", reset, {"topics": orders, "to": "earliest", "dry_run": False}))[0] == 200
        _, body = await api("GET", f"/api/v1/groups/{{id}}{group}", limit=1)
        assert (body["lag"], body["total"], body["next"]) == (2, 2, "orders/0")
        for wrong in ("orders", "orders/x", "orders/" + "9" * 5_000):
            assert (await api("GET", f"/api/v1/groups/{{id}}{group}", after=wrong))[0] == 400
        _, body = await api("GET", f"/api/v1/groups/{{id}}{group}", after="orders/0")
        assert [(each["partition"], each["lag"]) for each in body["offsets"]] == [(1, 2)]
        _, body = await api("POST", reset, {"to": "shift", "value": 1})
        assert [(each["current"], each["new"]) for each in body["offsets"]] == [(0, 1), (0, 1)]
        _, body = await api("POST", reset, {"to": "offset", "value": 99})
        assert {each["new"] for each in body["offsets"]} == {2}, "moved to the log's end"
        assert (await api("POST", reset, {"to": "shift"}))[0] == 400
        assert (await api("POST", reset, {"to": "latest", "value": 1}))[0] == 400
        assert (await api("POST", reset, {"topics": [{"topic": "no", "partitions": None}], "to": "latest"}))[0] == 404
        _, body = await api("GET", "/api/v1/groups")
        assert [each["group_id"] for each in body["groups"]] == ["billing"]
        assert (await api("DELETE", f"/api/v1/groups/{{id}}{group}"))[0] == 200
        assert (await api("DELETE", f"/api/v1/groups/{{id}}{group}"))[0] == 404


async def test_the_lag_of_a_group_over_time_is_asked_for_in_parts() -> None:
    async with serving() as api:
        await create(api)
        body = {"topics": [{"topic": "orders", "partitions": None}], "to": "latest", "dry_run": False}
        assert (await api("POST", "/api/v1/groups/{id}/reset?id=billing", body))[0] == 200
        status, response = await api("GET", "/api/v1/groups/{id}/lag?id=billing", after=1_700_000_000_000)
        assert (status, response["group_id"], response["samples"], response["error"]) == (200, "billing", [], "")
        assert (await api("GET", "/api/v1/groups/{id}/lag?id=billing", after="yesterday"))[0] == 400


EVERY_ID = [
    ".", "..", "...", "%2e", "%2E%2e", "a/b", "/", "a b", " ", "ü/ö", "日本", "a?b=c&d", "#", "%", "%2F", "a+b",
    ";", "\\", "g" * 249,
]  # fmt: skip


@pytest.mark.parametrize("group_id", EVERY_ID)
async def test_any_group_can_be_named_by_a_parameter(group_id: str) -> None:
    async with serving() as api:
        await create(api)
        body = {"topics": [{"topic": "orders", "partitions": [0]}], "to": "latest", "dry_run": False}
        status, response = await api("POST", "/api/v1/group/reset", body, id=group_id)
        assert (status, response["group_id"]) == (200, group_id)
        status, response = await api("GET", "/api/v1/group", id=group_id)
        assert (status, response["group"]["group_id"], response["total"]) == (200, group_id, 1)
        assert (await api("GET", "/api/v1/group/lag", id=group_id))[1]["group_id"] == group_id
        assert (await api("DELETE", "/api/v1/group", id=group_id))[0] == 200
        assert (await api("GET", "/api/v1/group", id=group_id))[0] == 404


async def test_a_group_must_be_named() -> None:
    async with serving() as api:
        status, body = await api("GET", "/api/v1/group")
        assert (status, body["message"]) == (400, "name the group: ?id=...")


async def test_a_page_of_groups_has_their_lags() -> None:
    async with serving() as api:
        await create(api)
        await api("POST", f"{TOPIC}/records{ORDERS}", {"partition": 0, "value": "v"})
        for group_id, to in (("behind", "earliest"), ("done", "latest")):
            body = {"topics": [{"topic": "orders", "partitions": None}], "to": to, "dry_run": False}
            assert (await api("POST", "/api/v1/group/reset", body, id=group_id))[0] == 200
        _, response = await api("GET", "/api/v1/groups", lag="true", sort="-group_id")
        assert [(each["group_id"], each["lag"]) for each in response["groups"]] == [("done", 0), ("behind", 1)]
        _, response = await api("GET", "/api/v1/groups", skip=1)
        assert [(each["group_id"], each["lag"], each["lag_error"]) for each in response["groups"]] == [
            ("done", None, "")
        ]
        assert (await api("GET", "/api/v1/groups", lag="true", limit=101))[0] == 400
        assert (await api("GET", "/api/v1/groups", sort="members"))[0] == 400


# ---------------------------------------------------------------------------------------------- handlers by themselves


class Offsets(FakeRequests):
    """Every partition has the offsets 5 to 9, but for `broken` ones; a commit is refused where `refuses` says."""

    def __init__(self, broken: Collection[int] = (), refuses: Mapping[int, ErrorCode] | None = None) -> None:
        super().__init__()
        self.broken = broken
        self.refuses = refuses or {}
        self.by_time: dict[int, int] = {}

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        self.sent.append((key, message))
        if key is ApiKey.LIST_OFFSETS:
            return list_offsets_response(message, self._offset)
        assert key is ApiKey.OFFSET_COMMIT
        Topic = m.OffsetCommitResponse.OffsetCommitResponseTopic
        return m.OffsetCommitResponse(
            topics=[
                Topic(
                    name=topic.name,
                    partitions=[
                        Topic.OffsetCommitResponsePartition(
                            partition_index=each.partition_index, error_code=self.refuses.get(each.partition_index, 0)
                        )
                        for each in topic.partitions
                    ],
                )
                for topic in message.topics
            ]
        )

    def _offset(self, _: str, part: Any) -> tuple[int, int]:
        if part.partition_index in self.broken:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        if part.timestamp >= 0:
            return 0, self.by_time.get(part.partition_index, -1)
        return 0, 5 if part.timestamp == -2 else 9

    def committed(self) -> dict[int, int]:
        """Return the offsets of the commits, by partition."""
        return {
            each.partition_index: each.committed_offset
            for key, message in self.sent
            if key is ApiKey.OFFSET_COMMIT
            for topic in message.topics
            for each in topic.partitions
        }


def api_of(
    requests: Offsets,
    committed: Mapping[int, int] | None = None,
    group_state: str = "Empty",
    partitions: int | None = None,
) -> Called:
    """Return the handlers of a console with one group, which has committed these offsets of topic orders.

    ``partitions`` are the topic's, if they are other than ``states.TOPIC`` has.
    """
    offsets = {0: 7} if committed is None else committed

    facts = [CommittedFacts(topic="orders", partition=n, offset=o, metadata="") for n, o in offsets.items()]

    async def group(group_id: str) -> GroupDetails | None:
        return {"group": {**GROUP, "state": group_state}, "protocol": "range", "members": [], "offsets": facts}

    console = state(requests=requests)
    console.group = group
    if partitions is not None:
        console.find_topic = lambda name: {**states.TOPIC, "partitions": partitions}
    return Called(GroupsApi(console), requests)


EMPTY = {"to": "earliest", "dry_run": False}
ALL_OF_ORDERS = [{"topic": "orders", "partitions": None}]


async def test_a_partition_without_readable_ends_has_an_error_and_no_lag() -> None:
    notified: Any = await api_of(Offsets(broken=[1]), {0: 7, 1: 5}).describe(get(id="billing"))
    assert notified["lag"] == 2, "the sum of those that are known"
    assert [(each["lag"], each["error"]) for each in notified["offsets"]] == [(2, ""), (None, "NOT_LEADER_OR_FOLLOWER")]


async def test_an_offset_behind_the_logs_end_has_no_negative_lag() -> None:
    notified: Any = await api_of(Offsets(), {0: 12}).describe(get(id="billing"))
    assert notified["lag"] == 0


async def test_a_group_without_offsets_asks_for_no_ends() -> None:
    requests = Offsets()
    notified: Any = await api_of(requests, {}).describe(get(id="billing"))
    assert (notified["offsets"], notified["lag"], requests.sent) == ([], 0, [])


@pytest.mark.usefixtures("without_connection")
@pytest.mark.parametrize(
    ("target", "new"),
    [
        ({"to": "earliest"}, 5),
        ({"to": "latest"}, 9),
        ({"to": "offset", "value": 6}, 6),
        ({"to": "offset", "value": -3}, 5),
        ({"to": "offset", "value": 99}, 9),
        ({"to": "shift", "value": 1}, 8),
        ({"to": "shift", "value": -99}, 5),
        ({"to": "timestamp", "value": 1_000}, 6),
        ({"to": "timestamp", "value": 0}, 6),
    ],
    ids=str,
)
async def test_each_target_is_moved_into_the_log(target: dict[str, Any], new: int) -> None:
    requests = Offsets()
    requests.by_time = {0: 6}
    notified: Any = await api_of(requests).reset(post({**target, "dry_run": False}, id="billing"))
    assert [(each["current"], each["new"], each["error"]) for each in notified["offsets"]] == [(7, new, "")]
    assert requests.committed() == {0: new}


@pytest.mark.usefixtures("without_connection")
async def test_a_time_after_every_record_is_the_end() -> None:
    notified: Any = await api_of(Offsets()).reset(post({"to": "timestamp", "value": 1_000}, id="billing"))
    assert [each["new"] for each in notified["offsets"]] == [9]


@pytest.mark.usefixtures("without_connection")
async def test_partitions_whose_commit_failed_are_named() -> None:
    requests = Offsets(refuses={1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    body = {**EMPTY, "topics": ALL_OF_ORDERS}
    notified: Any = await api_of(requests).reset(post(body, id="billing"))
    assert [each["error"] for each in notified["offsets"]] == ["", "UNKNOWN_TOPIC_OR_PARTITION"]


@pytest.mark.usefixtures("without_connection")
async def test_a_commit_that_failed_everywhere_is_an_error() -> None:
    requests = Offsets(refuses=dict.fromkeys((0, 1), ErrorCode.UNKNOWN_MEMBER_ID))
    with pytest.raises(RequestError, match="no offset of group billing was set") as raised:
        await api_of(requests).reset(post({**EMPTY, "topics": ALL_OF_ORDERS}, id="billing"))
    assert raised.value.code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.usefixtures("without_connection")
@pytest.mark.parametrize(
    ("body", "refusal"),
    [
        ({"to": "shift", "value": 1, "topics": ALL_OF_ORDERS}, (409, "nothing_committed")),
        ({"to": "timestamp", "value": -1}, (400, "wrong_value")),
        ({"to": "latest", "topics": [{"topic": "orders", "partitions": [2]}]}, (404, "unknown_partition")),
        ({"to": "latest", "topics": [{"topic": "no", "partitions": [0]}]}, (404, "unknown_topic")),
        ({"to": "offset"}, (400, "wrong_value")),
        ({"to": "earliest", "value": 1}, (400, "wrong_value")),
        ({"to": "latest", "topics": [{"topic": "orders"}]}, (400, "wrong_value")),
    ],
    ids=str,
)
async def test_a_reset_that_is_refused_commits_nothing(body: dict[str, Any], refusal: tuple[int, str]) -> None:
    requests = Offsets()
    assert await refused(api_of(requests).reset(post({**body, "dry_run": False}, id="billing"))) == refusal
    assert requests.committed() == {}


@pytest.mark.usefixtures("without_connection")
async def test_a_group_without_offsets_needs_its_topics_named() -> None:
    assert await refused(api_of(Offsets(), {}).reset(post(EMPTY, id="billing"))) == (409, "nothing_committed")


@pytest.mark.usefixtures("without_connection")
async def test_a_group_with_members_is_not_reset() -> None:
    requests = Offsets()
    assert await refused(api_of(requests, group_state="Stable").reset(post(EMPTY, id="billing"))) == (
        409,
        "non_empty_group",
    )
    assert requests.sent == []


@pytest.mark.usefixtures("without_connection")
async def test_a_partition_without_a_leader_stops_the_whole_reset() -> None:
    requests = Offsets(broken=[1])
    body = {**EMPTY, "topics": ALL_OF_ORDERS}
    assert await refused(api_of(requests).reset(post(body, id="billing"))) == (503, "not_leader_or_follower")
    assert requests.committed() == {}


@pytest.mark.usefixtures("without_connection")
async def test_a_reset_is_bounded_in_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    body = {**EMPTY, "topics": ALL_OF_ORDERS}
    monkeypatch.setattr(groups_api, "PARTITIONS_MAX", 1)
    assert await refused(api_of(Offsets()).reset(post(body, id="billing"))) == (400, "wrong_value")
    monkeypatch.setattr(groups_api, "PARTITIONS_MAX", 2)
    notified: Any = await api_of(Offsets()).reset(post(body, id="billing"))
    assert len(notified["offsets"]) == 2


@pytest.mark.usefixtures("without_connection")
@pytest.mark.parametrize(("partitions", "refusal"), [(100_000, (400, "wrong_value")), (10_000, None)])
async def test_a_topic_that_is_named_many_times_is_listed_once(
    partitions: int, refusal: tuple[int, str] | None
) -> None:
    """300 times in a body of 16 KiB: as 30 million partitions, they would take 16 s."""
    api = api_of(Offsets(), partitions=partitions)
    request = post({"to": "earliest", "topics": ALL_OF_ORDERS * 300, "dry_run": False}, id="billing")
    with loop_stops() as stops:
        if refusal is not None:
            assert await refused(api.reset(request)) == refusal
        else:
            notified: Any = await api.reset(request)
            assert len(notified["offsets"]) == partitions
    assert is_short(stops.longest_s), stops.longest_s


MANY = dict.fromkeys(range(100_000), 7)
"""Offsets of the largest group."""


@pytest.mark.usefixtures("without_connection")
async def test_a_group_with_too_many_offsets_is_refused_without_a_stop() -> None:
    api = api_of(Offsets(), MANY, partitions=len(MANY))
    request = post({"to": "earliest"}, id="billing")
    with loop_stops() as stops:
        assert await refused(api.reset(request)) == (400, "wrong_value")
    assert is_short(stops.longest_s), stops.longest_s


async def test_a_page_of_very_many_offsets_is_cut_without_a_stop() -> None:
    """The offsets come in no order.  To sort them costs more than to read them."""
    mixed = dict.fromkeys(sorted(MANY, key=lambda number: number * 7_919 % 100_003), 7)
    api = api_of(Offsets(), mixed, partitions=len(MANY))
    request = get("/?limit=3&after=orders/99990", id="billing")
    with loop_stops() as stops:
        notified: Any = await api.describe(request)
    assert [each["partition"] for each in notified["offsets"]] == [99_991, 99_992, 99_993]
    assert (notified["total"], notified["next"]) == (len(MANY), "orders/99993")
    assert is_short(stops.longest_s), stops.longest_s
