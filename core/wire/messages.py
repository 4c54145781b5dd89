"""Kafka's messages except Produce and Fetch, from the schemas that kafka-python carries, and a few of ``schemas``.

A message is ``Name(field=value, ...)``, its nested structures are classes within it.  ``core.wire.codec`` (for clients)
and ``core.wire.codec_client`` (between processes) are the only ways across the wire.

Where kafka-python differs from the schemas: ``authorized_operations`` is a set of bit numbers, None if not requested; a
zero uuid is None; a field that the message's version lacks reads as its default.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.admin.cluster import UpdateFeaturesRequest, UpdateFeaturesResponse
from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from bmq.core.wire.delegation_token_messages import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from bmq.core.wire.describe_transactions_message import DescribeTransactionsRequest, DescribeTransactionsResponse

__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AlterClientQuotasRequest",
    "AlterClientQuotasResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "CreateDelegationTokenRequest",
    "CreateDelegationTokenResponse",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponse",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeDelegationTokenRequest",
    "DescribeDelegationTokenResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "ExpireDelegationTokenRequest",
    "ExpireDelegationTokenResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "RenewDelegationTokenRequest",
    "RenewDelegationTokenResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponse",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
    "flexible_since",
    "request_class",
    "schema_range",
    "stable_range",
]

_REQUESTS: dict[int, Any] = {
    request.API_KEY: request
    for request in (
        AddOffsetsToTxnRequest,
        AddPartitionsToTxnRequest,
        AlterClientQuotasRequest,
        AlterConfigsRequest,
        AlterPartitionReassignmentsRequest,
        AlterUserScramCredentialsRequest,
        ApiVersionsRequest,
        CreateDelegationTokenRequest,
        CreateAclsRequest,
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteAclsRequest,
        DeleteGroupsRequest,
        DeleteRecordsRequest,
        DeleteTopicsRequest,
        DescribeAclsRequest,
        DescribeClientQuotasRequest,
        DescribeClusterRequest,
        DescribeConfigsRequest,
        DescribeDelegationTokenRequest,
        DescribeGroupsRequest,
        DescribeLogDirsRequest,
        DescribeProducersRequest,
        DescribeTopicPartitionsRequest,
        DescribeTransactionsRequest,
        DescribeUserScramCredentialsRequest,
        ElectLeadersRequest,
        EndTxnRequest,
        ExpireDelegationTokenRequest,
        FindCoordinatorRequest,
        HeartbeatRequest,
        IncrementalAlterConfigsRequest,
        InitProducerIdRequest,
        JoinGroupRequest,
        LeaveGroupRequest,
        ListGroupsRequest,
        ListOffsetsRequest,
        ListPartitionReassignmentsRequest,
        ListTransactionsRequest,
        MetadataRequest,
        OffsetCommitRequest,
        OffsetDeleteRequest,
        OffsetFetchRequest,
        OffsetForLeaderEpochRequest,
        RenewDelegationTokenRequest,
        SaslAuthenticateRequest,
        SaslHandshakeRequest,
        SyncGroupRequest,
        TxnOffsetCommitRequest,
        UpdateFeaturesRequest,
        WriteTxnMarkersRequest,
    )
}
_BY_HAND: dict[int, Any] = {request.API_KEY: request for request in (ProduceRequest, FetchRequest)}
"""Messages of which only the version ranges are used."""


def request_class(api_key: int) -> Any | None:
    """Return the class of the API's requests; None for Produce, Fetch and APIs without a schema here."""
    return _REQUESTS.get(api_key)


@cache
def schema_range(api_key: int) -> tuple[int, int] | None:
    """Return the versions that the schema describes, unstable ones included; None for an API without a schema here."""
    schema = _schema(api_key)
    if schema is None:
        return None
    least, _, most = schema["validVersions"].partition("-")
    return int(least), int(most or least)


@cache
def stable_range(api_key: int) -> tuple[int, int]:
    """Return the versions that Kafka 4.x advertises (kafka-python's own ``min_version`` is 0 for all).

    Raises KeyError for an API without a schema here.
    """
    versions = schema_range(api_key)
    if versions is None:
        raise KeyError(api_key)
    least, most = versions
    return least, most - bool(_schema(api_key)["latestVersionUnstable"])


@cache
def flexible_since(api_key: int) -> int | None:
    """Return the first version with compact types and tagged fields; None if there is none, or no schema."""
    schema = _schema(api_key)
    if schema is None or schema["flexibleVersions"] == "none":
        return None
    return int(schema["flexibleVersions"].removesuffix("+"))


def _schema(api_key: int) -> Any:
    request = _REQUESTS.get(api_key) or _BY_HAND.get(api_key)
    return None if request is None else {"latestVersionUnstable": False, **request.json}
