"""The cluster as its operators see it, and what they may have done to it: the seam behind ``/api/v1/cluster/...``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

NAMED_MAX = 1_000
"""Partitions that are not served, and keys and topics that cannot be used, in one status; their numbers are whole."""


class RateFacts(TypedDict):
    """What clients move, by second, over the last ten."""

    records_in: float
    bytes_in: float
    """Of record batches as they are sent, compressed or not; so below."""
    bytes_out: float


class ProcessFacts(TypedDict):
    """One process of the cluster.  What only the leader measures is null when somebody else tells."""

    incarnation: str
    """Names this start of the process."""
    roles: Sequence[str]
    node_id: int
    """A proxy's, towards Kafka's clients; else -1."""
    kafka: str
    internal: str
    http: str
    """``host:port``, or "" where it does not listen."""
    zone: str
    version: str
    protocols: Sequence[int]
    """Least and most version of the internal protocol that it speaks."""
    formats: int
    """Highest format of files and keys that it reads."""
    is_draining: bool
    is_leader: bool
    partitions: int
    shards: int
    """Assigned to it; shards are those of ``__consumer_offsets`` that it coordinates."""
    load_share: float | None
    """As a multiple of an even share."""
    bytes_per_s: int | None
    requests_per_s: int | None
    unreachable_for: int | None
    """Proxies that cannot reach it."""
    rates: RateFacts | None
    """Of its clients; null of a process that is not a proxy, does not answer, or has been up for seconds only."""
    storage_trouble: str
    """Why storage acknowledges nothing that it writes; "" while it does, and where it does not say."""


class ShardFacts(TypedDict):
    shard: int
    coordinator: str


class NotLoadedFacts(TypedDict):
    """A shard whose groups are not served."""

    shard: int
    coordinator: str
    why: str


class NotServedFacts(TypedDict):
    """A partition that cannot be written or read: OFFLINE, or its opening failed."""

    topic: str
    partition: int
    broker: str
    """The incarnation that is to serve it."""
    why: str


class QuarantinedFacts(TypedDict):
    """A key of the metadata store, or a topic, that is not used: it is wrong, or of a later version."""

    what: str
    why: str


MoveFacts = TypedDict("MoveFacts", {"topic": str, "partition": int, "from": str, "to": str, "why": str})


class PastMoveFacts(MoveFacts):
    """A move that the leader has seen end, or has waited for long enough."""

    ended_ms: int
    """Wall time of the leader."""
    took_ms: int | None
    """From the new assignment until the new owner had the partition, which stood still for a part of that; null of a
    move that was not over after ten seconds."""


class StatusFacts(TypedDict):
    cluster: str
    """Its name, which begins its keys."""
    cluster_id: str
    asked: str
    """The incarnation of the process that answers."""
    leader: str | None
    is_from_leader: bool
    """False when the leader did not answer: then it is what the process that was asked has heard."""
    topics: int
    partitions: int
    unassigned: int
    """Partitions that nobody is to own."""
    is_balancing: bool | None
    members: Sequence[ProcessFacts]
    shards: Sequence[ShardFacts]
    shards_not_loaded: Sequence[NotLoadedFacts]
    """As far as their coordinators answer."""
    partitions_not_served: Sequence[NotServedFacts]
    """The first of each broker, as far as it answers."""
    partitions_not_served_total: int
    rates: RateFacts | None
    """The sum over the proxies that answer."""
    silent: Sequence[str]
    """Brokers and proxies that did not say what they cannot serve, or what they move."""
    quarantined: Sequence[QuarantinedFacts]
    """The first that the process that was asked cannot use."""
    quarantined_total: int
    moves_under_way: Sequence[MoveFacts]
    past_moves: Sequence[PastMoveFacts]
    """The newest first, as the leader remembers them since it leads."""


class DrainFacts(TypedDict):
    """The member that was asked to leave, and what it had then."""

    member: str
    partitions: int
    shards: int


class MovedFacts(TypedDict):
    topic: str
    partition: int
    member: str


class LoggerFacts(TypedDict):
    """A logger and its level: DEBUG, INFO, WARNING or ERROR."""

    logger: str
    level: str
    is_set: bool
    """Whether the level is the logger's own; else it is that of a logger above."""


class LogLevelsFacts(TypedDict):
    member: str
    loggers: Sequence[LoggerFacts]


class LogLevelFacts(LoggerFacts):
    member: str


class NotPossible(Exception):
    """An act that makes no sense as it was asked for.  ``str`` says what to do; ``error`` is a code for programs."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error = error


class ClusterOperations(Protocol):
    """All that awaits raises RequestError when the cluster refuses, or cannot be asked."""

    def members(self) -> Sequence[ProcessFacts]:
        """What is known without asking."""

    async def status(self, named_max: int = NAMED_MAX) -> StatusFacts:
        """Return the status, with so many partitions that are not served, and things that cannot be used, by name."""

    async def drain(self, member: str) -> DrainFacts:
        """Have a member (its incarnation, how that begins, or an address) give up what it has, and end.  NotPossible.

        Returns when it was asked.
        """

    async def balance(self) -> int:
        """The moves that this begins with.  NotPossible."""

    async def repair(self, wanted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Tell what is damaged of a partition's files, and mend them if ``wanted["apply"]``.  NotPossible."""

    async def log_levels(self, member: str) -> LogLevelsFacts:
        """Return every logger of a member, the root first.  NotPossible."""

    async def set_log_level(self, member: str, logger: str, level: str) -> LogLevelFacts:
        """Give a logger of a member another level until it ends; DEFAULT takes it back.  NotPossible."""

    async def move(self, topic: str, partition: int, member: str) -> MovedFacts:
        """Returns when it is written who is to own the partition.  NotPossible."""
