"""The console's facts: of a process's place in its cluster, and of partitions wherever their owner is."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.console.listing import Order, Page
from bmq.console.state import OwnHistogram, OwnMetric, OwnSeries
from bmq.controller.planning.planner_view import Why
from bmq.coordinator.api import GroupListing
from bmq.coordinator.apis.group_admin import described
from bmq.coordinator.offsets.lag import LagReport, PairLag, PartitionLag
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import Histogram, Metrics
from bmq.core.metrics.loop_meter import LoopMeter
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Ends
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.membership import TTL_S
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.group_placement import shard_of
from bmq.proxy.partition_queries import LOOK_S
from bmq.server.console_facts import BYTES_S, console_state
from bmq.server.node import Node
from tests.harness.loop import run


class PendingMoves:
    """One that waits, after two that were made."""

    def __init__(self) -> None:
        self.moves = Counter({Why.DEAD: 2})

    def __len__(self) -> int:
        return 1


TERM = SimpleNamespace(
    failures=SimpleNamespace(declared_dead={"lease_ended": 2, "no_answer": 1}),
    pending_moves=PendingMoves(),
    without_owner=lambda: (4, 2),
)


def coordinator(not_loaded: dict[int, str]) -> SimpleNamespace:
    return SimpleNamespace(
        shards_not_loaded=lambda: not_loaded,
        shards_not_loaded_by_reason=lambda: {"storage": len(not_loaded), "no_owner": 0},
    )


def node(
    *,
    is_leading: bool = False,
    has_leader: bool = True,
    not_loaded: dict[int, str] | None = None,
    quarantined: dict[str, str] | None = None,
) -> Node:
    view = SimpleNamespace(
        own="b", members={"a": object(), "b": object()}, controller=object() if has_leader else None,
        owned_count=lambda incarnation: {"b": 3}[incarnation],
    )  # fmt: skip
    joined = SimpleNamespace(
        view=view,
        membership=SimpleNamespace(is_member=True, lease_age_s=1.5),
        peers=SimpleNamespace(connected=1),
    )
    fake = SimpleNamespace(
        metrics=Metrics(),
        broker=None,
        is_serving=True,
        own_coordinator=coordinator(not_loaded) if not_loaded is not None else None,
        collected=SimpleNamespace(request=lambda: None, group_lag=None, log_sizes=None),
        joined=joined,
        view=view,
        quarantined=lambda: quarantined or {},
        held_produces=5,
        remote_owners=SimpleNamespace(followed=7, relayed=4, route_ms=Histogram()),
        controller=SimpleNamespace(leading=TERM if is_leading else None, upkeep=None),
        cleaner=SimpleNamespace(waiting=3, failing=1) if is_leading else None,
        console_endpoint=None,
        store_times=None,
        config=NodeConfig(),
        fetch_service=SimpleNamespace(
            tails=SimpleNamespace(used=0),
            wait_ms=Histogram(),
            read_ms=Histogram(),
            budget=SimpleNamespace(response_bytes=9, waiting=1),
        ),
        pool=SimpleNamespace(cached_bytes=0, hits=1, hit_bytes=2, reads=3, read_bytes=4),
    )
    return cast(Node, fake)


def metrics(of: Node) -> dict[str, float]:
    return {
        f"{each.name}{{{each.label_value}}}" if each.label else each.name: each.value
        for each in console_state(of).own_metrics()
        if isinstance(each, OwnMetric)
    }


OF_EVERY_PROCESS = {
    "tail_cache_bytes",
    "block_cache_bytes",
    "cache_budget_bytes",
    "fetch_response_bytes_held",
    "fetch_responses_waiting",
    "block_cache_hits",
    "block_cache_hit_bytes",
    "storage_reads",
    "storage_read_bytes",
}


def test_one_of_several() -> None:
    told = metrics(node())
    assert {name: told[name] for name in told if name not in OF_EVERY_PROCESS} == {
        "quarantined": 0,
        "cluster_members": 2,
        "cluster_has_leader": True,
        "is_leader": False,
        "is_member": True,
        "kafka_controller_kafkacontroller_activecontrollercount": 0,
        "lease_age_seconds": 1.5,
        "assigned_partitions": 3,
        "peers_connected": 1,
        "ways_relayed": 4,
        "produces_kept": 5,
        "partitions_followed": 7,
    }


def test_what_cannot_be_used_is_said_aloud() -> None:
    broken = node(quarantined={"topic t": "retention.ms is wrong", "/c/catalog/topics/x": "it is of format 2"})
    assert metrics(broken)["quarantined"] == 2
    text = "/c/catalog/topics/x, and 1 more cannot be used: it is of format 2"
    assert console_state(broken).is_ready() == (True, text)


def test_shards_that_cannot_be_loaded_are_said_aloud() -> None:
    assert console_state(node(not_loaded={})).is_ready() == (True, "")
    assert metrics(node(not_loaded={}))["shards_not_loaded{storage}"] == 0
    broken = node(not_loaded={12: "other", 3: "the log ends at 566"})
    assert metrics(broken)["shards_not_loaded{storage}"] == 2
    assert metrics(broken)["shards_not_loaded{no_owner}"] == 0, "a series that is there shows that it is over"
    text = "groups of shard 3 of __consumer_offsets, and 1 more are not served: the log ends at 566"
    assert console_state(broken).is_ready() == (True, text), "all other groups are served"


def test_lag_of_groups_under_the_names_of_kafka_exporter() -> None:
    process, asked = cast(Any, node()), []
    report = LagReport([PairLag("g", "orders", 140, 10)], [PartitionLag("g", "orders", 3, 10)], 2)
    process.collected = SimpleNamespace(
        request=lambda: asked.append(1), group_lag=SimpleNamespace(report=report), log_sizes=None
    )
    own = console_state(process).own_metrics()
    series = {each.name: (tuple(each.labels), each.samples) for each in own if isinstance(each, OwnSeries)}
    pair = ("consumergroup", "topic")
    assert series == {
        "kafka_consumergroup_lag_sum": (pair, [(("g", "orders"), 10)]),
        "kafka_consumergroup_current_offset_sum": (pair, [(("g", "orders"), 140)]),
        "kafka_consumergroup_lag": ((*pair, "partition"), [(("g", "orders", "3"), 10)]),
    }
    assert metrics(process)["group_lag_unknown"] == 2
    assert asked == [1, 1], "a scrape asks for the next count"


def test_bytes_on_storage_are_those_that_were_counted_last() -> None:
    process = cast(Any, node())
    sizes = SimpleNamespace(by_topic={"orders": 12}, partitions_unknown=1)
    process.catalog = SimpleNamespace(topics={})
    process.collected = SimpleNamespace(request=lambda: None, group_lag=None, log_sizes=sizes)
    assert console_state(process).gauges().log_bytes_by_topic == {"orders": 12}


def test_partitions_that_cannot_be_served_are_said_aloud() -> None:
    def ready(**not_served: str) -> tuple[bool, str]:
        process = cast(Any, node())
        broker = SimpleNamespace(storage_trouble="", store_trouble="")
        process.broker = SimpleNamespace(
            broker=broker, assigned=SimpleNamespace(not_served=lambda: iter(not_served.items()))
        )
        return console_state(process).is_ready()

    assert ready() == (True, "")
    assert ready(t="a hole") == (True, "t cannot be served: a hole")
    text = "a, and 1 more partitions cannot be served: offline"
    assert ready(b="other", a="offline") == (True, text), "all others are served"


def test_storage_that_acknowledges_nothing_leaves_the_process_ready() -> None:
    """Fail storage, for all processes at once: if each became not ready, clients would see no server at all."""
    process = cast(Any, node())
    trouble = "storage acknowledges nothing: No space left on device"
    broker = SimpleNamespace(is_lost=False, is_serving=False, storage_trouble=trouble, store_trouble="")
    process.broker = SimpleNamespace(broker=broker, assigned=SimpleNamespace(not_served=lambda: iter(())))
    assert console_state(process).is_ready() == (True, trouble)
    process.joined.membership.is_member = False
    assert not console_state(process).is_ready()[0], "a process that joins again is not ready"
    process.joined.membership.is_member, process.is_serving = True, False
    assert console_state(process).is_ready() == (False, "starting, or draining")


def test_a_store_that_is_silent_is_said_aloud() -> None:
    """The process serves what it has: it stays ready."""
    process = cast(Any, node())
    for age_s, said in ((0.0, ""), (TTL_S, ""), (40.4, "has not renewed this process's lease for 40 s: is it up")):
        process.joined.membership.lease_age_s = age_s
        is_ready, reason = console_state(process).is_ready()
        assert is_ready
        assert (said in reason) if said else reason == ""
    process.joined.membership.lease_age_s = 0.0
    broker = SimpleNamespace(storage_trouble="", store_trouble="1 partitions wait: etcd is full")
    process.broker = SimpleNamespace(broker=broker, assigned=SimpleNamespace(not_served=lambda: iter(())))
    assert console_state(process).is_ready() == (True, "1 partitions wait: etcd is full")


def test_a_process_without_a_descriptor_is_not_ready_since_it_takes_no_new_connection() -> None:
    meter = cast(Any, SimpleNamespace(is_out=False, failures=7))
    state = console_state(node(), descriptors=meter)
    assert state.is_ready() == (True, "")
    meter.is_out = True
    assert state.is_ready() == (False, "no file descriptor is left: new connections are closed as they come")
    counter = next(each for each in state.own_metrics() if each.name == "descriptor_failures")
    assert isinstance(counter, OwnMetric)
    assert (counter.value, counter.is_counter) == (7, True)


@pytest.mark.parametrize("is_leading", [True, False])
def test_who_leads(is_leading: bool) -> None:
    assert metrics(node(is_leading=is_leading))["is_leader"] == is_leading
    assert metrics(node(has_leader=is_leading))["cluster_has_leader"] == is_leading


def test_a_leader_counts_failovers_and_moves_by_their_cause() -> None:
    told = metrics(node(is_leading=True))
    assert told["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert told["members_declared_dead{lease_ended}"] == 2
    assert told["members_declared_dead{no_answer}"] == 1
    assert told["moves{dead}"] == 2
    assert told["moves_pending"] == 1


def test_stages_are_those_of_the_roles_and_the_loop_is_measured_where_there_is_a_meter() -> None:
    def times(of: Node, meter: LoopMeter | None = None) -> dict[str, set[str]]:
        own = console_state(of, meter).own_metrics()
        return {each.name: set(each.series) for each in own if isinstance(each, OwnHistogram)}

    assert times(node()) == {"produce_stage_seconds": {"route"}, "fetch_stage_seconds": {"wait", "read"}}
    assert times(node(), LoopMeter())["loop_delay_seconds"] == {""}


TOPIC = Topic(name="t", topic_id=uuid.UUID(int=1), partitions=4)


class FarOwner:
    """A remote owner of any partition.  ``count``: None counts the bytes, else it is awaited instead."""

    count: Callable[[], Awaitable[int]] | None = None

    async def ends(self) -> Ends:
        return Ends(epoch=7, log_start=1, last_stable_offset=9, high_watermark=9)

    async def log_bytes(self) -> int:
        return 123 if self.count is None else await self.count()


class FarOwners:
    """Remote owners whose first use makes a connection; ``wait`` returns once it is made."""

    def __init__(self) -> None:
        self.connect_s = 0.1
        self.waited: list[int] = []

    def get(self, key: PartitionKey) -> FarOwner | None:
        return None

    async def wait(self, key: PartitionKey, timeout_s: float) -> FarOwner:
        self.waited.append(key.partition)
        if timeout_s < self.connect_s:
            await asyncio.sleep(timeout_s)
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not in time")
        await asyncio.sleep(self.connect_s)
        return FarOwner()


def far_node(owners: FarOwners, assigned: dict[int, str]) -> Node:
    members = {name: Member(incarnation=name, roles=frozenset()) for name in ("here", "there")}
    view = SimpleNamespace(own="here", members=members, owner_of=lambda key: assigned.get(key.partition, ""))
    fake = SimpleNamespace(
        catalog=SimpleNamespace(topics={"t": TOPIC}),
        owners=owners,
        broker=None,
        view=view,
        joined=None,
        metrics=Metrics(),
        console_endpoint=None,
    )
    return cast(Node, fake)


def states(owners: FarOwners, assigned: dict[int, str]) -> list[tuple[str, int | None]]:
    async def main() -> Any:
        return await console_state(far_node(owners, assigned)).topic("t", -1, 100)

    return [(part["state"], part["high_watermark"]) for part in run(main())["partitions"]]


def test_the_first_look_at_partitions_elsewhere_shows_them() -> None:
    owners = FarOwners()
    assigned = {0: "there", 1: "here", 2: "there"}
    assert states(owners, assigned) == [("WRITE", 9), ("START", None), ("WRITE", 9), ("START", None)]
    assert owners.waited == [0, 2], "what nobody owns, or this process, is known without"


def test_a_look_at_partitions_that_nobody_answers_for_ends_soon() -> None:
    owners = FarOwners()
    owners.connect_s = 60
    assert states(owners, dict.fromkeys(range(4), "there")) == [("START", None)] * 4


async def _is_silent() -> int:
    await asyncio.Event().wait()
    return 0


async def _refuses() -> int:
    await asyncio.sleep(4)  # as storage does, after some attempts
    raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "getListing: no answer")


@pytest.mark.parametrize("count", [_is_silent, _refuses])
async def test_partitions_are_shown_while_storage_does_not_answer(
    count: Callable[[], Awaitable[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without their bytes; and storage is waited for once, not for every few partitions."""
    monkeypatch.setattr(FarOwner, "count", staticmethod(count))
    monkeypatch.setitem(globals(), "TOPIC", replace(TOPIC, partitions=100))
    owners = FarOwners()
    owners.connect_s = 0.0

    loop = asyncio.get_running_loop()
    found = await console_state(far_node(owners, dict.fromkeys(range(100), "there"))).topic("t", -1, 100)
    assert loop.time() <= BYTES_S + LOOK_S
    assert found is not None
    shown = {(part["state"], part["high_watermark"], part["bytes"]) for part in found["partitions"]}
    assert shown == {("WRITE", 9, None)}


SHARDS = 50
WHOLE = Page("", 1_000)


class FakeCoordinator:
    """Lists ``groups`` of all shards but the ``missing`` ones; a description has room for two of them."""

    def __init__(
        self,
        groups: dict[str, int],
        missing: dict[int, ErrorCode] | None = None,
        states: dict[str, str] | None = None,
    ) -> None:
        self.groups = groups
        self.states = states or {}
        self.missing = missing or {}
        self.described: list[str] = []

    async def list_all_groups(self, request: m.ListGroupsRequest, client: object) -> GroupListing:
        Listed = m.ListGroupsResponse.ListedGroup
        listed = [Listed(group_id=each, group_state=self.states.get(each, "Empty")) for each in self.groups]
        return GroupListing(listed, frozenset(range(SHARDS)), self.missing)

    async def describe_groups(self, request: m.DescribeGroupsRequest, client: object) -> m.DescribeGroupsResponse:
        answers = []
        self.described += request.groups
        for number, name in enumerate(request.groups):
            code = self.groups[name] if number < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            answers.append(described(name, None, error_code=code, group_state="Empty"))
        return m.DescribeGroupsResponse(groups=answers)


def all_of(coordinator: FakeCoordinator, search: str = "", page: Page = WHOLE, sort: str = "group_id") -> Any:
    process: Any = node(not_loaded={3: "storage is full"})
    process.coordinator = coordinator
    process.catalog = SimpleNamespace(topics={OFFSETS_TOPIC: SimpleNamespace(partitions=SHARDS)})
    process.view = SimpleNamespace(own="b", members={}, shards={4: ShardOwner("d", 1)})
    groups: Any = console_state(process).groups(search, Order.parse(sort), page)
    return asyncio.run(groups)


def groups_of(coordinator: FakeCoordinator) -> list[str]:
    found = all_of(coordinator)
    assert not found["shards_not_loaded"]
    return [each["group_id"] for each in found["groups"]]


def test_groups_are_those_of_the_cluster_however_many() -> None:
    names = [f"g{number}" for number in range(7)]
    assert groups_of(FakeCoordinator(dict.fromkeys(names, 0))) == names


def test_groups_of_other_pages_are_not_described() -> None:
    coordinator = FakeCoordinator(dict.fromkeys(["a9", "b1", "a3", "A5", "a1", "a7"], 0))
    found = all_of(coordinator, "a", Page("a1", 2))
    assert [each["group_id"] for each in found["groups"]] == ["a3", "a7"]
    assert (found["total"], found["next"]) == (5, "a7")
    assert coordinator.described == ["a3", "a7"]
    last = all_of(coordinator, "a", Page("a7", 2))
    assert ([each["group_id"] for each in last["groups"]], last["next"]) == (["a9"], None)


def test_a_page_of_five_thousand_groups_is_bounded() -> None:
    coordinator = FakeCoordinator({f"{number:0249}": 0 for number in range(5_000)})
    found = all_of(coordinator, page=Page("", 25, 4_000))
    assert (len(found["groups"]), found["total"]) == (25, 5_000)
    assert len(json.dumps(found)) < 16 << 10
    assert set(coordinator.described) == {each["group_id"] for each in found["groups"]}


def test_the_loop_does_not_look_through_all_groups_itself() -> None:
    """A hundred thousand take 0.2 s."""
    looked_in = set[int]()

    class Name(str):
        def lower(self) -> str:
            looked_in.add(threading.get_ident())
            return super().lower()

    assert groups_of(FakeCoordinator({Name("g"): 0})) == ["g"]
    assert looked_in
    assert threading.get_ident() not in looked_in


def test_groups_are_sorted_by_what_the_list_of_them_has() -> None:
    coordinator = FakeCoordinator(dict.fromkeys(["a", "b", "c", "d"], 0), states={"b": "Stable", "d": "Stable"})
    found = all_of(coordinator, sort="-state", page=Page("", 3))
    assert [each["group_id"] for each in found["groups"]] == ["d", "b", "c"]
    assert (coordinator.described, found["next"]) == (["d", "b", "c", "c"], None), "c had no room at first"
    second = all_of(coordinator, sort="-group_id", page=Page("", 2, 2))
    assert [each["group_id"] for each in second["groups"]] == ["b", "a"]


def test_a_group_that_was_deleted_meanwhile_is_left_out() -> None:
    assert groups_of(FakeCoordinator({"gone": ErrorCode.GROUP_ID_NOT_FOUND, "here": 0})) == ["here"]


def test_shards_that_are_not_loaded_are_named_beside_the_groups_of_others() -> None:
    loading, elsewhere = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
    found = all_of(FakeCoordinator({"here": 0}, {3: loading, 4: elsewhere, 5: ErrorCode.COORDINATOR_NOT_AVAILABLE}))
    assert [each["group_id"] for each in found["groups"]] == ["here"]
    assert found["shards_not_loaded"] == [
        {"shard": 3, "coordinator": "b", "why": "storage is full"},
        {"shard": 4, "coordinator": "d", "why": "NOT_COORDINATOR"},
        {"shard": 5, "coordinator": "", "why": "COORDINATOR_NOT_AVAILABLE"},
    ]


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_groups_whose_shard_is_lost_before_they_are_described_are_left_out(code: ErrorCode) -> None:
    found = all_of(FakeCoordinator({"here": 0, "lost": code}))
    assert [each["group_id"] for each in found["groups"]] == ["here"]
    assert [each["shard"] for each in found["shards_not_loaded"]] == [shard_of("lost", SHARDS)]


def test_a_cluster_without_groups_has_none_though_a_shard_is_not_loaded() -> None:
    found = all_of(FakeCoordinator({}, {3: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}))
    assert (found["groups"], [each["shard"] for each in found["shards_not_loaded"]]) == ([], [3])


@pytest.mark.parametrize("code", [ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS])
def test_it_is_an_error_when_no_shard_can_tell(code: ErrorCode) -> None:
    with pytest.raises(RequestError) as refused:
        all_of(FakeCoordinator({}, dict.fromkeys(range(SHARDS), code)))
    assert refused.value.code is code
