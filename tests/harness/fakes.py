"""Stand-ins that several folders' tests share: a connection, a clock, the cluster's view, the catalog of topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Set

from bmq.core.aio.subscribers import Subscribers
from bmq.core.model import PartitionKey
from bmq.core.net.request import Client, Request
from bmq.core.rpc.server import InternalCall
from bmq.core.security.session import ANONYMOUS_SESSION
from bmq.endpoint.authorization.authorizer import ALLOW_ALL, Rights
from bmq.meta.catalog import Owned, Topic, TopicChange
from bmq.meta.cluster.levels import NO_LEVELS
from bmq.meta.cluster.member import Address, Member
from bmq.meta.cluster.view import ShardOwner, ViewChange
from bmq.meta.shard_kinds import ShardId


class FakeClient:
    """A client's connection, as handlers see it."""

    peer = "10.0.0.1:5"
    host = "10.0.0.1"
    client_id: str | None = None
    client_software = ("", "")
    session = ANONYMOUS_SESSION

    def __init__(self) -> None:
        self.is_closed = False
        self.calls = Subscribers[[]]()
        self.muted: list[float] = []

    def mute(self, seconds: float) -> None:
        self.muted.append(seconds)

    def unmute(self) -> None:
        self.muted.clear()

    def on_close(self, call: Callable[[], None]) -> Callable[[], None]:
        return self.calls.add(call)

    def close(self) -> None:
        self.is_closed = True
        self.calls.notify()


class FakeClock:
    """``core.clock.Clock`` with a wall time that stands, and the seconds that ``monotonic`` gives."""

    def __init__(self, now_ms: int = 0, monotonic: Callable[[], float] = lambda: 0.0) -> None:
        self._now_ms = now_ms
        self._monotonic = monotonic

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic()


class FakeView:
    """A ``ClusterView`` that shows what a test has put there."""

    revision = 0
    levels = NO_LEVELS
    controller: Member | None = None

    def __init__(self, own: str) -> None:
        self.own = own
        self.members: dict[str, Member] = {}
        self.owners: dict[PartitionKey, str] = {}
        self.shards: dict[ShardId, ShardOwner] = {}
        self.asked = 0
        """How often an owner was asked for."""
        self._subscribers = Subscribers[[ViewChange]]()

    def owner_of(self, key: PartitionKey) -> str:
        self.asked += 1
        return self.owners.get(key, "")

    def owned_by(self, incarnation: str) -> Set[PartitionKey]:
        return {key for key, owner in self.owners.items() if owner == incarnation}

    def owned_count(self, incarnation: str) -> int:
        return len(self.owned_by(incarnation))

    def shard(self, shard: ShardId) -> ShardOwner | None:
        return self.shards.get(shard)

    def subscribe(self, call: Callable[[ViewChange], None]) -> Callable[[], None]:
        return self._subscribers.add(call)

    def notify(self, change: ViewChange) -> None:
        self._subscribers.notify(change)

    def assign(self, owner: str, *keys: PartitionKey) -> None:
        left = {key for key in keys if self.owners.get(key) == self.own != owner}
        for key in keys:
            self.owners[key] = owner
        self.notify(ViewChange(partitions=set(keys), left=left))

    def join(self, *incarnations: str, role: str = "broker") -> None:
        for incarnation in incarnations:
            self.members[incarnation] = member(incarnation, role)
        self.notify(ViewChange(members=set(incarnations)))

    def leave(self, incarnation: str) -> None:
        self.members.pop(incarnation, None)
        self.notify(ViewChange(members={incarnation}))


def member(incarnation: str, role: str = "broker", zone: str = "") -> Member:
    return Member(
        incarnation=incarnation, roles=frozenset({role}), internal=Address(host=incarnation, port=1), zone=zone
    )


class FakeCatalog:
    """``meta.catalog.Catalog`` over a dict."""

    cluster_id = "cluster"

    def __init__(self, *topics: Topic) -> None:
        self.topics: dict[str, Topic] = {topic.name: topic for topic in topics}
        self.version = 0
        self._subscribers = Subscribers[[TopicChange]]()

    def by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def owned_by(self, principal: str) -> Owned:
        raise NotImplementedError

    def broker_configs(self, node_id: int | None) -> Mapping[str, str]:
        return {}

    def subscribe(self, call: Callable[[TopicChange], None]) -> None:
        self._subscribers.add(call)

    def subscribe_configs(self, call: Callable[[], None]) -> None:
        raise NotImplementedError

    async def wait_revision(self, revision: int) -> None:
        raise NotImplementedError

    async def refresh(self, name: str) -> Topic | None:
        raise NotImplementedError

    def put(self, name: str, topic: Topic | None) -> None:
        change = TopicChange(self.topics.pop(name, None), topic)
        if topic is not None:
            self.topics[name] = topic
        self.version += 1
        self._subscribers.notify(change)


def request_of(
    api_key: int = 0, version: int = 0, *, client: Client | None = None, client_id: str | None = None
) -> Request:
    """Return a request without a body, of a client of its own unless one is given."""
    return Request(api_key, version, 0, client_id, memoryview(b""), FakeClient() if client is None else client, 0.0)


def call_of(caller: str = "") -> InternalCall:
    """Return the facts of a request of the process ``caller``."""
    return InternalCall(0, FakeClient(), None, 1, 0.0, caller)


def all_rights(request: object = None) -> Rights:
    """Return the rights of a client that may do everything."""
    return Rights(ALLOW_ALL, request_of())
