"""The console's facts: whether a process is ready and why not, and partitions wherever their owner is."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.broker.not_served_api import NotServed
from bmq.console.state import OwnMetric
from bmq.core.audit.log import NO_AUDIT
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import Metrics
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Ends
from bmq.core.rpc.messages.broker import CleaningRow, LogCleaningRequest, LogCleaningResponse, NotServedPartition
from bmq.endpoint.authorization.authorizer import ALLOW_ALL
from bmq.meta.catalog import Topic
from bmq.meta.cluster.member import Address, Member
from bmq.meta.cluster.membership import TTL_S
from bmq.proxy.partition_queries import LOOK_S
from bmq.server.node import Node
from bmq.server.queries.console_facts import BYTES_S, console_state
from tests.unit.server.queries.console_node import collected, metrics, node


def test_quarantined_keys_are_in_the_metrics_and_the_reason_of_readiness() -> None:
    broken = node(quarantined={"topic t": "retention.ms is wrong", "/c/catalog/topics/x": "it is of format 2"})
    assert metrics(broken)["quarantined"] == 2
    text = "/c/catalog/topics/x, and 1 more cannot be used: it is of format 2"
    assert console_state(broken).is_ready() == (True, text)


def test_shards_that_cannot_be_loaded_are_in_the_metrics_and_the_reason_of_readiness() -> None:
    assert console_state(node(not_loaded={})).is_ready() == (True, "")
    assert metrics(node(not_loaded={}))["shards_not_loaded{storage}"] == 0
    broken = node(not_loaded={12: "other", 3: "the log ends at 566"})
    assert metrics(broken)["shards_not_loaded{storage}"] == 2
    assert metrics(broken)["shards_not_loaded{no_owner}"] == 0, "a series that is there shows that it is over"
    text = "groups of shard 3 of __consumer_offsets, and 1 more are not served: the log ends at 566"
    assert console_state(broken).is_ready() == (True, text), "all other groups are served"


def test_bytes_on_storage_are_those_of_the_last_count() -> None:
    process = cast(Any, node())
    sizes = SimpleNamespace(by_topic={"orders": 12}, partitions_unknown=1)
    process.catalog = SimpleNamespace(topics={})
    process.collected = collected(log_sizes=sizes)
    assert console_state(process).gauges().log_bytes_by_topic == {"orders": 12}


def test_partitions_that_cannot_be_served_are_in_the_reason_of_readiness() -> None:
    def ready(*not_served: tuple[str, int, str]) -> tuple[bool, str]:
        process = cast(Any, node())
        named = [NotServedPartition(*each) for each in not_served]
        process.collected.counts.not_served = NotServed("", len(named), named)
        return console_state(process).is_ready()

    assert ready() == (True, "")
    assert ready(("t", 0, "a hole")) == (True, "t-0 cannot be served: a hole")
    text = "a-2, and 1 more partitions cannot be served: offline"
    assert ready(("a", 2, "offline"), ("b", 1, "other")) == (True, text), "all others are served"


def test_storage_that_acknowledges_nothing_leaves_the_process_ready() -> None:
    """Fail storage, for all processes at once: if each became not ready, clients would see no server at all."""
    process = cast(Any, node())
    trouble = "storage acknowledges nothing: No space left on device"
    broker = SimpleNamespace(is_lost=False, is_serving=False, storage_trouble=trouble, store_trouble="")
    process.broker = SimpleNamespace(broker=broker)
    assert console_state(process).is_ready() == (True, trouble)
    process.joined.membership.is_member = False
    assert not console_state(process).is_ready()[0], "a process that joins again is not ready"
    process.joined.membership.is_member, process.is_serving = True, False
    assert console_state(process).is_ready() == (False, "starting, or draining")


def test_a_store_that_does_not_respond_is_in_the_reason_of_readiness() -> None:
    """The process serves what it has: it stays ready."""
    process = cast(Any, node())
    for age_s, said in ((0.0, ""), (TTL_S, ""), (40.4, "has not renewed this process's lease for 40 s: is it up")):
        process.joined.membership.lease_age_s = age_s
        is_ready, reason = console_state(process).is_ready()
        assert is_ready
        assert (said in reason) if said else reason == ""
    process.joined.membership.lease_age_s = 0.0
    broker = SimpleNamespace(storage_trouble="", store_trouble="1 partitions wait: etcd is full")
    process.broker = SimpleNamespace(broker=broker)
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
        catalog=SimpleNamespace(topics={"t": TOPIC}, broker_configs=lambda node_id: {}),
        storage_room=SimpleNamespace(facts=None),
        proxy=SimpleNamespace(
            owners=owners, coordinator=None, transactions=None, console_endpoint=None, audit=NO_AUDIT, audit_log=None
        ),
        broker=None,
        view=view,
        joined=SimpleNamespace(view=view, peers=None),
        coordinator=None,
        config=NodeConfig(node_id=1),
        collected=collected(),
        fs=None,
        metrics=Metrics(),
        security=SimpleNamespace(authorizer=ALLOW_ALL),
    )
    return cast(Node, fake)


async def states(owners: FarOwners, assigned: dict[int, str]) -> list[tuple[str, int | None]]:
    found = await console_state(far_node(owners, assigned)).topic("t", -1, 100)
    assert found is not None
    return [(part["state"], part["high_watermark"]) for part in found["partitions"]]


async def test_partitions_of_other_processes_are_shown_at_the_first_request() -> None:
    owners = FarOwners()
    assigned = {0: "there", 1: "here", 2: "there"}
    assert await states(owners, assigned) == [("WRITE", 9), ("START", None), ("WRITE", 9), ("START", None)]
    assert owners.waited == [0, 2], "what nobody owns, or this process, is known without"


async def test_partitions_without_a_response_of_their_owner_are_shown_as_starting() -> None:
    owners = FarOwners()
    owners.connect_s = 60
    assert await states(owners, dict.fromkeys(range(4), "there")) == [("START", None)] * 4


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


@pytest.mark.parametrize(
    ("configs", "default", "is_shown"),
    [
        ({}, "delete", False),
        ({"cleanup.policy": "compact"}, "delete", True),
        ({"cleanup.policy": "compact, delete"}, "delete", True),
        ({}, "compact", True),
        ({"cleanup.policy": "delete"}, "compact", False),
    ],
)
async def test_only_owners_of_compacted_topics_are_asked_for_their_cleaning(
    configs: dict[str, str], default: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask with policies of the topic, and with the cluster's default where the topic has none."""
    asked: list[tuple[int, int]] = []

    async def ask(member: Member, request: object, timeout_s: float) -> LogCleaningResponse:
        assert isinstance(request, LogCleaningRequest)
        asked.append((request.first, request.count))
        return LogCleaningResponse(partitions=(CleaningRow(2, "open_segment", 0.0, -1, -1, -1),))

    monkeypatch.setitem(globals(), "TOPIC", replace(TOPIC, configs=configs))
    process = cast(Any, far_node(FarOwners(), dict.fromkeys(range(4), "there")))
    process.catalog.broker_configs = lambda node_id: {"log.cleanup.policy": default} if node_id is None else {}
    there = process.view.members["there"]
    process.view.members["there"] = replace(there, internal=Address(host="h", port=1))
    process.joined.peers = SimpleNamespace(ask=ask)
    found = await console_state(process).topic("t", 0, 2)
    assert found is not None
    shown = [part["cleaning"]["reason"] for part in found["partitions"] if part["cleaning"] is not None]
    assert (shown, asked) == ((["unknown", "open_segment"], [(1, 2)]) if is_shown else ([], []))


async def test_internal_topics_are_not_compacted_here() -> None:
    process = cast(Any, far_node(FarOwners(), {}))
    name = "__consumer_offsets"
    process.catalog.topics = {name: replace(TOPIC, name=name, configs={"cleanup.policy": "compact"})}
    found = await console_state(process).topic(name, -1, 100)
    assert found is not None
    assert [part["cleaning"] for part in found["partitions"]] == [None] * 4
