"""Readiness of a process: whether clients are sent to it, and what it does not serve."""

from __future__ import annotations

import asyncio

import pytest

from bmq.broker.broker import Broker
from bmq.broker.not_served_api import NotServed
from bmq.core.metrics.descriptor_meter import DescriptorMeter
from bmq.core.rpc.messages.broker import NotServedPartition
from bmq.meta.catalog import KvCatalog
from bmq.meta.cluster.membership import TTL_S, Membership
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.server.console_view import console_state
from bmq.server.node import Node
from bmq.server.roles.coordinator import CoordinatorRole
from tests.unit.server.queries.console_node import metrics, node_with


async def test_quarantined_keys_are_in_the_metrics_and_the_reason_of_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"/c/topics/x": "it is of format 2", "/c/topics/y": "it is of format 3"}
    monkeypatch.setattr(KvCatalog, "unreadable", broken)
    async with node_with(starts=False) as node:
        assert metrics(node)["quarantined"] == 2
        text = "/c/topics/x, and 1 more cannot be used: it is of format 2"
        assert console_state(node).is_ready() == (True, text)


async def test_shards_that_cannot_be_loaded_are_in_the_reason_of_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    async with node_with("coordinator", starts=False) as node:
        assert console_state(node).is_ready() == (True, "")
        broken = {ShardId(GROUPS, 12): "other", ShardId(GROUPS, 3): "the log ends at 566"}
        monkeypatch.setattr(CoordinatorRole, "shards_not_loaded", lambda self: broken)
        text = "groups of shard 3 of __consumer_offsets, and 1 more are not served: the log ends at 566"
        assert console_state(node).is_ready() == (True, text), "all other groups are served"


async def test_partitions_that_cannot_be_served_are_in_the_reason_of_readiness() -> None:
    def ready(node: Node, *not_served: tuple[str, int, str]) -> tuple[bool, str]:
        named = [NotServedPartition(*each) for each in not_served]
        node.collected.counts.not_served = NotServed("", len(named), named)
        return console_state(node).is_ready()

    async with node_with(starts=False) as node:
        assert ready(node) == (True, "")
        assert ready(node, ("t", 0, "a hole")) == (True, "t-0 cannot be served: a hole")
        text = "a-2, and 1 more partitions cannot be served: offline"
        assert ready(node, ("a", 2, "offline"), ("b", 1, "other")) == (True, text), "all others are served"


async def test_storage_that_acknowledges_nothing_leaves_the_process_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail storage, for all processes at once: if each became not ready, clients would see no server at all."""
    trouble = "storage acknowledges nothing: No space left on device"
    monkeypatch.setattr(Broker, "storage_trouble", trouble)
    async with node_with("broker", starts=False) as node:
        assert console_state(node).is_ready() == (True, trouble)
        with monkeypatch.context() as lost:
            lost.setattr(Membership, "is_member", False)
            assert not console_state(node).is_ready()[0], "a process that joins again is not ready"
        state = console_state(node)
        now = asyncio.get_running_loop().time()
        await node.leave(now, now)
        assert state.is_ready() == (False, "starting, or draining")


async def test_a_store_that_does_not_respond_is_in_the_reason_of_readiness(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process serves what it has: it stays ready."""
    async with node_with("broker", starts=False) as node:
        for age_s, said in ((0.0, ""), (TTL_S, ""), (40.4, "has not renewed this process's lease for 40 s: is it up")):
            monkeypatch.setattr(Membership, "lease_age_s", age_s)
            is_ready, reason = console_state(node).is_ready()
            assert is_ready
            assert (said in reason) if said else reason == ""
        monkeypatch.setattr(Membership, "lease_age_s", 0.0)
        monkeypatch.setattr(Broker, "store_trouble", "1 partitions wait: etcd is full")
        assert console_state(node).is_ready() == (True, "1 partitions wait: etcd is full")


async def test_a_process_without_a_descriptor_is_not_ready_since_it_takes_no_new_connection() -> None:
    meter = DescriptorMeter()
    async with node_with(starts=False) as node:
        state = console_state(node, descriptors=meter)
        assert state.is_ready() == (True, "")
        meter.is_out = True
        assert state.is_ready() == (False, "no file descriptor is left: new connections are closed as they come")
