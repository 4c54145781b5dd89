"""What the console shows, and where it gets it: the seam between HTTP and the roles of this process.

Whoever composes the process fills a ``ConsoleState``.  The facts are JSON as they stand (``openapi.json`` describes
them).  Everything here is read from memory and counted per topic or per state; only what a single topic or group is
asked for may cost a call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

from bmq.console.operations import ClusterOperations, NotLoadedFacts
from bmq.core.metrics import Metrics


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


class TopicFacts(TypedDict):
    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    is_internal: bool
    configs: Mapping[str, str]
    """The overrides only."""


class PartitionFacts(TypedDict):
    """Offsets and bytes are null while no owner is in WRITE here; ``state`` is the owner's."""

    partition: int
    state: str
    epoch: int | None
    log_start: int | None
    high_watermark: int | None
    bytes: int | None


class TopicDetails(TypedDict):
    topic: TopicFacts
    partitions: Sequence[PartitionFacts]


class GroupFacts(TypedDict):
    group_id: str
    state: str
    protocol_type: str
    members: int


class GroupsFacts(TypedDict):
    """The groups of all shards but those that are not loaded, which may have more."""

    groups: Sequence[GroupFacts]
    shards_not_loaded: Sequence[NotLoadedFacts]


class MemberFacts(TypedDict):
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str


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
    """Bytes on storage, where they are known without a call."""


class OwnMetric(NamedTuple):
    """A metric that Kafka does not have, shown as ``bmq_<name>``; of a counter, without ``_total``."""

    name: str
    doc: str
    value: float
    is_counter: bool = False


def no_own_metrics() -> Sequence[OwnMetric]:
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
    topics: Callable[[], Sequence[TopicFacts]]
    topic: Callable[[str], Awaitable[TopicDetails | None]]
    """None when there is none.  RequestError when it cannot be told now; so below."""
    groups: Callable[[], Awaitable[GroupsFacts]]
    group: Callable[[str], Awaitable[GroupDetails | None]]
    operations: ClusterOperations
    own_metrics: Callable[[], Sequence[OwnMetric]] = no_own_metrics
