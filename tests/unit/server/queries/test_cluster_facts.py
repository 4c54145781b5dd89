"""A console's view of its cluster, whichever process leads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import cast

import pytest

from bmq.console.operations import StatusFacts
from bmq.controller.admin.messages import NOT_FINISHED, ClusterStatusResponse, MemberStatus, MoveStatus
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.meta.cluster.member import COORDINATOR, PROXY, Member, encode_member
from bmq.meta.kv import KvError
from bmq.meta.maintenance import Maintained, StoreStatus
from bmq.server.queries import cluster_facts
from tests.unit.console.test_http import faults
from tests.unit.server.queries.seen_cluster import MEMBERS, Leader, View, at, status_of

STATUS = {"$ref": "#/components/schemas/Status"}


def brief(members: object) -> list[tuple[object, ...]]:
    assert isinstance(members, list)
    return [(each["incarnation"], each["partitions"], each["shards"], each["is_leader"]) for each in members]


SEEN = [
    ("broker-1a", 2, 0, False),
    ("broker-1b", 1, 0, False),
    ("controller-1", 0, 2, True),
    ("proxy-1", 0, 0, False),
]


def test_members_are_shown_from_the_view_alone() -> None:
    assert brief(status_of(View(), Leader()).members()) == SEEN


async def test_status_is_that_of_the_leader() -> None:
    leader = Leader()
    leader.answers = lambda: ClusterStatusResponse(
        leader="controller-1",
        unassigned=5,
        unassigned_shards=1,
        members=(
            MemberStatus(encode_member(MEMBERS["broker-1a"]), 2, 0, 2_500, 1_000, 10, 1),
            MemberStatus(encode_member(MEMBERS["controller-1"]), 0, 2, 0, 0, 0, 0),
        ),
        shards=((0, "controller-1"), (1, "")),
        pending_moves=(MoveStatus("orders", 1, "broker-1a", "broker-1b", "drain"),),
        past_moves=(
            MoveStatus("orders", 2, "broker-1a", "broker-1b", "balance", 9_000, 30),
            MoveStatus("orders", 3, "", "broker-1b", "dead", 9_500, NOT_FINISHED),
        ),
    )
    status = await status_of(View(), leader).status()
    assert faults(status, STATUS) == []
    assert (status["cluster"], status["cluster_id"]) == ("bmq", "cluster")
    assert (status["asked"], status["leader"], status["is_from_leader"]) == ("proxy-1", "controller-1", True)
    assert (status["unassigned"], status["unassigned_shards"]) == (5, 1)
    assert brief(status["members"]) == [("broker-1a", 2, 0, False), ("controller-1", 0, 2, True)]
    broker = status["members"][0]
    assert (broker["load_share"], broker["bytes_per_s"], broker["requests_per_s"]) == (0.25, 1_000, 10)
    assert broker["unreachable_for"] == 1
    assert status["shards"] == [
        {"kind": "groups", "shard": 0, "coordinator": "controller-1"},
        {"kind": "groups", "shard": 1, "coordinator": ""},
    ]
    assert status["moves_under_way"] == [
        {"topic": "orders", "partition": 1, "from": "broker-1a", "to": "broker-1b", "why": "drain"}
    ]
    assert [(each["ended_ms"], each["took_ms"]) for each in status["past_moves"]] == [(9_000, 30), (9_500, None)]


async def test_members_of_a_later_format_are_not_read() -> None:
    leader = Leader()
    later = encode_member(MEMBERS["broker-1a"]).replace(b'"format":1', b'"format":2')
    leader.answers = lambda: ClusterStatusResponse(members=(MemberStatus(later, 2, 0, 0, 0, 0, 0),))
    status = await status_of(View(), leader).status()
    assert not status["is_from_leader"]
    assert brief(status["members"]) == SEEN


async def test_named_partitions_and_keys_are_bounded_and_their_totals_are_not() -> None:
    leader = Leader()
    leader.answers = refuse
    status = await status_of(View(), leader).status(0)
    assert (status["quarantined"], status["quarantined_total"]) == ([], 1)
    assert (status["partitions_not_served"], status["partitions_not_served_total"]) == ([], 150)


async def test_status_has_the_shards_that_coordinators_cannot_load() -> None:
    view, leader = View(), Leader()
    coordinators = [
        Member(incarnation=f"coordinator-{number}", roles=frozenset({COORDINATOR}), internal=at(number + 10))
        for number in (1, 2)
    ]
    view.members.update((each.incarnation, each) for each in coordinators)
    leader.answers = ClusterStatusResponse
    status = await status_of(view, leader).status()
    assert status["shards_not_loaded"] == [
        {"kind": "groups", "shard": 3, "coordinator": "coordinator-1", "why": "the log ends at 566"},
        {"kind": "groups", "shard": 7, "coordinator": "proxy-1", "why": "it hangs"},
    ]
    assert status["quarantined"] == [{"what": "topic t", "why": "wrong"}]


async def test_status_has_the_partitions_that_brokers_cannot_serve_and_the_proxies_rates() -> None:
    view, leader = View(), Leader()
    proxy = Member(incarnation="proxy-2", roles=frozenset({PROXY}), internal=at(20))
    view.members["proxy-2"] = proxy
    leader.answers = refuse
    status = await status_of(view, leader).status()
    assert faults(status, STATUS) == []
    assert status["partitions_not_served"] == [
        {"topic": "orders", "partition": 1, "broker": "broker-1a", "why": "offline: it ends at 7"}
    ]
    assert (status["partitions_not_served_total"], status["silent"]) == (150, ["broker-1b"])
    rates = {"records_in": 2.0, "bytes_in": 100.0, "bytes_out": 3.0}
    assert status["rates"] == rates
    members = {each["incarnation"]: (each["rates"], each["storage_trouble"]) for each in status["members"]}
    assert members["broker-1a"] == (None, "storage acknowledges nothing")
    assert members["broker-1b"] == (None, "")
    assert members["proxy-2"] == (rates, "")


def refuse() -> ClusterStatusResponse:
    raise RequestError(ErrorCode.REQUEST_TIMED_OUT, "no controller can be reached")


@pytest.mark.parametrize("answers", [None, refuse])
async def test_without_a_response_of_the_leader_status_is_the_views(
    answers: Callable[[], ClusterStatusResponse] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_facts, "LEADER_S", 0.01)
    leader, view = Leader(), View()
    leader.answers = answers
    status = await status_of(view, leader).status()
    assert faults(status, STATUS) == []
    assert brief(status["members"]) == SEEN
    assert (status["is_from_leader"], status["leader"]) == (False, "controller-1")
    assert (status["partitions"], status["unassigned"], status["is_balancing"]) == (4, 1, None)
    assert status["unassigned_shards"] == 1, "of three, two are assigned to a member"
    assert [each["bytes_per_s"] for each in status["members"]] == [None] * 4
    view.controller = None
    assert (await status_of(view, leader).status())["leader"] is None


class Store:
    """A metadata store whose status is `answer`, or which raises it."""

    def __init__(self, response: StoreStatus | Exception) -> None:
        self.outcome = response

    async def status(self) -> StoreStatus:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("response", "trouble"),
    [
        (StoreStatus(bytes=5, bytes_in_use=4, quota_bytes=9, is_full=False), ""),
        (StoreStatus(bytes=9, bytes_in_use=4, quota_bytes=9, is_full=True), "it takes no writes (NOSPACE): its"),
        (KvError("no endpoint"), "it does not answer: no endpoint"),
    ],
)
async def test_status_names_a_metadata_store_that_takes_no_writes(
    response: StoreStatus | Exception, trouble: str
) -> None:
    """The process that responds asks the store itself: there may be no leader just then."""
    leader = Leader()
    leader.answers = refuse
    facts = (await status_of(View(), leader, cast(Maintained, Store(response))).status())["store_trouble"]
    assert facts.startswith(trouble)
    assert bool(facts) == bool(trouble)


async def test_partitions_without_an_owner_are_counted_in_turns() -> None:
    """Other work runs in between, whatever the number of partitions."""
    view, leader, looks = View(), Leader(), Counter[int]()
    loop_turns = 0

    def owner_of(key: PartitionKey) -> str:
        looks[loop_turns] += 1
        return "broker-1a" if key.partition % 5 else "gone"

    async def main() -> StatusFacts:
        def turn() -> None:
            nonlocal loop_turns
            loop_turns += 1
            ticking[0] = loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        ticking = [loop.call_soon(turn)]
        try:
            return await of.status()
        finally:
            ticking[0].cancel()

    view.owner_of = owner_of  # type: ignore[method-assign]
    leader.answers = refuse
    of = status_of(view, leader, partitions=5 * ELEMENTS_A_TURN)
    assert (await main())["unassigned"] == ELEMENTS_A_TURN
    assert max(looks.values()) <= ELEMENTS_A_TURN


async def test_the_levels_of_features_are_those_of_the_view() -> None:
    status = await status_of(View(), Leader()).status()
    assert status["features_epoch"] == 3
    assert [tuple(each.values()) for each in status["features"]] == [
        ("f", 1, 2, True, 0, 2),
        ("later", 4, None, False, 0, 0),
    ]
