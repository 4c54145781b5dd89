"""Bounds and counters of a process with two listeners, a console and an audit log: whose each of them is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from bmq.console.kafka import LocalRequests
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.metrics.counters import PortCounters, ProcessCounters, RequestCounters, UnreadCounters
from bmq.core.model import PartitionKey
from bmq.core.net import client_progress, listener
from bmq.core.records.batch import Record, build_batch
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec_client import encode_request
from bmq.core.wire.fetch_client import READ_COMMITTED
from bmq.endpoint.authorization.authorizer import ALLOW_ALL
from bmq.endpoint.dispatch import Endpoint
from bmq.endpoint.quotas import NO_QUOTAS
from bmq.endpoint.scopes import Scopes
from bmq.meta.cluster.member import Address
from bmq.proxy.scopes import ProxyScopes
from bmq.server.console_view import console_state
from bmq.server.listeners import Sockets
from bmq.server.node import Node
from tests.harness.single_node import memory_node
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


@contextlib.asynccontextmanager
async def node_of(config: NodeConfig = CONFIG) -> AsyncIterator[Node]:
    async with memory_node(config) as node:
        yield node


def all_endpoints(node: Node) -> dict[str, Endpoint]:
    """Return the endpoint of each listener's clients, of the console, and of the process itself."""
    return {**node.proxy.client_endpoints, "console": node.proxy.console_endpoint, "process": node.proxy.own_endpoint}


def all_scopes(node: Node) -> dict[str, ProxyScopes]:
    return {name: cast(ProxyScopes, endpoint.scopes) for name, endpoint in all_endpoints(node).items()}


OWNERS = {
    "process": {  # of the process: all listeners and callers share it
        "clock", "catalog", "owners", "fetch_service", "responses", "produce_queue", "large", "produce_order", "admin",
        "coordinator", "producer_ids", "scram_users", "tokens", "client_quotas", "log_levels", "acls",
        "new_leaders", "features", "levels", "transactions", "end_group_transaction",
    },
    "view": {"config", "proxies", "metadata"},  # of a listener
    "caller": {"metrics", "quotas", "authorizer", "audit", "is_process"},  # of a kind of caller
}  # fmt: skip


async def test_each_budget_queue_and_counter_has_one_owner() -> None:
    """A new field must be written into the table; the scope that has it decides who shares it."""
    async with node_of() as node:
        of = all_scopes(node)
        assert list(of) == ["INSIDE", "OUTSIDE", "console", "process"]
        for scopes in of.values():
            for name in ("process", "view", "caller"):
                assert {each.name for each in fields(getattr(scopes, name))} == OWNERS[name]
        assert {each.name for each in fields(Scopes)} == OWNERS.keys()
        assert all(scopes.process is node.proxy.services for scopes in of.values())
        assert of["INSIDE"].view is of["console"].view is of["process"].view
        assert of["INSIDE"].view.proxies is not of["OUTSIDE"].view.proxies
        assert of["INSIDE"].view.metadata is not of["OUTSIDE"].view.metadata
        callers = {name: scopes.caller for name, scopes in of.items()}
        assert callers["INSIDE"] is callers["OUTSIDE"]
        assert len({id(caller.metrics) for caller in callers.values()}) == 3
        assert callers["INSIDE"].metrics is node.client_requests
        assert [type(callers[name].metrics) for name in ("console", "process")] == [UnreadCounters, UnreadCounters]
        assert callers["INSIDE"].quotas is node.security.quotas
        assert [callers[name].quotas for name in ("console", "process")] == [NO_QUOTAS, NO_QUOTAS]
        assert callers["INSIDE"].authorizer is callers["console"].authorizer is node.security.authorizer
        assert callers["process"].authorizer is ALLOW_ALL
        assert [caller.audit.is_on for caller in callers.values()] == [True, True, True, False]


COUNTERS = {
    "client_requests": {  # of a kind of caller, here the clients: through all listeners
        "apis", "other_topics", "storage_read_bytes", "tail_hit_bytes", "topics", "topics_max", "traffic",
    },
    "client_port": {  # of a port, here the clients': of all listeners
        "authentications", "connections", "connections_idle_closed", "connections_malformed", "connections_refused",
        "connections_stuck_closed", "connections_throttled", "connections_total", "request_bytes_held",
        "requests_outliving", "tls_handshakes_failed", "user_connections_refused",
    },
    "counters": {"clients_given_up"},  # of the process
}  # fmt: skip
KINDS_OF_COUNTERS = (RequestCounters, PortCounters, ProcessCounters)


async def test_each_counter_has_one_owner() -> None:
    """A new counter must be written into the table; the object that has it decides whose requests it counts."""
    async with node_of() as node:
        for name, counters in COUNTERS.items():
            assert set(type(getattr(node, name)).__slots__) == counters, name
        sockets = Sockets(node, cast(Any, SimpleNamespace(port=1)))
        assert sockets._kafka is not None
        assert sockets._kafka.metrics is node.client_port
        console = console_state(node)
        assert (console.client_requests, console.client_port) == (node.client_requests, node.client_port)
        kept = Counter(type(each).__name__ for each in reachable(node) if isinstance(each, KINDS_OF_COUNTERS))
        assert kept == {
            "RequestCounters": 1, "PortCounters": 1, "ProcessCounters": 1,
            "UnreadCounters": 3,  # of the console, of the process itself, of other processes
        }  # fmt: skip


SEVERAL = {
    # for clients, and for the internal port
    "endpoint.fetch.service.FetchService": 2,
    "endpoint.fetch.sessions.FetchSessions": 2,
    "endpoint.fetch.partition_checks.PartitionChecks": 2,
    "endpoint.fetch.storage_reads.StorageReads": 2,
    "endpoint.large_requests.LargeRequests": 2,
    "endpoint.produce.connection_order.ProduceOrder": 2,
    "endpoint.produce.queue.ProduceQueue": 2,
    "endpoint.produce.retry_order.RetryOrder": 2,
    "endpoint.response_budget.ResponseBudget": 2,
    "endpoint.api_versions.ApiVersions": 5,  # of each endpoint but the internal port's, and without a list
    "endpoint.dispatch.Endpoint": 5,  # two listeners, the console, the process itself, the internal port
    "endpoint.fetch.memory_budget.MemoryPool": 4,  # two of responses, two of the fetch context
    # for each listener
    "meta.cluster.proxies.ClusterProxies": 2,
    "proxy.metadata_cache.MetadataCache": 2,
    # for each kind of subject
    "coordinator.joined_requests.JoinedRequests": 3,  # questions, groups' markers, partitions' markers
    "coordinator.routed_api.OneKey": 2,  # groups, transactions
    "coordinator.shard.key_bounds.KeyBounds": 2,  # groups, transactions
    "coordinator.shard.owned_keys.OwnedKeys": 2,  # groups, transactions
    "meta.prefix_watch.PrefixWatcher": 5,  # topics, members, ACLs, SCRAM users, quotas
    "proxy.quotas.holdings.Holdings": 2,  # what the requests of a caller hold, and their times
    "proxy.shards.client.Forwards": 2,  # groups, transactions
}
"""Instances of the classes of which a process has more than one; private classes count with their modules' others."""


def of_a_process(thing: object) -> bool:
    """Return whether ``thing`` is an object of the product that may be bounded: no value, and no part of others."""
    kind = type(thing)
    folder = kind.__module__.removeprefix("bmq.").partition(".")[0]
    return (
        kind.__module__.startswith("bmq.")
        and not kind.__name__.startswith("_")
        and folder != "core"
        and not kind.__module__.startswith("bmq.storage.memory")
        and not (isinstance(thing, (Enum, tuple)) or is_dataclass(kind))
    )


def instances(*roots: object) -> Counter[str]:
    """Count the objects that the roots reach, by class."""
    return Counter(
        f"{type(thing).__module__.removeprefix('bmq.')}.{type(thing).__qualname__}"
        for thing in reachable(*roots)
        if of_a_process(thing)
    )


def reachable(*roots: object) -> Iterator[object]:
    """Yield the roots and all objects that they reach; of a function without its module."""
    seen, waiting = {id(each) for each in roots}, list(roots)
    while waiting:
        thing = waiting.pop()
        yield thing
        reached = gc.get_referents(thing)
        if isinstance(thing, FunctionType):
            reached = [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), *(thing.__kwdefaults__ or {}).values()]
        for each in reached:
            if id(each) not in seen and not isinstance(each, (type, ModuleType)):
                seen.add(id(each))
                waiting.append(each)


async def test_a_process_has_one_instance_of_each_class_that_is_not_in_the_table() -> None:
    """A second instance would have bounds of its own: the bound of the process would hold twice."""
    async with node_of() as node:
        assert node.controller is not None
        guard: Any = None
        counts = instances(node, node.controller._make_parts(guard))
        assert counts.keys() >= {
            "broker.broker.Broker", "broker.shard_log_fence.ShardFence", "coordinator.group_markers.GroupMarkers",
            "coordinator.partition_verifier.PartitionVerifier", "endpoint.fetch.context.FetchContext",
            "storage.access_files.AccessFiles", "storage.block_cache.BlockCache",
        }  # fmt: skip
        assert {name: count for name, count in counts.items() if count > 1} == SEVERAL


async def test_the_internal_port_shares_only_what_belongs_to_the_process_as_a_whole() -> None:
    """Budgets are the port's own: clients that do not read must not hold up other processes."""
    async with node_of() as node:
        assert node.internal_endpoint is not None
        inside, clients = node.internal_endpoint.scopes, all_scopes(node)["INSIDE"]
        shared = {each.name for each in fields(inside.process)
                  if getattr(inside.process, each.name) is getattr(clients.process, each.name)}  # fmt: skip
        assert shared == {"clock", "catalog", "features"}
        assert type(inside.caller.metrics) is UnreadCounters
        assert inside.view is not clients.view
        assert inside.caller.authorizer is ALLOW_ALL


async def test_all_listeners_get_a_new_node_id() -> None:
    async with node_of() as node:
        node._renumbered(7)
        assert {name: each.view.config.node_id for name, each in all_scopes(node).items()} == {
            "INSIDE": 7, "OUTSIDE": 7, "console": 7, "process": 7,
        }  # fmt: skip
        assert node.internal_endpoint is not None
        assert node.internal_endpoint.scopes.view.config.node_id == 7


async def test_a_term_that_begins_later_has_the_new_node_id() -> None:
    async with node_of() as node:
        node._renumbered(7)
        assert node.controller is not None
        guard: Any = None
        assert node.controller._make_parts(guard).topics.config.node_id == 7


async def test_a_term_that_runs_gets_the_new_node_id() -> None:
    async with node_of() as node:
        await node.start()
        leader = node.controller
        assert leader is not None
        await until(lambda: leader.controller.parts is not None)
        node._renumbered(7)
        assert leader.controller.parts is not None
        assert leader.controller.parts.topics.config.node_id == 7


async def test_room_that_any_listener_or_caller_waits_for_is_wanted() -> None:
    async with node_of() as node:
        for scopes in all_scopes(node).values():
            responses = scopes.process.responses
            taken = await responses.take(CONFIG.queued_max_request_bytes)
            waiting = asyncio.ensure_future(responses.take(CONFIG.queued_max_request_bytes))
            await asyncio.sleep(0)
            assert node.is_response_room_wanted()
            taken.release()
            (await waiting).release()
            assert not node.is_response_room_wanted()


@pytest.mark.slow
async def test_requests_of_the_process_itself_count_nowhere_as_clients() -> None:
    """The console browses and produces, and the audit log writes: the clients' counters and charts do not move."""
    async with node_of(replace(CONFIG, authorizer_class_name="", super_users="")) as node:
        node.is_at({name: Address(host="h", port=1) for name in node.proxy.dispatches})
        await node.start()
        topic = await node.admin.create_topic("orders", 1)
        await node.proxy.owners.wait(PartitionKey(topic.topic_id, 0), WAIT_S)
        batch = bytes(build_batch([Record(value=b"x" * 100)]))
        for requests in (LocalRequests(node.proxy.console_endpoint), LocalRequests(node.proxy.own_endpoint)):
            base = await requests.produce(topic.topic_id, 0, memoryview(bytearray(batch)))
            fetched = await requests.fetch(topic.topic_id, 0, base, 1 << 20, READ_COMMITTED)
            assert fetched.records_size == len(batch)
            with pytest.raises(RequestError) as refused:
                await requests.fetch(topic.topic_id, 0, 1_000, 1 << 20, READ_COMMITTED)
            assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        metrics = node.client_requests
        assert ("orders" in metrics.topics, metrics.tail_hit_bytes, metrics.storage_read_bytes) == (False, 0, 0)
        assert not metrics.api(ApiKey.FETCH).errors
        assert metrics.traffic is not None
        metrics.traffic.roll(1.0)
        assert not metrics.traffic.last.topics
        for caller in ("console", "process"):
            counters = all_scopes(node)[caller].caller.metrics.topic("orders")
            assert (counters.produces, counters.fetches, counters.bytes_out) == (1, 2, len(batch))


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


class HttpWithoutClients:
    """The HTTP port of a process whose clients use Kafka's protocol alone.  A late event loop closes its clients."""

    port = 1

    def close_departed(self) -> int:
        return 0

    def give_clients_up(self) -> int:
        return 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "host"), [("INSIDE", "127.0.0.1"), ("OUTSIDE", "127.0.0.2")])
async def test_clients_of_any_listener_that_do_not_read_are_closed_once_others_wait(
    name: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their responses fill the memory for responses; a client that reads has its own soon after."""
    for module in (listener, client_progress):
        monkeypatch.setattr(module, "STUCK_S", 0.2)
    config = replace(
        CONFIG, socket_request_max_bytes=1 << 20, queued_max_request_bytes=1 << 20, audit_log="",
        authorizer_class_name="", super_users="", roles=("proxy", "controller"),
        listeners=("INSIDE://127.0.0.1:0", "OUTSIDE://127.0.0.2:0"),
    )  # fmt: skip
    async with node_of(config) as node, contextlib.AsyncExitStack() as ends:
        sockets = Sockets(node, cast(Any, HttpWithoutClients()))
        ends.callback(sockets.close)
        await sockets.start()
        await node.admin.create_topic("wide", PARTITIONS)
        assert not node.is_in_service
        await sockets.open()
        assert node.is_in_service
        port = sockets._ports[name]
        for _ in range(READERS):
            ends.callback(non_reader(host, port).close)
        await until(lambda: node.is_response_room_wanted() or node.client_port.connections_stuck_closed > 0)
        reader, writer = await asyncio.open_connection(host, port)
        ends.callback(writer.close)
        writer.write(metadata(1))
        (size,) = struct.unpack(">i", await asyncio.wait_for(reader.readexactly(4), WAIT_S))
        assert len(await reader.readexactly(size)) == size > 64 << 10
        assert node.client_port.connections_stuck_closed > 0
        sockets.close()
        await until(lambda: not node.client_port.connections)
        assert node.proxy.services.responses.used == 0
