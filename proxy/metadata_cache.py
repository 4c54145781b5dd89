"""Metadata responses, kept as encoded bytes: 10,000 partitions cost 110 ms to encode, and every client asks again.

A topic's bytes are kept by API version and used while the topic, its leaders and the proxies stay the same.  Fields
come from the schema's encoder; only the partitions of a topic, all alike, are laid out here, as rows of one table.  A
response is then::

    header, throttle time, brokers, cluster id, controller id | topic count | topics ... | cluster operations, error

No partition has a leader epoch (``endpoint.leader_epochs``).  A partition always has a leader, even without an owner:
the proxy that is named as leader holds produces for the partition until it is open.

The cache is bounded by the catalog: topics that the catalog does not have any more are dropped.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Generator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bmq.core.aio.steps import Steps, run_in_steps
from bmq.core.aio.turns import run_in_turns
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.net.request import Buffer, Response
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.codec import encode_response
from bmq.core.wire.messages import MetadataResponse
from bmq.endpoint.leader_epochs import METADATA_EPOCH
from bmq.meta.catalog import Catalog, Topic
from bmq.meta.proxy_addresses import Proxies, ProxyAddress

Operations = frozenset[int] | None
"""Codes of the operations that the client may do; None if it did not ask for them."""
SETS_MAX = 20
"""Versions and sets of operations that a topic is kept encoded in."""
COST_OF_TOPIC = 25
"""Cost of a topic's element beside its partitions, in partitions: 50 us, at 2 us for a partition."""
COST_PER_STEP = 4_000
"""Work between two turns of the loop, in partitions: some 8 ms."""
ROWS_PER_STEP = 40_000
"""Partitions that are laid out between two turns of the loop: some 8 ms, too."""
_FIRST_FLEXIBLE = 9


class PartitionPlace(NamedTuple):
    """The proxies of a partition in a response, by node id.

    ``replicas`` begins with the leader; one proxy of each other zone follows (KIP-392).
    """

    leader: int
    replicas: Sequence[int]


class _Zones:
    """Proxies by zone, as of one version of the proxies."""

    def __init__(self, proxies: Proxies) -> None:
        self.version = proxies.version
        self._addresses = tuple(proxies.addresses)
        self._zone = {proxy.node_id: proxy.zone for proxy in proxies.addresses}
        self._nodes: dict[str, list[int]] = {}
        for proxy in proxies.addresses:
            self._nodes.setdefault(proxy.zone, []).append(proxy.node_id)

    def are_of(self, proxies: Proxies) -> bool:
        """Return whether the proxies themselves are still the same, whatever they lead."""
        return tuple(proxies.addresses) == self._addresses

    def replicas(self, leader: int, partition: int) -> list[int]:
        """Return the replicas of a partition with this leader.

        There are as many for every partition; within a zone the partitions are spread over its proxies.
        """
        own = self._zone.get(leader)
        others = [nodes[partition % len(nodes)] for zone, nodes in self._nodes.items() if zone != own]
        return [leader, *others][: max(1, len(self._nodes))]

    def in_zone(self, zone: str, partition: int) -> int:
        """Return the zone's proxy among ``replicas`` of a partition whose leader is elsewhere; -1 if it has none."""
        nodes = self._nodes.get(zone)
        return nodes[partition % len(nodes)] if nodes else -1


class _Search:
    """One topic's leaders and replicas while they are looked up: a step at a time, by any of the requests for them.

    A leader that moves between two steps may be found before its move or after it.
    """

    def __init__(self, topic: Topic, proxies: Proxies) -> None:
        self.version = proxies.version_of(topic.topic_id)
        """The proxies' version of the topic: what is found is of then or of later."""
        self.zones = _Zones(proxies)
        self.leaders: list[int] = []
        self.replicas: list[list[int]] = []
        self._topic = topic

    def step(self, proxies: Proxies) -> bool:
        """Look up the next COST_PER_STEP partitions.  Return whether these were the last ones."""
        start, partitions = len(self.leaders), self._topic.partitions
        indexes = range(start, min(start + COST_PER_STEP, partitions))
        some = [proxies.leader_of(PartitionKey(self._topic.topic_id, index)) for index in indexes]
        self.leaders += some
        self.replicas += map(self.zones.replicas, some, indexes)
        return len(self.leaders) == partitions


class _TopicEntry:
    """One topic's leaders and replicas, and its encoded bytes by (version, operations).

    A method that visits all partitions is a generator that yields after some thousands of them.  Several may be under
    way at once: leaders and replicas are consistent after each step.
    """

    __slots__ = ("_leaders", "_replicas", "_search", "_version", "changes", "encoded", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.encoded: dict[tuple[int, Operations], bytes] = {}
        self.changes = 0
        """Number of changes of the leaders or replicas; each has cleared ``encoded``."""
        self._leaders: list[int] = []
        self._replicas: list[list[int]] = []
        self._version = -1
        """The proxies' version of this topic when the search for the leaders began."""
        self._search: _Search | None = None

    def refresh(self, proxies: Proxies) -> Steps[None]:
        """Bring the leaders and replicas up to date, as of now or later.

        All requests that wait for it take steps of one search.  It is brought to its end although leaders move
        meanwhile, and another follows: with moves all the time none would end.
        """
        wanted = proxies.version_of(self.topic.topic_id)
        while self._version < wanted:
            if self._search is None or not self._search.zones.are_of(proxies):
                self._search = _Search(self.topic, proxies)
            if self._search.step(proxies):
                self._take(self._search)
                self._search = None
            else:
                yield

    def _take(self, found: _Search) -> None:
        self._version = found.version
        if found.leaders != self._leaders or found.replicas != self._replicas:
            self._leaders, self._replicas = found.leaders, found.replicas
            self.changes += 1
            self.encoded.clear()

    def places(self, start: int, stop: int) -> list[PartitionPlace]:
        """Return the partitions from ``start`` up to, not including, ``stop``; fewer if the topic ends before."""
        return list(map(PartitionPlace, self._leaders[start:stop], self._replicas[start:stop]))

    def rows(self, version: int) -> Steps[list[bytes]]:
        """Return the partitions as Kafka's MetadataResponsePartition, one after another."""
        found: list[bytes] = []
        for start in range(0, self.topic.partitions, ROWS_PER_STEP):
            if start:
                yield
            found.append(self._rows_between(version, start, min(start + ROWS_PER_STEP, self.topic.partitions)))
        return found

    def _rows_between(self, version: int, start: int, stop: int) -> bytes:
        replicas = np.array(self._replicas[start:stop], dtype=np.int32)
        table = np.zeros(stop - start, dtype=_row(version, replicas.shape[1]))
        table["index"] = np.arange(start, stop)
        table["leader"] = self._leaders[start:stop]
        if "epoch" in (table.dtype.names or ()):
            table["epoch"] = METADATA_EPOCH
        table["replicas"] = table["isr"] = replicas
        table["replicas_count"] = table["isr_count"] = replicas.shape[1] + (version >= _FIRST_FLEXIBLE)
        if version >= _FIRST_FLEXIBLE:
            table["offline_count"] = 1
        return table.tobytes()


@cache
def _row(version: int, replicas: int) -> npt.DTypeLike:
    """Return a partition's fields in the schema's order.

    The count of a compact array is its length plus 1, in one byte for up to 126 elements.
    """
    assert version < _FIRST_FLEXIBLE or replicas < 127, "more zones than a byte can count"
    count = "u1" if version >= _FIRST_FLEXIBLE else ">i4"
    fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [
        ("error", ">i2"),
        ("index", ">i4"),
        ("leader", ">i4"),
        *([("epoch", ">i4")] if version >= 7 else []),
        ("replicas_count", count),
        ("replicas", ">i4", (replicas,)),
        ("isr_count", count),
        ("isr", ">i4", (replicas,)),
        *([("offline_count", count)] if version >= 5 else []),
        *([("tags", "u1")] if version >= _FIRST_FLEXIBLE else []),
    ]
    return np.dtype(fields)


class _AllTopics(NamedTuple):
    """The encoded elements of all topics; ``versions`` are the catalog's and the proxies'."""

    versions: tuple[int, int]
    topics: int
    joined: bytes


class _Encoding(NamedTuple):
    """The encoding of all topics while it runs; ``versions`` are those that it began with."""

    versions: tuple[int, int]
    task: asyncio.Task[_AllTopics]


class MetadataCache:
    """One listener's cache of Metadata responses.  ``encoded_topics`` counts the times that a topic was encoded."""

    def __init__(self) -> None:
        self.encoded_topics = 0
        self._topics: dict[str, _TopicEntry] = {}
        self._all: dict[tuple[int, Operations], _AllTopics] = {}
        self._running: dict[tuple[int, Operations], _Encoding] = {}
        self._heads: dict[tuple[int, Operations], bytes] = {}
        self._heads_of: tuple[ProxyAddress, ...] = ()
        self._zones: _Zones | None = None

    def __repr__(self) -> str:
        return f"MetadataCache(topics={len(self._topics)}, encoded={self.encoded_topics})"

    async def places(self, topic: Topic, start: int, stop: int, proxies: Proxies) -> list[PartitionPlace]:
        """Return a topic's partitions from ``start`` up to, not including, ``stop``."""
        entry = self._entry(topic)
        await run_in_turns(entry.refresh(proxies))
        return entry.places(start, stop)

    @property
    def all_bytes(self) -> int:
        """Largest number of bytes of all topics, over the versions in which they were last encoded; 0 before that."""
        return max((len(found.joined) for found in self._all.values()), default=0)

    def replicas(self, topic: Topic, index: int, proxies: Proxies) -> Sequence[int]:
        """Return the node ids of one partition's replicas.  The cost does not depend on the topic's size."""
        return self._zones_of(proxies).replicas(proxies.leader_of(PartitionKey(topic.topic_id, index)), index)

    def nearer(self, zone: str, proxies: Proxies, topic: Topic, index: int) -> int:
        """Return the replica in ``zone``, the client's, if this process leads the partition; else -1.

        ``zone`` is another one than this process's.  Only the leader sends a client elsewhere; as with a follower in
        Kafka, the proxy that it was sent to serves it.
        """
        if proxies.leader_of(PartitionKey(topic.topic_id, index)) != proxies.own.node_id:
            return -1
        return self._zones_of(proxies).in_zone(zone, index)

    def _zones_of(self, proxies: Proxies) -> _Zones:
        if self._zones is None or self._zones.version != proxies.version:
            self._zones = _Zones(proxies)
        return self._zones

    def topic(self, topic: Topic, version: int, operations: Operations, proxies: Proxies) -> Steps[bytes]:
        """Return a topic's encoded element of the response; yields between two steps of work if there are several."""
        entry = self._entry(topic)
        yield from entry.refresh(proxies)
        encoded = entry.encoded.get((version, operations))
        if encoded is None:
            self.encoded_topics += 1
            changes = entry.changes
            encoded = yield from _encode_topic(entry, version, operations)
            if entry.changes == changes:
                if len(entry.encoded) >= SETS_MAX:
                    entry.encoded.clear()
                entry.encoded[(version, operations)] = encoded
        return encoded

    def all_topics(
        self, version: int, operations: Operations, catalog: Catalog, proxies: Proxies
    ) -> tuple[int, bytes] | None:
        """Return the number of all topics, and their elements; None if some must be encoded first (``encode_all``)."""
        found = self._all.get((version, operations))
        if found is None or found.versions != (catalog.version, proxies.version):
            return None
        return found.topics, found.joined

    async def encode_all(
        self, version: int, operations: Operations, catalog: Catalog, proxies: Proxies
    ) -> tuple[int, bytes]:
        """Return the same as ``all_topics``, encoded in steps: 100,000 topics take seconds.

        Callers at the same time share one run, unless the catalog or the proxies have changed since it began; they
        share the next run then.
        """
        key = (version, operations)
        running = self._running.get(key)
        if running is not None and running.versions != (catalog.version, proxies.version):
            await asyncio.wait([running.task])  # if it fails, its own callers get the exception
            running = self._running.get(key)  # the run of another caller that waited, too
        if running is None or running.task.done():
            steps = self._encode_all(version, operations, catalog, proxies)
            task = asyncio.get_running_loop().create_task(run_in_steps(steps), name="metadata of all topics")
            running = self._running[key] = _Encoding((catalog.version, proxies.version), task)
        found = await asyncio.shield(running.task)
        return found.topics, found.joined

    def _encode_all(
        self, version: int, operations: Operations, catalog: Catalog, proxies: Proxies
    ) -> Generator[None, None, _AllTopics]:
        versions, cost = (catalog.version, proxies.version), 0
        elements: list[bytes] = []
        for topic in list(catalog.topics.values()):
            elements.append((yield from self.topic(topic, version, operations, proxies)))
            cost += topic.partitions % COST_PER_STEP + COST_OF_TOPIC
            if cost >= COST_PER_STEP:
                cost = 0
                yield
        found = self._all[(version, operations)] = _AllTopics(versions, len(elements), b"".join(elements))
        del self._running[(version, operations)]
        return found

    def response(
        self,
        version: int,
        correlation_id: int,
        count: int,
        topics: Sequence[Buffer],
        catalog: Catalog,
        proxies: Proxies,
        cluster_operations: Operations = None,
    ) -> Response:
        """Return the whole response around the encoded ``topics``, of which there are ``count``."""
        if len(self._topics) > len(catalog.topics):
            self._topics = {name: entry for name, entry in self._topics.items() if name in catalog.topics}
        if tuple(proxies.addresses) != self._heads_of:
            self._heads.clear()
            self._heads_of = tuple(proxies.addresses)
        whole = self._heads.get((version, cluster_operations))
        if whole is None:
            whole = self._heads[(version, cluster_operations)] = _encode_shell(
                version, catalog.cluster_id, proxies, cluster_operations
            )
        end = len(whole) - _tail_size(version)
        head = correlation_id.to_bytes(4, "big", signed=True) + whole[4 : end - _count_size(version)]
        return Response([head + _count(version, count), *topics, whole[end:]])

    def _entry(self, topic: Topic) -> _TopicEntry:
        entry = self._topics.get(topic.name)
        if entry is None or entry.topic is not topic:
            entry = self._topics[topic.name] = _TopicEntry(topic)
        return entry


def controller_of(proxies: Proxies) -> int:
    """Return the node id of the proxy that clients see as controller.

    Any proxy serves a client's requests to the controller; all proxies name the same one.
    """
    return proxies.addresses[0].node_id if proxies.addresses else proxies.own.node_id


def encode_error(
    version: int,
    error: ErrorCode,
    name: str | None,
    topic_id: uuid.UUID,
    *,
    is_internal: bool,
    operations: Operations = None,
) -> bytes:
    """Return the encoded element of a topic with an error, without partitions."""
    topic = MetadataResponse.MetadataResponseTopic(
        error_code=error,
        name=name,
        topic_id=topic_id,
        is_internal=is_internal,
        partitions=[],
        authorized_operations=operations,
    )
    return _encode_element(version, topic)


def _encode_topic(entry: _TopicEntry, version: int, operations: Operations) -> Steps[bytes]:
    topic = entry.topic
    bare = _encode_element(
        version,
        MetadataResponse.MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            partitions=[],
            authorized_operations=operations,
        ),
    )
    tail = (4 if version >= 8 else 0) + (1 if version >= _FIRST_FLEXIBLE else 0)  # operations, tags
    end = len(bare) - tail
    rows = yield from entry.rows(version)
    return b"".join((bare[: end - _count_size(version)], _count(version, topic.partitions), *rows, bare[end:]))


def _encode_element(version: int, topic: object) -> bytes:
    """Return one element of ``topics``, cut out of a response that has no other."""
    around = _whole(version, MetadataResponse(brokers=[], cluster_id="", controller_id=-1, topics=[]))
    whole = _whole(version, MetadataResponse(brokers=[], cluster_id="", controller_id=-1, topics=[topic]))
    return whole[len(around) - _tail_size(version) : len(whole) - _tail_size(version)]


def _encode_shell(version: int, cluster_id: str, proxies: Proxies, operations: Operations) -> bytes:
    """Return the encoded response without topics."""
    brokers = [
        MetadataResponse.MetadataResponseBroker(
            node_id=proxy.node_id, host=proxy.host, port=proxy.port, rack=proxy.zone or None
        )
        for proxy in proxies.addresses
    ]
    return _whole(
        version,
        MetadataResponse(
            throttle_time_ms=0,
            brokers=brokers,
            cluster_id=cluster_id,
            controller_id=controller_of(proxies),
            topics=[],
            authorized_operations=operations,
            error_code=ErrorCode.NONE,
        ),
    )


def _whole(version: int, message: object) -> bytes:
    return b"".join(encode_response(ApiKey.METADATA, version, 0, message))


def _tail_size(version: int) -> int:
    """Return the number of bytes behind the topics: cluster operations, error, tags."""
    return (4 if 8 <= version <= 10 else 0) + (2 if version >= 13 else 0) + (1 if version >= _FIRST_FLEXIBLE else 0)


def _count_size(version: int) -> int:
    """Return the number of bytes of an empty array's count."""
    return 1 if version >= _FIRST_FLEXIBLE else 4


def _count(version: int, count: int) -> bytes:
    """Return an array's encoded count: an int32, or from version 9 on ``count + 1`` as an unsigned varint."""
    if version < _FIRST_FLEXIBLE:
        return count.to_bytes(4, "big")
    count += 1
    encoded = bytearray()
    while count > 0x7F:
        encoded.append(count & 0x7F | 0x80)
        count >>= 7
    encoded.append(count)
    return bytes(encoded)
