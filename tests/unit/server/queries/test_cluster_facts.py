"""A console's view of its cluster, and its acts on it, whichever process leads."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Set
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.console.operations import NotPossible, StatusFacts
from bmq.controller.admin.messages import NOT_FINISHED, ClusterStatusResponse, MemberStatus, MoveStatus
from bmq.core.aio.turns import ELEMENTS_A_TURN
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.features import Feature, FeatureTable, LevelRange
from bmq.core.logging.levels import LogLevels
from bmq.core.metrics.counters import Metrics
from bmq.core.model import PartitionKey
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.messages.broker import NotServedPartition, PartitionsNotServedResponse
from bmq.core.rpc.messages.coordinator import ShardsNotLoadedResponse
from bmq.core.rpc.messages.member import LogLevelsRequest, LogLevelsResponse
from bmq.core.rpc.messages.proxy import TrafficResponse
from bmq.core.rpc.peers import PeerLost
from bmq.meta.cluster.levels import FeatureLevels
from bmq.meta.cluster.member import BROKER, CONTROLLER, COORDINATOR, PROXY, Address, Member, encode_member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import KvError
from bmq.meta.maintenance import StoreStatus
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.node import Node
from bmq.server.queries import cluster_facts
from bmq.server.queries.cluster_facts import Operations
from tests.unit.console.test_http import faults

TOPIC_ID = uuid.UUID(int=1)
TABLE = FeatureTable((Feature("f", LevelRange(0, 2)),))
KEYS = [PartitionKey(TOPIC_ID, number) for number in range(4)]
STATUS = {"$ref": "#/components/schemas/Status"}


def at(port: int) -> Address:
    return Address(host="10.0.0.1", port=port)


MEMBERS = {
    each.incarnation: each
    for each in (
        Member(incarnation="broker-1a", roles=frozenset({BROKER}), internal=at(1), zone="a", version="1"),
        Member(incarnation="broker-1b", roles=frozenset({BROKER}), internal=at(2), is_draining=True),
        Member(incarnation="controller-1", roles=frozenset({CONTROLLER}), internal=at(3)),
        Member(incarnation="proxy-1", roles=frozenset({PROXY}), internal=at(4), kafka=at(5), http=at(6), node_id=7),
    )
}


SHARD = ShardId(GROUPS, 7)


class View:
    """A view in which partition 3 is assigned to a process that has ended."""

    own = "proxy-1"
    members = MEMBERS
    levels = FeatureLevels(epoch=3, levels={"f": 1, "later": 4}, held=frozenset({"f"}), intended={"f": 2})
    shards: Mapping[ShardId, ShardOwner] = {ShardId(GROUPS, number): ShardOwner("controller-1", 1) for number in (0, 1)}
    owners: Mapping[PartitionKey, str] = dict(zip(KEYS, ("broker-1a", "broker-1a", "broker-1b", "gone"), strict=True))

    def __init__(self) -> None:
        self.controller: Member | None = MEMBERS["controller-1"]

    def owner_of(self, key: PartitionKey) -> str:
        return self.owners[key]

    def owned_by(self, incarnation: str) -> Set[PartitionKey]:
        return {key for key, owner in self.owners.items() if owner == incarnation}

    def owned_count(self, incarnation: str) -> int:
        return len(self.owned_by(incarnation))


class Leader:
    """``ClusterAdmin``, as far as it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.answers: Callable[[], ClusterStatusResponse] | None = None

    async def status(self) -> ClusterStatusResponse:
        if self.answers is None:
            await asyncio.Event().wait()
        assert self.answers is not None
        return self.answers()

    async def drain(self, incarnation: str) -> None:
        self.asked.append(("drain", incarnation))

    async def balance(self) -> int:
        return 3

    async def move(self, topic: str, partition: int, incarnation: str) -> None:
        self.asked.append(("move", topic, partition, incarnation))


class Peers:
    """One coordinator, broker or proxy of several does not answer."""

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        if member.incarnation in ("coordinator-2", "broker-1b"):
            raise PeerLost("it stands still", was_sent=True)
        return {
            InternalKey.SHARDS_NOT_LOADED: ShardsNotLoadedResponse(shards=((3, "the log ends at 566"),)),
            InternalKey.PARTITIONS_NOT_SERVED: PartitionsNotServedResponse(
                storage_trouble="storage acknowledges nothing",
                total=150,
                partitions=(NotServedPartition("orders", 1, "offline: it ends at 7"),),
            ),
            InternalKey.TRAFFIC: TrafficResponse(window_ms=10_000, records_in=20, bytes_in=1000, bytes_out=30),
        }[message.KEY]


PEERS = Peers()


def node(view: object, leader: Leader) -> Node:
    topics = {"orders": SimpleNamespace(topic_id=TOPIC_ID, partitions=4)}
    fake = SimpleNamespace(
        view=view,
        joined=SimpleNamespace(peers=PEERS, view=view, features=TABLE),
        coordinator=SimpleNamespace(shards_not_loaded=lambda: {ShardId(GROUPS, 7): "it hangs"}),
        admin=leader,
        quarantined=lambda: {"topic t": "wrong"},
        broker=None,
        metrics=Metrics(),
        catalog=SimpleNamespace(topics=topics, cluster_id="abc"),
        config=SimpleNamespace(cluster="bmq", zone="z", offsets_topic_num_partitions=3),
        maintained_store=None,
        log_levels=LogLevels(),
    )
    return cast(Node, fake)


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
    assert brief(Operations(node(View(), Leader())).members()) == SEEN


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
    status = await Operations(node(View(), leader)).status()
    assert faults(status, STATUS) == []
    assert (status["cluster"], status["cluster_id"]) == ("bmq", "abc")
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
    status = await Operations(node(View(), leader)).status()
    assert not status["is_from_leader"]
    assert brief(status["members"]) == SEEN


async def test_named_partitions_and_keys_are_bounded_and_their_totals_are_not() -> None:
    leader = Leader()
    leader.answers = refuse
    status = await Operations(node(View(), leader)).status(0)
    assert (status["quarantined"], status["quarantined_total"]) == ([], 1)
    assert (status["partitions_not_served"], status["partitions_not_served_total"]) == ([], 150)


async def test_status_has_the_shards_that_coordinators_cannot_load() -> None:
    view, leader = View(), Leader()
    coordinators = [
        Member(incarnation=f"coordinator-{number}", roles=frozenset({COORDINATOR}), internal=at(number + 10))
        for number in (1, 2)
    ]
    view.members = {**MEMBERS, **{each.incarnation: each for each in coordinators}}
    leader.answers = ClusterStatusResponse
    status = await Operations(node(view, leader)).status()
    assert status["shards_not_loaded"] == [
        {"kind": "groups", "shard": 3, "coordinator": "coordinator-1", "why": "the log ends at 566"},
        {"kind": "groups", "shard": 7, "coordinator": "proxy-1", "why": "it hangs"},
    ]
    assert status["quarantined"] == [{"what": "topic t", "why": "wrong"}]


async def test_status_has_the_partitions_that_brokers_cannot_serve_and_the_proxies_rates() -> None:
    view, leader = View(), Leader()
    proxy = Member(incarnation="proxy-2", roles=frozenset({PROXY}), internal=at(20))
    view.members = {**MEMBERS, "proxy-2": proxy}
    leader.answers = refuse
    status = await Operations(node(view, leader)).status()
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
    status = await Operations(node(view, leader)).status()
    assert faults(status, STATUS) == []
    assert brief(status["members"]) == SEEN
    assert (status["is_from_leader"], status["leader"]) == (False, "controller-1")
    assert (status["partitions"], status["unassigned"], status["is_balancing"]) == (4, 1, None)
    assert status["unassigned_shards"] == 1, "of three, two are assigned to a member"
    assert [each["bytes_per_s"] for each in status["members"]] == [None] * 4
    view.controller = None
    assert (await Operations(node(view, leader)).status())["leader"] is None


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
    of, leader = node(View(), Leader()), Leader()
    leader.answers = refuse
    cast(Any, of).admin, cast(Any, of).maintained_store = leader, Store(response)
    facts = (await Operations(of).status())["store_trouble"]
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
            return await Operations(of).status()
        finally:
            ticking[0].cancel()

    view.owner_of = owner_of  # type: ignore[method-assign]
    leader.answers = refuse
    of = node(view, leader)
    of.catalog.topics["orders"].partitions = 5 * ELEMENTS_A_TURN  # type: ignore[misc]
    assert (await main())["unassigned"] == ELEMENTS_A_TURN
    assert max(looks.values()) <= ELEMENTS_A_TURN


async def test_drains_and_moves_are_sent_to_the_leader_by_incarnation() -> None:
    leader = Leader()
    operations = Operations(node(View(), leader))
    assert await operations.drain("10.0.0.1:2") == {"member": "broker-1b", "partitions": 1, "shards": 0}
    moved = await operations.move("orders", 3, "broker-1a")
    assert moved == {"topic": "orders", "partition": 3, "member": "broker-1a"}
    assert await operations.balance() == 3
    assert leader.asked == [("drain", "broker-1b"), ("move", "orders", 3, "broker-1a")]


@pytest.mark.parametrize(
    ("named", "status", "error"), [("nobody", 404, "unknown_member"), ("broker-1", 409, "ambiguous_member")]
)
async def test_a_drain_of_an_unknown_or_ambiguous_member_is_refused(named: str, status: int, error: str) -> None:
    leader = Leader()
    with pytest.raises(NotPossible) as refused:
        await Operations(node(View(), leader)).drain(named)
    assert (refused.value.status, refused.value.error, leader.asked) == (status, error, [])


class LogPeers:
    """Processes that answer LogLevels as `respond` does."""

    def __init__(self, respond: Callable[[LogLevelsRequest], LogLevelsResponse]) -> None:
        self.respond = respond
        self.asked: list[tuple[str, object]] = []

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        assert isinstance(message, LogLevelsRequest)
        self.asked.append((member.incarnation, message))
        return self.respond(message)


def with_log_peers(peers: LogPeers) -> Operations:
    of = node(View(), Leader())
    cast(Any, of.joined).peers = peers
    return Operations(of)


async def test_log_levels_are_read_and_set_at_the_named_member() -> None:
    peers = LogPeers(lambda _: LogLevelsResponse(levels=((20, "root"), (10, "bmq.broker")), own=((20, "root"),)))
    response = await with_log_peers(peers).log_levels("10.0.0.1:2")
    assert response == {
        "member": "broker-1b",
        "loggers": [
            {"logger": "root", "level": "INFO", "is_set": True},
            {"logger": "bmq.broker", "level": "DEBUG", "is_set": False},
        ],
    }
    peers.respond = lambda request: LogLevelsResponse(levels=((30, request.logger),), own=((30, request.logger),))
    set_to = await with_log_peers(peers).set_log_level("broker-1b", "bmq.core", "warn")
    assert set_to == {"member": "broker-1b", "logger": "bmq.core", "level": "WARNING", "is_set": True}
    assert peers.asked == [
        ("broker-1b", LogLevelsRequest()),
        ("broker-1b", LogLevelsRequest("bmq.core", "warn")),
    ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PeerLost("it stands still", was_sent=True), ErrorCode.BROKER_NOT_AVAILABLE),
        (TimeoutError(), ErrorCode.BROKER_NOT_AVAILABLE),
        (RequestError(ErrorCode.UNSUPPORTED_VERSION, "API 10021"), ErrorCode.UNSUPPORTED_VERSION),
        (RequestError(ErrorCode.INVALID_CONFIG, "there is no logger"), ErrorCode.INVALID_CONFIG),
    ],
)
async def test_an_error_of_the_member_is_raised_for_its_log_level(error: Exception, code: ErrorCode) -> None:
    def fail(_: LogLevelsRequest) -> LogLevelsResponse:
        raise error

    with pytest.raises(RequestError) as refused:
        await with_log_peers(LogPeers(fail)).set_log_level("broker-1b", "bmq", "debug")
    assert refused.value.code is code
    assert refused.value.message


async def test_the_levels_of_features_are_those_of_the_view() -> None:
    status = await Operations(node(View(), Leader())).status()
    assert status["features_epoch"] == 3
    assert [tuple(each.values()) for each in status["features"]] == [
        ("f", 1, 2, True, 0, 2),
        ("later", 4, None, False, 0, 0),
    ]
