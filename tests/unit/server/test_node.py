"""A node of several listeners: each API that has addresses answers for the listener that a request came by."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from bmq.console.kafka import LocalRequests
from bmq.core.clock import SystemClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import Client, Response
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import decode_response, encode_request
from bmq.core.wire.fetch_client import READ_COMMITTED
from bmq.core.wire.header import is_flexible
from bmq.meta.broker_configs import describe
from bmq.meta.cluster.keys import member_key
from bmq.meta.cluster.member import Address, encode_member
from bmq.meta.kv import Delete, Put
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.cluster_member import ClusterMember
from bmq.server.node import Node
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeClient
from tests.harness.single_node import single_node

CONFIG = NodeConfig(
    listeners=("INSIDE://0.0.0.0:9092", "OUTSIDE://0.0.0.0:9094"),
    advertised_listeners=("INSIDE://inside:9092", "OUTSIDE://outside:31000"),
    listener_security_protocol_map=("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT"),
    num_partitions=2,
)
ADDRESSES = {"INSIDE": Address(host="inside", port=9092), "OUTSIDE": Address(host="outside", port=31000)}
WAIT_S = 30.0


async def ask(node: Node, listener: str, key: ApiKey, version: int, message: Any) -> Any:
    """Return the response to a client of this listener."""
    tags = b"\0" if is_flexible(key, version) else b""
    head = struct.pack(">hhih", key, version, 1, -1) + tags
    frame = memoryview(bytearray(head + bytes(encode_request(key, version, message))))
    response = node.proxy.dispatches[listener](frame, cast(Client, FakeClient()))
    if isinstance(response, Awaitable):
        response = await asyncio.wait_for(response, WAIT_S)
    assert isinstance(response, Response)
    body = b"".join(map(bytes, response.buffers))[4 + len(tags) :]
    return decode_response(key, version, memoryview(body))


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_each_listener_returns_its_own_address() -> None:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(CONFIG, fs, kv) as node:
        node.is_at(ADDRESSES)
        await node.start()
        for listener, address in ADDRESSES.items():
            address_of = (address.host, address.port)
            request = m.MetadataRequest(
                topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=None, name="orders")],
                allow_auto_topic_creation=True,
            )
            for version in (9, 9):  # encoded, then out of what was kept
                metadata = await ask(node, listener, ApiKey.METADATA, version, request)
                assert [(each.host, each.port) for each in metadata.brokers] == [address_of]
                assert {each.leader_id for each in metadata.topics[0].partitions} == {0}
            cluster = await ask(node, listener, ApiKey.DESCRIBE_CLUSTER, 0, m.DescribeClusterRequest(endpoint_type=1))
            assert [(each.host, each.port) for each in cluster.brokers] == [address_of]
            found = await ask(
                node, listener, ApiKey.FIND_COORDINATOR, 4, m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
            )
            assert [(each.error_code, each.host, each.port) for each in found.coordinators] == [(0, *address_of)]
            groups = await ask(node, listener, ApiKey.LIST_GROUPS, 4, m.ListGroupsRequest(states_filter=[]))
            assert groups.error_code == 0
        shown = asyncio.Event()
        node.view.subscribe(lambda _: shown.set() if node.view.members["n"].node_id == 7 else None)
        node.joined.membership.update(node.joined.member.with_id(7))
        await shown.wait()
        node._renumbered(7)
        for listener, address in ADDRESSES.items():
            cluster = await ask(node, listener, ApiKey.DESCRIBE_CLUSTER, 0, m.DescribeClusterRequest(endpoint_type=1))
            assert [(each.broker_id, each.host) for each in cluster.brokers] == [(7, address.host)]
        resource = m.DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="7", configuration_keys=None
        )
        described = await LocalRequests(node.proxy.console_endpoint).send(
            ApiKey.DESCRIBE_CONFIGS, 4, m.DescribeConfigsRequest(resources=[resource])
        )
        assert [each.error_message for each in described.results] == [None], "the console's requests too"


@pytest.mark.parametrize(
    ("config", "listeners", "advertised"),
    [
        (
            CONFIG,
            "INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094",
            "INSIDE://inside:9092,OUTSIDE://outside:31000",
        ),
        (NodeConfig(listen="h:1"), "PLAINTEXT://h:1", "PLAINTEXT://h:1"),
        (NodeConfig(listen="[::1]:1", advertise="k:2"), "PLAINTEXT://[::1]:1", "PLAINTEXT://k:2"),
    ],
)
def test_listeners_are_described_as_kafkas_settings(config: NodeConfig, listeners: str, advertised: str) -> None:
    shown = {each.key.name: each.value for each in describe(config, {}, {})}
    assert (shown["listeners"], shown["advertised.listeners"]) == (listeners, advertised)


@pytest.mark.loops("asyncio")
async def test_an_error_of_one_part_does_not_keep_the_others_from_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker above all must close: it hands its partitions over."""

    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(CONFIG, fs, kv) as node:
        node.is_at(ADDRESSES)
        await node.start()
        assert node.broker is not None
        closed: list[str] = []
        close_broker = node.broker.close

        async def close() -> None:
            await close_broker()
            closed.append("broker")

        async def fail() -> None:
            raise RuntimeError("a bug")

        monkeypatch.setattr(node.broker, "close", close)
        monkeypatch.setattr(node.producer_ids, "close", fail)
        with pytest.raises(RuntimeError, match="a bug"):
            await node.close()
        assert closed == ["broker"]
        monkeypatch.undo()


@pytest.mark.loops("asyncio")
async def test_roles_start_and_drain_in_one_order_and_close_in_the_reverse_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests need owners and shards, shards need partitions: so the broker starts first, and closes last."""
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    called: list[str] = []

    def watch(name: str, act: str) -> None:
        role = getattr(node, name)
        inner = getattr(role, act)

        def called_now() -> Any:
            called.append(f"{act} {name}")
            return inner()

        monkeypatch.setattr(role, act, called_now)

    names = ("broker", "controller", "proxy", "coordinator")
    async with single_node(CONFIG, fs, kv) as node:
        for name in names:
            for act in ("start", "drain", "close"):
                watch(name, act)
        node.is_at(ADDRESSES)
        await node.start()
        node.drain()
        await node.close()
        monkeypatch.undo()
    order = [f"{act} {name}" for act in ("start", "drain") for name in names]
    assert called == [*order, *(f"close {name}" for name in reversed(names))]


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_fetches_are_refused_only_while_metadata_names_others() -> None:
    """Fetch from a process that is not a member: only while Metadata names another one may it refuse."""

    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(CONFIG, fs, kv) as node:
        node.is_at(ADDRESSES)
        await node.start()
        assert node.controller is not None
        own, at = node.joined.member, Address(host="other", port=9092)
        other = replace(own, incarnation="m", node_id=5, kafka=at, listeners=tuple((name, at) for name in ADDRESSES))
        request = m.MetadataRequest(
            topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=None, name="orders")],
            allow_auto_topic_creation=True,
        )

        async def address_of() -> tuple[list[int], ErrorCode]:
            """Return the brokers in Metadata, and the error of a fetch."""
            metadata = await ask(node, "INSIDE", ApiKey.METADATA, 12, request)
            error = ErrorCode.NONE
            try:
                requests, topic_id = LocalRequests(node.proxy.console_endpoint), metadata.topics[0].topic_id
                await requests.fetch(topic_id, 0, 0, 1 << 20, READ_COMMITTED)
            except RequestError as refusal:
                error = refusal.code
            return [each.node_id for each in metadata.brokers], error

        async def show(write: Put | Delete) -> None:
            await node.joined.view.wait_revision((await kv.commit([], [write])).revision)

        node._set_member(False)
        assert await address_of() == ([0], ErrorCode.NONE), "nobody else is there"
        await node.controller.close()  # which would find no member
        await show(Put(member_key("bmq", "m"), encode_member(other)))
        assert await address_of() == ([5], ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await show(Delete(member_key("bmq", "m")))
        assert await address_of() == ([0], ErrorCode.NONE)


@pytest.mark.loops("asyncio")
async def test_an_error_of_the_wiring_is_the_error_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was not wired is not called when the membership changes, which would hide why."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("bmq.server.roles.proxy.FetchService", fail)
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    joined = ClusterMember(CONFIG, fs, kv, SystemClock(), "n")
    await joined.join()
    with pytest.raises(RuntimeError, match="a bug"):
        Node(CONFIG, fs, kv, SystemClock(), joined)
    await joined.leave()
