"""Whole servers in simulation: a ``Node`` on storage and store in memory, reached through Kafka's messages.

A server lives and dies as a process does: ``crash`` cuts its connections, its storage, its store and its tasks at once.
The next one is started on the same storage and store, as ``bmq serve`` is after kill -9.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from contextvars import copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.config import BrokerConfig
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.net.listener import ClientConnection, Listener
from bmq.core.net.listener_config import PLAINTEXT
from bmq.meta.cluster.member import Address
from bmq.meta.kv_memory import KvFaults, MemoryKeyValue, MemoryStore
from bmq.server.cluster_member import ClusterMember
from bmq.server.node import Node
from bmq.storage.filesystem import StorageError
from bmq.storage.memory import Faults, MemoryFileSystem, MemoryStorage
from tests.harness.loop import PROCESS, kill_tasks
from tests.harness.network import Disconnected, Link

SMALL = BrokerConfig(
    block_bytes=1 << 20,
    checkpoint_bytes=4000,
    checkpoint_ms=400,
    checkpoint_full_bytes=1000,
    buffer_bytes=1 << 16,
    flush_bytes=3000,
    slow_flush_ms=700,
    slow_roll_interval_ms=1500,
    idle_close_ms=3000,
)
BUSY = JanitorConfig(interval_ms=1500, merge_after=2, grace_ms=4000, sweep_ms=3000, journal_sweep_ms=5000)
CONFIG = NodeConfig(
    cache_bytes=16 << 20,
    num_partitions=2,
    offsets_topic_num_partitions=2,
    group_initial_rebalance_delay_ms=500,
    log_segment_bytes=20_000,
    log_retention_ms=-1,
    max_incremental_fetch_session_cache_slots=4,
)


class Server:
    """One ``bmq serve``."""

    def __init__(self, world: KafkaWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.is_ready = False
        self.links: list[Link] = []
        self._context = copy_context()
        self._context.run(PROCESS.set, name)
        self.task = self._context.run(asyncio.get_running_loop().create_task, self._run())

    async def _run(self) -> None:
        world = self.world
        while True:
            self.fs = MemoryFileSystem(world.storage, self.name)
            self.kv = MemoryKeyValue(world.store, random=world.rng, faults=world.kv_faults)
            world.store.expire(math.inf)  # as SQLite does: its lock shows that the former process is dead
            self.joined = ClusterMember(world.config, self.fs, self.kv, LoopClock(), self.name)
            node = None
            try:
                await self.joined.join()
                node = self.node = Node(
                    world.config, self.fs, self.kv, LoopClock(), self.joined, broker_config=SMALL, janitor_config=BUSY
                )
                node.is_at({PLAINTEXT: Address(host=self.name, port=9092)})
                self.listener = Listener(
                    node.proxy.endpoint, world.config, node.client_port, standstill=self.joined.standstill
                )
                await node.start()
            except Exception as error:  # noqa: BLE001  # ``bmq serve`` would say so, end, and be started again
                world.starts_failed.append(repr(error))
                if node is not None:
                    await node.close()
                await self.joined.leave()
                await asyncio.sleep(1.0)
                continue
            self.is_ready = True
            return

    def connect(self) -> Link:
        """Connect to the server.  Raises Disconnected while it does not listen."""
        if not (self.is_alive and self.is_ready):
            raise Disconnected(f"{self.name} does not listen")
        connection = self._context.copy().run(ClientConnection, self.listener)
        link = Link(connection, self._context, self.world.rng, self.world.latency_s)
        self.links.append(link)
        return link

    def crash(self) -> None:
        """kill -9."""
        if not self.is_alive:
            return
        self.is_alive = False
        for link in self.links:
            link.closed()
        if hasattr(self, "fs"):
            self.fs.crash()
            self.kv.crash()
        kill_tasks(self.name)

    async def stop(self) -> None:
        """SIGTERM."""
        self.is_ready = False
        self.node.drain()
        await self.listener.drain(5.0)
        for link in self.links:
            link.closed()
        await self._context.copy().run(asyncio.get_running_loop().create_task, self._leave())
        self.is_alive = False

    async def _leave(self) -> None:
        await self.node.close()
        await self.joined.leave()


@dataclass
class Observed:
    """The responses that clients got; see ``judge``."""

    acked: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """By topic and partition: the value at each offset."""
    seen: dict[tuple[str, int], dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    """By group, topic, partition: the largest offset whose commit was acknowledged."""
    owned: dict[tuple[str, int, str, int], str] = field(default_factory=dict)
    """By group, generation, topic, partition: the member that was given it."""
    processed: dict[tuple[str, str, int], set[int]] = field(default_factory=lambda: defaultdict(set))
    """By group, topic, partition: offsets that some member processed."""
    errors: list[str] = field(default_factory=list)
    """Responses that no client should ever get."""
    refused: list[str] = field(default_factory=list)
    """Refusals after which producers and readers had to try again."""
    progress_s: float = 0.0
    """The time, after the faults, until everything went on."""


class KafkaWorld:
    """Storage, store and the servers that come and go on them."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults | None = None,
        kv_faults: KvFaults | None = None,
        config: NodeConfig = CONFIG,
        latency_s: float = 0.002,
    ) -> None:
        self.rng = Random(seed)
        self.storage = MemoryStorage(self.rng, faults or Faults(), datanodes=5)
        self.store = MemoryStore()
        self.kv_faults = kv_faults or KvFaults()
        self.config = config
        self.latency_s = latency_s
        self.servers: list[Server] = []
        self.starts_failed: list[str] = []
        self.observed = Observed()
        self.is_over = False

    @property
    def server(self) -> Server:
        return self.servers[-1]

    def start(self) -> Server:
        server = Server(self, f"s{len(self.servers)}")
        self.servers.append(server)
        return server

    def client(self) -> Client:
        return Client(self)

    async def settle(self) -> Server:
        """End all faults and bring up one last server."""
        self.is_over = True
        self.storage.faults = Faults()
        self.kv_faults = KvFaults()
        for server in self.servers:
            server.crash()
        for name, node in self.storage.datanodes.items():
            if node.state.name == "STOPPED":
                self.storage.resume_datanode(name)
            elif not node.is_up:
                self.storage.start_datanode(name)
            self.storage.slow_datanode(name, 0)
        await asyncio.sleep(60)  # virtual: outages drawn before this moment run out
        last = self.start()
        loop = asyncio.get_running_loop()
        end = loop.time() + 300
        while not last.is_ready:
            assert loop.time() < end, f"the last server does not come up: {self.starts_failed[-3:]}"
            await asyncio.sleep(0.05)
        return last


class Client:
    """A Kafka client's connection, made again when it breaks.  The caller handles errors."""

    def __init__(self, world: KafkaWorld) -> None:
        self.world = world
        self._link: Link | None = None

    async def call(self, request: Any, response: type[Any], version: int, timeout_s: float = 30.0) -> Any:
        """Disconnected when the connection breaks or the answer takes too long."""
        if self._link is None or not self._link.is_open:
            self._link = self.world.server.connect()
        link = self._link
        try:
            return await asyncio.wait_for(link.call(request, response, version), timeout_s)
        except TimeoutError:
            link.close()
            raise Disconnected("no answer in time") from None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


def is_transient(error: BaseException) -> bool:
    return isinstance(error, Disconnected | StorageError)
