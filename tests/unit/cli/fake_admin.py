"""A cluster in memory behind kafka-python's admin client: the same calls, answers in the same shapes."""

from __future__ import annotations

import argparse
import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kafka import OffsetAndMetadata, TopicPartition
from kafka.admin import ACL, ACLFilter, AlterConfigOp
from kafka.errors import ClusterAuthorizationFailedError, CoordinatorLoadInProgressError, NoError, UnknownMemberIdError
from kafka.protocol.consumer import IsolationLevel, OffsetSpec
from kafka.structs import OffsetAndTimestamp

from bmq.cli.admin_client import AdminClient, perform
from bmq.cli.kafka_client import Settings
from bmq.cli.parsers.tree import build_parser, chosen_command
from bmq.core.security.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType

NODES = (1, 2)
MEMBER = {
    "member_id": "m-1",
    "group_instance_id": None,
    "client_id": "app",
    "client_host": "/127.0.0.1",
    "member_assignment": {"assigned_partitions": [{"topic": "orders", "partitions": [0, 1]}]},
}


@dataclass
class FakePartition:
    earliest: int = 0
    latest: int = 0
    leader: int = 1
    epoch: int = 7
    """In Metadata."""
    given_epoch: int = 7
    """In ListOffsets."""
    by_timestamp: dict[int, int] = field(default_factory=dict)
    stable: int | None = None
    """The last stable offset; None: the latest."""


@dataclass
class FakeGroup:
    state: str = "Empty"
    committed: dict[TopicPartition, int] = field(default_factory=dict)
    members: list[dict[str, Any]] = field(default_factory=list)


class FakeAdmin:
    def __init__(self) -> None:
        self.topics: dict[str, list[FakePartition]] = {}
        self.configs: dict[str, dict[str, str]] = {}
        self.groups: dict[str, FakeGroup] = {}
        self.broker_configs = {
            "num.partitions": ("3", "STATIC_BROKER_CONFIG", True),
            "log.retention.ms": ("604800000", "DEFAULT_CONFIG", False),
        }
        self.failing: list[Exception] = []
        self.silent: set[int] = set()
        self.acls: list[Any] = []
        self.denies_acls = False
        self.hides_configs = False
        self._manager: Any = None
        """Raised, one after another, by the next calls about groups."""

    def add_topic(self, name: str, *partitions: FakePartition) -> None:
        self.topics[name] = list(partitions)
        self.configs[name] = {}

    # ---------------------------------------------------------------------------------------------------- topics

    def describe_topics(self, topics: Sequence[str] | None = None) -> list[dict[str, Any]]:
        return [self._described(name) for name in (self.topics if topics is None else topics)]

    def _described(self, name: str) -> dict[str, Any]:
        partitions = self.topics.get(name, [])
        return {
            "error_code": 0 if name in self.topics else 3,
            "name": name,
            "topic_id": uuid.uuid5(uuid.NAMESPACE_DNS, name),
            "is_internal": name.startswith("__"),
            "partitions": [
                {
                    "partition_index": number,
                    "leader_id": partition.leader,
                    "leader_epoch": partition.epoch,
                    "replica_nodes": list(NODES),
                    "isr_nodes": [1],
                }
                for number, partition in enumerate(partitions)
            ],
        }

    def create_topics(
        self, new_topics: Mapping[str, Mapping[str, Any]], timeout_ms: int, validate_only: bool, raise_errors: bool
    ) -> dict[str, Any]:
        ((name, wanted),) = new_topics.items()
        code, message = (36, f"Topic '{name}' already exists.") if name in self.topics else (0, None)
        if "nonsense" in wanted["configs"]:
            code, message = 40, "Unknown topic config name: nonsense"
        count = 3 if wanted["num_partitions"] == -1 else wanted["num_partitions"]
        if not code and not validate_only:
            self.add_topic(name, *(FakePartition() for _ in range(count)))
            self.configs[name] = dict(wanted["configs"])
        configs = {key: {"value": value} for key, value in self.configs.get(name, {}).items()}
        result = {
            "name": name,
            "configs": configs,
            "error_code": code,
            "error_message": message,
            "num_partitions": count,
        }
        return {"topics": [{**result, "replication_factor": 2, "topic_id": uuid.UUID(int=5)}]}

    def delete_topics(self, topics: Sequence[str], timeout_ms: int, raise_errors: bool) -> dict[str, Any]:
        return {
            "topics": [
                {"name": name, "error_code": 3 if self.topics.pop(name, None) is None else 0, "error_message": None}
                for name in topics
            ]
        }

    def create_partitions(
        self, topic_partitions: Mapping[str, int], timeout_ms: int, validate_only: bool, raise_errors: bool
    ) -> Any:
        ((name, count),) = topic_partitions.items()
        if count <= len(self.topics[name]):
            return SimpleNamespace(results=[SimpleNamespace(error_code=37, error_message="would not be an increase")])
        self.topics[name] += [FakePartition() for _ in range(count - len(self.topics[name]))]
        return SimpleNamespace(results=[SimpleNamespace(error_code=0, error_message=None)])

    def list_partition_offsets(
        self, topic_partition_specs: Mapping[Any, Any], isolation_level: Any = 0
    ) -> dict[Any, Any]:
        return {
            key: OffsetAndTimestamp(self._offset(partition, spec, isolation_level), -1, partition.given_epoch)
            for key, spec in topic_partition_specs.items()
            for partition in [self.topics[key.topic][key.partition]]
        }

    def _offset(self, partition: FakePartition, spec: Any, isolation_level: Any) -> int:
        if spec is OffsetSpec.EARLIEST:
            return partition.earliest
        if spec is OffsetSpec.LATEST:
            is_committed = isolation_level == IsolationLevel.READ_COMMITTED
            return partition.stable if is_committed and partition.stable is not None else partition.latest
        return min((offset for when, offset in partition.by_timestamp.items() if when >= int(spec)), default=-1)

    def describe_log_dirs(self, topic_partitions: Mapping[str, list[int]]) -> list[dict[str, Any]]:
        """Followers hold less; a copy on the move is not counted."""
        return [
            {
                "broker": node,
                "log_dirs": [
                    {
                        "error_code": 0,
                        "log_dir": "/data",
                        "topics": [
                            {
                                "name": name,
                                "partitions": [
                                    {"partition_index": each, "partition_size": 2048 // node, "is_future_key": False}
                                    for each in numbers
                                ]
                                + [{"partition_index": 0, "partition_size": 1, "is_future_key": True}],
                            }
                            for name, numbers in topic_partitions.items()
                        ],
                    }
                ],
            }
            for node in NODES
        ]

    # --------------------------------------------------------------------------------------------------- configs

    def describe_configs(
        self, config_resources: Sequence[Any], *, config_filter: str
    ) -> dict[str, dict[str, dict[str, dict[str, Any]]]]:
        response: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}
        for resource in config_resources:
            kind = resource.resource_type.name.lower()
            found = (
                {
                    name: {"value": value}
                    for name, value in {
                        **({"retention.ms": "604800000"} if config_filter == "all" and not self.hides_configs else {}),
                        **self.configs[resource.name],
                    }.items()
                }
                if kind == "topic"
                else {
                    name: {"value": value, "config_source": source, "read_only": is_read_only}
                    for name, (value, source, is_read_only) in self.broker_configs.items()
                }
            )
            response.setdefault(kind, {})[resource.name] = found
        return response

    def alter_configs(
        self, config_resources: Sequence[Any], *, raise_on_unknown: bool, incremental: bool
    ) -> dict[str, dict[str, str]]:
        (resource,) = config_resources
        if "nonsense" in resource.configs:
            error = "[Error 40] InvalidConfigurationError: Unknown topic config name: nonsense"
            return {"topic": {resource.name: error}}
        for name, (operation, value) in resource.configs.items():
            if operation is AlterConfigOp.DELETE:
                self.configs[resource.name].pop(name, None)
            else:
                self.configs[resource.name][name] = value
        return {"topic": {resource.name: "OK"}}

    # ---------------------------------------------------------------------------------------------------- groups

    def _fail(self) -> None:
        if self.failing:
            raise self.failing.pop(0)

    def list_groups(self, broker_ids: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return all groups if the first node is asked; raise an error if a ``silent`` node is."""
        assert broker_ids is not None
        if self.silent & set(broker_ids):
            raise CoordinatorLoadInProgressError
        return [
            {"group_id": name, "group_state": each.state, "group_type": "classic", "protocol_type": "consumer"}
            for name, each in self.groups.items()
            if NODES[0] in broker_ids
        ]

    def describe_groups(self, group_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        self._fail()
        return {name: self._described_group(name) for name in group_ids}

    def _described_group(self, name: str) -> dict[str, Any]:
        there = self.groups.get(name)
        if there is None:
            error = "[Error 69] GroupIdNotFoundError: Group not found"
            return {"group_id": name, "error": error, "group_state": "Dead", "members": []}
        return {
            "group_id": name,
            "error": None,
            "group_state": there.state,
            "protocol_type": "consumer",
            "protocol_data": "range" if there.members else "",
            "members": there.members,
        }

    def list_group_offsets(self, group_specs: Sequence[str]) -> dict[str, dict[Any, Any]]:
        self._fail()
        return {
            name: {
                key: OffsetAndMetadata(offset, "", -1)
                for key, offset in (self.groups[name].committed if name in self.groups else {}).items()
            }
            for name in group_specs
        }

    def delete_groups(self, group_ids: Sequence[str]) -> dict[str, str]:
        self._fail()
        return {name: self._delete_group(name) for name in group_ids}

    def _delete_group(self, name: str) -> str:
        if name not in self.groups:
            return "GroupIdNotFoundError"
        if self.groups[name].members:
            return "NonEmptyGroupError"
        del self.groups[name]
        return "OK"

    def alter_group_offsets(self, group_id: str, offsets: Mapping[Any, Any]) -> dict[Any, Any]:
        self._fail()
        there = self.groups.setdefault(group_id, FakeGroup())
        if there.members:
            return dict.fromkeys(offsets, UnknownMemberIdError)
        there.committed.update({key: value.offset for key, value in offsets.items()})
        return dict.fromkeys(offsets, NoError)

    # --------------------------------------------------------------------------------------------------- cluster

    def describe_features(self) -> dict[str, dict[str, Any]]:
        return {
            "transaction.version": {"supported": (0, 2), "finalized": (2, 2), "finalized_epoch": 5},
            "compaction.version": {"supported": (0, 1)},
        }

    def describe_cluster(self) -> dict[str, Any]:
        return {
            "cluster_id": "abcdefghijklmnopqrstuv",
            "controller_id": 2,
            "brokers": [{"broker_id": node, "host": "127.0.0.1", "port": 9000 + node, "rack": None} for node in NODES],
        }

    # ------------------------------------------------------------------------------------------------------ ACLs

    def describe_acls(self, acl_filter: Any) -> tuple[list[Any], Any]:
        self._fail()
        return [each for each in self.acls if _chooses(acl_filter, each)], NoError

    def create_acls(self, acls: Sequence[Any]) -> dict[str, list[Any]]:
        if self.denies_acls:
            return {"succeeded": [], "failed": [ClusterAuthorizationFailedError for _ in acls]}
        self.acls += [each for each in acls if each not in self.acls]
        return {"succeeded": list(acls), "failed": []}

    def delete_acls(self, acl_filters: Sequence[Any]) -> list[tuple[Any, list[Any], Any]]:
        if self.denies_acls:
            return [(each, [], ClusterAuthorizationFailedError) for each in acl_filters]
        results = []
        for wanted in acl_filters:
            found = [each for each in self.acls if _chooses(wanted, each)]
            self.acls = [each for each in self.acls if each not in found]
            results.append((wanted, found, NoError))
        return results


def _chooses(wanted: ACLFilter, given: ACL) -> bool:
    pattern, of = wanted.resource_pattern, given.resource_pattern
    return AclFilter(
        ResourceType(pattern.resource_type), PatternType(pattern.pattern_type), pattern.resource_name,
        wanted.principal, wanted.host, AclOperation(wanted.operation), AclPermission(wanted.permission_type),
    ).matches(Acl(
        ResourceType(of.resource_type), PatternType(of.pattern_type), of.resource_name,
        given.principal, given.host, AclOperation(given.operation), AclPermission(given.permission_type),
    ))  # fmt: skip


def parse(*words: str) -> argparse.Namespace:
    return build_parser(chosen_command(words)).parse_args(words)


def runner(admin: FakeAdmin, connected: list[str] | None = None) -> Callable[..., int]:
    """Return ``bmq`` on this cluster, words to exit status; `connected` is given the addresses that it connects to."""

    @contextlib.contextmanager
    def connect(servers: str, timeout_s: float, settings: Settings) -> Iterator[AdminClient]:
        if connected is not None:
            connected.append(servers)
        yield admin

    return lambda *words: perform(parse(*words), connect)
