"""Acts of administrative requests: every API is decided, and what each changes is named without a secret."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.apis import ALL_APIS
from bmq.proxy.audit.acts import ACTS, NOT_ADMINISTRATIVE, WANTED, Act

UPSERTION = Some(name="alice", mechanism=2, iterations=4096, salt=b"SALT", salted_password=b"SECRET")
DELETION = Some(name="bob", mechanism=1)
SCRAM = Some(deletions=[DELETION], upsertions=[UPSERTION])
QUOTA = Some(
    entity=[Some(entity_type="user", entity_name="alice"), Some(entity_type="client-id", entity_name=None)],
    ops=[Some(key="producer_byte_rate", value=1.0, remove=False), Some(key="request_percentage", value=0, remove=True)],
)
TOKEN_HMAC = b"TOKEN-HMAC"
FILTER = Some(
    resource_type_filter=2, resource_name_filter="orders", pattern_type_filter=3, principal_filter="User:bob",
    host_filter=None, operation=1, permission_type=1,
)  # fmt: skip
MATCH = Some(
    error_code=0, resource_type=2, resource_name="orders", pattern_type=3, principal="User:bob", host="*", operation=3,
    permission_type=3,
)  # fmt: skip


def rows(acts: Any) -> list[tuple[str, str, str | None, int, Any]]:
    return [(each.operation.name, each.resource_type, each.resource, each.error, each.changed) for each in acts]


def of(key: ApiKey, message: Any, response: Any, before: object = None) -> list[Any]:
    return rows(ACTS[key](message, response, before))


def test_every_api_is_administrative_or_not() -> None:
    for api in ALL_APIS:
        assert (api.key in ACTS) is not (api.key in NOT_ADMINISTRATIVE), f"decide in proxy.audit.acts: {api.key.name}"
    assert set(ACTS) | NOT_ADMINISTRATIVE == {api.key for api in ALL_APIS}


def test_every_administrative_api_says_what_a_request_wants() -> None:
    assert set(WANTED) == set(ACTS)


def test_scram_users() -> None:
    response = Some(results=[Some(user="bob", error_code=0), Some(user="alice", error_code=93)])
    assert of(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, SCRAM, response) == [
        ("ALTER", "USER", "bob", 0, {"set": [], "removed": ["SCRAM-SHA-256"]}),
        ("ALTER", "USER", "alice", 93, {"set": ["SCRAM-SHA-512"], "removed": []}),
    ]
    assert [act.resource for act in WANTED[ApiKey.ALTER_USER_SCRAM_CREDENTIALS](SCRAM)] == ["bob", "alice"]


def test_quotas() -> None:
    message = Some(entries=[QUOTA], validate_only=False)
    changed = {"set": ["producer_byte_rate"], "removed": ["request_percentage"]}
    entity = "user=alice,client-id=<default>"
    assert of(ApiKey.ALTER_CLIENT_QUOTAS, message, Some(entries=[Some(error_code=0)])) == [
        ("ALTER_CONFIGS", "QUOTA", entity, 0, changed)
    ]
    dry = Some(entries=[QUOTA], validate_only=True)
    ((*_, asked),) = of(ApiKey.ALTER_CLIENT_QUOTAS, dry, Some(entries=[Some(error_code=0)]))
    assert asked == {**changed, "validate_only": True}
    assert [act.resource for act in WANTED[ApiKey.ALTER_CLIENT_QUOTAS](message)] == [entity]


def test_tokens() -> None:
    message = Some(renewers=[Some(principal_type="User", principal_name="spark")])
    response = Some(
        principal_type="User", principal_name="alice", expiry_timestamp_ms=9, token_id="id", hmac=TOKEN_HMAC,
        error_code=0,
    )  # fmt: skip
    assert of(ApiKey.CREATE_DELEGATION_TOKEN, message, response) == [
        ("CREATE_TOKENS", "DELEGATION_TOKEN", "id", 0,
         {"owner": "User:alice", "renewers": ["User:spark"], "expires_ms": 9}),
    ]  # fmt: skip
    for key in (ApiKey.RENEW_DELEGATION_TOKEN, ApiKey.EXPIRE_DELEGATION_TOKEN):
        reply = Some(error_code=0, expiry_timestamp_ms=7)
        assert of(key, Some(hmac=TOKEN_HMAC), reply, ("id", "User:alice")) == [
            ("ALTER", "DELEGATION_TOKEN", "id", 0, {"owner": "User:alice", "expires_ms": 7})
        ]


def test_deleted_acls_are_told_one_by_one_and_a_filter_that_chose_none_as_it_was() -> None:
    message = Some(filters=[FILTER, FILTER])
    response = Some(
        filter_results=[Some(error_code=0, matching_acls=[MATCH, MATCH]), Some(error_code=0, matching_acls=[])]
    )
    acts = list(ACTS[ApiKey.DELETE_ACLS](message, response, None))
    assert [act.changed for act in acts[:2]] == 2 * [
        {
            "acl_resource_type": "TOPIC", "acl_resource": "orders", "acl_principal": "User:bob", "acl_host": "*",
            "acl_operation": "READ", "acl_permission": "ALLOW",
        }
    ]  # fmt: skip
    assert acts[2].changed is not None
    assert acts[2].changed["filter_principal"] == "User:bob"
    assert [act.pattern for act in acts] == ["LITERAL"] * 3


def test_partitions_are_told_by_topic_and_error() -> None:
    parts = [Some(partition_index=number, error_code=number % 2) for number in range(4)]
    response = Some(topics=[Some(name="t", partitions=parts)], error_code=0)
    assert of(ApiKey.DELETE_RECORDS, None, response) == [
        ("DELETE", "TOPIC", "t", 0, {"partitions": [0, 2]}), ("DELETE", "TOPIC", "t", 1, {"partitions": [1, 3]}),
    ]  # fmt: skip
    assert of(ApiKey.OFFSET_DELETE, Some(group_id="g"), response)[0] == (
        "DELETE", "GROUP", "g", 0, {"topic": "t", "partitions": [0, 2]}
    )  # fmt: skip
    refused = Some(topics=[], error_code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert of(ApiKey.OFFSET_DELETE, Some(group_id="g"), refused) == [
        ("DELETE", "GROUP", "g", ErrorCode.GROUP_ID_NOT_FOUND, None)
    ]


def test_markers_are_told_by_producer_topic_and_error() -> None:
    parts = [Some(partition_index=number, error_code=number % 2) for number in range(3)]
    asked = Some(producer_id=7, producer_epoch=3, transaction_result=False, topics=[Some(name="t")])
    message, response = Some(markers=[asked]), Some(markers=[Some(topics=[Some(name="t", partitions=parts)])])
    marker = {"producer_id": 7, "producer_epoch": 3, "marker": "ABORT", "topic": "t"}
    assert of(ApiKey.WRITE_TXN_MARKERS, message, response) == [
        ("ALTER", "CLUSTER", "kafka-cluster", 0, {**marker, "partitions": [0, 2]}),
        ("ALTER", "CLUSTER", "kafka-cluster", 1, {**marker, "partitions": [1]}),
    ]
    assert rows(WANTED[ApiKey.WRITE_TXN_MARKERS](message)) == [("ALTER", "CLUSTER", "kafka-cluster", 0, marker)]


def test_deleted_topics_are_named_by_each_version() -> None:
    assert _wanted(ApiKey.DELETE_TOPICS, Some(API_VERSION=1, topic_names=["a", "b"])) == ["a", "b"]
    by_id = Some(API_VERSION=6, topics=[Some(name="a", topic_id=None), Some(name=None, topic_id=7)])
    assert _wanted(ApiKey.DELETE_TOPICS, by_id) == ["a", "7"]


def _wanted(key: ApiKey, message: Any) -> list[str | None]:
    return [act.resource for act in WANTED[key](message)]


@pytest.mark.parametrize(
    ("key", "message", "response"),
    [
        (
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            SCRAM,
            Some(results=[Some(user="alice", error_code=0), Some(user="bob", error_code=0)]),
        ),
        (
            ApiKey.CREATE_DELEGATION_TOKEN,
            Some(renewers=[]),
            Some(
                principal_type="User", principal_name="alice", expiry_timestamp_ms=9, token_id="id", hmac=TOKEN_HMAC,
                error_code=0,
            ),
        ),
        (ApiKey.EXPIRE_DELEGATION_TOKEN, Some(hmac=TOKEN_HMAC), Some(error_code=0, expiry_timestamp_ms=1)),
    ],
)  # fmt: skip
def test_no_act_has_a_secret(key: ApiKey, message: Any, response: Any) -> None:
    acts: list[Act] = [*ACTS[key](message, response, ("id", "User:alice")), *WANTED[key](message)]
    assert acts
    assert not any(secret in str(acts) for secret in ("SALT", "SECRET", "TOKEN-HMAC"))
