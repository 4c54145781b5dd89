"""A whole cluster in simulation: processes as ``bmq serve --roles ...`` composes them, on one storage, store and
network.

A ``Place`` is where a process runs: its host, its roles, and what starts it again.  Every start is another incarnation.
A process is what ``server.process`` makes: ``ClusterMember``, ``Node`` and ``Sockets`` in that order, which end in the
other order.  It dies as by kill -9 (``crash``), stops as by SIGTERM, is stopped and goes on as by SIGSTOP and SIGCONT.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from dataclasses import replace
from random import Random
from typing import Any, cast

from bmq.console.http import HttpServer
from bmq.core.clock import LoopClock
from bmq.core.config import NodeConfig
from bmq.core.errors import BmqError
from bmq.core.features import FEATURES, FeatureTable
from bmq.meta.cluster.membership import NodeIdTaken
from bmq.meta.kv import KvError
from bmq.meta.kv_memory import HISTORY_REVISIONS, KvFaults, MemoryStore
from bmq.server.cluster_member import ClusterMember
from bmq.server.listeners import Sockets
from bmq.server.node import Node
from bmq.server.process import StopAsked
from bmq.storage.filesystem import StorageError
from bmq.storage.memory import Faults, MemoryStorage
from tests.harness.loop import PROCESS, VirtualLoop, kill, tasks_of
from tests.harness.network import Calls, Disconnected
from tests.simulation.cluster_acks import OneOwner
from tests.simulation.cluster_network import CLIENT, ClusterNetwork
from tests.simulation.cluster_versions import speak
from tests.simulation.frail_files import FrailFileSystem
from tests.simulation.kafka_world import BUSY, CONFIG, SMALL, Observed
from tests.simulation.versions import SpokenKeyValue, Version

KAFKA_PORT, INTERNAL_PORT, HTTP_PORT = 9092, 9093, 9080
UNREACHABLE = KvFaults(unavailable=1.0)
CONNECT_S = 5.0
OPERATOR = "operator"
"""The name of tasks that ask a process as its console does for an operator: they end with the process."""
ENDS_WITH = (OSError, StorageError, KvError, NodeIdTaken, BmqError)
"""Errors that ``bmq serve`` prints in one line when they end its start; any other is a bug."""
SHOULD_STOP_S = 120.0
"""The time in which a polite stop is over: several times the drain's own limits."""


class _StopAsked(StopAsked):
    """A request to stop without signals."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.status = 0


class _NoHttp:
    """The console's server, which a simulation leaves out."""

    port = HTTP_PORT

    def give_clients_up(self) -> int:
        return 0

    def close_departed(self) -> int:
        return 0


class Process:
    """One start of a place; ``run`` is its main task."""

    def __init__(self, world: ClusterWorld, place: Place, incarnation: str) -> None:
        self.world = world
        self.place = place
        self.incarnation = incarnation
        self.is_ready = False
        self.is_alive = True
        self.is_stopped = False
        self.node: Node | None = None
        self.sockets: Sockets | None = None
        self.version = world.rng.choice(tuple(Version)) if world.are_versions_mixed else Version.THIS
        world.versions[incarnation] = self.version
        self.fs = FrailFileSystem(world.storage, incarnation, self.crash)
        if place.is_cut_off:
            self.fs.pause()
        self.kv = SpokenKeyValue(world.store, random=world.rng, faults=place.kv_faults)
        self.kv.version = self.version
        self._context = copy_context()
        self._context.run(PROCESS.set, incarnation)
        self._asked = _StopAsked()
        self.is_over = asyncio.Event()
        self.task = self._context.run(asyncio.create_task, self._run(), name=incarnation)
        self.task.add_done_callback(lambda _: self.is_over.set())

    def __repr__(self) -> str:
        state = (
            "dead" if not self.is_alive else "stopped" if self.is_stopped else "ready" if self.is_ready else "starts"
        )
        version = "" if self.version is Version.THIS else f" of {self.version.value} version"
        return f"<Process {self.incarnation} {state}{version}>"

    async def _run(self) -> None:
        """Run the process as ``server.process`` does.  An error that ends its start is in ``ENDS_WITH``, or a bug."""
        config = self.place.config
        joined = ClusterMember(
            config,
            self.fs,
            self.kv,
            LoopClock(),
            self.incarnation,
            on_failed=self._failed,
            features=self.world.features,
        )
        node: Node | None = None
        sockets: Sockets | None = None
        try:
            if await self._asked.comes_before(joined.join()):
                return
            node = self.node = Node(
                config,
                self.fs,
                self.kv,
                LoopClock(),
                joined,
                broker_config=SMALL,
                janitor_config=BUSY,
                on_leave=self.ask,
            )
            if node.broker is not None:
                self.world.acks.watch(node.broker.broker.context.wiring.flush_listener, self.incarnation)
            speak(self)
            sockets = self.sockets = Sockets(node, cast(HttpServer, _NoHttp()), self.world.network.ended)
            if await self._asked.comes_before(sockets.start()):
                return
            await sockets.open()
            self.is_ready = True
            await self._asked.wait()
            self.is_ready = False
            await sockets.drain()
        finally:
            self.is_ready = False
            if sockets is not None:
                sockets.close()
            if node is not None:
                await node.close()
            await joined.leave()
            if sockets is not None:
                sockets.close_internal()
            await self.fs.close()
            await self.kv.close()

    def _failed(self, why: str) -> None:
        """Note an error: no part of a process may give up, whatever fails around it."""
        self.world.observed.errors.append(f"{self} had to begin anew: {why}")
        self._asked.fail(why)

    @property
    def runs(self) -> bool:
        return self.is_alive and not self.is_stopped

    def ask(self) -> None:
        """SIGTERM."""
        self._asked.ask()

    def crash(self) -> None:
        """kill -9."""
        if self.is_alive:
            self.is_alive = self.is_ready = False
            self.world.network.kill(self.incarnation)
            self.fs.crash()
            self.kv.crash()
            kill(self.incarnation)
            self.is_over.set()

    def lack_descriptors(self, does_lack: bool) -> None:
        """Something else has taken all that there are, or gives them back."""
        self.fs.lacks_descriptors = does_lack
        self.world.network.lack_descriptors(self.incarnation, does_lack)

    def stop(self) -> None:
        """SIGSTOP."""
        if self.is_alive and not self.is_stopped:
            self.is_stopped = True
            self.world.loop.stop_process(self.incarnation)

    def stop_in_next_request(self) -> None:
        """SIGSTOP once the next request of a client has been read, and has done all that it does at once."""
        self.world.network.stop_at_next_read(self.incarnation, self._stop_behind_this)

    def stop_before_next_request(self) -> None:
        """SIGSTOP between the look for a standstill that precedes a client's next request, and the request."""
        self.world.network.stop_at_next_read(self.incarnation, self._stop_behind_the_look)

    def _stop_behind_this(self) -> bool:
        self.world.loop.call_soon(self.stop)
        return False

    def _stop_behind_the_look(self) -> bool:
        self.stop()
        assert self.node is not None
        standstill = self.node.joined.standstill
        look = standstill.look

        def looked() -> None:
            standstill.look = look  # type: ignore[method-assign]

        standstill.look = looked  # type: ignore[method-assign]
        return True

    def resume(self) -> None:
        """SIGCONT."""
        if self.is_stopped:
            self.is_stopped = False
            self.world.loop.resume_process(self.incarnation)


class Place:
    """A host that runs one process after the other; ``keeper`` starts the next when one has ended, while it is on."""

    def __init__(self, world: ClusterWorld, host: str, roles: tuple[str, ...], node_id: int) -> None:
        self.world = world
        self.host = host
        self.roles = roles
        self.config = replace(
            world.config,
            meta="etcd://store:2379",
            roles=roles,
            node_id=node_id,
            listen=f"{host}:{KAFKA_PORT}",
            internal=f"{host}:{INTERNAL_PORT}",
            http=f"{host}:{HTTP_PORT}",
        )
        self.kv_faults = world.kv_faults
        self.is_cut_off = False  # from storage
        self.is_on = True
        self.starts = 0
        self.process: Process | None = None
        self.failures: list[str] = []
        self._may_start = asyncio.Event()
        self._may_start.set()
        self.keeper = asyncio.create_task(self._keep(), name=f"keeper of {host}")

    def __repr__(self) -> str:
        failures = f" failures={self.failures[-2:]}" if self.failures else ""
        return f"<{self.host} {self.process}{failures}>"

    async def _keep(self) -> None:
        while self.is_on:
            await self._may_start.wait()
            if not self.is_on:
                return
            process = self.process = Process(self.world, self, f"{self.host}-{self.starts}")
            self.starts += 1
            await process.is_over.wait()
            if process.is_alive:
                process.is_alive = False
                self.world.judge_end(process)
                if not process.task.cancelled() and (error := process.task.exception()) is not None:
                    self.failures.append(repr(error))
                    if not isinstance(error, ENDS_WITH):
                        self.world.observed.errors.append(f"{process} ended with {error!r}")
            if self.is_on:
                await asyncio.sleep(1.0)

    @property
    def is_ready(self) -> bool:
        return self.process is not None and self.process.is_ready

    def is_at(self, incarnation: str) -> bool:
        """Return whether the present process here is this one, and is neither dead nor stopped."""
        process = self.process
        return process is not None and process.incarnation == incarnation and process.runs

    def crash(self, down_s: float) -> None:
        self._stay_down(down_s)
        if self.process is not None:
            self.process.crash()

    def stop_politely(self, down_s: float) -> None:
        """SIGTERM."""
        self._stay_down(down_s)
        process = self.process
        if process is not None and process.is_alive and not process.is_stopped:
            process.ask()

    def may_start(self) -> None:
        """Start the next process, however long it was to stay down."""
        self._may_start.set()

    def _stay_down(self, down_s: float) -> None:
        self._may_start.clear()
        asyncio.get_running_loop().call_later(down_s, self._may_start.set)

    def cut_store(self, is_cut: bool) -> None:
        """Cut this host off from the store, or join them again."""
        self.kv_faults = UNREACHABLE if is_cut else self.world.kv_faults
        if self.process is not None:
            self.process.kv.faults = self.kv_faults

    def cut_storage(self, is_cut: bool) -> None:
        """Cut this host off from storage, whose calls then have no response, or join them again."""
        self.is_cut_off = is_cut
        if self.process is not None and self.process.is_alive:
            (self.process.fs.pause if is_cut else self.process.fs.resume)()


class ClusterWorld:
    """Storage, store, network, and the places."""

    def __init__(
        self,
        seed: int,
        *,
        faults: Faults | None = None,
        kv_faults: KvFaults | None = None,
        config: NodeConfig = CONFIG,
        latency_s: float = 0.002,
        has_ids: bool = True,
        history: int = HISTORY_REVISIONS,
        are_versions_mixed: bool = False,
        features: FeatureTable = FEATURES,
    ) -> None:
        """Make a world without hosts.  ``has_ids``: proxies get their node ids, else each takes the lowest free one.
        ``history``: revisions that the store keeps for watches."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.rng = Random(seed)
        self.storage = MemoryStorage(self.rng, faults or Faults(), datanodes=5)
        self.store = MemoryStore(history=history)
        self.kv_faults = kv_faults or KvFaults()
        self.only_proxy = ""
        """Host of the proxy that new requests of clients go to; "" for any."""
        self.config = config
        self.features = features
        self.network = ClusterNetwork(self.rng, latency_s)
        self.places: list[Place] = []
        self.observed = Observed()
        self.acks = OneOwner(self.observed.errors.append)
        self.is_over = False
        self.rebuilding: asyncio.Task[None] | None = None
        """The rebuilding of a store that was lost."""
        self.are_versions_mixed = are_versions_mixed
        self.versions: dict[str, Version] = {}
        """By incarnation."""
        self.has_ids = has_ids
        self._ids = 0

    def __repr__(self) -> str:
        return " ".join(map(repr, self.places))

    def place(self, host: str, *roles: str) -> Place:
        """Add a host."""
        node_id = -1
        if "proxy" in roles and self.has_ids:
            node_id, self._ids = self._ids, self._ids + 1
        place = Place(self, host, roles, node_id)
        self.places.append(place)
        return place

    def with_role(self, role: str) -> list[Place]:
        return [place for place in self.places if role in place.roles]

    def judge_end(self, process: Process) -> None:
        """Note as errors what a process that ended by itself leaves running or open."""
        left = [repr(task) for task in tasks_of(process.incarnation) if task.get_name() != OPERATOR]
        if left:
            self.observed.errors.append(f"{process} has ended and left tasks: {left}")
        ends = [end.other.host for end in self.network.ends if end.process == process.incarnation]
        if ends:
            self.observed.errors.append(f"{process} has ended and left connections to {ends}")
        if process.incarnation in {server.process for server in self.network.listening.values()}:
            self.observed.errors.append(f"{process} has ended and left a listening socket")

    def client(self) -> ClusterClient:
        return ClusterClient(self)

    async def heal(self) -> None:
        """End all faults and bring every process up."""
        self.storage.faults = Faults()
        self.kv_faults = KvFaults()
        for name, node in self.storage.datanodes.items():
            if node.state.name == "STOPPED":
                self.storage.resume_datanode(name)
            elif not node.is_up:
                self.storage.start_datanode(name)
            self.storage.slow_datanode(name, 0)
        self.network.heal_all()
        self.only_proxy = ""
        if self.store.down:
            self.store.start(self.loop.time())
        self.store.stall(self.loop.time())
        for place in self.places:
            place.cut_store(False)
            place.cut_storage(False)
            if place.process is not None:
                place.process.lack_descriptors(False)
                place.process.fs.last_step = ""
                place.process.kv.sees.set()
                place.process.resume()
        await asyncio.sleep(10)  # virtual: outages of storage that were drawn before this moment run out

    async def shut(self) -> None:
        """SIGTERM to all; every process ends, and leaves nothing."""
        for place in self.places:
            place.is_on = False
            place.stop_politely(0.0)
        keepers = [place.keeper for place in self.places]
        _, pending = await asyncio.wait(keepers, timeout=SHOULD_STOP_S)
        assert not pending, f"asked to stop, and go on after {SHOULD_STOP_S} s:\n{self!r}"
        for keeper in keepers:
            keeper.result()


class _KafkaLink(Calls, asyncio.Protocol):
    """A client's socket."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)

    def send(self, frame: bytes) -> None:
        self.transport.write(frame)

    def data_received(self, data: bytes) -> None:
        self.received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost()

    def close(self) -> None:
        self.transport.abort()
        self.lost()


class ClusterClient:
    """A Kafka client that knows all proxies, and stays with one of them until the connection breaks."""

    def __init__(self, world: ClusterWorld, host: str = "") -> None:
        """``host``: of the only proxy that it talks to."""
        self.world = world
        self._host = host
        self._at = self._silent = ""
        self._link: _KafkaLink | None = None
        self._connecting: asyncio.Task[_KafkaLink] | None = None

    async def call(self, request: Any, response: type[Any], version: int, timeout_s: float = 30.0) -> Any:
        """Disconnected when the connection breaks or the answer takes too long."""
        only = self.world.only_proxy
        is_led_away = bool(only) and not self._host and self._at != only
        is_usable = self._link is not None and self._link.is_open and not is_led_away
        link = self._link if is_usable and self._link is not None else await self._connected()
        try:
            return await asyncio.wait_for(link.call(request, response, version), timeout_s)
        except TimeoutError:
            link.close()
            self._silent = self._at
            raise Disconnected("no answer in time") from None

    async def _connected(self) -> _KafkaLink:
        """Return the connection, made once for all calls that wait for it; they go on in their order."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect())
        connecting = self._connecting
        try:
            self._link = await asyncio.shield(connecting)
            return self._link
        except (OSError, TimeoutError) as error:
            raise Disconnected(str(error)) from None
        finally:
            if self._connecting is connecting and connecting.done():
                self._connecting = None

    async def _connect(self) -> _KafkaLink:
        host = self._at = self._host or self._any_host()
        async with asyncio.timeout(CONNECT_S):
            _, link = await self.world.loop.create_connection(_KafkaLink, host, KAFKA_PORT)
        return link

    def _any_host(self) -> str:
        """Return any proxy's, but for the one that gave no answer last, if there is another."""
        hosts = [place.host for place in self.world.with_role("proxy")]
        if self.world.only_proxy:
            return self.world.only_proxy
        return self.world.rng.choice([host for host in hosts if host != self._silent] or hosts)

    def close(self) -> None:
        if self._link is not None and self._link.is_open:
            self._link.close()


__all__ = ["CLIENT", "ClusterClient", "ClusterWorld", "Place", "Process"]
