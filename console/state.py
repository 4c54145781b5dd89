"""Interface between the HTTP port and the roles of its process: the facts that the console shows, and their sources.

The ``server`` package fills a ``ConsoleState``.  The facts are JSON as they are (``openapi.json`` describes them).
Facts of the whole process are read from memory and counted by topic or by state; only awaitable ones may send requests.
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
from bmq.core.audit.log import NO_AUDIT, Audit
from bmq.core.metrics.counters import Histogram, PortCounters, RequestCounters
from bmq.endpoint.authorization.authorizer import ALLOW_ALL, Authorizer


class BrokerFacts(TypedDict):
    """A proxy, which Kafka's clients call a broker."""

    node_id: int
    host: str
    port: int
    rack: str | None


class ClusterFacts(TypedDict):
    """The cluster, and the process that responds."""

    cluster_id: str
    version: str
    """Version of the software of the process that responds."""
    node_id: int
    """Node id of the process that responds."""
    brokers: Sequence[BrokerFacts]
    topics: int
    partitions: int
    """Partitions in the cluster's catalog."""
    partitions_by_state: Mapping[str, int]
    """Partitions that the process that responds owns."""
    connections: int


class ListedTopic(Protocol):
    """A topic as lists of topics need it.  It is immutable, so a thread may read it."""

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
        """The configs that are set for the topic."""


class TopicFacts(TypedDict):
    """One topic."""

    name: str
    topic_id: str
    partitions: int
    replication_factor: int
    is_internal: bool
    configs: Mapping[str, str]
    """The configs that are set for the topic."""
    rates: RateFacts | None
    """Traffic; null if the request does not ask for it, or no proxy has measured it yet."""


class CleaningFacts(TypedDict):
    """The cleaning of a compacted partition's log, as of its owner's last look.  Unknown numbers are null."""

    reason: str
    """Reason why it is not cleaned now, a name of docs/operations/compaction.md; "" right after a round.

    ``unknown``: the owner has not looked yet, does not respond, or is of a version before these facts.
    """
    why: str
    """Text of the reason; "" right after a round, and for a reason of a later version."""
    dirty_percent: float | None
    """Kafka's max-dirty-percent of this log: bytes since the last cleaning, in percent of all that a round reads."""
    cleaned_ms: int | None
    """Wall time of the last round's end; null if no round is known."""
    bytes_before: int | None
    """Bytes of the segments that the last round read."""
    bytes_after: int | None
    """Bytes of the segments that the last round wrote."""


class PartitionFacts(TypedDict):
    """One partition.  Offsets and bytes are null if its owner does not respond; ``state`` is the owner's."""

    partition: int
    owner: str
    """Incarnation of the broker that it is assigned to; "" if it is not assigned."""
    state: str
    why: str
    """Reason why it is not served; "" if it is."""
    epoch: int | None
    log_start: int | None
    high_watermark: int | None
    bytes: int | None
    rates: RateFacts | None
    cleaning: CleaningFacts | None
    """Null for a topic that is not compacted."""


class TopicDetails(TypedDict):
    """One topic with a page of its partitions."""

    topic: TopicFacts
    partitions: Sequence[PartitionFacts]
    next: int | None
    """Last partition of this page if there are more; null on the last page."""


class BlockFacts(TypedDict):
    """A block of a file, with the datanodes that have a replica."""

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
    """None if storage does not report them."""


class SegmentsFacts(TypedDict):
    """A page of a partition's segments."""

    topic: str
    partition: int
    segments: Sequence[SegmentFacts]
    next: str | None
    error: str
    """Reason why some facts are missing; "" if none is."""


class SpaceFacts(TypedDict):
    """Space of the whole storage, in use by any application; bytes count all replicas."""

    capacity_bytes: int
    used_bytes: int
    remaining_bytes: int


class RootFacts(TypedDict):
    """Use of storage by the root, and its quotas; a quota that is not set is null."""

    bytes: int
    bytes_quota: int | None
    names: int
    """Number of files and folders."""
    names_quota: int | None


class StorageFacts(TypedDict):
    """Space and health of storage."""

    root: str
    datanodes: int | None
    """Live datanodes; null if storage has none, or does not report them."""
    space: SpaceFacts | None
    usage: RootFacts | None
    is_in_safe_mode: bool
    missing_blocks: int
    """Blocks without a replica left, of all files in HDFS."""
    error: str
    """Reason why some facts are missing; "" if none is."""


GROUP_COLUMNS = ("group_id", "state", "protocol_type")
"""Columns by which groups can be sorted: those of ListGroups.  Members are counted only for the groups of a page."""


class TopicSizes(NamedTuple):
    """Bytes on storage of the partitions that brokers serve, by the last count, with one replica of each block."""

    by_topic: Mapping[str, int]
    partitions_unknown: int
    """Partitions that are not counted yet, and so not in the sums."""
    silent: Sequence[str]
    """Brokers that did not respond, whose partitions are not in the sums."""


class GroupFacts(TypedDict):
    """One group."""

    group_id: str
    state: str
    protocol_type: str
    members: int


class GroupsFacts(TypedDict):
    """A page of the groups of all shards, except shards that are not loaded, which may have more."""

    groups: Sequence[GroupFacts]
    total: int
    """Number of groups on all pages."""
    next: str | None
    """The ``after`` of the next page; null on the last page."""
    shards_not_loaded: Sequence[NotLoadedFacts]


class MemberFacts(TypedDict):
    """One member of a group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: Mapping[str, Sequence[int]]
    """Partitions by topic; empty if the members are not consumers."""


class CommittedFacts(TypedDict):
    """A committed offset."""

    topic: str
    partition: int
    offset: int
    metadata: str


class GroupDetails(TypedDict):
    """One group with its members and committed offsets."""

    group: GroupFacts
    protocol: str | None
    """The assignor that the members agreed on."""
    members: Sequence[MemberFacts]
    offsets: Sequence[CommittedFacts]


TRANSACTION_COLUMNS = ("transactional_id", "state", "producer_id")
"""Columns by which transactions can be sorted: the fields of ListTransactions.  Starts are read only for a page."""
TRANSACTION_STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence", "Dead"
)  # fmt: skip
"""States of a transaction, as Kafka's ListTransactions writes them."""
ENDING_STATES = ("PrepareCommit", "PrepareAbort")
"""States of a decided transaction, some of whose partitions have no marker yet."""
OPEN_STATES = ("Ongoing", *ENDING_STATES)
"""States in which readers of committed records wait for the transaction."""


class TransactionFilter(NamedTuple):
    """Choice of transactional ids.  An id has to match every field; an empty field matches every id."""

    search: str = ""
    """Text that the id contains, in upper or lower case."""
    pattern: str = ""
    """Regular expression (RE2) that the whole id matches."""
    states: Sequence[str] = ()
    producer_ids: Sequence[int] = ()
    older_than_ms: int = -1
    """Milliseconds for which the transaction has been open, or more; below 0 for any."""


class TransactionFacts(TypedDict):
    """One transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    """Time after which the coordinator aborts an open transaction."""
    started_ms: int | None
    """Wall time at which the open transaction began; null if none is open."""


class TransactionsFacts(TypedDict):
    """A page of the transactional ids of all loaded shards.  Shards that are not loaded may have further ids."""

    transactions: Sequence[TransactionFacts]
    total: int
    """Number of transactional ids on all pages."""
    next: str | None
    """The ``after`` of the next page; null on the last page."""
    shards_not_loaded: Sequence[NotLoadedFacts]


class TransactionDetails(TypedDict):
    """One transactional id with its coordinator and partitions."""

    transaction: TransactionFacts
    shard: int
    coordinator: str
    """Incarnation of the process that coordinates it; "" if none does."""
    partitions: Sequence[tuple[str, int]]
    """Partitions of the open transaction; once it is decided, the partitions that have no marker yet."""
    marker_errors: Mapping[tuple[str, int], str]
    """Why the coordinator's last try wrote no marker to partitions; without partitions of no failed try."""


class MarkerWaitFacts(TypedDict):
    """The process that is to write a partition's marker.  ``why``: the reason why it cannot; "" if it serves it."""

    topic: str
    partition: int
    process: str
    why: str


class OpenTransactionFacts(TypedDict):
    """A transaction that is open in a partition's log, of whichever transactional id."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """Epoch of the coordinator that wrote the producer's last marker; -1 before the first."""
    start_offset: int
    """First offset of the transaction in the partition."""
    last_timestamp_ms: int
    """Timestamp of the producer's last batch there."""


class OpenTransactionsFacts(TypedDict):
    """Open transactions of one partition in the order of their start, with the ends of its log."""

    log_start: int
    last_stable_offset: int
    high_watermark: int
    transactions: Sequence[OpenTransactionFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Present counts of a process, for ``/metrics``.  Names of states may be in upper or lower case."""

    partitions_by_state: Mapping[str, int] = field(default_factory=dict)
    """Partitions that this process owns.  ``WRITE`` counts as led, ``OFFLINE`` as offline."""
    groups_by_state: Mapping[str, int] | None = None
    """Groups of the shards that are loaded in this process; None if it is not a coordinator."""
    topics: int = 0
    """Topics of the cluster."""
    partitions: int = 0
    """Partitions of the cluster."""
    log_bytes_by_topic: Mapping[str, int] = field(default_factory=dict)
    """Bytes on storage of the partitions that this process owns, as counted last."""


class OwnMetric(NamedTuple):
    """A number of one role, exported as ``bmq_<name>``, or as ``name`` if that is Kafka's; a counter's name is without
    ``_total``.  Metrics with the same name differ in the value of ``label``."""

    name: str
    doc: str
    value: float
    is_counter: bool = False
    label: str = ""
    label_value: str = ""


class OwnHistogram(NamedTuple):
    """Durations that a role has measured, exported in seconds as ``bmq_<name>``. Each value of ``label`` has a
    histogram; without a label there is a single histogram, under ""."""

    name: str
    doc: str
    series: Mapping[str, Histogram]
    label: str = ""


class OwnSeries(NamedTuple):
    """Gauges that differ in the values of several labels; Kafka's and other well-known names are exported as they are.
    The samples are immutable."""

    name: str
    doc: str
    labels: Sequence[str]
    samples: Sequence[tuple[Sequence[str], float]]


Own = OwnMetric | OwnHistogram | OwnSeries


def no_own_metrics() -> Sequence[Own]:
    """Return no metrics: the default of ``ConsoleState.own_metrics``."""
    return ()


@dataclass(slots=True, kw_only=True)
class ConsoleState:
    """One process, as its console sees it.  All functions are called from the event loop and must not block it."""

    client_requests: RequestCounters
    """Counters of clients' requests."""
    client_port: PortCounters
    """Counters of clients' connections."""
    is_alive: Callable[[], tuple[bool, str]]
    """Returns False, and the reason, if the process should be restarted."""
    is_ready: Callable[[], tuple[bool, str]]
    """Returns False, and the reason, while clients should not use this process; else True, and what does not work."""
    is_open: Callable[[], bool]
    """Returns False until the process has read all users, ACLs and topics, and again once it closes its roles: then
    only health and metrics are served."""
    count: Callable[[], Awaitable[None]]
    """Counts partitions and transactions in turns of the loop.  ``is_ready``, ``gauges``, ``cluster`` and
    ``own_metrics`` return the numbers of the last count, so it is awaited before them."""
    gauges: Callable[[], Gauges]
    cluster: Callable[[], ClusterFacts]
    topics: Callable[[], Sequence[ListedTopic]]
    """Returns all topics, in any order."""
    topic_rates: Callable[[Sequence[str]], Awaitable[Mapping[str, RateFacts | None]]]
    """Returns the rates of topics, by name."""
    topic: Callable[[str, int, int], Awaitable[TopicDetails | None]]
    """Returns a topic by its name, with the partitions after the given one, so many at most; None if it does not exist.
    This and the following awaitables raise RequestError if the facts cannot be read now."""
    find_topic: Callable[[str], TopicFacts | None]
    """Returns a topic by its name, without rates; None if it does not exist."""
    segments: Callable[[str, int, Page], Awaitable[SegmentsFacts]]
    """Returns a page of the segments of an existing topic's existing partition."""
    storage: Callable[[], Awaitable[StorageFacts]]
    topic_sizes: Callable[[], Awaitable[TopicSizes]]
    groups: Callable[[str, Order, Page, Callable[[str], bool] | None], Awaitable[GroupsFacts]]
    """Returns a page of the groups whose ids contain a text, ignoring case, sorted by one of ``GROUP_COLUMNS``; with a
    function only of those for whose id it returns True."""
    group: Callable[[str], Awaitable[GroupDetails | None]]
    """Returns a group; None if it does not exist."""
    committed: Callable[[str], Awaitable[Sequence[CommittedFacts]]]
    """Returns the offsets of a group; empty if it does not exist."""
    transactions: Callable[[TransactionFilter, Order, Page, Callable[[str], bool] | None], Awaitable[TransactionsFacts]]
    """Returns a page of the matching transactional ids, sorted by one of ``TRANSACTION_COLUMNS``.  With a function, an
    id is listed only if the function returns True for it.  Raises RequestError INVALID_REGULAR_EXPRESSION for a wrong
    pattern."""
    transaction: Callable[[str], Awaitable[TransactionDetails | None]]
    """Returns a transactional id; None if it does not exist."""
    marker_waits: Callable[[Sequence[tuple[str, int]]], Awaitable[Sequence[MarkerWaitFacts]]]
    """Returns for each partition who is to write its marker, in the same order."""
    open_transactions: Callable[[str, int], Awaitable[OpenTransactionsFacts]]
    """Returns the transactions that are open in an existing topic's existing partition."""
    history: Callable[[int], Awaitable[HistoryFacts]]
    """Returns the samples of the cluster that end later than the given wall time in ms."""
    group_lag: Callable[[str, int], Awaitable[LagHistoryFacts]]
    """Returns the samples of a group's lag that are newer than the given wall time in ms."""
    operations: ClusterOperations
    kafka: Requests
    """Kafka's requests to this process."""
    authorizer: Authorizer = ALLOW_ALL
    """Says what the users of the HTTP port may do."""
    audit: Audit = NO_AUDIT
    """The audit log of what they do."""
    registry: SchemaRegistry | None = None
    """Client of the schema registry; None if none is configured."""
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    """Returns the wall time in ms."""
    pick: Callable[[int], int] = random.randrange
    """Chooses a partition, of the given number of them, for a record without a key."""
    own_metrics: Callable[[], Sequence[Own]] = no_own_metrics
    http_metrics: Callable[[], Sequence[Own]] = no_own_metrics
    """Returns the numbers of the HTTP port, which sets it."""
