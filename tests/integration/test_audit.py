"""The audit log of a real server, with real clients: log-ins, denials, acts, both places, bounds, and a full disk."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import admin as confluent_admin

from tests.services.bmq import BmqServer
from tests.services.processes import free_ports

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required user_admin=s3cr3t user_alice=w0nder;"
RESPONSE_S = 20.0
admin: Any = confluent_admin  # its module does not export all of its classes for type checkers


class Place:
    """A secured server with an audit log."""

    def __init__(self, folder: Path, audit_log: str, **more: str) -> None:
        (port,) = free_ports(1)
        self.bootstrap = f"127.0.0.1:{port}"
        self.server = BmqServer(
            (folder / "root").as_uri(),
            folder=folder,
            environment={
                "BMQ_LISTENERS": f"OUT://{self.bootstrap}",
                "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:SASL_PLAINTEXT",
                "BMQ_SASL_ENABLED_MECHANISMS": "PLAIN",
                "BMQ_LISTENER_NAME_OUT_PLAIN_SASL_JAAS_CONFIG": JAAS,
                "BMQ_LISTENER_NAME_HTTP_PLAIN_SASL_JAAS_CONFIG": JAAS,
                "BMQ_HTTP_AUTHENTICATION": "basic",
                "BMQ_HTTP_METRICS_AUTHENTICATION": "false",
                "BMQ_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "BMQ_SUPER_USERS": "User:admin",
                "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "2",
                "BMQ_AUDIT_LOG": audit_log,
                **more,
            },
        )

    def client(self, user: str = "admin", password: str = "s3cr3t", **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": user, "sasl.password": password, "log_level": 0, "client.id": f"{user}-1", **more,
        }  # fmt: skip

    def admin(self, user: str = "admin", password: str = "s3cr3t") -> Any:
        return admin.AdminClient(self.client(user, password))

    def create(self, *names: str) -> None:
        client = self.admin()  # its requests end with it
        for done in client.create_topics([admin.NewTopic(name, 1, 1) for name in names]).values():
            done.result(RESPONSE_S)

    def http(self, method: str, path: str, user: str) -> int:
        """Return the status of an HTTP request by `user:password`."""
        authorization = {"Authorization": f"Basic {base64.b64encode(user.encode()).decode()}"}
        request = urllib.request.Request(f"{self.server.http}{path}", method=method, headers=authorization)
        try:
            with urllib.request.urlopen(request, timeout=RESPONSE_S) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.server.http}/metrics", timeout=RESPONSE_S) as response:
            text = response.read().decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


class Lines:
    """The lines of a file, as far as it has come."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    def have(self, **wanted: Any) -> list[dict[str, Any]]:
        """Return the lines with these fields, once there are some."""
        found: list[dict[str, Any]] = waited(
            lambda: [line for line in self.read() if wanted.items() <= line.items()], wanted
        )
        return found


def waited(find: Callable[[], Any], what: object) -> Any:
    end = time.monotonic() + RESPONSE_S
    while not (found := find()):
        assert time.monotonic() < end, f"never came: {what}"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("audit")
    made = Place(folder, str(folder / "audit.jsonl"))
    with made.server:
        made.create("orders")
        yield made


@pytest.fixture
def lines(place: Place) -> Lines:
    return Lines(place.server.folder / "audit.jsonl")


def test_logins_are_in_the_log_right_and_wrong(place: Place, lines: Lines) -> None:
    place.admin("alice", "w0nder").list_topics(timeout=RESPONSE_S)
    (line, *_) = lines.have(kind="login", outcome="allowed", principal="User:alice")
    time_of = line.pop("time")
    assert time_of.endswith("Z")
    assert len(time_of) == len("2026-11-24T00:00:00.000Z")
    assert line.pop("member")
    assert line.pop("client_id", "alice-1") == "alice-1"
    assert line == {
        "node": 0, "kind": "login", "outcome": "allowed", "listener": "OUT", "protocol": "SASL_PLAINTEXT",
        "mechanism": "PLAIN", "principal": "User:alice", "address": "127.0.0.1", "act": "LOGIN",
    }  # fmt: skip
    with pytest.raises(KafkaException):
        place.admin("alice", "wr0ng").list_topics(timeout=2)
    (line, *_) = lines.have(kind="login", outcome="denied", mechanism="PLAIN")
    assert "principal" not in line
    assert line["reason"].startswith("PLAIN: ")
    text = lines.path.read_text()
    assert not any(secret in text for secret in ("wr0ng", "w0nder", "s3cr3t"))
    assert lines.path.stat().st_mode & 0o777 == 0o600


def test_a_denial_is_in_the_log_and_allowed_records_are_not(place: Place, lines: Lines) -> None:
    producer = Producer(place.client())
    producer.produce("orders", b"the payload")
    assert producer.flush(RESPONSE_S) == 0
    failed: list[Any] = []
    refused = Producer(place.client("alice", "w0nder", **{"message.timeout.ms": 5_000}))
    refused.produce("orders", b"the payload", on_delivery=lambda error, _: failed.append(error))
    refused.flush(RESPONSE_S)
    assert failed
    (line, *_) = lines.have(kind="denial", resource="orders", principal="User:alice")
    assert (line["resource_type"], line["client_id"], line["outcome"]) == ("TOPIC", "alice-1", "denied")
    assert line["operation"] in ("DESCRIBE", "WRITE")
    assert [each for each in lines.read() if each["act"] in ("PRODUCE", "FETCH") and each["outcome"] == "allowed"] == []
    assert "payload" not in lines.path.read_text()


def test_administrative_acts_are_in_the_log(place: Place, lines: Lines) -> None:
    by = place.admin()
    place.create("acts")
    with pytest.raises(KafkaException):
        place.create("acts")
    entry = admin.ConfigEntry("retention.ms", "123456789", incremental_operation=admin.AlterConfigOpType.SET)
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, "acts", incremental_configs=[entry])
    acl = admin.AclBinding(
        admin.ResourceType.TOPIC, "acts", admin.ResourcePatternType.LITERAL, "User:bob", "*", admin.AclOperation.READ,
        admin.AclPermissionType.ALLOW,
    )  # fmt: skip
    password = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
    user = admin.UserScramCredentialUpsertion("bob", password, b"b0bs-own", b"b0bs-salt")
    acts: tuple[Callable[[], dict[Any, Any]], ...] = (
        lambda: by.incremental_alter_configs([resource]),
        lambda: by.create_partitions([admin.NewPartitions("acts", 2)]),
        lambda: by.create_acls([acl]),
        lambda: by.alter_user_scram_credentials([user]),
        lambda: by.delete_topics(["acts"]),
    )
    for act in acts:  # one after another: the client may send them all at once, and the topic would be gone first
        for done in act().values():
            done.result(RESPONSE_S)
    (created,) = lines.have(act="CREATE_TOPICS", resource="acts", outcome="allowed")
    assert created["changed"]["partitions"] == 1
    (again,) = lines.have(act="CREATE_TOPICS", resource="acts", outcome="failed")
    assert again["error"] == "TOPIC_ALREADY_EXISTS"
    (altered,) = lines.have(act="INCREMENTAL_ALTER_CONFIGS", resource="acts")
    assert altered["changed"] == {"configs": ["retention.ms"]}
    (extended,) = lines.have(act="CREATE_PARTITIONS", resource="acts")
    assert extended["changed"] == {"partitions": 2}
    (allowed,) = lines.have(act="CREATE_ACLS")
    assert (allowed["changed"]["acl_principal"], allowed["changed"]["acl_resource"]) == ("User:bob", "acts")
    (put,) = lines.have(act="ALTER_USER_SCRAM_CREDENTIALS", resource="bob")
    assert put["changed"]["set"] == ["SCRAM-SHA-512"]
    lines.have(act="DELETE_TOPICS", resource="acts", outcome="allowed", principal="User:admin", client_id="admin-1")
    text = lines.path.read_text()
    assert not any(secret in text for secret in ("123456789", "b0bs-own", "b0bs-salt"))


def test_the_http_port_is_in_the_log(place: Place, lines: Lines) -> None:
    assert place.http("GET", "/api/v1/cluster", "alice:wr0ng") == 401
    lines.have(listener="HTTP", kind="login", outcome="denied")
    assert place.http("POST", "/api/v1/cluster/balance", "alice:w0nder") == 403
    lines.have(
        listener="HTTP", kind="denial", act="POST /api/v1/cluster/balance", operation="ALTER", resource_type="CLUSTER",
        principal="User:alice",
    )  # fmt: skip
    place.create("by-http")
    assert place.http("DELETE", "/api/v1/topics/by-http", "admin:s3cr3t") == 200
    lines.have(listener="HTTP", kind="act", act="DELETE_TOPICS", resource="by-http", principal="User:admin")


def test_a_file_that_is_renamed_or_removed_is_made_again(place: Place, lines: Lines) -> None:
    place.create("before")
    lines.have(resource="before")
    lines.path.rename(lines.path.with_suffix(".1"))
    place.create("after")
    (line,) = lines.have(resource="after", kind="act")
    assert line["outcome"] == "allowed"
    lines.path.unlink()
    place.create("later")
    lines.have(resource="later", kind="act")
    assert place.metric("bmq_audit_lines_left_out_total") == 0
    assert place.metric("bmq_audit_is_failing") == 0


def test_a_full_disk_stops_nobody_and_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path, "/dev/full")
    with place.server:
        place.create("orders")
        producer = Producer(place.client())
        producer.produce("orders", b"x")
        assert producer.flush(RESPONSE_S) == 0
        waited(lambda: place.metric("bmq_audit_is_failing") == 1, "the metric")
        assert place.metric("bmq_audit_lines_waiting") >= 1
        assert place.metric("bmq_audit_write_failures_total") >= 1
    log = place.server.log.read_text()
    assert log.count("audit lines cannot be written") == 1
    assert "No space left on device" in log
    assert "audit lines are lost" in log


def test_no_more_lines_a_second_are_written_than_the_setting_says_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    place, lines = Place(tmp_path, str(path), BMQ_AUDIT_LINES_PER_S="3"), Lines(path)
    with place.server:
        began = time.monotonic()
        place.create(*(f"topic-{number}" for number in range(30)))
        lines.have(kind="act")
        found = len(lines.read())
        assert found <= 3 * (time.monotonic() - began + 2)
        assert place.metric("bmq_audit_lines_waiting") > 0
    names = {line["resource"] for line in lines.read() if line["kind"] == "act"}
    assert names == {f"topic-{number}" for number in range(30)}, "the end of the process writes what waits"


def test_lines_go_to_a_topic(tmp_path: Path) -> None:
    place = Place(tmp_path, "topic:audit")
    with place.server:
        place.admin().list_topics(timeout=RESPONSE_S)
        waited(lambda: place.metric("bmq_audit_is_failing") == 1, "a line, without the topic")
        place.create("audit")
        place.create("orders")
        consumer = Consumer(place.client(**{"group.id": "officer", "auto.offset.reset": "earliest"}))
        consumer.subscribe(["audit"])
        found: list[dict[str, Any]] = []

        def have_come() -> bool:
            for message in consumer.consume(100, 0.2):
                assert message.error() is None
                assert message.key() == b"0"
                found.append(json.loads(message.value() or b""))
            return {"audit", "orders"} <= {line.get("resource") for line in found if line["kind"] == "act"}

        waited(have_come, "both acts")
        consumer.close()
        written = place.metric("bmq_audit_lines_total")
        time.sleep(1.0)
        assert place.metric("bmq_audit_lines_total") == written, "the audit's own produces are no events"
    log = place.server.log.read_text()
    assert "there is no topic" in log
    assert "audit lines are written again" in log
