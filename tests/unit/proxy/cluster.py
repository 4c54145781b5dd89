"""Real brokers on memory, a proxy without one, and connections between them that a test can cut: on virtual time.

Bytes go over the connections as over sockets; the brokers' side is what ``bmq serve`` puts on its internal port.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any, TypeVar, cast

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.config import BrokerConfig, log_config
from bmq.broker.shard_log_fence import ShardFence
from bmq.broker.traffic import TrafficCounters
from bmq.core.aio.subscribers import Subscribers
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode
from bmq.core.metrics.counters import RequestCounters
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer, Client, Request, Response
from bmq.core.records.batch import Batch, Record, build_batch
from bmq.core.records.cursor import read_batches
from bmq.core.records.reader import read_records
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest
from bmq.core.rpc.messages.member import HelloRequest
from bmq.core.rpc.messages.proxy import RelayRequest
from bmq.core.rpc.peer import NO_TAGS
from bmq.core.rpc.peers import PROTOCOL, ConnectionKind, PeerLost, Peers, ask_peer
from bmq.core.rpc.server import InternalEndpoint
from bmq.core.transaction_answers import Verifier
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.produce import PartitionAnswer
from bmq.core.wire.produce_client import PRODUCE_VERSION, decode_produce_response, encode_produce_request
from bmq.endpoint.fetch.context import FetchContext
from bmq.endpoint.fetch.fetch_params import FetchParams
from bmq.endpoint.fetch.purgatory import SessionPartition
from bmq.endpoint.fetch.result import FetchResult
from bmq.endpoint.fetch.service import FetchService
from bmq.endpoint.produce import handler as produce
from bmq.endpoint.scopes import ListenerView
from bmq.meta.catalog import Topic
from bmq.meta.cluster.member import Member
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.proxy.relay.pool import RelayPool
from bmq.proxy.relay.server import Relay
from bmq.proxy.routing.owners import RemoteOwners, RoutedOwners
from bmq.proxy.tracing import Tracing
from bmq.server.roles.broker_endpoint import internal_endpoint, register_broker
from bmq.storage.block_cache import BlockCache, ReadConfig
from bmq.storage.layout import PartitionPath
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.broker_wiring import LooseWiring
from tests.harness.fakes import FakeCatalog, FakeClient, FakeView
from tests.harness.members import lone_broker
from tests.harness.scopes import make_scopes, serve

LATENCY_S = 0.0005
PING_S = 2.0
"""The time for which a stopped process's connections stand."""
CLUSTER = "c"
_HEAD = struct.Struct(">hhi")
_ANSWER_HEAD = 5
PROXY_APIS = (ApiKey.PRODUCE, ApiKey.FETCH)
R = TypeVar("R")


class Connection:
    """A ``Peer``: what is called arrives in order, what is answered comes when it is ready."""

    bytes_under_way = 0
    why = "cut"

    def __init__(self, broker: BrokerProcess | ProxyProcess, kind: ConnectionKind) -> None:
        self.broker = broker
        self.incarnation = broker.name
        self.kind = kind
        self.is_up = True
        self.requests: Counter[int] = Counter()
        self._client = FakeClient()
        self._number = 0
        self._on_the_wire: deque[tuple[memoryview, asyncio.Future[memoryview]]] = deque()
        self._unsent: dict[asyncio.Future[memoryview], None] = {}
        self._sent: dict[asyncio.Future[memoryview], None] = {}
        self._lost: dict[object, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        hello = HelloRequest(PROTOCOL, CLUSTER, "proxy", broker.name)
        broker.endpoint(self._frame(InternalKey.HELLO, 0, hello.encode()), cast(Client, self._client))

    def _frame(self, api_key: int, version: int, body: Sequence[Buffer], header_tags: bytes = NO_TAGS) -> memoryview:
        self._number += 1
        head = _HEAD.pack(api_key, version, self._number) + b"\0\5proxy" + header_tags
        return memoryview(bytearray(b"".join([head, *body])))

    def call(
        self, api_key: int, api_version: int, body: Sequence[Buffer], header_tags: bytes = NO_TAGS
    ) -> asyncio.Future[memoryview]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[memoryview] = loop.create_future()
        if not self.is_up:
            future.set_exception(PeerLost("it is gone", was_sent=False))
            return future
        self.requests[api_key] += 1
        self._unsent[future] = None
        self._on_the_wire.append((self._frame(api_key, api_version, body, header_tags), future))
        loop.call_later(LATENCY_S, self._next_arrives)
        return future

    def _next_arrives(self) -> None:
        """Deliver the oldest frame: timers of one moment come in any order, what a connection carries does not."""
        self._arrive(*self._on_the_wire.popleft())

    def _arrive(self, frame: memoryview, future: asyncio.Future[memoryview]) -> None:
        if not self.is_up:
            return
        self._unsent.pop(future, None)
        self._sent[future] = None
        if self.broker.stopped is not None:  # its kernel takes it all the same
            self.broker.stopped.append(lambda: self._arrive(frame, future))
            return
        response = self.broker.endpoint(frame, cast(Client, self._client))
        task = asyncio.get_running_loop().create_task(self._respond(response, future))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond(self, response: Any, future: asyncio.Future[memoryview]) -> None:
        if not isinstance(response, Response):
            response = await response
        data = b"".join(response.buffers)
        if response.release is not None:
            response.release()
        await asyncio.sleep(LATENCY_S)
        if self.is_up and self.broker.stopped is None:
            self._sent.pop(future, None)
            if not future.done():
                future.set_result(memoryview(data)[_ANSWER_HEAD:])

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        token = object()
        self._lost[token] = call
        return lambda: self._lost.pop(token, None) and None

    def close(self) -> None:
        self.cut("closed")

    def cut(self, why: str = "cut") -> None:
        """Break the connection: requests that have not arrived count as not sent."""
        if not self.is_up:
            return
        self.is_up = False
        for future in (*self._sent, *self._unsent):
            if not future.done():
                future.set_exception(PeerLost(why, was_sent=future in self._sent))
        for call in list(self._lost.values()):
            call()
        self._client.close()


class Network:
    """The processes and the connections between them; a ``Peers`` of the one proxy."""

    def __init__(self) -> None:
        self.brokers: dict[str, BrokerProcess | ProxyProcess] = {}
        self.apart: list[Connection] = []
        self.unreachable: set[str] = set()
        self.links: dict[tuple[str, ConnectionKind], Connection] = {}
        self.asked: Counter[int] = Counter()
        self._broken = Subscribers[[str, str]]()

    def get(self, member: Member, kind: ConnectionKind) -> Connection | None:
        link = self._standing(member, kind)
        if link is None:
            asyncio.get_running_loop().call_later(LATENCY_S, self._make, member, kind)
        return link

    def _standing(self, member: Member, kind: ConnectionKind) -> Connection | None:
        link = self.links.get((member.incarnation, kind))
        return link if link is not None and link.is_up else None

    def _make(self, member: Member, kind: ConnectionKind) -> None:
        process = self.brokers.get(member.incarnation)
        is_there = process is not None and process.stopped is None and member.incarnation not in self.unreachable
        if process is not None and is_there and self._standing(member, kind) is None:
            self.links[member.incarnation, kind] = Connection(process, kind)

    async def reach(self, member: Member, kind: ConnectionKind, timeout_s: float) -> Connection:
        await asyncio.sleep(LATENCY_S)
        link = self._standing(member, kind)
        if link is not None:
            return link
        broker = self.brokers.get(member.incarnation)
        if broker is None or broker.stopped is not None or member.incarnation in self.unreachable:
            self.tell_broken(member.incarnation, "connection refused")
            raise PeerLost("connection refused", was_sent=False)
        link = self.links[member.incarnation, kind] = Connection(broker, kind)
        return link

    async def open(self, member: Member, timeout_s: float) -> Connection:
        await asyncio.sleep(LATENCY_S)
        process = self.brokers.get(member.incarnation)
        if process is None or process.stopped is not None or member.incarnation in self.unreachable:
            raise PeerLost("connection refused", was_sent=False)
        self.apart.append(Connection(process, ConnectionKind.CONTROL))
        return self.apart[-1]

    async def ask(self, member: Member, request: InternalRequest[Any], timeout_s: float) -> Any:
        self.asked[request.KEY] += 1
        async with asyncio.timeout(timeout_s):
            link = await self.reach(member, ConnectionKind.CONTROL, timeout_s)
            return await ask_peer(link, request)

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        return self._broken.add(call)

    def tell_broken(self, incarnation: str, why: str) -> None:
        self._broken.notify(incarnation, why)

    def forget(self, incarnation: str) -> None:
        self.cut(incarnation)

    def cut(self, incarnation: str) -> None:
        for (name, _), link in list(self.links.items()):
            if name == incarnation and link.is_up:
                link.cut()
                self.tell_broken(name, "cut")
        for link in self.apart:
            if link.incarnation == incarnation:
                link.cut()


class BrokerProcess:
    def __init__(self, world: Cluster, name: str) -> None:
        self.name = name
        self.stopped: list[Callable[[], None]] | None = None  # what arrived since it stopped
        self.kv = MemoryKeyValue(world.store, random=world.rng, faults=KvFaults())
        fs = MemoryFileSystem(world.storage, name)
        self.wiring = LooseWiring(verifier=world.verifiers.get(name))
        self.broker = lone_broker(
            fs,
            self.kv,
            incarnation=name,
            clock=LoopClock(),
            config=BrokerConfig(),
            wiring=self.wiring.frozen(),
        )
        self.pool = BlockCache(fs, ReadConfig(cache_bytes=16 << 20))
        self.assigned = AssignedPartitions(self.broker, self.pool)
        load = TrafficCounters()
        inside = self.inside = internal_endpoint(
            ListenerView(config=world.config),
            LoopClock(),
            world.catalog,
            self.assigned,
            load,
            FetchContext(world.config, world.catalog, self.pool),
        )
        self.scopes = inside.scopes
        self.wiring.flush_listener = self.scopes.process.fetch_service.context
        self.endpoint = InternalEndpoint(name, CLUSTER, LoopClock(), is_serving=lambda: True)
        register_broker(self.endpoint, self.assigned, load, self.broker.context.open_files, ShardFence())
        tracing = world.tracing
        self.endpoint.register_kafka(inside if tracing is None else tracing.of_processes(inside))

    def resume(self) -> None:
        waiting, self.stopped = self.stopped or [], None
        for each in waiting:
            each()

    async def close(self) -> None:
        self.stopped = None
        self.scopes.process.fetch_service.drain()
        await self.assigned.close()
        await self.broker.close()
        await self.scopes.process.fetch_service.close()
        await self.pool.close()


class ProxyProcess:
    """Another proxy, as far as it relays: with connections of its own to the brokers."""

    def __init__(self, world: Cluster, name: str) -> None:
        self.name = name
        self.stopped: list[Callable[[], None]] | None = None
        self.network = Network()
        self.network.brokers = world.network.brokers
        view = FakeView(name)
        view.members = world.view.members
        self.relay = Relay(view, cast(Peers, self.network))
        self.endpoint = InternalEndpoint(name, CLUSTER, LoopClock(), is_serving=lambda: True)
        self.endpoint.register(RelayRequest, self.relay.handle)


class Cluster:
    """Brokers b1 and b2, which own the partitions of ``orders``, and the proxy."""

    def __init__(
        self,
        *,
        partitions: int = 2,
        seed: int = 0,
        credit_bytes: int = 4 << 20,
        proxies: tuple[str, ...] = (),
        tracing: Tracing | None = None,
        segment_bytes: int = 1 << 30,
        configs: dict[str, str] | None = None,
        verifiers: Mapping[str, Verifier] | None = None,
        **options: Any,
    ) -> None:
        """``proxies``: others, which relay.  ``tracing``: that of all processes.  ``configs``: those of the topic.

        ``verifiers``: the brokers' ways to coordinators of transactions, by broker.
        """
        self.verifiers = verifiers or {}
        self.segment_bytes, self.configs = segment_bytes, configs or {}
        self.tracing = tracing
        self.rng = Random(seed)
        self.storage = MemoryStorage(self.rng, Faults(), datanodes=4)
        self.store = MemoryStore()
        self.config = NodeConfig(root="file:///data", cache_bytes=64 << 20, **options)
        self.catalog = FakeCatalog()
        self.topic = Topic(name="orders", topic_id=uuid.UUID(int=1), partitions=partitions)
        self.catalog.put("orders", self.topic)
        self.network = Network()
        self.view = FakeView("proxy")
        self.pool = BlockCache(MemoryFileSystem(self.storage, "proxy"), ReadConfig(cache_bytes=16 << 20))
        self.metrics = RequestCounters()
        self.listed: dict[str, set[str]] = {}  # what other proxies say that they do not reach
        self.relays = RelayPool(self.view, cast(Peers, self.network), "", self._read_listed) if proxies else None
        self.proxies = {name: ProxyProcess(self, name) for name in proxies}
        fetches = FetchContext(self.config, self.catalog, self.pool)
        self.remote_owners = RemoteOwners(
            self.view,
            cast(Peers, self.network),
            fetches,
            fetches.poll.is_followed,
            credit_bytes=credit_bytes,
            held_s=self.config.held_produce_ms / 1000,
            relays=self.relays,
            sampled=tracing.sampled if tracing is not None else None,
        )
        self.owners = RoutedOwners(self.view, None, self.remote_owners)
        self.fetch_service = FetchService(
            self.config,
            self.catalog,
            self.owners,
            fetches,
            LoopClock(),
            tracer=tracing.tracer if tracing is not None else None,
        )
        self.scopes = make_scopes(
            config=self.config,
            metrics=self.metrics,
            catalog=self.catalog,
            owners=self.owners,
            fetch_service=self.fetch_service,
        )
        self.client = FakeClient()
        self._brokers: list[BrokerProcess] = []

    # Processes

    async def start(self) -> None:
        for name in ("b1", "b2"):
            await self.add(name)
        for name, proxy in self.proxies.items():
            self.network.brokers[name] = proxy
            self.view.join(name, role="proxy")
        for partition in range(self.topic.partitions):
            self.open(partition, "b1")
            self.view.assign("b1", self.key(partition))
        self.remote_owners.start()

    async def add(self, name: str) -> BrokerProcess:
        broker = BrokerProcess(self, name)
        self._brokers.append(broker)
        await broker.broker.start()
        self.network.brokers[name] = broker
        self.view.join(name)
        return broker

    async def close(self) -> None:
        await self.remote_owners.close()
        await self.fetch_service.close()
        for name in self.network.brokers:
            self.network.cut(name)
        for broker in self._brokers:
            await broker.close()
        await self.pool.close()

    def broker(self, name: str) -> BrokerProcess:
        return cast(BrokerProcess, self.network.brokers[name])

    def key(self, partition: int = 0) -> PartitionKey:
        return PartitionKey(self.topic.topic_id, partition)

    def open(self, partition: int, name: str) -> None:
        path = PartitionPath("orders", str(self.topic.topic_id), partition)
        config = replace(log_config(self.configs, 1), segment_bytes=self.segment_bytes)
        self.broker(name).assigned.assign(path, self.key(partition), config)

    def move(self, partition: int, name: str) -> None:
        """Move a partition as planned: the old owner closes it, the new one opens it, the view shows it."""
        before = self.view.owner_of(self.key(partition))
        if before in self.network.brokers:
            self.broker(before).assigned.withdraw(self.key(partition))
        self.open(partition, name)
        self.view.assign(name, self.key(partition))

    def kill(self, name: str) -> None:
        """Kill a process: its connections break; what it had accepted may be in its files."""
        self.network.brokers[name].stopped = []
        self.network.cut(name)
        del self.network.brokers[name]

    def bury(self, name: str, successor: str) -> None:
        """Declare a broker dead, as the controller does, and give its partitions to ``successor``."""
        self.view.leave(name)
        for key in sorted(self.view.owned_by(name), key=lambda key: key.partition):
            self.open(key.partition, successor)
            self.view.assign(successor, key)

    async def _read_listed(self) -> dict[str, set[str]]:
        return self.listed

    def isolate(self, *names: str) -> None:
        """Make these processes unreachable for this proxy."""
        for name in names:
            self.network.unreachable.add(name)
            self.network.cut(name)

    # Clients

    def send(
        self, records: bytes | bytearray, partition: int = 0, *, acks: int = -1, timeout_ms: int = 30_000,
        client: FakeClient | None = None,
    ) -> asyncio.Future[PartitionAnswer]:  # fmt: skip
        """Send a client's produce request: the proxy has it on return."""
        topics = [(self.topic.topic_id, [(partition, memoryview(records))])]
        body = memoryview(bytearray(b"".join(encode_produce_request(acks, timeout_ms, topics))))
        asked = Request(0, PRODUCE_VERSION, 1, "me", body, cast(Client, client or self.client), 0.0)
        return asyncio.ensure_future(_produced(serve(self.scopes, produce.APIS[0], asked)))

    async def fetch(
        self, *listed: SessionPartition, max_wait_s: float = 0.5, min_bytes: int = 1, committed: bool = False
    ) -> FetchResult:
        params = FetchParams(min_bytes, 50 << 20, max_wait_s, committed=committed, metrics=self.metrics)
        fetched = self.fetch_service.fetch(0, -1, list(listed), (), params, by_id=True)
        return fetched if isinstance(fetched, FetchResult) else await fetched

    def want(self, offset: int, partition: int = 0) -> SessionPartition:
        return SessionPartition(self.topic.topic_id, partition, offset, 1 << 20, -1)


async def _produced(response: Any) -> PartitionAnswer:
    if not isinstance(response, Response):
        response = await response
    body = memoryview(b"".join(response.buffers))[_ANSWER_HEAD:]
    ((each,),) = [topic.partitions for topic in decode_produce_response(body)]
    return each


@asynccontextmanager
async def cluster(**options: Any) -> AsyncIterator[Cluster]:
    world = Cluster(**options)
    await world.start()
    try:
        yield world
    finally:
        await world.close()


def plain(value: bytes = b"x", size: int = 100) -> bytearray:
    return build_batch([Record(value=value.ljust(size, b"."))])


def idempotent(sequence: int, producer_id: int = 7, size: int = 100) -> bytearray:
    value = f"{producer_id}/{sequence}".encode().ljust(size, b".")
    return build_batch([Record(value=value)], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


async def answers(sent: list[Any]) -> list[tuple[str, int]]:
    """Return error and base offset of each produce."""
    return [(ErrorCode(each.error_code).name, each.base_offset) for each in await asyncio.gather(*sent)]


async def values(world: Cluster, partition: int = 0, offset: int = 0) -> list[str]:
    """Return the values of the log from ``offset`` on, as the proxy reads it."""
    out: list[str] = []
    end = (await (await world.owners.wait(world.key(partition), 10)).ends()).high_watermark
    while offset < end:
        fetched = await world.fetch(world.want(offset, partition), max_wait_s=5)
        batches = batches_of(fetched)
        assert all(not look.error for look in fetched.results), fetched.results
        for batch in batches:
            out.append(value_of(batch))
            offset = batch.next_offset
        if fetched.release is not None:
            fetched.release()
    return out


def batches_of(fetched: FetchResult) -> list[Batch]:
    """Return the batches of a fetch."""
    data = memoryview(b"".join([bytes(each) for look in fetched.results for each in look.buffers]))
    return list(read_batches(data))


def value_of(batch: Batch) -> str:
    """Return the value of a batch's only record."""
    (record,) = read_records(batch)
    assert record.value is not None
    return bytes(record.value).rstrip(b".").decode()


def errors_of(fetched: FetchResult) -> list[str]:
    """Return the names of the errors of a fetch's partitions."""
    return [look.error.name for look in fetched.results if look.error]
