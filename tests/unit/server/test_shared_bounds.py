"""Bounds and counters of a process with two listeners, a console and an audit log: whose each of them is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import fields, replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.console.kafka import LocalRequests
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net import client_connection, listener
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import encode_request
from bmq.endpoint.authorization.authorizer import ALLOW_ALL
from bmq.endpoint.quotas import NO_QUOTAS
from bmq.meta.cluster.member import Address
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.proxy.services import ProxyServices
from bmq.server.listeners import Sockets
from bmq.server.node import Node
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.single_node import single_node
from tests.harness.waiting import until

pytestmark = pytest.mark.loops("asyncio")
CONFIG = NodeConfig(
    listeners=("INSIDE://127.0.0.1:0", "OUTSIDE://127.0.0.1:1"),
    listener_security_protocol_map=("INSIDE:PLAINTEXT", "OUTSIDE:PLAINTEXT"),
    audit_log="topic:audit",
    authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    super_users="User:admin",
    default_replication_factor=1,
)
WAIT_S = 30.0
READERS = 16
PARTITIONS = 4_000
"""Partitions of the topic whose Metadata is a large response: about 130 kB."""

# Fields of which the callers and listeners have their own; a process has one of each other field.
BY_LISTENER = {"proxies", "metadata"}
BY_CALLER = {"metrics", "quotas", "authorizer", "audit", "apis"}


@contextlib.asynccontextmanager
async def node_of(config: NodeConfig = CONFIG) -> AsyncIterator[Node]:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(config, fs, kv) as node:
        yield node


def all_services(node: Node) -> dict[str, ProxyServices]:
    """Return the services of each listener's clients, of the console, and of the process itself."""
    endpoints: dict[str, Any] = {
        **node.endpoints,
        "console": node.console_endpoint,
        "process": node._own_requests._dispatch,
    }
    return {name: endpoint._services for name, endpoint in endpoints.items()}


async def test_each_field_is_shared_by_all_copies_or_differs_on_purpose() -> None:
    """A field that a copy makes for itself is a bound that holds once a listener, not once a process."""
    async with node_of() as node:
        of = all_services(node)
        assert list(of) == ["INSIDE", "OUTSIDE", "console", "process"]
        for field in fields(ProxyServices):
            assert field.init, f"{field.name} is made anew in each copy"
            values = [getattr(services, field.name) for services in of.values()]
            if field.name not in BY_LISTENER | BY_CALLER:
                assert all(value is values[0] for value in values), field.name
            elif field.name in BY_CALLER - {"apis"}:
                assert values[0] is values[1], f"{field.name} is of all clients"
        assert of["INSIDE"].proxies is of["console"].proxies is of["process"].proxies
        assert of["INSIDE"].proxies is not of["OUTSIDE"].proxies
        assert of["INSIDE"].metadata is not of["OUTSIDE"].metadata
        assert of["INSIDE"].metrics is node.metrics
        assert of["console"].metrics is not node.metrics
        assert of["process"].metrics is not node.metrics
        assert of["INSIDE"].quotas is node.security.quotas
        assert [of[name].quotas for name in ("console", "process")] == [NO_QUOTAS, NO_QUOTAS]
        assert of["INSIDE"].authorizer is of["console"].authorizer is node.security.authorizer
        assert of["process"].authorizer is ALLOW_ALL
        assert (of["INSIDE"].audit.is_on, of["console"].audit.is_on, of["process"].audit.is_on) == (True, True, False)


async def test_all_copies_get_a_new_node_id() -> None:
    async with node_of() as node:
        node._renumbered(7)
        assert {name: each.config.node_id for name, each in all_services(node).items()} == {
            "INSIDE": 7, "OUTSIDE": 7, "console": 7, "process": 7,
        }  # fmt: skip


async def test_room_that_any_listener_or_caller_waits_for_is_wanted() -> None:
    async with node_of() as node:
        for services in all_services(node).values():
            taken = await services.responses.take(CONFIG.queued_max_request_bytes)
            waiting = asyncio.ensure_future(services.responses.take(CONFIG.queued_max_request_bytes))
            await asyncio.sleep(0)
            assert node.is_response_room_wanted()
            taken.release()
            (await waiting).release()
            assert not node.is_response_room_wanted()


async def test_requests_of_the_process_itself_count_nowhere_as_clients() -> None:
    """The console browses and produces, and the audit log writes: the clients' counters and charts do not move."""
    async with node_of(replace(CONFIG, authorizer_class_name="", super_users="")) as node:
        node.is_at({name: Address(host="h", port=1) for name in node.endpoints})
        await node.start()
        topic = await node.admin.create_topic("orders", 1)
        await node.owners.wait(PartitionKey(topic.topic_id, 0), WAIT_S)
        batch = bytes(build_batch([Record(value=b"x" * 100)]))
        for requests in (LocalRequests(node.console_endpoint), node._own_requests):
            base = await requests.produce(topic.topic_id, 0, memoryview(bytearray(batch)))
            fetched = await requests.fetch(topic.topic_id, 0, base, 1 << 20)
            assert fetched.records_size == len(batch)
            with pytest.raises(RequestError) as refused:
                await requests.fetch(topic.topic_id, 0, 1_000, 1 << 20)
            assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        metrics = node.metrics
        assert ("orders" in metrics.topics, metrics.tail_hit_bytes, metrics.storage_read_bytes) == (False, 0, 0)
        assert not metrics.api(ApiKey.FETCH).errors
        assert metrics.traffic is not None
        metrics.traffic.roll(1.0)
        assert not metrics.traffic.last.topics
        counters = all_services(node)["console"].metrics.topics["orders"]
        assert (counters.produces, counters.fetches, counters.bytes_out) == (2, 4, 2 * len(batch))


def metadata(number: int) -> bytes:
    message = m.MetadataRequest(topics=[m.MetadataRequest.MetadataRequestTopic(topic_id=None, name="wide")])
    body = struct.pack(">hhih", ApiKey.METADATA, 5, number, -1) + bytes(encode_request(ApiKey.METADATA, 5, message))
    return struct.pack(">i", len(body)) + body


def non_reader(host: str, port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 10)
    sock.connect((host, port))
    sock.setblocking(False)
    sock.send(b"".join(metadata(number) for number in range(200)))
    return sock


@pytest.mark.parametrize(("name", "host"), [("INSIDE", "127.0.0.1"), ("OUTSIDE", "127.0.0.2")])
async def test_clients_of_any_listener_that_do_not_read_are_closed_once_others_wait(
    name: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their responses fill the memory for responses; a client that reads has its own soon after."""
    for module in (listener, client_connection):
        monkeypatch.setattr(module, "STUCK_S", 0.2)
    config = replace(
        CONFIG, socket_request_max_bytes=1 << 20, queued_max_request_bytes=1 << 20, audit_log="",
        authorizer_class_name="", super_users="", roles=("proxy", "controller"),
        listeners=("INSIDE://127.0.0.1:0", "OUTSIDE://127.0.0.2:0"),
    )  # fmt: skip
    async with node_of(config) as node, contextlib.AsyncExitStack() as ends:
        sockets = Sockets(node, cast(Any, SimpleNamespace(port=1, connections=SimpleNamespace())))
        ends.callback(sockets.close)
        await sockets.start()
        await node.admin.create_topic("wide", PARTITIONS)
        await sockets.open()
        port = sockets._ports[name]
        for _ in range(READERS):
            ends.callback(non_reader(host, port).close)
        await until(lambda: node.is_response_room_wanted() or node.metrics.connections_stuck_closed > 0)
        reader, writer = await asyncio.open_connection(host, port)
        ends.callback(writer.close)
        writer.write(metadata(1))
        (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), WAIT_S))
        assert len(await reader.readexactly(size)) == size > 64 << 10
        assert node.metrics.connections_stuck_closed > 0
        sockets.close()
        await until(lambda: not node.metrics.connections)
        assert all(services.responses.used == 0 for services in all_services(node).values())
