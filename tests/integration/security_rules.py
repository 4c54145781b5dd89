"""The rules of the security matrix: the class of each API, the rights of its users, and a request of each API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.response_errors import error_codes
from tests.harness.wire_client import (
    upsertion,
)
from tests.unit.proxy.transactions.transactions_world import add, add_offsets, describe, end, listing
from tests.unit.server.rights_table import CASES, CLUSTER_FAILED, TOPIC, Op, unless

K = ApiKey
BEFORE_AUTHENTICATION = {K.API_VERSIONS, K.SASL_HANDSHAKE, K.SASL_AUTHENTICATE}
CLASSES: dict[str, set[ApiKey]] = {
    "before authentication": BEFORE_AUTHENTICATION,
    "produce": {K.PRODUCE, K.INIT_PRODUCER_ID},
    "fetch": {K.FETCH, K.LIST_OFFSETS, K.OFFSET_FOR_LEADER_EPOCH},
    "metadata": {K.METADATA, K.DESCRIBE_CLUSTER, K.DESCRIBE_TOPIC_PARTITIONS, K.FIND_COORDINATOR},
    "group": {
        K.OFFSET_COMMIT, K.OFFSET_FETCH, K.JOIN_GROUP, K.HEARTBEAT, K.LEAVE_GROUP, K.SYNC_GROUP, K.DESCRIBE_GROUPS,
        K.LIST_GROUPS, K.DELETE_GROUPS, K.OFFSET_DELETE,
    },
    "token": {
        K.CREATE_DELEGATION_TOKEN, K.RENEW_DELEGATION_TOKEN, K.EXPIRE_DELEGATION_TOKEN, K.DESCRIBE_DELEGATION_TOKEN,
    },
    "admin": {
        K.CREATE_TOPICS, K.DELETE_TOPICS, K.DELETE_RECORDS, K.DESCRIBE_ACLS, K.CREATE_ACLS, K.DELETE_ACLS,
        K.DESCRIBE_CONFIGS, K.ALTER_CONFIGS, K.INCREMENTAL_ALTER_CONFIGS, K.DESCRIBE_LOG_DIRS, K.CREATE_PARTITIONS,
        K.ELECT_LEADERS, K.ALTER_PARTITION_REASSIGNMENTS, K.LIST_PARTITION_REASSIGNMENTS, K.DESCRIBE_CLIENT_QUOTAS,
        K.ALTER_CLIENT_QUOTAS, K.DESCRIBE_USER_SCRAM_CREDENTIALS, K.ALTER_USER_SCRAM_CREDENTIALS, K.DESCRIBE_PRODUCERS,
        K.UPDATE_FEATURES,
    },
    "transaction": {
        K.ADD_PARTITIONS_TO_TXN, K.ADD_OFFSETS_TO_TXN, K.END_TXN, K.TXN_OFFSET_COMMIT, K.WRITE_TXN_MARKERS,
        K.DESCRIBE_TRANSACTIONS, K.LIST_TRANSACTIONS,
    },
}  # fmt: skip
TRANSACTIONAL_ID = "x"
"""A transactional id with a producer, on which nobody has a right but admin."""
NOT_SERVED = {
    "other": {
        K.ALTER_REPLICA_LOG_DIRS, K.CONSUMER_GROUP_HEARTBEAT, K.CONSUMER_GROUP_DESCRIBE,
        K.GET_TELEMETRY_SUBSCRIPTIONS, K.PUSH_TELEMETRY, K.LIST_CONFIG_RESOURCES, K.SHARE_GROUP_HEARTBEAT,
        K.SHARE_GROUP_DESCRIBE, K.SHARE_FETCH, K.SHARE_ACKNOWLEDGE,
    },
}  # fmt: skip
"""APIs of Kafka's that no listener serves.  The APIs of `InternalKey` are of the class "internal only"."""
ADMIN, ALICE, BOB, ANONYMOUS = "admin", "alice", "bob", "ANONYMOUS"
USERS = (ADMIN, ALICE, BOB)
RIGHTS = {ALICE: {(Op.WRITE, TOPIC), (Op.DESCRIBE, TOPIC)}, BOB: set(), ANONYMOUS: set()}
"""The rights of each user on the topic "t"; admin, a super user, has all.  WRITE gives DESCRIBE."""
TOKEN_REFUSED = 64
"""DELEGATION_TOKEN_REQUEST_NOT_ALLOWED."""


class Asked(NamedTuple):
    """A request, and the errors that refuse it."""

    version: int
    message: Callable[[], Any]
    errors: Callable[[Any], Any] = error_codes
    refused: frozenset[int] = frozenset({CLUSTER_FAILED})


def alter_quotas() -> Any:
    Entry = m.AlterClientQuotasRequest.EntryData
    entry = Entry(
        entity=[Entry.EntityData(entity_type="user", entity_name="x")],
        ops=[Entry.OpData(key="producer_byte_rate", value=1e6, remove=False)],
    )
    return m.AlterClientQuotasRequest(entries=[entry], validate_only=True)


def txn_commit() -> Any:
    Topic = m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    part = Topic.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_leader_epoch=-1, committed_metadata=""
    )
    return m.TxnOffsetCommitRequest(
        transactional_id=TRANSACTIONAL_ID, group_id="g", producer_id=7, producer_epoch=0, generation_id=-1,
        member_id="", group_instance_id=None, topics=[Topic(name="nowhere", partitions=[part])],
    )  # fmt: skip


def write_marker() -> Any:
    Marker = m.WriteTxnMarkersRequest.WritableTxnMarker
    topics = [Marker.WritableTxnMarkerTopic(name="nowhere", partition_indexes=[0])]
    marker = Marker(
        producer_id=7, producer_epoch=0, transaction_result=False, topics=topics, coordinator_epoch=0,
        transaction_version=0,
    )  # fmt: skip
    return m.WriteTxnMarkersRequest(markers=[marker])


def is_listed(response: Any) -> bool:
    return any(each.transactional_id == TRANSACTIONAL_ID for each in response.transaction_states)


OTHERS: dict[ApiKey, Asked] = {
    K.ADD_PARTITIONS_TO_TXN: Asked(3, lambda: add(TRANSACTIONAL_ID, ("t", [0]))),
    K.ADD_OFFSETS_TO_TXN: Asked(3, lambda: add_offsets(TRANSACTIONAL_ID, version=3)),
    K.END_TXN: Asked(3, lambda: end(TRANSACTIONAL_ID, version=3)),
    K.TXN_OFFSET_COMMIT: Asked(3, txn_commit),
    K.WRITE_TXN_MARKERS: Asked(1, write_marker),
    K.DESCRIBE_TRANSACTIONS: Asked(0, lambda: describe(TRANSACTIONAL_ID)),
    K.LIST_TRANSACTIONS: Asked(2, listing, unless(is_listed, CLUSTER_FAILED)),
    K.CREATE_DELEGATION_TOKEN: Asked(1, lambda: m.CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1)),
    K.RENEW_DELEGATION_TOKEN: Asked(1, lambda: m.RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=-1)),
    K.EXPIRE_DELEGATION_TOKEN: Asked(1, lambda: m.ExpireDelegationTokenRequest(hmac=b"x", expiry_time_period_ms=-1)),
    K.DESCRIBE_DELEGATION_TOKEN: Asked(1, lambda: m.DescribeDelegationTokenRequest(owners=None)),
    K.DESCRIBE_CLIENT_QUOTAS: Asked(1, lambda: m.DescribeClientQuotasRequest(components=[], strict=False)),
    K.ALTER_CLIENT_QUOTAS: Asked(1, alter_quotas),
    K.DESCRIBE_USER_SCRAM_CREDENTIALS: Asked(0, lambda: m.DescribeUserScramCredentialsRequest(users=None)),
    K.ALTER_USER_SCRAM_CREDENTIALS: Asked(
        0, lambda: m.AlterUserScramCredentialsRequest(deletions=[], upsertions=[upsertion("new", 256, "x")])
    ),
    # the table's own request deletes the group that others are asked for
    K.DELETE_GROUPS: Asked(2, lambda: m.DeleteGroupsRequest(groups_names=["none"])),
}


def request_of(key: ApiKey) -> Asked:
    if key in OTHERS:
        return OTHERS[key]
    case = CASES[key]
    return Asked(case.version, case.request, case.errors)


def is_allowed(user: str, key: ApiKey) -> bool:
    """Return whether an API's right is among the user's: any of its alternatives is enough."""
    if user == ADMIN:
        return True
    return key in CASES and any(set(rights) <= RIGHTS[user] for rights in CASES[key].rights)
