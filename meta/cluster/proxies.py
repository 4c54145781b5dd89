"""A cluster's ``meta.proxy_addresses.Proxies``: the proxies that clients see, and the proxy of a partition or shard."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from bmq.core.config import NodeConfig
from bmq.core.model import PartitionKey
from bmq.core.net.listener_config import PLAINTEXT
from bmq.meta.catalog import Catalog, TopicChange
from bmq.meta.cluster.member import BROKER, COORDINATOR, PROXY
from bmq.meta.cluster.placement import Places
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.proxy_addresses import ProxyAddress
from bmq.meta.shard_kinds import ShardId, ShardKind, kind_of_topic, shard_count

_OWNING = frozenset({BROKER, COORDINATOR})


class ClusterProxies:
    """The proxies that clients of one listener see.

    Clients are sent only to proxies with a listener of the same name, and to all such proxies.  Any proxy serves every
    partition, so every partition has a leader with such a listener (Kafka may answer LISTENER_NOT_FOUND).  A proxy that
    drains is left out, as is a proxy without support of a feature's level in force, and this one while it is not a
    member.  Without any other, this process names itself: the client has reached it.

    A partition's leader is its owner's process, if this process is such a proxy: then records cross no second process.
    The leader of any other partition is a place (``meta.cluster.placement``), which is computed on the first request
    for it, and kept until the proxies change.  So it is with shards and their coordinators.
    """

    def __init__(
        self, own: ProxyAddress, view: ClusterView, catalog: Catalog, config: NodeConfig, listener: str = PLAINTEXT
    ) -> None:
        """Follow ``view`` and ``catalog``; ``config`` has the numbers of shards whose topic does not exist yet."""
        self._listener = listener
        self.own = own
        self.version = 0
        self._changes = 0
        """Number of changes of the proxies themselves."""
        self._view = view
        self._catalog = catalog
        self._config = config
        self._is_member = True
        self._proxies: tuple[ProxyAddress, ...] = (own,)
        self._owners: dict[str, int] = {}
        """The node ids, by incarnation, of those of ``_proxies`` that may own partitions or shards, too."""
        self._moves: dict[uuid.UUID, int] = {}
        """Number of changes of owners of each topic's partitions that this process has seen."""
        self._places: dict[uuid.UUID | ShardKind, Places] = {}
        view.subscribe(self._view_changed)
        catalog.subscribe(self._topic_changed)

    @property
    def addresses(self) -> Sequence[ProxyAddress]:
        return self._proxies

    def version_of(self, topic_id: uuid.UUID) -> int:
        return self._changes + self._moves.get(topic_id, 0)

    @property
    def sends_away(self) -> bool:
        """True if this process is not a member, and clients see other proxies instead."""
        return not self._is_member and all(proxy.node_id != self.own.node_id for proxy in self._proxies)

    def set_member(self, is_member: bool) -> None:
        """Name this process to clients only while it is a member.

        The view does not show that where the store cannot be reached.
        """
        self._is_member = is_member
        self.refresh()

    def move(self, own: ProxyAddress) -> None:
        """Change this process's own address."""
        self.own = own
        self.refresh()

    def leader_of(self, key: PartitionKey) -> int:
        """Return the proxy for the partition; this process if there is no such partition.

        The number may be a client's, and computing places takes time and memory by their count.
        """
        topic = self._catalog.by_id(key.topic_id)
        if topic is None or not 0 <= key.partition < topic.partitions:
            return self.own.node_id
        owner = self._owners.get(self._view.owner_of(key))
        if owner is not None:
            return owner
        return self._placed(key.topic_id, key.topic_id.bytes, topic.partitions)[key.partition]

    def coordinator_of(self, shard: ShardId) -> int:
        assigned = self._view.shard(shard)
        owner = self._owners.get(assigned.incarnation) if assigned is not None else None
        if owner is not None:
            return owner
        kind, number = shard
        count = max(shard_count(kind, self._catalog, self._config), number + 1)
        return self._placed(kind, kind.key.encode(), count)[number]

    def _placed(self, name: uuid.UUID | ShardKind, seed: bytes, count: int) -> Places:
        placed = self._places.get(name)
        if placed is None or len(placed) < count:
            placed = self._places[name] = Places(seed, count, [proxy.node_id for proxy in self._proxies])
        return placed

    def refresh(self) -> None:
        """Compute the proxies from the view's members."""
        found = {
            incarnation: ProxyAddress(member.node_id, address.host, address.port, member.zone)
            for incarnation, member in self._view.members.items()
            if member.has(PROXY) and not member.is_draining and (address := member.kafka_at(self._listener)).port
            if self._is_member or incarnation != self._view.own
            if member.supports(self._view.levels.levels)
        }
        by_node = {proxy.node_id: proxy for proxy in found.values()}
        proxies = tuple(by_node[node] for node in sorted(by_node)) or (self.own,)
        members = self._view.members
        owners = {each: proxy.node_id for each, proxy in found.items() if members[each].roles & _OWNING}
        if proxies != self._proxies or owners != self._owners:
            self._proxies, self._owners = proxies, owners
            self._places.clear()
            self._changes += 1
            self.version += 1

    def _view_changed(self, change: ViewChange) -> None:
        if change.members or change.are_levels:
            self.refresh()
        if change.partitions and self._owners:  # else no leader follows an owner
            for topic_id in {topic_id for topic_id, _ in change.chunks}:
                if self._catalog.by_id(topic_id) is not None:  # else nobody was told of it yet, or it is deleted
                    self._moves[topic_id] = self._moves.get(topic_id, 0) + 1
                    self.version += 1

    def _topic_changed(self, change: TopicChange) -> None:
        if change.before is None:
            return
        topic_id = change.before.topic_id
        self._places.pop(topic_id, None)
        if change.after is None or change.after.topic_id != topic_id:
            self._moves.pop(topic_id, None)
        kind = kind_of_topic(change.before.name)
        if kind is not None:
            self._places.pop(kind, None)
