"""Requests to the leader about topics, configs and assignment: sent by ``RemoteAdmin``, served by ``AdminService``.

Every request is an API of its own, as in Kafka.  A leader of an earlier version refuses an API that it does not serve
with UNSUPPORTED_VERSION, and nothing is done.  Kafka's own requests are not forwarded: a client's request becomes a
message for each topic.  The message has the fields by which it can be repeated when a leader is lost
(``controller.admin.client``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from bmq.core.features import FeatureUpdate
from bmq.core.rpc.api_keys import InternalKey
from bmq.core.rpc.message import InternalRequest, InternalResponse, Message, Struct
from bmq.core.rpc.message_fields import (
    Added,
    Array,
    Bool,
    Bytes,
    Fixed,
    Id,
    Int32,
    Int64,
    LaterText,
    NullableArray,
    NullableId,
    NullableText,
    Reasons,
    Row,
    Text,
)
from bmq.core.rpc.messages.member import ErrorResponse
from bmq.meta.config_changes import ConfigChange, Operation

ALL_NODES = -1
"""The node id of the cluster's default configs."""
LOAD_SHARES = 10_000
"""The load of all brokers."""
NOT_FINISHED = -1
"""``took_ms`` of a move that is not waited for any more."""
_NO_ID = UUID(int=0)

Configs = Annotated[tuple[tuple[str, str | None], ...], Array(Row(Text, NullableText))]
Overrides = Annotated[tuple[tuple[str, str], ...], Array(Row(Text, Text))]
Replicas = Annotated[tuple[int, ...], Array(Fixed("i"))]
"""Node ids of one partition's replicas."""
Assignments = Annotated[tuple[tuple[int, tuple[int, ...]], ...], Array(Row(Int32, Replicas))]
"""Replicas by partition."""
NewAssignments = Annotated[tuple[tuple[int, ...], ...] | None, NullableArray(Array(Fixed("i")))]
ConfigOperation = Annotated[Operation, Fixed("b", Operation)]
ConfigChanges = Annotated[
    tuple[ConfigChange, ...], Array(Row(Text, ConfigOperation, NullableText, make=ConfigChange._make))
]


@dataclass(frozen=True, slots=True)
class TopicResponse(InternalResponse):
    """The topic that is the result, as ``meta.catalog.Topic`` describes it."""

    message: Text = ""
    name: Text = ""
    topic_id: Id = _NO_ID
    partitions: Int32 = 0
    replication_factor: Int32 = 0
    configs: Overrides = ()
    revision: Int64 = 0
    principal: LaterText = ""


@dataclass(frozen=True, slots=True)
class RevisionResponse(InternalResponse):
    """The revision of the store from which on the change is in force."""

    message: Text = ""
    revision: Int64 = 0


@dataclass(frozen=True, slots=True)
class CreateTopicRequest(InternalRequest[TopicResponse]):
    """A topic to be created; see ``Admin.create_topic``.  ``topic_id`` is the sender's: a repetition is recognized.

    A leader of an earlier version does not read ``principal``: the topic counts for nobody.
    """

    KEY = InternalKey.CREATE_TOPIC

    name: Text
    partitions: Int32
    replication_factor: Int32
    configs: Configs
    assignments: Assignments
    topic_id: Id
    validate_only: Bool
    principal: LaterText = ""


@dataclass(frozen=True, slots=True)
class EnsureTopicRequest(InternalRequest[TopicResponse]):
    """A topic that is to be created with the defaults, unless it exists; ``principal`` as in CreateTopicRequest."""

    KEY = InternalKey.ENSURE_TOPIC

    name: Text
    principal: LaterText = ""


@dataclass(frozen=True, slots=True)
class DeleteTopicRequest(InternalRequest[RevisionResponse]):
    """A topic to be deleted; if it has this id, unless that is None."""

    KEY = InternalKey.DELETE_TOPIC

    name: Text
    topic_id: NullableId


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest(InternalRequest[TopicResponse]):
    """Partitions to be added, so that the topic has ``count``; ``assignments`` are the new partitions'."""

    KEY = InternalKey.CREATE_PARTITIONS

    name: Text
    count: Int32
    assignments: NewAssignments
    validate_only: Bool


@dataclass(frozen=True, slots=True)
class AlterTopicConfigsRequest(InternalRequest[TopicResponse]):
    """Changes of a topic's configs.  ``is_whole``: they are the complete new configs, each of them set."""

    KEY = InternalKey.ALTER_TOPIC_CONFIGS

    name: Text
    is_whole: Bool
    changes: ConfigChanges
    validate_only: Bool


@dataclass(frozen=True, slots=True)
class AlterBrokerConfigsRequest(InternalRequest[RevisionResponse]):
    """Changes of one node's configs, or of the cluster's defaults (``ALL_NODES``); ``is_whole`` as for a topic."""

    KEY = InternalKey.ALTER_BROKER_CONFIGS

    node_id: Int32
    is_whole: Bool
    changes: ConfigChanges
    validate_only: Bool


FeatureUpdates = Annotated[tuple[FeatureUpdate, ...], Array(Row(Text, Int32, Int32, make=FeatureUpdate._make))]


@dataclass(frozen=True, slots=True)
class UpdateFeaturesRequest(InternalRequest[ErrorResponse]):
    """Levels of features, all of which are to be set, or none; see ``Admin.update_features``."""

    KEY = InternalKey.UPDATE_FEATURES

    updates: FeatureUpdates
    validate_only: Bool


@dataclass(frozen=True, slots=True)
class DrainRequest(InternalRequest[ErrorResponse]):
    """An order to have a member hand over everything, and end."""

    KEY = InternalKey.DRAIN

    incarnation: Text


@dataclass(frozen=True, slots=True)
class MovePartitionRequest(InternalRequest[ErrorResponse]):
    """A partition to be assigned to a broker."""

    KEY = InternalKey.MOVE_PARTITION

    topic: Text
    partition: Int32
    incarnation: Text


@dataclass(frozen=True, slots=True)
class BalanceResponse(InternalResponse):
    """``moves``: the number of the first moves."""

    message: Text = ""
    moves: Int32 = 0


@dataclass(frozen=True, slots=True)
class BalanceRequest(InternalRequest[BalanceResponse]):
    """An order to balance the brokers now."""

    KEY = InternalKey.BALANCE


@dataclass(frozen=True, slots=True)
class MemberStatus(Message):
    """A member: its registration as in the store (``meta.cluster.member``), and what the leader knows of it.

    ``load_share``: its share of ``LOAD_SHARES``.  ``unreachable_for``: proxies that do not reach it.
    """

    registration: Bytes
    partitions: Int32
    shards: Int32
    load_share: Int32
    bytes_per_s: Int64
    requests_per_s: Int64
    unreachable_for: Int32


@dataclass(frozen=True, slots=True)
class MoveStatus(Message):
    """A move of a partition from ``source`` ("" for none) to ``target``.

    A past move has the wall time of its end, and its duration, or ``NOT_FINISHED``.
    """

    topic: Text
    partition: Int32
    source: Text
    target: Text
    why: Text
    ended_ms: Int64 = 0
    took_ms: Int64 = NOT_FINISHED


Members = Annotated[tuple[MemberStatus, ...], Array(Struct(MemberStatus))]
_INT32 = Int32.__metadata__[0]  # type: ignore[attr-defined]
LaterCount = Annotated[int, Added(0, _INT32, 0)]
"""A count that a leader of an earlier version does not send."""
Moves = Annotated[tuple[MoveStatus, ...], Array(Struct(MoveStatus))]


@dataclass(frozen=True, slots=True)
class ClusterStatusResponse(InternalResponse):
    """The cluster as the leader sees it.

    ``shards``: numbers of shards, with their assigned coordinators.  ``unassigned``, ``unassigned_shards``: partitions
    and shards without a live owner.
    """

    message: Text = ""
    leader: Text = ""
    topics: Int32 = 0
    partitions: Int32 = 0
    unassigned: Int32 = 0
    is_balancing: Bool = False
    members: Members = ()
    shards: Reasons = ()
    pending_moves: Moves = ()
    past_moves: Moves = ()
    unassigned_shards: LaterCount = 0


@dataclass(frozen=True, slots=True)
class ClusterStatusRequest(InternalRequest[ClusterStatusResponse]):
    """A request for members, leader, load and assignment."""

    KEY = InternalKey.CLUSTER_STATUS
