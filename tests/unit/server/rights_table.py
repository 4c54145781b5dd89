"""A request of each API, with the rights that it needs: for tests of a process, and beside a real Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import kafka.protocol.consumer
import kafka.protocol.producer

from bmq.core.errors import ErrorCode
from bmq.core.records.batch import Record, build_batch
from bmq.core.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.response_errors import error_codes

Op = AclOperation
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
TOPIC_FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP_FAILED = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER_FAILED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
FAILED = {TOPIC_FAILED, GROUP_FAILED, CLUSTER_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
NAMES = {TOPIC: "t", GROUP: "g", CLUSTER: CLUSTER_NAME}
Right = tuple[AclOperation, ResourceType]

RETENTION: Mapping[str, str] = {"retention.ms": "1000"}
NOTHING: Mapping[str, str] = {}


def response_class(message: Any) -> Any:
    name = type(message).__name__.removesuffix("Request") + "Response"
    for module in (m, kafka.protocol.consumer, kafka.protocol.producer):
        if hasattr(module, name):
            return getattr(module, name)
    raise LookupError(name)


class Case(NamedTuple):
    """One API.  ``rights``: alternatives, each of which is enough.  ``refused``: the codes without any right."""

    version: int
    request: Callable[[], Any]
    rights: Sequence[Sequence[Right]]
    refused: set[ErrorCode]
    errors: Callable[[Any], Iterable[int]] = error_codes
    others: frozenset[Right] = frozenset()
    """Operations of `Api.needs` that this request does not ask for; a test of their own does."""


def produce(topic: str) -> Any:
    Topic = kafka.protocol.producer.ProduceRequest.TopicProduceData
    part = Topic.PartitionProduceData(index=0, records=bytes(build_batch([Record(value=b"v")])))
    return kafka.protocol.producer.ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[Topic(name=topic, partition_data=[part])]
    )


def fetch(topic: str, replica_id: int = -1) -> Any:
    Topic = kafka.protocol.consumer.FetchRequest.FetchTopic
    part = Topic.FetchPartition(partition=0, fetch_offset=0, log_start_offset=-1, partition_max_bytes=1 << 20)
    return kafka.protocol.consumer.FetchRequest(
        replica_id=replica_id, max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[Topic(topic=topic, partitions=[part])], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


def list_offsets() -> Any:
    Topic = m.ListOffsetsRequest.ListOffsetsTopic
    part = Topic.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    return m.ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=[Topic(name="t", partitions=[part])])


def metadata(*names: str, **options: Any) -> Any:
    Topic = m.MetadataRequest.MetadataRequestTopic
    topics = [Topic(topic_id=None, name=name) for name in names] or None
    return m.MetadataRequest(topics=topics, **{"allow_auto_topic_creation": True, **options})


def offset_commit(*names: str, group: str = "g") -> Any:
    Topic = m.OffsetCommitRequest.OffsetCommitRequestTopic
    part = Topic.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    return m.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[Topic(name=name, partitions=[part]) for name in names],
    )  # fmt: skip


def offset_fetch(*names: str, groups: Sequence[str] = ("g",)) -> Any:
    Group = m.OffsetFetchRequest.OffsetFetchRequestGroup
    Topic = Group.OffsetFetchRequestTopics
    topics = [Topic(name=name, partition_indexes=[0]) for name in names] or None
    asked = [Group(group_id=group, member_id=None, member_epoch=-1, topics=topics) for group in groups]
    return m.OffsetFetchRequest(groups=asked, require_stable=False)


def join() -> Any:
    protocol = m.JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")
    return m.JoinGroupRequest(
        group_id="joined", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, member_id="", group_instance_id=None,
        protocol_type="consumer", protocols=[protocol], reason=None,
    )  # fmt: skip


def configs(request: Any, *resources: tuple[int, str], values: Mapping[str, str] = RETENTION) -> Any:
    Resource = request.AlterConfigsResource
    more = {"config_operation": 0} if request is m.IncrementalAlterConfigsRequest else {}
    wanted = [Resource.AlterableConfig(name=name, value=value, **more) for name, value in values.items()]
    return request(
        resources=[Resource(resource_type=kind, resource_name=name, configs=wanted) for kind, name in resources],
        validate_only=True,
    )


def describe_configs(*resources: tuple[int, str]) -> Any:
    Resource = m.DescribeConfigsRequest.DescribeConfigsResource
    return m.DescribeConfigsRequest(
        resources=[Resource(resource_type=k, resource_name=n, configuration_keys=None) for k, n in resources],
        include_synonyms=False,
        include_documentation=False,
    )


def create_topics(*names: str, values: Mapping[str, str] = NOTHING) -> Any:
    Topic = m.CreateTopicsRequest.CreatableTopic
    configs = [Topic.CreatableTopicConfig(name=name, value=value) for name, value in values.items()]
    made = [Topic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=configs) for name in names]
    return m.CreateTopicsRequest(topics=made, timeout_ms=10_000, validate_only=True)


def delete_topics(*names: str, ids: Sequence[Any] = ()) -> Any:
    State = m.DeleteTopicsRequest.DeleteTopicState
    topics = [State(name=name, topic_id=None) for name in names] + [State(name=None, topic_id=each) for each in ids]
    return m.DeleteTopicsRequest(topics=topics, timeout_ms=10_000)


def delete_records() -> Any:
    Topic = m.DeleteRecordsRequest.DeleteRecordsTopic
    part = Topic.DeleteRecordsPartition(partition_index=0, offset=0)
    return m.DeleteRecordsRequest(topics=[Topic(name="t", partitions=[part])], timeout_ms=10_000)


def create_partitions() -> Any:
    Topic = m.CreatePartitionsRequest.CreatePartitionsTopic
    return m.CreatePartitionsRequest(
        topics=[Topic(name="t", count=2, assignments=None)], timeout_ms=10_000, validate_only=True
    )


def of_epoch() -> Any:
    Topic = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    part = Topic.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    return m.OffsetForLeaderEpochRequest(replica_id=-1, topics=[Topic(topic="t", partitions=[part])])


def describe_producers() -> Any:
    Topic = m.DescribeProducersRequest.TopicRequest
    return m.DescribeProducersRequest(topics=[Topic(name="t", partition_indexes=[0])])


def describe_topics(*names: str) -> Any:
    Topic = m.DescribeTopicPartitionsRequest.TopicRequest
    return m.DescribeTopicPartitionsRequest(
        topics=[Topic(name=name) for name in names], response_partition_limit=100, cursor=None
    )


def elect() -> Any:
    Topic = m.ElectLeadersRequest.TopicPartitions
    return m.ElectLeadersRequest(
        election_type=0, topic_partitions=[Topic(topic="t", partitions=[0])], timeout_ms=10_000
    )


def update_features() -> Any:
    update = m.UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=0, upgrade_type=1
    )
    return m.UpdateFeaturesRequest(timeout_ms=10_000, feature_updates=[update], validate_only=True)


def reassign() -> Any:
    Topic = m.AlterPartitionReassignmentsRequest.ReassignableTopic
    part = Topic.ReassignablePartition(partition_index=0, replicas=[0])
    return m.AlterPartitionReassignmentsRequest(timeout_ms=10_000, topics=[Topic(name="t", partitions=[part])])


def offset_delete(*names: str) -> Any:
    Topic = m.OffsetDeleteRequest.OffsetDeleteRequestTopic
    part = Topic.OffsetDeleteRequestPartition(partition_index=0)
    return m.OffsetDeleteRequest(group_id="g", topics=[Topic(name=name, partitions=[part]) for name in names])


def create_acls(kind: int = 2, name: str = "x", **fields: Any) -> Any:
    given = {
        "resource_type": kind, "resource_name": name, "resource_pattern_type": 3, "principal": "User:bob", "host": "*",
        "operation": 3, "permission_type": 3, **fields,
    }  # fmt: skip
    return m.CreateAclsRequest(creations=[m.CreateAclsRequest.AclCreation(**given)])


def acl_filter(kind: Any, **fields: Any) -> Any:
    return kind(
        **{
            "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
            "host_filter": None, "operation": 1, "permission_type": 1, **fields,
        }
    )  # fmt: skip


def delete_acls() -> Any:
    Filter = m.DeleteAclsRequest.DeleteAclsFilter
    return m.DeleteAclsRequest(filters=[acl_filter(Filter, principal_filter="User:nobody")])


def member(kind: Any) -> Callable[[], Any]:
    extra = {"generation_id": 1, "member_id": "x", "group_instance_id": None}
    if kind is m.SyncGroupRequest:
        extra |= {"protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    return lambda: kind(group_id="g", **extra)


def leave() -> Any:
    one = m.LeaveGroupRequest.MemberIdentity(member_id="x", group_instance_id=None, reason=None)
    return m.LeaveGroupRequest(group_id="g", members=[one])


def unless(found: Callable[[Any], Any], code: ErrorCode) -> Callable[[Any], Iterable[int]]:
    """Return the errors of a response that lacks what it has with the right, for an API without an error for it."""
    return lambda response: [] if found(response) else [code]


CASES: dict[ApiKey, Case] = {
    ApiKey.PRODUCE: Case(
        9, lambda: produce("t"), [[(Op.WRITE, TOPIC)]], {TOPIC_FAILED},
        others=frozenset({(Op.WRITE, ResourceType.TRANSACTIONAL_ID)}),
    ),
    ApiKey.FETCH: Case(
        12, lambda: fetch("t"), [[(Op.READ, TOPIC)]], {TOPIC_FAILED},
        others=frozenset({(Op.CLUSTER_ACTION, CLUSTER)}),
    ),
    ApiKey.LIST_OFFSETS: Case(7, list_offsets, [[(Op.DESCRIBE, TOPIC)]], {TOPIC_FAILED}),
    ApiKey.METADATA: Case(
        9, lambda: metadata("t"), [[(Op.DESCRIBE, TOPIC)]], {TOPIC_FAILED},
        others=frozenset({(Op.CREATE, TOPIC), (Op.CREATE, CLUSTER), (Op.DESCRIBE, CLUSTER)}),
    ),
    ApiKey.OFFSET_COMMIT: Case(
        8, lambda: offset_commit("t"), [[(Op.READ, GROUP), (Op.READ, TOPIC)]], {GROUP_FAILED}
    ),
    ApiKey.OFFSET_FETCH: Case(
        8, lambda: offset_fetch("t"), [[(Op.DESCRIBE, GROUP), (Op.DESCRIBE, TOPIC)]], {GROUP_FAILED}
    ),
    ApiKey.FIND_COORDINATOR: Case(
        4, lambda: m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), [[(Op.DESCRIBE, GROUP)]],
        {GROUP_FAILED}, others=frozenset({(Op.DESCRIBE, TRANSACTIONAL_ID)}),
    ),
    ApiKey.JOIN_GROUP: Case(9, join, [[(Op.READ, GROUP)]], {GROUP_FAILED}),
    ApiKey.HEARTBEAT: Case(4, member(m.HeartbeatRequest), [[(Op.READ, GROUP)]], {GROUP_FAILED}),
    ApiKey.LEAVE_GROUP: Case(5, leave, [[(Op.READ, GROUP)]], {GROUP_FAILED}),
    ApiKey.SYNC_GROUP: Case(5, member(m.SyncGroupRequest), [[(Op.READ, GROUP)]], {GROUP_FAILED}),
    ApiKey.DESCRIBE_GROUPS: Case(
        5, lambda: m.DescribeGroupsRequest(groups=["g"], include_authorized_operations=False),
        [[(Op.DESCRIBE, GROUP)]], {GROUP_FAILED},
    ),
    ApiKey.LIST_GROUPS: Case(
        4, lambda: m.ListGroupsRequest(states_filter=[]), [[(Op.DESCRIBE, GROUP)], [(Op.DESCRIBE, CLUSTER)]],
        {GROUP_FAILED}, unless(lambda response: [g for g in response.groups if g.group_id == "g"], GROUP_FAILED),
    ),
    ApiKey.CREATE_TOPICS: Case(
        7, lambda: create_topics("new"), [[(Op.CREATE, TOPIC)], [(Op.CREATE, CLUSTER)]], {TOPIC_FAILED},
        others=frozenset({(Op.DESCRIBE_CONFIGS, TOPIC), (Op.ALTER, CLUSTER)}),
    ),
    ApiKey.DELETE_TOPICS: Case(
        6, lambda: delete_topics("gone"), [[(Op.DELETE, TOPIC)], [(Op.DELETE, CLUSTER)]], {TOPIC_FAILED},
        others=frozenset({(Op.DESCRIBE, TOPIC)}),
    ),
    ApiKey.DELETE_RECORDS: Case(2, delete_records, [[(Op.DELETE, TOPIC)]], {TOPIC_FAILED}),
    ApiKey.INIT_PRODUCER_ID: Case(
        4, lambda: m.InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=1, producer_id=-1, producer_epoch=-1
        ),
        [[(Op.WRITE, TOPIC)], [(Op.IDEMPOTENT_WRITE, CLUSTER)]], {CLUSTER_FAILED},
        others=frozenset({(Op.WRITE, TRANSACTIONAL_ID)}),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Case(
        4, of_epoch, [[(Op.DESCRIBE, TOPIC)], [(Op.CLUSTER_ACTION, CLUSTER)]], {TOPIC_FAILED}
    ),
    ApiKey.DESCRIBE_ACLS: Case(
        3, lambda: acl_filter(m.DescribeAclsRequest), [[(Op.DESCRIBE, CLUSTER)]], {CLUSTER_FAILED}
    ),
    ApiKey.CREATE_ACLS: Case(3, lambda: create_acls(), [[(Op.ALTER, CLUSTER)]], {CLUSTER_FAILED}),
    ApiKey.DELETE_ACLS: Case(3, delete_acls, [[(Op.ALTER, CLUSTER)]], {CLUSTER_FAILED}),
    ApiKey.DESCRIBE_CONFIGS: Case(
        4, lambda: describe_configs((2, "t"), (4, "0"), (8, "0")),
        [[(Op.DESCRIBE_CONFIGS, TOPIC), (Op.DESCRIBE_CONFIGS, CLUSTER)]], {TOPIC_FAILED, CLUSTER_FAILED},
    ),
    ApiKey.ALTER_CONFIGS: Case(
        2, lambda: configs(m.AlterConfigsRequest, (2, "t"), (4, "0")),
        [[(Op.ALTER_CONFIGS, TOPIC), (Op.ALTER_CONFIGS, CLUSTER)]], {TOPIC_FAILED, CLUSTER_FAILED},
        others=frozenset({(Op.ALTER, CLUSTER)}),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Case(
        1, lambda: configs(m.IncrementalAlterConfigsRequest, (2, "t"), (4, "0"), (8, "0")),
        [[(Op.ALTER_CONFIGS, TOPIC), (Op.ALTER_CONFIGS, CLUSTER)]], {TOPIC_FAILED, CLUSTER_FAILED},
        others=frozenset({(Op.ALTER, CLUSTER)}),
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Case(
        4, lambda: m.DescribeLogDirsRequest(topics=None), [[(Op.DESCRIBE, CLUSTER)]], {CLUSTER_FAILED}
    ),
    ApiKey.CREATE_PARTITIONS: Case(3, create_partitions, [[(Op.ALTER, TOPIC)]], {TOPIC_FAILED}),
    ApiKey.DELETE_GROUPS: Case(
        2, lambda: m.DeleteGroupsRequest(groups_names=["g"]), [[(Op.DELETE, GROUP)]], {GROUP_FAILED}
    ),
    ApiKey.UPDATE_FEATURES: Case(2, update_features, [[(Op.ALTER, CLUSTER)]], {CLUSTER_FAILED}),
    ApiKey.ELECT_LEADERS: Case(2, elect, [[(Op.ALTER, CLUSTER)]], {CLUSTER_FAILED}),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Case(0, reassign, [[(Op.ALTER, CLUSTER)]], {CLUSTER_FAILED}),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Case(
        0, lambda: m.ListPartitionReassignmentsRequest(timeout_ms=1, topics=None), [[(Op.DESCRIBE, CLUSTER)]],
        {CLUSTER_FAILED},
    ),
    ApiKey.OFFSET_DELETE: Case(
        0, lambda: offset_delete("t"), [[(Op.DELETE, GROUP), (Op.READ, TOPIC)]], {GROUP_FAILED}
    ),
    ApiKey.DESCRIBE_CLUSTER: Case(
        1, lambda: m.DescribeClusterRequest(include_cluster_authorized_operations=True, endpoint_type=1),
        [[(Op.DESCRIBE, CLUSTER)]], {CLUSTER_FAILED},
        unless(lambda response: response.authorized_operations, CLUSTER_FAILED),
    ),
    ApiKey.DESCRIBE_PRODUCERS: Case(0, describe_producers, [[(Op.READ, TOPIC)]], {TOPIC_FAILED}),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Case(
        0, lambda: describe_topics("t"), [[(Op.DESCRIBE, TOPIC)]], {TOPIC_FAILED}
    ),
}  # fmt: skip
OF_THEIR_OWN = {
    # tests/unit/proxy/handlers/test_transactions.py
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.ALTER_CLIENT_QUOTAS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
}
"""APIs whose rights the tests of their own handlers show: owners of tokens, and what a process without them lacks."""
NAMED = {
    ApiKey.JOIN_GROUP: {GROUP: "joined"},
    ApiKey.CREATE_TOPICS: {TOPIC: "new"},
    ApiKey.DELETE_TOPICS: {TOPIC: "gone"},
}
