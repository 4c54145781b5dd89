"""Several brokers on one storage and one store in memory, each with a view of its own, so that views may differ.

A message from one broker to another is encoded, carried by ``Wire`` and decoded, as ``core.rpc.peers`` would; nothing
else is faked.
"""

from __future__ import annotations

import asyncio
import struct
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, cast

from bmq.broker.assignment.assigned_partitions import AssignedPartitions
from bmq.broker.assignment.follower import AssignmentFollower
from bmq.broker.assignment.handover import HandoverNotifier
from bmq.broker.broker import Broker
from bmq.broker.config import BrokerConfig
from bmq.broker.context import BrokerWiring
from bmq.broker.internal_api import BrokerApi
from bmq.broker.markers_api import MarkersApi
from bmq.broker.shard_log_api import ShardLogApi
from bmq.broker.shard_log_fence import ShardFence
from bmq.core.aio.subscribers import Subscribers
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.net.request import Response
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, R, leading_error
from bmq.core.rpc.messages.member import HelloRequest, HelloResponse
from bmq.core.rpc.peers import PROTOCOL, PeerLost
from bmq.core.rpc.server import InternalEndpoint
from bmq.core.security.session import ANONYMOUS_SESSION
from bmq.meta.catalog import Topic
from bmq.meta.cluster.member import Member
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.fakes import FakeCatalog, FakeView
from tests.harness.members import Registered
from tests.unit.broker.world import RecordingFlushListener
from tests.unit.endpoint.serving import append

_HEADER = struct.Struct(">hhihb")  # key, version, correlation id, no client id, no tagged fields
_RESPONSE_HEADER_BYTES = 5


class Wire:
    """A stand-in for ``core.rpc.peers.Peers.ask``; ``is_cut`` loses everything, ``asked`` keeps each message and its
    receiver."""

    def __init__(self, cluster: Cluster, own: str) -> None:
        self._cluster = cluster
        self._own = own
        self.is_cut = False
        self.asked: list[tuple[str, Any]] = []
        self.has_asked = asyncio.Event()

    async def ask(self, member: Member, message: Any, timeout_s: float) -> Any:
        self.asked.append((member.incarnation, message))
        self.has_asked.set()
        await asyncio.sleep(self._cluster.wire_s)
        if self.is_cut or member.incarnation not in self._cluster.nodes:
            raise PeerLost("cut", was_sent=False)
        body = await self._cluster.nodes[member.incarnation].caller(self._own).body(message.KEY, message)
        if (error := leading_error(body)) is not ErrorCode.NONE:
            raise RequestError(error, "")
        return message.RESPONSE.decode(body)


class Caller:
    """A connection to a node's internal endpoint, which sends Hello and then requests."""

    peer = "10.0.0.9:1"
    host = "10.0.0.9"
    is_closed = False
    client_id: str | None = None
    client_software = ("", "")
    session = ANONYMOUS_SESSION

    def __init__(self, node: Node, name: str = "test") -> None:
        self._node = node
        self._calls = Subscribers[[]]()
        hello = HelloRequest(PROTOCOL, "bmq", name, node.name)
        response = self.send(InternalKey.HELLO, hello)
        assert isinstance(response, Response)
        assert HelloResponse.decode(_body(response)).error is ErrorCode.NONE

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        return self._calls.add(call)

    def mute(self, seconds: float) -> None:
        raise AssertionError("it has no quotas")

    def unmute(self) -> None:
        raise AssertionError("it has no quotas")

    def send(self, api_key: int, message: Any) -> Response | Awaitable[Response]:
        """Dispatch a request up to the handler's first await."""
        frame = bytearray(_HEADER.pack(api_key, 0, 1, -1, 0) + b"".join(message.encode()))
        return self._node.endpoint(memoryview(frame), self)

    async def ask(self, request: InternalRequest[R]) -> R:
        return cast("R", request.RESPONSE.decode(await self.body(request.KEY, request)))

    async def body(self, api_key: int, message: Any) -> memoryview:
        response = self.send(api_key, message)
        return _body(response if isinstance(response, Response) else await response)


def _body(response: Response) -> memoryview:
    return memoryview(b"".join(response.buffers))[_RESPONSE_HEADER_BYTES:]


class Node:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self.fs = MemoryFileSystem(cluster.storage, name)
        self.kv = MemoryKeyValue(cluster.store, random=cluster.rng, faults=KvFaults())
        self.view = FakeView(name)
        self.membership = Registered()
        self.flush_listener = RecordingFlushListener()
        self.broker = Broker(
            self.fs,
            self.kv,
            incarnation=name,
            clock=LoopClock(),
            config=cluster.broker_config,
            is_member=lambda: self.membership.is_member,
            is_alive=lambda incarnation: incarnation in self.view.members,
            wiring=BrokerWiring(flush_listener=self.flush_listener),
        )
        self.assigned = AssignedPartitions(self.broker)
        self.wire = Wire(cluster, name)
        self.handovers = HandoverNotifier(self.view, self.wire, timeout_s=3.0)
        self.follower = AssignmentFollower(self.assigned, cluster.catalog, self.view, cluster.config, self.handovers)
        self.fence = ShardFence()
        self.endpoint = InternalEndpoint(name, "bmq", LoopClock(), is_serving=lambda: self.broker.is_serving)
        self._callers: dict[str, Caller] = {}
        BrokerApi(self.assigned, self.broker.context.load, self.broker.context.open_files).register(self.endpoint)
        ShardLogApi(self.assigned, self.fence).register(self.endpoint)
        MarkersApi(self.assigned).register(self.endpoint)

    async def start(self) -> None:
        await self.broker.start()
        await self.follower.start()

    async def stop(self) -> None:
        self.follower.close()
        await self.handovers.close()
        await self.assigned.close()
        await self.broker.close()

    def kill(self) -> None:
        self.broker.context.timers.close()
        self.follower.close()
        self.fs.crash()
        self.kv.crash()

    def stand_still(self, seconds: float) -> None:
        """Let this node find that its process has stood still for so long."""
        loop: Any = asyncio.get_running_loop()
        standstill = self.broker.context.standstill
        standstill.start()
        loop.clock.now += seconds
        standstill.look()
        standstill.stop()

    def caller(self, name: str) -> Caller:
        """Return the one connection from process ``name``."""
        if name not in self._callers:
            self._callers[name] = Caller(self, name)
        return self._callers[name]


class Cluster:
    def __init__(self, names: tuple[str, ...], *, broker: BrokerConfig | None = None, seed: int = 0) -> None:
        self.rng = Random(seed)
        self.storage = MemoryStorage(self.rng, Faults(), datanodes=4)
        self.store = MemoryStore()
        self.broker_config = broker or BrokerConfig()
        self.config = NodeConfig(root="file:///data")
        self.catalog = FakeCatalog()
        self.catalog.subscribe_configs = lambda call: None  # type: ignore[method-assign]
        self.wire_s = 0.0005
        self.nodes: dict[str, Node] = {}
        self._names = names

    async def start(self) -> None:
        for name in self._names:
            self.nodes[name] = Node(self, name)
        for node in self.nodes.values():
            node.view.join(*self._names)
            await node.start()

    async def stop(self) -> None:
        self.storage.faults = Faults()
        for node in self.nodes.values():
            await node.stop()

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def topic(self, partitions: int = 1, name: str = "orders", *, replication_factor: int = 1) -> Topic:
        topic_id = uuid.UUID(int=len(self.catalog.topics) + 1)
        topic = Topic(name=name, topic_id=topic_id, partitions=partitions, replication_factor=replication_factor)
        self.catalog.put(name, topic)
        return topic

    def keys(self, name: str = "orders") -> list[PartitionKey]:
        topic = self.catalog.topics[name]
        return [PartitionKey(topic.topic_id, partition) for partition in range(topic.partitions)]

    def give(self, owner: str, *keys: PartitionKey) -> None:
        """Assign partitions to ``owner`` in all views in the same moment."""
        for node in self.nodes.values():
            node.view.assign(owner, *keys)

    async def write(self, owner: str, key: PartitionKey, data: bytearray, timeout_s: float = 10.0) -> int:
        """Append ``data`` at the node ``owner`` once it has opened the partition, and return the base offset."""
        found = await self.nodes[owner].assigned.wait(key, timeout_s)
        return (await append(found, data)).base_offset


@asynccontextmanager
async def cluster(*names: str, **options: Any) -> AsyncIterator[Cluster]:
    made = Cluster(names or ("a", "b"), **options)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def owned(c: Cluster, owner: str = "a") -> PartitionKey:
    """Return a new topic's only partition, which ``owner`` has opened."""
    c.topic()
    (key,) = c.keys()
    c.give(owner, key)
    await c[owner].assigned.wait(key, 5.0)
    return key
