"""Interface behind ``/api/v1/cluster/...`` and jobs that clean a log: the cluster's status, and operators' commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

from bmq.storage.cleaning.job_round import RoundNumbers

NAMED_MAX = 1_000
"""Most partitions that are not served, and most unusable keys and topics, in a status.  Their totals
count all."""


class RateFacts(TypedDict):
    """Clients' traffic by second, over the last ten seconds."""

    records_in: float
    bytes_in: float
    """Bytes of record batches as they are sent, compressed or not."""
    bytes_out: float
    """Bytes of record batches as they are sent, compressed or not."""


class ProcessFacts(TypedDict):
    """One process of the cluster.  Measurements of the leader are null if the status is not from the leader."""

    incarnation: str
    """Name of the process, new for each start."""
    roles: Sequence[str]
    node_id: int
    """A proxy's id for Kafka's clients; -1 for other processes."""
    kafka: str
    internal: str
    http: str
    """``host:port``, as the two before; "" if it does not listen."""
    zone: str
    version: str
    protocols: Sequence[int]
    """Lowest and highest version of the internal protocol that it speaks."""
    formats: int
    """Highest format of files and keys that it reads."""
    features: Mapping[str, Sequence[int]]
    """Lowest and highest supported level, by feature."""
    is_draining: bool
    is_leader: bool
    partitions: int
    """Partitions assigned to it."""
    shards: int
    """Shards assigned to it: partitions of coordinators' topics, such as ``__consumer_offsets``."""
    load_share: float | None
    """Load as a multiple of an even share."""
    bytes_per_s: int | None
    requests_per_s: int | None
    unreachable_for: int | None
    """Proxies that cannot reach it."""
    rates: RateFacts | None
    """Traffic of its clients; null for a process that is not a proxy, does not respond, or has just started."""
    storage_trouble: str
    """Reason why storage acknowledges nothing that it writes; "" while it does, or if the process does not respond."""


class ShardFacts(TypedDict):
    """A shard, and the process that it is assigned to."""

    kind: str
    """Kind of the shard: ``groups``, or ``transactions``."""
    shard: int
    coordinator: str


class NotLoadedFacts(TypedDict):
    """A shard that is not served."""

    kind: str
    """Kind of the shard: ``groups``, or ``transactions``."""
    shard: int
    coordinator: str
    why: str


class NotServedFacts(TypedDict):
    """A partition that cannot be written or read: it is OFFLINE, or could not be opened."""

    topic: str
    partition: int
    broker: str
    """Incarnation of the broker that it is assigned to."""
    why: str


class QuarantinedFacts(TypedDict):
    """A key of the metadata store, or a topic, that is not used, since it is wrong or of a later version."""

    what: str
    why: str


MoveFacts = TypedDict("MoveFacts", {"topic": str, "partition": int, "from": str, "to": str, "why": str})


class PastMoveFacts(MoveFacts):
    """A move that has ended, or that the leader no longer waits for."""

    ended_ms: int
    """Wall time of the end, by the leader's clock."""
    took_ms: int | None
    """Time from the new assignment until the new owner had opened the partition.

    The partition was not served for a part of it.  The value is null for a move that did not end within ten seconds.
    """


class FeatureFacts(TypedDict):
    """A feature: its level in force, and the levels of the responding process."""

    feature: str
    level: int
    intended: int | None
    """Level that the leader is about to finalize."""
    is_held: bool
    """Whether an operator has set the level: then the leader does not raise it by itself."""
    lowest: int
    highest: int


class StatusFacts(TypedDict):
    """The cluster's status."""

    cluster: str
    """Name of the cluster, with which its keys begin."""
    cluster_id: str
    asked: str
    """Incarnation of the process that responds."""
    leader: str | None
    is_from_leader: bool
    """False if the leader did not respond: then the status is as this process's own view has it."""
    topics: int
    partitions: int
    unassigned: int
    """Partitions without a live owner."""
    unassigned_shards: int
    """Shards without a live owner."""
    store_trouble: str
    """Reason why the metadata store takes no writes, as the process that responds sees it; "" while it takes them."""
    is_balancing: bool | None
    members: Sequence[ProcessFacts]
    shards: Sequence[ShardFacts]
    shards_not_loaded: Sequence[NotLoadedFacts]
    """Shards that are not loaded, of the coordinators that respond."""
    partitions_not_served: Sequence[NotServedFacts]
    """Partitions that are not served, the first of each responding broker."""
    partitions_not_served_total: int
    rates: RateFacts | None
    """Sum over the proxies that respond."""
    silent: Sequence[str]
    """Brokers and proxies that did not respond with the partitions that they cannot serve, or with their traffic."""
    quarantined: Sequence[QuarantinedFacts]
    """The first keys and topics that the process that responds cannot use."""
    quarantined_total: int
    features: Sequence[FeatureFacts]
    """Levels of features, as the process that responds sees them."""
    features_epoch: int
    """Number of the changes of these levels."""
    moves_under_way: Sequence[MoveFacts]
    past_moves: Sequence[PastMoveFacts]
    """Recent moves since the leader was elected, the newest first."""


class DrainFacts(TypedDict):
    """A member that was asked to drain, and the partitions and shards that it had then."""

    member: str
    partitions: int
    shards: int


class MovedFacts(TypedDict):
    """A partition, and the member that it is assigned to now."""

    topic: str
    partition: int
    member: str


class LoggerFacts(TypedDict):
    """A logger and its level: DEBUG, INFO, WARNING or ERROR."""

    logger: str
    level: str
    is_set: bool
    """True if the level is set for this logger; else it is that of a logger above it."""


class LogLevelsFacts(TypedDict):
    """All loggers of one member."""

    member: str
    loggers: Sequence[LoggerFacts]


class LogLevelFacts(LoggerFacts):
    """One logger of one member."""

    member: str


class RoundFacts(RoundNumbers):
    """The plan of a job's round over the closed segments of a compacted log."""

    topic_id: str
    partition: int
    hold_ms: int
    """Time of the hold after each request of the job."""
    aborted: str
    """Aborted transactions with data below the end: base64 of producer id, first, last and last stable offset, 8 bytes
    each."""
    producers: str
    """Ends of the producers: base64 of producer id and last offset of 8 bytes each, epoch of 2."""


class SwappedFacts(TypedDict):
    """The result of a job's request to swap groups of sources for its drafts."""

    swapped: int
    expired: int
    """Groups that the log start has passed."""
    stopped: str | None
    """Reason why the next group, and all behind it, are not swapped."""


class NotPossible(Exception):
    """Refusal of an HTTP request: ``status``, a code for programs in ``error``, and a ``str`` that says what to do."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = error
        self.headers: Mapping[str, str] = {}


class ClusterOperations(Protocol):
    """Operators' commands and the cluster's status.

    Coroutines raise RequestError if the cluster refuses or cannot be reached.  They raise NotPossible if the request is
    wrong: for example if no member, or more than one member, has the given name.  A member is named by its incarnation,
    a unique prefix of that, or one of its addresses.
    """

    def members(self) -> Sequence[ProcessFacts]:
        """Return the members by this process's view, without measurements."""

    async def status(self, named_max: int = NAMED_MAX) -> StatusFacts:
        """Return the cluster's status; it lists ``named_max`` partitions not served, and as many quarantined keys."""

    async def drain(self, member: str) -> DrainFacts:
        """Request a member to hand over its partitions and shards and to end.  Returns once it has the request."""

    async def balance(self) -> int:
        """Begin to even out the load of the brokers; return the number of the first moves."""

    async def repair(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the damage of a partition's files, and repair them if ``wanted["apply"]``."""

    async def begin_cleaning(self, topic: str, partition: int, job: str) -> RoundFacts:
        """Plan a job's round over an existing partition, and hold the partition for the job."""

    async def swap_cleaned(
        self,
        topic: str,
        partition: int,
        job: str,
        end: int,
        swap_until_ms: int,
        groups: Sequence[Mapping[str, Any]],
    ) -> SwappedFacts:
        """Swap groups of a job's round, with the fields ``name``, ``end_offset``, ``sources``, ``draft`` and
        ``draft_index``, in order.  Renew the hold.  ``end`` and ``swap_until_ms`` are the plan's."""

    async def end_cleaning(self, topic: str, partition: int, job: str) -> None:
        """End a job's hold."""

    async def log_levels(self, member: str) -> LogLevelsFacts:
        """Return every logger of a member, the root first."""

    async def set_log_level(self, member: str, logger: str, level: str) -> LogLevelFacts:
        """Set the level of a member's logger until the member ends; DEFAULT removes it again."""

    async def move(self, topic: str, partition: int, member: str) -> MovedFacts:
        """Assign a partition to a member.  Returns once the assignment is in the store."""
