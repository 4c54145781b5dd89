"""A cluster as its controllers see it: one store, some of them, and members that live while the test says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

from bmq.controller.admin.cluster import LeaderAdmin
from bmq.controller.file_shares import OpenFileReport
from bmq.controller.leader_parts import LeaderParts
from bmq.controller.planning.partition_load import Measured
from bmq.controller.planning.planner_view import SETTLE_S
from bmq.controller.service import Controller
from bmq.controller.store_age import StoreAge
from bmq.controller.topics.deletion import TopicCleaner
from bmq.controller.topics.topics import TopicAdmin
from bmq.core.clock import Clock, LoopClock
from bmq.core.config import NodeConfig
from bmq.core.model import PartitionKey
from bmq.core.rpc.peers import Evidence
from bmq.meta.catalog import KvCatalog
from bmq.meta.cluster.assignment import decode_shards
from bmq.meta.cluster.keys import assignment_prefix, controller_key, member_key, shards_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.cluster.member import BROKER, COORDINATOR, Address, Member, encode_member
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.kv import Commit, Compare, KvUnknown, Put, Write
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.meta.shard_kinds import GROUPS
from bmq.storage.cluster_files import StoredTopics
from bmq.storage.memory import MemoryFileSystem, MemoryStorage

SHARDS = 6
MEMBER_TTL_S = 10.0


class FakeMembers:
    """The members' state as controllers see it: which are silent, isolated or stalled, and what they report."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        self.ended: set[str] = set()
        """Silent members whose hosts refuse connections."""
        self.isolated: set[str] = set()
        """Controllers that reach no member."""
        self.cut_off: dict[str, set[str]] = {}
        """Members that a controller does not reach, by the controller's name."""
        self.stalled: set[str] = set()
        self.probes: list[str] = []
        self.patience: list[float] = []
        """Seconds that each probe was to take at most."""
        self.left: list[str] = []
        self.measured: dict[str, list[Measured]] = {}
        self.open_file_reports: dict[str, OpenFileReport] = {}
        self.shares: dict[str, int | None] = {}  # the share last sent to each
        self.broken: list[Callable[[str, str], None]] = []
        self.probe_s = 0.05
        """Seconds that a probe takes."""
        self.kept: list[str] = []
        """Members to which a controller has asked for a connection, in that order."""

    async def ping_by(self, controller: str, member: Member, timeout_s: float) -> bool:
        name = member.incarnation
        if controller in self.isolated or name in self.cut_off.get(controller, ()) or name in self.silent:
            await asyncio.sleep(timeout_s)
            return False
        return True

    async def ping(self, member: Member, timeout_s: float) -> bool:
        return await self.ping_by("", member, timeout_s)

    async def probe(self, member: Member, patience_s: float) -> Evidence:
        return await self.probe_by("", member, patience_s)

    async def probe_by(self, controller: str, member: Member, patience_s: float) -> Evidence:
        name = member.incarnation
        self.probes.append(name)
        self.patience.append(patience_s)
        await asyncio.sleep(self.probe_s)
        if controller in self.isolated or name in self.cut_off.get(controller, ()):
            return Evidence.REFUSED if name in self.ended else Evidence.SILENCE
        if name in self.silent:
            return Evidence.REFUSED if name in self.ended else Evidence.SILENCE
        return Evidence.LIFE

    def keep(self, member: Member) -> None:
        """Note it: the test itself calls ``broken`` when a connection breaks."""
        self.kept.append(member.incarnation)

    async def load(self, member: Member) -> list[Measured] | None:
        await asyncio.sleep(0.01)
        return None if member.incarnation in self.silent else self.measured.get(member.incarnation, [])

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        await asyncio.sleep(0.01)
        name = member.incarnation
        self.shares[name] = share
        return None if name in self.silent else self.open_file_reports.get(name)

    async def is_serving(self, member: Member) -> bool | None:
        await asyncio.sleep(0.01)
        return None if member.incarnation in self.silent else member.incarnation not in self.stalled

    async def leave(self, member: Member) -> None:
        self.left.append(member.incarnation)

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        self.broken.append(call)
        return lambda: self.broken.remove(call)


class ReachedBy:
    """The members as one controller reaches them."""

    def __init__(self, members: FakeMembers, controller: str) -> None:
        self._members = members
        self._controller = controller

    async def ping(self, member: Member, timeout_s: float) -> bool:
        return await self._members.ping_by(self._controller, member, timeout_s)

    async def probe(self, member: Member, patience_s: float) -> Evidence:
        return await self._members.probe_by(self._controller, member, patience_s)

    def keep(self, member: Member) -> None:
        self._members.keep(member)

    async def load(self, member: Member) -> list[Measured] | None:
        return await self._members.load(member)

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        return await self._members.open_files(member, share)

    async def is_serving(self, member: Member) -> bool | None:
        return await self._members.is_serving(member)

    async def leave(self, member: Member) -> None:
        await self._members.leave(member)

    def subscribe_broken(self, call: Callable[[str, str], None]) -> Callable[[], None]:
        return self._members.subscribe_broken(call)


class NotedKeyValue(MemoryKeyValue):
    """A store that passes every commit that is done to ``noted``, at the moment when the store does it."""

    answers_to_lose = 0
    """The number of next successful commits whose response is lost."""

    def __init__(self, store: MemoryStore, random: Random | None, noted: Callable[[Sequence[Write]], None]) -> None:
        super().__init__(store, random=random)
        self._noted = noted

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> Commit:
        def act() -> Commit:
            done = self._store.commit(compares, writes, asyncio.get_running_loop().time())
            if done.succeeded:
                self._noted(writes)
            return done

        done = await self._change(act)
        if done.succeeded and self.answers_to_lose:
            self.answers_to_lose -= 1
            raise KvUnknown("the answer was lost")
        return done


class Standby:
    """One process with the controller's role."""

    def __init__(self, world: World, name: str, random: Random | None, clock: Clock) -> None:
        self.name = name
        self.failures: list[str] = []
        self.since_outage_s = float("inf")
        """Seconds since the store stood still, as the process's membership has found."""
        self.kv = NotedKeyValue(world.store, random, lambda writes: world.noted(name, writes))
        self.view = KvClusterView(self.kv, "c", name)
        self.catalog = KvCatalog(self.kv, "c")
        self.files = StoredTopics(MemoryFileSystem(world.storage, name))
        config = NodeConfig(cluster="c", offsets_topic_num_partitions=SHARDS)
        self.controller = Controller(
            config,
            self.kv,
            self.view,
            self.catalog,
            ReachedBy(world.members, name),
            clock,
            make_parts=lambda guard: LeaderParts(
                topics=TopicAdmin(self.kv, "c", self.catalog, config, self.files, clock, guard=guard),
                cleaner=TopicCleaner(self.kv, "c", self.files, clock, guard=guard),
                age=StoreAge(self.kv, MemoryFileSystem(world.storage, name), "c", 0, guard=guard),
            ),
            on_failed=self.failures.append,
            since_outage_s=lambda: self.since_outage_s,
        )

    @property
    def topics(self) -> TopicAdmin:
        """The changes of topics while this process leads."""
        parts = self.controller.parts
        assert parts is not None
        return parts.topics

    async def start(self) -> None:
        await self.view.start()
        await self.catalog.start()
        await self.controller.start()

    async def close(self) -> None:
        await self.controller.close()
        await self.view.close()
        await self.catalog.close()


class World:
    def __init__(self, random: Random | None = None) -> None:
        self.store = MemoryStore()
        self.storage = MemoryStorage()
        self.members = FakeMembers()
        self.writes: list[tuple[str, list[str]]] = []  # each writer and its keys of the assignment
        self.standbys: list[Standby] = []
        self._leases: dict[str, int] = {}
        self._kv = MemoryKeyValue(self.store)
        self._view = KvClusterView(self._kv, "c", "test")
        self.random = random

    async def start(self) -> None:
        await self._view.start()

    async def close(self) -> None:
        for each in self.standbys:
            await each.close()
            assert each.failures == []
        await self._view.close()

    # ------------------------------------------------------------------------------------------------- what is done

    async def controller(self, name: str, clock: Clock | None = None) -> Standby:
        one = Standby(self, name, self.random, clock or LoopClock())
        self.standbys.append(one)
        await one.start()
        return one

    async def join(
        self,
        *names: str,
        roles: Sequence[str] = (BROKER, COORDINATOR),
        zone: str = "",
        is_listening: bool = True,
    ) -> None:
        for name in names:
            self.members.silent.discard(name)
            self.members.ended.discard(name)
            self._leases[name] = await self._kv.grant(1e9)
            address = Address(host=name, port=1) if is_listening else Address()
            await self.put(Member(incarnation=name, roles=frozenset(roles), zone=zone, internal=address))

    async def put(self, member: Member) -> None:
        key = member_key("c", member.incarnation)
        await self._kv.commit([], [Put(key, encode_member(member), self._leases[member.incarnation])])

    async def drain(self, name: str) -> None:
        await self.put(self._view.members[name].draining())

    async def lose_lease(self, name: str) -> None:
        await self._kv.revoke(self._leases.pop(name))

    async def kill(self, name: str) -> None:
        """Silence a member whose host refuses connections; its lease stays."""
        self.members.silent.add(name)
        self.members.ended.add(name)

    def noted(self, name: str, writes: Sequence[Write]) -> None:
        keys = [write.key for write in writes]
        of_assignment = [
            key for key in keys if key.startswith(assignment_prefix("c")) or key == shards_key("c", GROUPS)
        ]
        if of_assignment:
            self.writes.append((name, keys))
            leader = self.store.get(controller_key("c"))
            assert leader is not None, f"{name} wrote the assignment with nobody leading"
            assert leader.value.decode() == name, f"{name} wrote the assignment while {leader.value.decode()} led"

    # -------------------------------------------------------------------------------------------------- what is seen

    @property
    def leader(self) -> Standby | None:
        leading = [each for each in self.standbys if each.controller.leading is not None]
        assert len(leading) <= 1, f"{[each.name for each in leading]} lead together"
        return leading[0] if leading else None

    def led_by(self) -> Standby:
        leader = self.leader
        assert leader is not None
        return leader

    def registered(self, names: str) -> set[str]:
        """Return which of these members, of one letter each, have a key in the store."""
        return {name for name in names if self.store.get(member_key("c", name)) is not None}

    def is_member(self, name: str) -> bool:
        """Return whether a member is registered: not if it was declared dead while it joined, until it joins again."""
        return name in self._view.members

    def owners(self, one: Standby) -> dict[PartitionKey, str]:
        return {
            PartitionKey(topic.topic_id, number): self._view.owner_of(PartitionKey(topic.topic_id, number))
            for topic in one.catalog.topics.values()
            for number in range(topic.partitions)
        }

    def counts(self) -> Counter[str]:
        """Return how many partitions each member owns; "" stands for no owner."""
        return Counter(self.owners(self.standbys[0]).values())

    def admin(self) -> LeaderAdmin:
        """Return the operators' requests at the leader."""
        leader = self.led_by()
        return LeaderAdmin(leader.controller, leader.catalog, self.members)

    def shards(self) -> dict[int, ShardOwner]:
        entry = self.store.get(shards_key("c", GROUPS))
        return decode_shards(entry.value) if entry is not None else {}

    async def until(self, is_so: Callable[[], bool], timeout_s: float = 2 * SETTLE_S) -> float:
        """Wait until ``is_so`` holds and return the seconds that it took; TimeoutError after ``timeout_s``."""
        started = asyncio.get_running_loop().time()
        async with asyncio.timeout(timeout_s):
            while not is_so():  # noqa: ASYNC110 - what is waited for is a state of several processes
                await asyncio.sleep(0.01)
        return asyncio.get_running_loop().time() - started

    def is_assigned(self, *names: str) -> bool:
        """Return whether everything is assigned to exactly these members, and each owns a partition and a shard."""
        one = self.standbys[0]
        owners = set(self.owners(one).values())
        shards = {owner.incarnation for owner in self.shards().values()}
        return owners == set(names) and shards == set(names) and len(self.shards()) == SHARDS


@asynccontextmanager
async def world(*members: str, controllers: Sequence[str] = ("c1",), topic: int = 12) -> AsyncIterator[World]:
    """Start a cluster with a topic of so many partitions, assigned to the members."""
    one = World(Random(0))
    await one.start()
    try:
        await one.join(*members)
        for name in controllers:
            await one.controller(name)
        await one.until(lambda: one.leader is not None)
        topics = one.led_by().topics
        await topics.create_topic("t", topic)
        if members:
            await one.until(lambda: one.is_assigned(*members))
        yield one
    finally:
        await one.close()


def file_report(held: int, waiting: int = 0, refused: int = 0) -> OpenFileReport:
    """Return a broker's report of its open files."""
    return OpenFileReport(held=held, closing=0, waiting=waiting, refused=refused, limit_max=100)
