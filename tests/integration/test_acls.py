"""Rights beside a real Apache Kafka: with the same ACLs both answer the same, API by API and operation by operation.

Every operation has a topic and a group of its own, to which an ACL gives just that one; others have a prefixed ACL, one
that denies, one of somebody else, and none.  Each API is asked about each of them.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bmq.core.errors import ErrorCode
from bmq.core.security.acls import RESOURCE_OPERATIONS, AclOperation, ResourceType
from bmq.core.security.settings import STANDARD_AUTHORIZER
from bmq.core.wire import messages as m
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.header import is_flexible, response_is_flexible
from bmq.core.wire.response_errors import error_codes
from tests.integration.clients.story import new_name
from tests.services.bmq import BmqServer
from tests.services.kafka import KafkaCluster
from tests.services.kafka_tools import run_tool
from tests.services.processes import wait_for
from tests.unit.server.rights_table import (
    CASES,
    FAILED,
    acl_filter,
    create_topics,
    metadata,
    offset_commit,
    response_class,
)

pytestmark = pytest.mark.clients

TIMEOUT_S = 60.0
OWN, OTHER = "User:ANONYMOUS", "User:nobody"
ALLOW, DENY = 3, 2
LITERAL, PREFIXED = 3, 4
OPERATIONS = sorted(RESOURCE_OPERATIONS[ResourceType.TOPIC] | {AclOperation.ALL})
NAMES = [*(f"op-{each.name.lower()}" for each in OPERATIONS), "denied", "others", "pre-fixed", "free"]


class Connection:
    """A client's connection that sends any message and reads its response."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()

    def ask(self, version: int, message: Any) -> Any:
        key = message.API_KEY
        head = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if is_flexible(key, version) else b"")
        frame = head + bytes(message.encode(version=version))
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        data = self._read(struct.unpack(">i", self._read(4))[0])
        return response_class(message).decode(data[5 if response_is_flexible(key, version) else 4 :], version=version)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the connection was closed"
            data += part
        return data


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Return a message with other names of topics and groups in it."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    for name in getattr(type(value), "fields", None) or ():
        setattr(value, name, renamed(getattr(value, name), names))
    return value


def acl(kind: ResourceType, name: str, operation: AclOperation, principal: str = OWN, **fields: int) -> Any:
    return m.CreateAclsRequest.AclCreation(
        **{
            "resource_type": kind, "resource_name": name, "resource_pattern_type": LITERAL, "principal": principal,
            "host": "*", "operation": operation, "permission_type": ALLOW, **fields,
        }
    )  # fmt: skip


def acls() -> Iterator[Any]:
    for kind in (ResourceType.TOPIC, ResourceType.GROUP):
        for each in OPERATIONS:
            if each is AclOperation.ALL or each in RESOURCE_OPERATIONS[kind]:
                yield acl(kind, f"op-{each.name.lower()}", each)
            else:
                yield acl(kind, f"op-{each.name.lower()}", AclOperation.DESCRIBE, OTHER)
        yield acl(kind, "denied", AclOperation.ALL)
        yield acl(kind, "denied", AclOperation.READ, permission_type=DENY)
        yield acl(kind, "others", AclOperation.ALL, OTHER)
        yield acl(kind, "pre-", AclOperation.READ, resource_pattern_type=PREFIXED)
        yield acl(kind, "pre-", AclOperation.DELETE, resource_pattern_type=PREFIXED)
    # Of the cluster only what a broker needs, which is the same client.
    yield acl(ResourceType.CLUSTER, "kafka-cluster", AclOperation.CLUSTER_ACTION)


def prepare(connection: Connection) -> None:
    """Make the topics, the groups, and then the ACLs, which end the right to do so."""
    made = create_topics(*NAMES)
    made.validate_only = False
    assert {each.error_code for each in connection.ask(7, made).topics} == {0}
    found = m.FindCoordinatorRequest(key_type=0, coordinator_keys=NAMES)  # makes the topic of offsets
    wait_for(
        lambda: set(error_codes(connection.ask(4, found))) == {0}, timeout_s=TIMEOUT_S, what="the groups' coordinator"
    )
    for name in NAMES:
        committed = offset_commit("free", group=name)
        wait_for(lambda: set(error_codes(connection.ask(8, committed))) == {0}, "a commit", timeout_s=TIMEOUT_S)  # noqa: B023
    created = connection.ask(3, m.CreateAclsRequest(creations=list(acls())))
    assert {each.error_code for each in created.results} == {0}


def answers(connection: Connection) -> dict[str, Any]:
    """Return what each API answers about each of the names."""
    found: dict[str, Any] = {}
    for key, case in CASES.items():
        if key in (ApiKey.LIST_GROUPS, ApiKey.DESCRIBE_CLUSTER, ApiKey.FIND_COORDINATOR, ApiKey.DELETE_TOPICS):
            continue
        for name in NAMES:
            names = dict.fromkeys(("t", "new", "gone", "g", "joined"), name) | {"0": "1"}
            response = connection.ask(case.version, renamed(case.request(), names))
            found[f"{key.name} {name}"] = {ErrorCode(code).name for code in set(error_codes(response)) & FAILED}
    for name in NAMES:
        asked = metadata(name, include_topic_authorized_operations=True, include_cluster_authorized_operations=True)
        response = connection.ask(9, asked)
        found[f"operations on {name}"] = [topic.authorized_operations for topic in response.topics]
        found["operations on the cluster"] = response.authorized_operations
        groups = m.DescribeGroupsRequest(groups=[name], include_authorized_operations=True)
        found[f"operations on group {name}"] = [each.authorized_operations for each in connection.ask(5, groups).groups]
        coordinators = m.FindCoordinatorRequest(key_type=0, coordinator_keys=[name])
        found[f"coordinator of {name}"] = [each.error_code for each in connection.ask(4, coordinators).coordinators]
    listed = connection.ask(4, m.ListGroupsRequest(states_filter=[]))
    found["groups"] = sorted(group.group_id for group in listed.groups)
    found["topics"] = sorted(topic.name for topic in connection.ask(9, metadata()).topics if not topic.is_internal)
    missing = connection.ask(9, metadata("missing", "op-missing", allow_auto_topic_creation=True))
    found["missing topics"] = {topic.name: topic.error_code in FAILED for topic in missing.topics}
    described = connection.ask(3, acl_filter(m.DescribeAclsRequest))
    found["acls"] = described.error_code
    gone = CASES[ApiKey.DELETE_TOPICS]
    for name in NAMES:
        response = connection.ask(gone.version, renamed(gone.request(), {"gone": name}))
        found[f"DELETE_TOPICS {name}"] = set(error_codes(response)) & FAILED
    return found


def asked(address: str) -> dict[str, Any]:
    """Return the answers of a server that has nothing yet."""
    connection = Connection(address)
    try:
        prepare(connection)
        return answers(connection)
    finally:
        connection.close()


SETTINGS = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",
    "group.initial.rebalance.delay.ms": "0",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
}


def environment() -> dict[str, str]:
    return {f"BMQ_{name.upper().replace('.', '_')}": value for name, value in SETTINGS.items()}


def test_bmq_answers_as_kafka_does(tmp_path: Path) -> None:
    notified = []
    with KafkaCluster(properties=SETTINGS) as kafka:
        notified.append(asked(kafka.bootstrap))
    server = BmqServer(f"file://{tmp_path}/root", environment=environment(), arguments=("--node-id", "1"))
    with server:
        notified.append(asked(server.bootstrap))
    server.remove(keep_log=False)
    kafkas, bmqs = notified
    differences = [f"{what}: Kafka {kafkas[what]}, BMQ {bmqs[what]}" for what in kafkas if kafkas[what] != bmqs[what]]
    assert differences == []
    assert any(kafkas[f"PRODUCE {name}"] for name in NAMES)
    assert not all(kafkas[f"PRODUCE {name}"] for name in NAMES)


def test_kafkas_tool_makes_lists_and_removes_acls(tmp_path: Path) -> None:
    topic = new_name("acls")
    server = BmqServer(f"file://{tmp_path}/root", environment={**environment(), "BMQ_SUPER_USERS": OWN})
    with server:

        def tool(*arguments: str) -> str:
            return run_tool("AclCommand", "--bootstrap-server", server.bootstrap, *arguments).stdout

        tool("--add", "--allow-principal", "User:alice", "--consumer", "--topic", topic, "--group", "billing")
        tool("--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "Write", "--topic",
             topic, "--resource-pattern-type", "prefixed")  # fmt: skip
        listed = tool("--list", "--topic", topic, "--resource-pattern-type", "match")
        assert "principal=User:alice, host=*, operation=READ, permissionType=ALLOW" in listed
        assert "principal=User:bob, host=10.0.0.1, operation=WRITE, permissionType=DENY" in listed
        tool("--remove", "--force", "--topic", topic, "--resource-pattern-type", "any")
        left = tool("--list")
        assert "billing" in left
        assert topic not in left
    server.remove(keep_log=False)
