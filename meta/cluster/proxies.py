"""A cluster's ``meta.proxy_addresses.Proxies``: those that clients see, and the one for each partition and shard."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from bmq.core.model import PartitionKey
from bmq.core.net.listener_config import PLAINTEXT
from bmq.meta.catalog import OFFSETS_TOPIC, Catalog, TopicChange
from bmq.meta.cluster.member import PROXY
from bmq.meta.cluster.placement import place
from bmq.meta.cluster.view import ClusterView, ViewChange
from bmq.meta.proxy_addresses import ProxyAddress

_SHARDS = b"shards"


class ClusterProxies:
    """The proxies that clients of one listener see.

    Clients are sent to proxies that have a listener of the same name, and to all of these: any proxy serves every
    partition, so no partition's leader is without such a listener (Kafka's LISTENER_NOT_FOUND).  A proxy that drains is
    left out, and so is this one while it is not a member.  Without any other, this process names itself: the client has
    reached it.

    A partition's proxy is computed on the first request for it, and kept until the proxies change.
    """

    def __init__(
        self, own: ProxyAddress, view: ClusterView, catalog: Catalog, shards: int, listener: str = PLAINTEXT
    ) -> None:
        """Follow ``view`` and ``catalog``.

        ``shards``: partitions of ``__consumer_offsets`` if it does not exist yet.
        """
        self._listener = listener
        self.own = own
        self.version = 0
        self._view = view
        self._catalog = catalog
        self._shards = shards
        self._is_member = True
        self._proxies: tuple[ProxyAddress, ...] = (own,)
        self._places: dict[uuid.UUID | bytes, list[int]] = {}
        view.subscribe(self._view_changed)
        catalog.subscribe(self._topic_changed)

    @property
    def addresses(self) -> Sequence[ProxyAddress]:
        return self._proxies

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
        return self._placed(key.topic_id, key.topic_id.bytes, topic.partitions)[key.partition]

    def coordinator_of(self, shard: int) -> int:
        offsets = self._catalog.topics.get(OFFSETS_TOPIC)
        count = max(offsets.partitions if offsets is not None else self._shards, shard + 1)
        return self._placed(_SHARDS, _SHARDS, count)[shard]

    def _placed(self, name: uuid.UUID | bytes, seed: bytes, count: int) -> list[int]:
        placed = self._places.get(name)
        if placed is None or len(placed) < count:
            placed = self._places[name] = place(seed, count, [proxy.node_id for proxy in self._proxies])
        return placed

    def refresh(self) -> None:
        """Compute the proxies from the view's members."""
        found = {
            member.node_id: ProxyAddress(member.node_id, address.host, address.port, member.zone)
            for member in self._view.members.values()
            if member.has(PROXY) and not member.is_draining and (address := member.kafka_at(self._listener)).port
            if self._is_member or member.incarnation != self._view.own
        }
        proxies = tuple(found[node] for node in sorted(found)) or (self.own,)
        if proxies != self._proxies:
            self._proxies = proxies
            self._places.clear()
            self.version += 1

    def _view_changed(self, change: ViewChange) -> None:
        if change.members:
            self.refresh()

    def _topic_changed(self, change: TopicChange) -> None:
        if change.before is not None:
            self._places.pop(change.before.topic_id, None)
            if change.before.name == OFFSETS_TOPIC:
                self._places.pop(_SHARDS, None)
