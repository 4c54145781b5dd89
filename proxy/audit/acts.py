"""Acts of each administrative API for the audit log, from the request and its response.

Every API of the endpoint is in ``ACTS`` or in ``NOT_ADMINISTRATIVE``.  An act has names and counts, but no values and
no secrets.  It has config keys without values, an ACL, the mechanism of a user without salt and password, and the owner
of a token without its HMAC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

from bmq.core.errors import ErrorCode
from bmq.core.security.acls import CLUSTER_NAME, AclOperation, AclPermission, PatternType, ResourceType
from bmq.core.security.scram import BY_TYPE
from bmq.core.wire.api_keys import ApiKey
from bmq.proxy.scopes import ProxyScopes

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC.name, ResourceType.GROUP.name, ResourceType.CLUSTER.name
TOKEN, USER, QUOTA = ResourceType.DELEGATION_TOKEN.name, ResourceType.USER.name, "QUOTA"
_CONFIG_TYPES = {2: TOPIC, 4: "BROKER", 8: "BROKER_LOGGER"}
E = TypeVar("E", bound=IntEnum)


class Act(NamedTuple):
    """One act of a request, on one resource."""

    operation: AclOperation
    resource_type: str
    resource: str | None
    error: int = ErrorCode.NONE
    changed: Mapping[str, object] | None = None
    pattern: str = ""


Reader = Callable[[Any, Any, object], Iterable[Act]]
"""Returns the acts of a request and its response, in turns of the caller; the third is what ``BEFORE`` returned."""


def _create_topics(message: Any, response: Any, before: object) -> Iterator[Act]:
    wanted = {topic.name: topic for topic in message.topics}
    for each in response.topics:
        topic = wanted[each.name]
        changed: dict[str, object] = {
            "partitions": len(topic.assignments) or topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "configs": [config.name for config in topic.configs],
        }
        yield Act(AclOperation.CREATE, TOPIC, each.name, each.error_code, _dry(message, changed))


def _delete_topics(message: Any, response: Any, before: object) -> Iterator[Act]:
    for each in response.responses:
        topic_id = "" if each.topic_id is None else str(each.topic_id)
        name = each.name if each.name is not None else ""
        yield Act(AclOperation.DELETE, TOPIC, name, each.error_code, {"topic_id": topic_id} if topic_id else None)


def _topics_to_delete(message: Any) -> Iterator[str]:
    if message.API_VERSION < 6:
        yield from message.topic_names
        return
    for each in message.topics:
        yield each.name if each.name is not None else str(each.topic_id)


def _create_partitions(message: Any, response: Any, before: object) -> Iterator[Act]:
    counts = {topic.name: topic.count for topic in message.topics}
    for each in response.results:
        changed = _dry(message, {"partitions": counts.get(each.name)})
        yield Act(AclOperation.ALTER, TOPIC, each.name, each.error_code, changed)


def _delete_records(message: Any, response: Any, before: object) -> Iterator[Act]:
    for topic in response.topics:
        for error, numbers in _by_error(topic.partitions, "partition_index").items():
            yield Act(AclOperation.DELETE, TOPIC, topic.name, error, {"partitions": numbers})


def _alter_configs(message: Any, response: Any, before: object) -> Iterator[Act]:
    wanted = {(each.resource_type, each.resource_name): each for each in message.resources}
    for each in response.responses:
        act = _config_change(wanted[each.resource_type, each.resource_name])
        yield act._replace(error=each.error_code, changed=_dry(message, dict(act.changed or {})))


def _config_change(resource: Any) -> Act:
    kind = _CONFIG_TYPES.get(resource.resource_type, str(resource.resource_type))
    changed = {"configs": [config.name for config in resource.configs]}
    return Act(AclOperation.ALTER_CONFIGS, kind, resource.resource_name, changed=changed)


def _create_acls(message: Any, response: Any, before: object) -> Iterator[Act]:
    for asked, result in zip(message.creations, response.results, strict=True):
        yield _new_acl(asked)._replace(error=result.error_code)


def _delete_acls(message: Any, response: Any, before: object) -> Iterator[Act]:
    for asked, result in zip(message.filters, response.filter_results, strict=True):
        if result.error_code or not result.matching_acls:
            yield _acl_filter(asked)._replace(error=result.error_code)
        for acl in result.matching_acls:
            changed = {
                "acl_resource_type": _name(ResourceType, acl.resource_type),
                "acl_resource": acl.resource_name,
                **_of_acl(acl),
            }
            pattern = _name(PatternType, acl.pattern_type)
            yield Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, acl.error_code, changed, pattern)


def _new_acl(asked: Any) -> Act:
    acl = {
        "acl_resource_type": _name(ResourceType, asked.resource_type),
        "acl_resource": asked.resource_name,
        **_of_acl(asked),
    }
    pattern = _name(PatternType, asked.resource_pattern_type)
    return Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, changed=acl, pattern=pattern)


def _acl_filter(asked: Any) -> Act:
    """Return the act of a filter that has chosen no ACL."""
    chosen = {
        "filter_resource_type": _name(ResourceType, asked.resource_type_filter),
        "filter_resource": asked.resource_name_filter,
        "filter_principal": asked.principal_filter,
        "filter_host": asked.host_filter,
        "filter_operation": _name(AclOperation, asked.operation),
        "filter_permission": _name(AclPermission, asked.permission_type),
    }
    pattern = _name(PatternType, asked.pattern_type_filter)
    return Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, changed=chosen, pattern=pattern)


def _of_acl(acl: Any) -> dict[str, object]:
    return {
        "acl_principal": acl.principal,
        "acl_host": acl.host,
        "acl_operation": _name(AclOperation, acl.operation),
        "acl_permission": _name(AclPermission, acl.permission_type),
    }


def _alter_scram_users(message: Any, response: Any, before: object) -> Iterator[Act]:
    removed = {each.name: [_mechanism(each.mechanism)] for each in message.deletions}
    put = {each.name: [_mechanism(each.mechanism)] for each in message.upsertions}
    for each in response.results:
        changed = {"set": put.get(each.user, []), "removed": removed.get(each.user, [])}
        yield Act(AclOperation.ALTER, USER, each.user, each.error_code, changed)


def _alter_quotas(message: Any, response: Any, before: object) -> Iterator[Act]:
    for asked, result in zip(message.entries, response.entries, strict=True):
        changed: dict[str, object] = {
            "set": [op.key for op in asked.ops if not op.remove],
            "removed": [op.key for op in asked.ops if op.remove],
        }
        yield Act(AclOperation.ALTER_CONFIGS, QUOTA, _entity(asked), result.error_code, _dry(message, changed))


def _entity(entry: Any) -> str:
    return ",".join(f"{each.entity_type}={_or_default(each.entity_name)}" for each in entry.entity)


def _create_token(message: Any, response: Any, before: object) -> Iterator[Act]:
    renewers = [f"{each.principal_type}:{each.principal_name}" for each in message.renewers]
    owner = f"{response.principal_type}:{response.principal_name}"
    changed = {"owner": owner, "renewers": renewers, "expires_ms": response.expiry_timestamp_ms}
    yield Act(AclOperation.CREATE_TOKENS, TOKEN, response.token_id, response.error_code, changed)


def _change_token(message: Any, response: Any, before: object) -> Iterator[Act]:
    token_id, owner = before if isinstance(before, tuple) else ("", "")
    changed = {"owner": owner, "expires_ms": response.expiry_timestamp_ms}
    yield Act(AclOperation.ALTER, TOKEN, token_id, response.error_code, changed)


def _delete_groups(message: Any, response: Any, before: object) -> Iterator[Act]:
    for each in response.results:
        yield Act(AclOperation.DELETE, GROUP, each.group_id, each.error_code)


def _delete_offsets(message: Any, response: Any, before: object) -> Iterator[Act]:
    if response.error_code or not response.topics:
        yield Act(AclOperation.DELETE, GROUP, message.group_id, response.error_code)
        return
    for topic in response.topics:
        for error, numbers in _by_error(topic.partitions, "partition_index").items():
            changed = {"topic": topic.name, "partitions": numbers}
            yield Act(AclOperation.DELETE, GROUP, message.group_id, error, changed)


def _elect_leaders(message: Any, response: Any, before: object) -> Iterator[Act]:
    if response.error_code or message.topic_partitions is None:
        yield Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, response.error_code or ErrorCode.ELECTION_NOT_NEEDED)
        return
    for topic in response.replica_election_results:
        for error, numbers in _by_error(topic.partition_result, "partition_id").items():
            yield Act(AclOperation.ALTER, TOPIC, topic.topic, error, {"partitions": numbers})


def _update_features(message: Any, response: Any, before: object) -> Iterator[Act]:
    levels = {each.feature: each.max_version_level for each in message.feature_updates}
    changed: dict[str, object] = {"levels": levels}
    if message.API_VERSION > 0:
        changed = dict(_dry(message, changed))
    yield Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, response.error_code, changed)


def _write_markers(message: Any, response: Any, before: object) -> Iterator[Act]:
    for asked, marker in zip(message.markers, response.markers, strict=True):
        for topic in marker.topics:
            for error, numbers in _by_error(topic.partitions, "partition_index").items():
                changed = {**_of_marker(asked), "topic": topic.name, "partitions": numbers}
                yield Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, error, changed)


def _markers_wanted(message: Any) -> Iterator[Act]:
    for marker in message.markers:
        for topic in marker.topics:
            yield Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, changed={**_of_marker(marker), "topic": topic.name})


def _of_marker(marker: Any) -> dict[str, object]:
    return {
        "producer_id": marker.producer_id,
        "producer_epoch": marker.producer_epoch,
        "marker": "COMMIT" if marker.transaction_result else "ABORT",
    }


def _reassign(message: Any, response: Any, before: object) -> Iterator[Act]:
    if response.error_code:
        yield Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME, response.error_code)
        return
    for topic in response.responses:
        for error, numbers in _by_error(topic.partitions, "partition_index").items():
            yield Act(AclOperation.ALTER, TOPIC, topic.name, error, {"partitions": numbers})


ACTS: Mapping[ApiKey, Reader] = {
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _alter_configs,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _alter_scram_users,
    ApiKey.ALTER_CLIENT_QUOTAS: _alter_quotas,
    ApiKey.CREATE_DELEGATION_TOKEN: _create_token,
    ApiKey.RENEW_DELEGATION_TOKEN: _change_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: _change_token,
    ApiKey.DELETE_GROUPS: _delete_groups,
    ApiKey.OFFSET_DELETE: _delete_offsets,
    ApiKey.ELECT_LEADERS: _elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.UPDATE_FEATURES: _update_features,
    ApiKey.WRITE_TXN_MARKERS: _write_markers,
}
"""The administrative APIs."""
NOT_ADMINISTRATIVE = frozenset(
    {
        ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.INIT_PRODUCER_ID,
        # Metadata may create topics: its handler writes those acts itself
        ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.FIND_COORDINATOR,
        ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE,
        # what consumers do all the time
        ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        # what producers with transactions do all the time
        ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN,
        # questions
        ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_ACLS, ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_DELEGATION_TOKEN, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS, ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
    }
)  # fmt: skip
"""The APIs that change nothing, or what every client changes by its work."""


def token_of(scopes: ProxyScopes, message: Any) -> object:
    """Return the id and owner of the token that the request's HMAC is of; None if there is none."""
    token = scopes.process.tokens.of_hmac(message.hmac) if scopes.process.tokens is not None else None
    return None if token is None else (token.id, str(token.owner))


def _scram_changes(message: Any) -> Iterator[Act]:
    for each in (*message.deletions, *message.upsertions):
        yield Act(AclOperation.ALTER, USER, each.name)


WANTED: Mapping[ApiKey, Callable[[Any], Iterable[Act]]] = {
    ApiKey.CREATE_TOPICS: lambda m: (Act(AclOperation.CREATE, TOPIC, each.name) for each in m.topics),
    ApiKey.DELETE_TOPICS: lambda m: (Act(AclOperation.DELETE, TOPIC, name) for name in _topics_to_delete(m)),
    ApiKey.CREATE_PARTITIONS: lambda m: (Act(AclOperation.ALTER, TOPIC, each.name) for each in m.topics),
    ApiKey.DELETE_RECORDS: lambda m: (Act(AclOperation.DELETE, TOPIC, each.name) for each in m.topics),
    ApiKey.ALTER_CONFIGS: lambda m: map(_config_change, m.resources),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda m: map(_config_change, m.resources),
    ApiKey.CREATE_ACLS: lambda m: map(_new_acl, m.creations),
    ApiKey.DELETE_ACLS: lambda m: map(_acl_filter, m.filters),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _scram_changes,
    ApiKey.ALTER_CLIENT_QUOTAS: lambda m: (Act(AclOperation.ALTER_CONFIGS, QUOTA, _entity(e)) for e in m.entries),
    ApiKey.CREATE_DELEGATION_TOKEN: lambda m: (Act(AclOperation.CREATE_TOKENS, TOKEN, ""),),
    ApiKey.RENEW_DELEGATION_TOKEN: lambda m: (Act(AclOperation.ALTER, TOKEN, ""),),
    ApiKey.EXPIRE_DELEGATION_TOKEN: lambda m: (Act(AclOperation.ALTER, TOKEN, ""),),
    ApiKey.DELETE_GROUPS: lambda m: (Act(AclOperation.DELETE, GROUP, each) for each in m.groups_names),
    ApiKey.OFFSET_DELETE: lambda m: (Act(AclOperation.DELETE, GROUP, m.group_id),),
    ApiKey.ELECT_LEADERS: lambda m: (Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda m: (Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME),),
    ApiKey.UPDATE_FEATURES: lambda m: (Act(AclOperation.ALTER, CLUSTER, CLUSTER_NAME),),
    ApiKey.WRITE_TXN_MARKERS: _markers_wanted,
}
"""What a request wants, without its response: a client may leave before that, and the act be done all the same."""
BEFORE: Mapping[ApiKey, Callable[[ProxyScopes, Any], object]] = {
    ApiKey.RENEW_DELEGATION_TOKEN: token_of,
    ApiKey.EXPIRE_DELEGATION_TOKEN: token_of,
}
"""What is looked up before the request is handled: afterwards the token may be gone."""


def _dry(message: Any, changed: dict[str, object]) -> Mapping[str, object]:
    """Return ``changed``, and that nothing was to change if the client only asked whether it might."""
    return {**changed, "validate_only": True} if message.validate_only else changed


def _by_error(partitions: Iterable[Any], number: str) -> dict[int, list[int]]:
    """Return the numbers of partitions by their error code."""
    found: dict[int, list[int]] = {}
    for each in partitions:
        found.setdefault(each.error_code, []).append(getattr(each, number))
    return found


def _name(kind: type[E], code: int) -> str:
    try:
        return kind(code).name
    except ValueError:
        return str(code)


def _mechanism(code: int) -> str:
    mechanism = BY_TYPE.get(code)
    return str(code) if mechanism is None else mechanism.name


def _or_default(name: str | None) -> str:
    return "<default>" if name is None else name
