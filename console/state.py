"""What the console shows, and where it gets it: the seam between HTTP and the roles of this process.

Whoever composes the process fills a ``ConsoleState``.  The facts are JSON as they stand (``openapi.json`` describes
them).  Everything here is read from memory and counted per topic or per state; only what a single topic or group is
asked for may cost a call.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypedDict

from bmq.console.history import HistoryFacts
from bmq.console.kafka import Requests
from bmq.console.lag_history import LagHistoryFacts
from bmq.console.listing import Order, Page
from bmq.console.operations import ClusterOperations, NotLoadedFacts, RateFacts
from bmq.console.schema_registry import SchemaRegistry
from bmq.core.metrics.counters import Histogram, Metrics


class BrokerFacts(TypedDict):
    """A proxy, which Kafka's clients call a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


class ClusterFacts(TypedDict):
    cluster_id: str
    version: str
    """Of this software."""
    node_id: int
    """Of the process that answers."""
    brokers: Sequence[BrokerFacts]
    topics: int
    partitions: int
    """As the cluster's catalog has them; ``partitions_by_state`` counts those that this process owns."""
    partitions_by_state: Mapping[str, int]
    connections: int


class ListedTopic(Protocol):
    """A topic among all of them, as lists look through them.  Never changed: a thread may read it."""

    @property
    def name(self) -> str: ...

    @property
    def partitions(self) -> int: ...

    @property
    def replication_factor(self) -> int: ...

    @property
    def is_internal(self) -> bool: ...

    @property
    def configs(self) -> Mapping[str, str]:
        """The overrides only."""


class TopicFacts(TypedDict):
    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    is_internal: bool
    configs: Mapping[str, str]
    """The overrides only."""
    rates: RateFacts | None
    """Null where nobody asked for it, or no proxy can tell yet; so below."""


class PartitionFacts(TypedDict):
    """One partition.  Offsets and bytes are null where its owner does not answer; ``state`` is the owner's."""

    partition: int
    owner: str
    """The incarnation that is to own it; "" when nobody is."""
    state: str
    why: str
    """Reason that it is not served, "" when it is."""
    epoch: int | None
    log_start: int | None
    high_watermark: int | None
    bytes: int | None
    rates: RateFacts | None


class TopicDetails(TypedDict):
    topic: TopicFacts
    partitions: Sequence[PartitionFacts]
    next: int | None
    """Last partition of this page when there are more."""


class BlockFacts(TypedDict):
    """A block of a file, with the datanodes that hold it."""

    position: int
    bytes: int
    nodes: Sequence[str]


class SegmentFacts(TypedDict):
    """A segment's file.  ``end_offset`` is null for the last one."""

    segment: str
    base_offset: int
    end_offset: int | None
    epoch: int
    bytes: int
    modified_ms: int
    is_closed: bool
    blocks: Sequence[BlockFacts] | None
    """None where storage does not tell."""


class SegmentsFacts(TypedDict):
    topic: str
    partition: int
    segments: Sequence[SegmentFacts]
    next: str | None
    error: str
    """Why some of it is missing; "" when nothing is."""


class SpaceFacts(TypedDict):
    """Room of the whole storage, whoever uses it; bytes are of all copies of blocks together."""

    capacity_bytes: int
    used_bytes: int
    remaining_bytes: int


class RootFacts(TypedDict):
    """What the root takes of storage, and how much it may; a quota that is not set is null."""

    bytes: int
    bytes_quota: int | None
    names: int
    """Files and folders."""
    names_quota: int | None


class StorageFacts(TypedDict):
    root: str
    datanodes: int | None
    """Live ones; null where storage has none, or does not tell."""
    space: SpaceFacts | None
    usage: RootFacts | None
    is_in_safe_mode: bool
    missing_blocks: int
    """Blocks of any file of the whole HDFS, of which no copy is left."""
    error: str
    """Why some of it is missing; "" when nothing is."""


GROUP_COLUMNS = ("group_id", "state", "protocol_type")
"""By which groups are put in order: what the list of them has.  Members are counted of a page's groups only."""


class TopicSizes(NamedTuple):
    """Bytes on storage of the partitions that brokers serve, of one copy of each block, as they were counted last."""

    by_topic: Mapping[str, int]
    partitions_unknown: int
    """Partitions that have not been counted yet, and are not in the sums."""
    silent: Sequence[str]
    """Brokers that did not answer, whose partitions are not in the sums."""


class GroupFacts(TypedDict):
    group_id: str
    state: str
    protocol_type: str
    members: int


class GroupsFacts(TypedDict):
    """A page of the groups of all shards but those that are not loaded, which may have more."""

    groups: Sequence[GroupFacts]
    total: int
    """Of all pages."""
    next: str | None
    """The `after` of the next page, null for the last."""
    shards_not_loaded: Sequence[NotLoadedFacts]


class MemberFacts(TypedDict):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: Mapping[str, Sequence[int]]
    """Partitions by topic; empty where the members' protocol is not the consumers'."""


class CommittedFacts(TypedDict):
    topic: str
    partition: int
    offset: int
    metadata: str


class GroupDetails(TypedDict):
    group: GroupFacts
    protocol: str | None
    """The assignor that the members agreed on."""
    members: Sequence[MemberFacts]
    offsets: Sequence[CommittedFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What is so now, for ``/metrics``.  States are Kafka's or the design's words, in any case of letters."""

    partitions_by_state: Mapping[str, int] = field(default_factory=dict)
    """Of the partitions that this process owns.  ``WRITE`` counts as led, ``OFFLINE`` as offline."""
    groups_by_state: Mapping[str, int] | None = None
    """Of the groups whose shards are loaded here; None when this process coordinates none."""
    topics: int = 0
    partitions: int = 0
    """Of the whole cluster."""
    log_bytes_by_topic: Mapping[str, int] = field(default_factory=dict)
    """Bytes on storage of the partitions that this process owns, as they were counted last."""


class OwnMetric(NamedTuple):
    """A number that a role has, shown as `bmq_<name>`, or as `name` if that is Kafka's; of a counter, without
    `_total`.  Those of one name stand together and differ in the value of `label`."""

    name: str
    doc: str
    value: float
    is_counter: bool = False
    label: str = ""
    label_value: str = ""


class OwnHistogram(NamedTuple):
    """Durations that a role has measured, shown in seconds as `bmq_<name>`: one histogram for each value of `label`,
    or a single one under "" if there is no label."""

    name: str
    doc: str
    series: Mapping[str, Histogram]
    label: str = ""


class OwnSeries(NamedTuple):
    """Gauges that differ in the values of several labels, under Kafka's or another well-known name as it stands.  The
    samples are never changed."""

    name: str
    doc: str
    labels: Sequence[str]
    samples: Sequence[tuple[Sequence[str], float]]


Own = OwnMetric | OwnHistogram | OwnSeries


def no_own_metrics() -> Sequence[Own]:
    return ()


@dataclass(slots=True, kw_only=True)
class ConsoleState:
    """One process, as its console sees it.  Called from the loop; none of the plain calls may block."""

    metrics: Metrics
    is_alive: Callable[[], tuple[bool, str]]
    """False, with the reason, when the process should be started anew."""
    is_ready: Callable[[], tuple[bool, str]]
    """False, with the reason, while clients should not be sent here.  True with a text: what does not work."""
    gauges: Callable[[], Gauges]
    cluster: Callable[[], ClusterFacts]
    topics: Callable[[], Sequence[ListedTopic]]
    """All of them, in any order."""
    topic_rates: Callable[[Sequence[str]], Awaitable[Mapping[str, RateFacts | None]]]
    topic: Callable[[str, int, int], Awaitable[TopicDetails | None]]
    """By its name, with so many partitions at most behind the one given.  None when there is none.  RequestError when
    it cannot be told now; so below."""
    find_topic: Callable[[str], TopicFacts | None]
    segments: Callable[[str, int, Page], Awaitable[SegmentsFacts]]
    """Of a topic that is there and a partition of it."""
    storage: Callable[[], Awaitable[StorageFacts]]
    topic_sizes: Callable[[], Awaitable[TopicSizes]]
    groups: Callable[[str, Order, Page], Awaitable[GroupsFacts]]
    """A page of those whose ids have a text in them, in any case of letters; the order is by one of GROUP_COLUMNS."""
    group: Callable[[str], Awaitable[GroupDetails | None]]
    committed: Callable[[str], Awaitable[Sequence[CommittedFacts]]]
    """The offsets of a group; none of one that is not there."""
    history: Callable[[int], Awaitable[HistoryFacts]]
    """Samples of the cluster that end later than the time of day given, in milliseconds."""
    group_lag: Callable[[str, int], Awaitable[LagHistoryFacts]]
    """Samples of a group's lag that are newer than the time of day given, in milliseconds."""
    operations: ClusterOperations
    kafka: Requests
    """Kafka's requests to this process."""
    registry: SchemaRegistry | None = None
    """Has the schemas of keys and values; None when no registry is set."""
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    pick: Callable[[int], int] = random.randrange
    """Chooses one of so many partitions for a record without a key."""
    own_metrics: Callable[[], Sequence[Own]] = no_own_metrics
