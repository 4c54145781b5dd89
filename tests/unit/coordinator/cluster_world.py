"""Coordinators, proxies and brokers in processes of their own, over a network of futures: one loop, virtual time.

The brokers, their partitions and the storage below are the real ones, on memory.  Each process has a view of its own,
which a test lets lag as it likes.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.config import BrokerConfig, log_config
from bmq.broker.context import BrokerWiring
from bmq.broker.internal_api import BrokerApi
from bmq.broker.shard_log_api import ShardLogApi
from bmq.broker.shard_log_fence import ShardFence
from bmq.broker.traffic import TrafficCounters
from bmq.coordinator.coordinator import Coordinator
from bmq.coordinator.server import Forwarding
from bmq.coordinator.shard.remote_log import RemoteShardLogs, RoutedShardLogs
from bmq.core.aio.subscribers import Subscribers
from bmq.core.clock import LoopClock
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer, Client, Response
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, R
from bmq.core.rpc.messages.member import HelloRequest, HelloResponse
from bmq.core.rpc.peers import PROTOCOL, ConnectionKind, PeerLost, Peers, ask_peer
from bmq.core.rpc.server import InternalEndpoint
from bmq.core.security.session import ANONYMOUS_SESSION
from bmq.core.wire import messages as m
from bmq.core.wire.fetch import FetchedPartition, FetchedTopic, encode_fetch, parse_fetch
from bmq.core.wire.header import parse_header
from bmq.meta.catalog import OFFSETS_TOPIC, Topic
from bmq.meta.cluster.levels import NO_LEVELS
from bmq.meta.cluster.member import Member
from bmq.meta.cluster.view import ShardOwner, ViewChange
from bmq.meta.group_placement import shard_of
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.meta.shard_kinds import GROUPS, ShardId
from bmq.proxy.groups.router import RoutedCoordinator
from bmq.server.roles.local_shard_log import LocalShardLogs
from bmq.storage.block_cache import BlockCache
from bmq.storage.layout import PartitionPath
from bmq.storage.log_reader import LogReader
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.members import lone_broker
from tests.unit.coordinator.fakes import (
    CLIENT,
    FakeTransactions,
    MemoryCatalog,
    commit_request,
    context_of,
    join_request,
    settings,
    sync_request,
    topic,
)

LATENCY_S = 0.001
TICK_S = 1e-6
"""Between two frames of a connection: timers of one moment have no order."""
SHARDS = 4

CLUSTER = "c"
HEADER_BYTES = 5
"""The size of a response's header: correlation id, no tagged fields."""


class View:
    """A ``ClusterView`` that shows its latest update."""

    revision = 0
    levels = NO_LEVELS
    controller = None

    def __init__(self, own: str) -> None:
        self.own = own
        self.members: dict[str, Member] = {}
        self.shards: dict[ShardId, ShardOwner] = {}
        self.owners: dict[PartitionKey, str] = {}
        self._calls = Subscribers[[ViewChange]]()

    def owner_of(self, key: PartitionKey) -> str:
        return self.owners.get(key, "")

    def owned_by(self, incarnation: str) -> Set[PartitionKey]:
        return {key for key, owner in self.owners.items() if owner == incarnation}

    def owned_count(self, incarnation: str) -> int:
        return len(self.owned_by(incarnation))

    def shard(self, shard: ShardId) -> ShardOwner | None:
        return self.shards.get(shard)

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        return self._calls.add(call)

    def show(self, other: View) -> None:
        """Take over everything that ``other`` shows, and notify followers of the difference."""
        members = set(self.members) ^ set(other.members)
        change = ViewChange(
            members=members, shards=_changed(self.shards, other.shards), partitions=_changed(self.owners, other.owners)
        )
        self.members, self.shards, self.owners = dict(other.members), dict(other.shards), dict(other.owners)
        if change != ViewChange():
            self._calls.notify(change)


def _changed(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> set[Any]:
    return {each for each in {*before, *after} if before.get(each) != after.get(each)}


class Link:
    """One connection, as a ``Peer`` and as a ``Client``: requests arrive in the order of the calls, answers come as
    they are ready."""

    kind = ConnectionKind.CONTROL
    bytes_under_way = 0
    peer = host = "10.0.0.9"
    is_closed = False
    client_id: str | None = None
    client_software = ("", "")
    session = ANONYMOUS_SESSION

    def __init__(self, network: Network, incarnation: str) -> None:
        self.incarnation = incarnation
        self.is_up = True
        self.lag_s = LATENCY_S
        self._network = network
        self._arrives = 0.0
        self._waiting: set[asyncio.Future[memoryview]] = set()
        self._travelling: set[asyncio.TimerHandle] = set()
        self._served: set[asyncio.Task[None]] = set()
        self._lost = Subscribers[[]]()
        self._closed = Subscribers[[]]()

    def call(self, api_key: int, api_version: int, body: Sequence[Buffer]) -> asyncio.Future[memoryview]:
        loop = asyncio.get_running_loop()
        response: asyncio.Future[memoryview] = loop.create_future()
        if not self.is_up:
            response.set_exception(PeerLost("the connection is gone", was_sent=False))
            return response
        self._waiting.add(response)
        frame = memoryview(b"".join((struct.pack(">hhih", api_key, api_version, 0, -1), b"\0", *body)))

        def arrive() -> None:
            self._travelling.discard(handle)
            task = loop.create_task(self._serve(frame, response))
            self._served.add(task)
            task.add_done_callback(self._ended)

        self._arrives = max(self._arrives + TICK_S, loop.time() + self.lag_s)
        handle = loop.call_at(self._arrives, arrive)
        self._travelling.add(handle)
        return response

    async def _serve(self, frame: memoryview, reply: asyncio.Future[memoryview]) -> None:
        endpoint = self._network.processes.get(self.incarnation)
        if endpoint is None:
            return
        result = endpoint(frame, self)
        response = result if isinstance(result, Response) else await result
        await asyncio.sleep(LATENCY_S)
        self._waiting.discard(reply)
        if not reply.done():
            reply.set_result(memoryview(b"".join(response.buffers))[HEADER_BYTES:])

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._served.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "serving a frame", "exception": error})

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        return self._closed.add(call)

    def mute(self, seconds: float) -> None:
        raise AssertionError("it has no quotas")

    def unmute(self) -> None:
        raise AssertionError("it has no quotas")

    def on_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        return self._lost.add(call)

    def cut(self, *, lingers: bool = False) -> None:
        """Break the connection: requests under way are lost, or arrive without a response if it ``lingers``."""
        if not self.is_up:
            return
        self.is_up = False
        if not lingers:
            for handle in self._travelling:
                handle.cancel()
            self._closed.notify()
        waiting, self._waiting = self._waiting, set()
        for response in waiting:
            if not response.done():
                response.set_exception(PeerLost("the connection broke", was_sent=True))
        self._lost.notify()


class Network:
    def __init__(self) -> None:
        self.processes: dict[str, InternalEndpoint] = {}
        self.links: list[Link] = []

    def join(self, name: str) -> InternalEndpoint:
        endpoint = self.processes[name] = InternalEndpoint(name, CLUSTER, LoopClock(), is_serving=lambda: True)
        return endpoint

    def between(self, incarnation: str) -> list[Link]:
        return [link for link in self.links if link.is_up and link.incarnation == incarnation]

    def kill(self, incarnation: str) -> None:
        del self.processes[incarnation]
        for link in self.between(incarnation):
            link.cut()


class FakePeers:
    """A process's ``Peers``."""

    def __init__(self, network: Network, own: str) -> None:
        self._network = network
        self._own = own
        self.links: dict[str, Link] = {}

    def get(self, member: Member, kind: ConnectionKind) -> Link | None:
        link = self.links.get(member.incarnation)
        return link if link is not None and link.is_up else None

    async def reach(self, member: Member, kind: ConnectionKind, timeout_s: float) -> Link:
        await asyncio.sleep(LATENCY_S)
        link = self.get(member, kind)
        if link is not None:
            return link
        if member.incarnation not in self._network.processes:
            raise PeerLost("connection refused", was_sent=False)
        link = self.links[member.incarnation] = Link(self._network, member.incarnation)
        self._network.links.append(link)
        greeting = HelloRequest(PROTOCOL, CLUSTER, self._own, member.incarnation)
        assert HelloResponse.decode(await link.call(InternalKey.HELLO, 0, greeting.encode())).error is ErrorCode.NONE
        return link

    async def ask(self, member: Member, request: InternalRequest[R], timeout_s: float) -> R:
        async with asyncio.timeout(timeout_s):
            return await ask_peer(await self.reach(member, ConnectionKind.CONTROL, timeout_s), request)


class BrokerProcess:
    """A broker and what it answers to coordinators."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.name = name
        kv = MemoryKeyValue(world.store, random=world.rng, faults=KvFaults())
        fs = MemoryFileSystem(world.storage, name)
        fence = ShardFence()
        self.broker = lone_broker(
            fs,
            kv,
            incarnation=name,
            clock=LoopClock(),
            config=BrokerConfig(),
            wiring=BrokerWiring(flush_listener=_Ended(fence)),
        )
        self.pool = BlockCache(fs)
        self.assigned = AssignedPartitions(self.broker, self.pool)
        self.logs = LocalShardLogs(self.assigned, world.catalog, self.pool, fence)
        endpoint = world.network.join(name)
        BrokerApi(self.assigned, TrafficCounters(), self.broker.context.open_files).register(endpoint)
        ShardLogApi(self.assigned, fence).register(endpoint)
        endpoint.register_kafka(_Fetches(self.assigned, self.pool))

    async def close(self) -> None:
        await self.assigned.close()
        await self.broker.close()
        await self.pool.close()


class _Fetches:
    """The ``Dispatch`` of Kafka's Fetch of one partition, without a session."""

    def __init__(self, assigned: AssignedPartitions, pool: BlockCache) -> None:
        self._assigned = assigned
        self._pool = pool

    def is_pipelined(self, frame: memoryview) -> bool:
        return True

    def expects_response(self, frame: memoryview) -> bool:
        return True

    def may_park(self, frame: memoryview) -> bool:
        return False

    async def __call__(self, frame: memoryview, client: Client) -> Response:
        header = parse_header(frame)
        asked = parse_fetch(frame[header.body_start :], header.api_version)
        (topic,) = asked.topics
        (wanted,) = topic.partitions
        assert topic.topic_id is not None
        key = PartitionKey(topic.topic_id, wanted.partition)
        owner = self._assigned.get(key)
        if owner is None:
            part = FetchedPartition(wanted.partition, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            reader = LogReader(self._pool, PartitionPath(OFFSETS_TOPIC, str(key.topic_id), key.partition))
            end = owner.high_watermark
            data = await reader.read(wanted.fetch_offset, wanted.max_bytes, end, active=owner.active_segment)
            part = FetchedPartition(wanted.partition, 0, end, end, owner.log_start, [data])
        return encode_fetch(header.api_version, header.correlation_id, [FetchedTopic(None, key.topic_id, [part])])


class _Ended:
    """A flush listener that passes an owner's end on."""

    def __init__(self, fence: ShardFence) -> None:
        self._fence = fence

    def opened(self, key: PartitionKey, epoch: int, log_start: int, high_watermark: int) -> None: ...

    def flushed(self, key: PartitionKey, batches: object, high_watermark: int, move: object = None) -> None: ...

    def log_start_moved(self, key: PartitionKey, log_start: int) -> None: ...

    def changed(self, key: PartitionKey) -> None: ...

    def closed(self, key: PartitionKey) -> None:
        self._fence.closed(key)


class CoordinatorProcess:
    def __init__(self, world: ClusterWorld, name: str) -> None:
        self.name = name
        self.view = View(name)
        self.peers = FakePeers(world.network, name)
        remote = RemoteShardLogs(self.view, world.catalog, cast(Peers, self.peers))
        self.logs = RoutedShardLogs(self.view, world.catalog, remote, remote)
        context = context_of(settings(), self.logs, world.catalog, self.view, world)
        self.coordinator = Coordinator(context, world.topic, FakeTransactions())
        self.endpoint = world.network.join(name)

    async def start(self) -> None:
        await self.coordinator.start()
        self.forwarding = Forwarding((self.coordinator,), self.view)
        self.forwarding.register(self.endpoint)

    async def close(self) -> None:
        self.forwarding.close()
        await self.coordinator.close()


class TwoProxies:
    """``Proxies``: node 1 answers for even shards, node 2 for odd ones."""

    version = 0

    def __init__(self, node_id: int) -> None:
        self.addresses = [ProxyAddress(each, f"proxy{each}", 9092) for each in (1, 2)]
        self.own = ProxyAddress(node_id, f"proxy{node_id}", 9092)

    def version_of(self, topic_id: uuid.UUID) -> int:
        return self.version

    def leader_of(self, key: PartitionKey) -> int:
        return 1

    def coordinator_of(self, shard: ShardId) -> int:
        return 1 + shard.number % 2


class ProxyProcess:
    def __init__(self, world: ClusterWorld, node_id: int) -> None:
        self.view = View(f"p{node_id}")
        self.peers = FakePeers(world.network, f"p{node_id}")
        self.members = TwoProxies(node_id)
        self.coordinator = RoutedCoordinator(
            self.view, self.members, cast(Peers, self.peers), world.catalog, world.topic, shards=SHARDS
        )

    async def commit(self, group: str, offset: int, *, client: Any = CLIENT, **fields: Any) -> int:
        request = commit_request(group, [("orders", 0, offset)], **fields)
        response = await self.coordinator.offset_commit(request, client)
        return int(response.topics[0].partitions[0].error_code)

    async def fetch(self, group: str) -> tuple[int, int]:
        """(error, offset)."""
        topics = [m.OffsetFetchRequest.OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
        request = m.OffsetFetchRequest(version=7, group_id=group, topics=topics, require_stable=False)
        response = await self.coordinator.offset_fetch(request, CLIENT)
        if response.error_code:
            return int(response.error_code), -1
        return 0, int(response.topics[0].partitions[0].committed_offset)

    async def heartbeat(self, group: str, member_id: str, generation: int) -> int:
        request = m.HeartbeatRequest(
            version=4, group_id=group, generation_id=generation, member_id=member_id, group_instance_id=None
        )
        return int((await self.coordinator.heartbeat(request, CLIENT)).error_code)


class ClusterWorld:
    """Brokers b1 and b2, coordinators a and b, proxies p1 and p2.  ``truth`` is what the store says."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.storage = MemoryStorage(self.rng, Faults(), datanodes=4)
        self.store = MemoryStore()
        self.network = Network()
        self.offsets = topic(OFFSETS_TOPIC, SHARDS)
        self.catalog = MemoryCatalog(topic("orders"), self.offsets)
        self.truth = View("")
        self.brokers = {name: BrokerProcess(self, name) for name in ("b1", "b2")}
        self.coordinators = {name: CoordinatorProcess(self, name) for name in ("a", "b")}
        self.proxies = [ProxyProcess(self, node_id) for node_id in (1, 2)]
        for name in (*self.brokers, *self.coordinators):
            self.truth.members[name] = Member(incarnation=name, roles=frozenset())
        for shard in range(SHARDS):
            self.truth.owners[self.key(shard)] = "b1"
        self.max_groups: int | None = None

    def find_bound(self, kind: str, principal: str) -> int | None:
        return self.max_groups if principal else None

    async def topic(self) -> Topic:
        return self.offsets

    def key(self, shard: int) -> PartitionKey:
        return PartitionKey(self.offsets.topic_id, shard)

    @property
    def views(self) -> list[View]:
        return [*(each.view for each in self.coordinators.values()), *(each.view for each in self.proxies)]

    def give(self, shard: int, coordinator: str) -> None:
        """Move a shard in the store; no view shows it yet."""
        before = self.truth.shards.get(ShardId(GROUPS, shard))
        self.truth.shards[ShardId(GROUPS, shard)] = ShardOwner(coordinator, 1 if before is None else before.number + 1)

    def tell(self, *views: View) -> None:
        """Have these, or all, see the store as it is."""
        for view in views or self.views:
            view.show(self.truth)

    def own(self, shard: int, broker: str) -> None:
        """Move a shard's partition: the brokers act at once, the views show it later."""
        key = self.key(shard)
        before = self.truth.owners[key]
        self.truth.owners[key] = broker
        if before != broker:
            self.brokers[before].assigned.withdraw(key)
        path = PartitionPath(OFFSETS_TOPIC, str(self.offsets.topic_id), shard)
        self.brokers[broker].assigned.assign(path, key, log_config({}, 1))

    def kill(self, name: str) -> None:
        """End a coordinator at once, without notifying any process."""
        self.coordinators.pop(name).coordinator.abandon()
        self.network.kill(name)
        del self.truth.members[name]


@asynccontextmanager
async def cluster(seed: int = 0) -> AsyncIterator[ClusterWorld]:
    world = ClusterWorld(seed)
    for broker in world.brokers.values():
        await broker.broker.start()
    for shard in range(SHARDS):
        world.own(shard, "b1")
        world.give(shard, "a")
    for coordinator in world.coordinators.values():
        await coordinator.start()
    world.tell()
    try:
        yield world
    finally:
        for proxy in world.proxies:
            proxy.coordinator.close()
        for coordinator in world.coordinators.values():
            await coordinator.close()
        for broker in world.brokers.values():
            await broker.close()


def group_of(shard: int) -> str:
    """Return the name of a group of this shard."""
    return next(name for name in (f"group-{number}" for number in range(1000)) if shard_of(name, SHARDS) == shard)


GROUP = group_of(0)
"""A group of shard 0."""


async def join_alone(proxy: ProxyProcess, group: str) -> tuple[str, int]:
    """Form a Stable group of one member through a proxy and return its member id and generation."""
    coordinator = proxy.coordinator
    first = await coordinator.join_group(join_request(group), CLIENT)
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    joined = await coordinator.join_group(join_request(group, first.member_id), CLIENT)
    assert joined.error_code == 0
    assignment = {joined.member_id: b"all"}
    synced = await coordinator.sync_group(
        sync_request(group, joined.member_id, joined.generation_id, assignment), CLIENT
    )
    assert synced.error_code == 0
    return joined.member_id, joined.generation_id


def serves(process: CoordinatorProcess, shard: int) -> bool:
    """Return whether the process has loaded the shard."""
    present = process.coordinator.shards._shards.get(shard)
    return present is not None and present.serving is not None
