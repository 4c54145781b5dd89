"""Real clients on a SASL listener: who gets in by PLAIN and SCRAM, who does not, and sessions that are renewed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaException, Producer
from confluent_kafka import admin as confluent_admin

from tests.services.bmq import BmqServer
from tests.services.kafka_tools import run_tool
from tests.services.processes import free_ports

JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required user_admin=secret;"
PLAIN, SCRAM_256, SCRAM_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
REAUTH_MS = 2_000
RESPONSE_S = 15.0
admin: Any = confluent_admin  # its module does not export all of its classes for type checkers


class Place:
    """A server with a SASL listener."""

    def __init__(self, folder: Path) -> None:
        (port,) = free_ports(1)
        self.bootstrap = f"127.0.0.1:{port}"
        self.server = BmqServer(
            (folder / "root").as_uri(),
            folder=folder,
            environment={
                "BMQ_LISTENERS": f"OUT://{self.bootstrap}",
                "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:SASL_PLAINTEXT",
                "BMQ_SASL_ENABLED_MECHANISMS": f"{PLAIN},{SCRAM_256},{SCRAM_512}",
                "BMQ_LISTENER_NAME_OUT_PLAIN_SASL_JAAS_CONFIG": JAAS,
                "BMQ_CONNECTIONS_MAX_REAUTH_MS": str(REAUTH_MS),
                "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "2",
            },
        )

    def librdkafka(self, user: str, password: str, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
            "sasl.username": user, "sasl.password": password, "log_level": 0,
        }  # fmt: skip

    def python(self, user: str, password: str, mechanism: str) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
            "sasl_plain_username": user, "sasl_plain_password": password,
        }  # fmt: skip

    def alter(self, change: Any) -> None:
        client = admin.AdminClient(self.librdkafka("admin", "secret", PLAIN))
        for done in client.alter_user_scram_credentials([change], request_timeout=RESPONSE_S).values():
            done.result(RESPONSE_S)

    def set_password(self, user: str, mechanism: str, password: str) -> None:
        kind = admin.ScramMechanism.SCRAM_SHA_256 if mechanism == SCRAM_256 else admin.ScramMechanism.SCRAM_SHA_512
        self.alter(admin.UserScramCredentialUpsertion(user, admin.ScramCredentialInfo(kind, 4096), password.encode()))

    def counted(self, name: str, mechanism: str) -> float:
        with urllib.request.urlopen(f"{self.server.http}/metrics", timeout=RESPONSE_S) as response:
            text = response.read().decode()
        series = f'kafka_server_socketservermetrics_{name}_total{{listener="OUT",mechanism="{mechanism}"}}'
        (line,) = [each for each in text.splitlines() if each.startswith(series)]
        return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(tmp_path_factory.mktemp("sasl"))
    with made.server:
        made.set_password("alice", SCRAM_256, "pw,=é")
        made.set_password("alice", SCRAM_512, "pw-512")
        yield made


def by_librdkafka(place: Place, user: str, password: str, mechanism: str) -> bool:
    try:
        admin.AdminClient(place.librdkafka(user, password, mechanism)).list_topics(timeout=3)
    except KafkaException:
        return False
    return True


KAFKA_PYTHON = """
import json, sys
from kafka import KafkaProducer
from kafka.errors import KafkaError
try:
    producer = KafkaProducer(**json.loads(sys.argv[1]), bootstrap_timeout_ms=3000)
except KafkaError:
    sys.exit(3)
producer.send("python", b"x").get(15)
producer.close()
"""
"""A process of its own: a producer that cannot start leaves its sockets open."""


def by_kafka_python(place: Place, user: str, password: str, mechanism: str) -> bool:
    settings = json.dumps(place.python(user, password, mechanism))
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KAFKA_PYTHON, settings], check=False, timeout=60)
    assert done.returncode in (0, 3)
    return done.returncode == 0


@pytest.mark.parametrize("gets_in", [by_librdkafka, by_kafka_python])
@pytest.mark.parametrize(
    ("user", "password", "mechanism", "is_let_in"),
    [
        ("admin", "secret", PLAIN, True),
        ("alice", "pw,=é", SCRAM_256, True),
        ("alice", "pw-512", SCRAM_512, True),
        ("admin", "Secret", PLAIN, False),
        ("nobody", "secret", PLAIN, False),
        ("alice", "pw-512", SCRAM_256, False),
        ("nobody", "pw-512", SCRAM_512, False),
    ],
)
def test_who_shows_the_password_gets_in(
    place: Place, gets_in: Callable[..., bool], user: str, password: str, mechanism: str, is_let_in: bool
) -> None:
    failed = place.counted("failed_authentication", mechanism)
    assert gets_in(place, user, password, mechanism) is is_let_in
    assert (place.counted("failed_authentication", mechanism) > failed) is not is_let_in


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(("password", "is_let_in"), [("pw-512", True), ("pw", False)])
async def test_aiokafka_gets_in_with_the_password(place: Place, password: str, is_let_in: bool) -> None:
    producer = AIOKafkaProducer(**place.python("alice", password, SCRAM_512))
    try:
        if is_let_in:
            await producer.start()
            await producer.send_and_wait("aio", b"x")
        else:
            with pytest.raises(AioError):
                await producer.start()
    finally:
        await producer.stop()


def test_a_changed_and_a_deleted_user(place: Place) -> None:
    place.set_password("bob", SCRAM_256, "first")
    assert by_librdkafka(place, "bob", "first", SCRAM_256)
    place.set_password("bob", SCRAM_256, "second")
    assert by_librdkafka(place, "bob", "second", SCRAM_256)
    assert not by_librdkafka(place, "bob", "first", SCRAM_256)
    place.alter(admin.UserScramCredentialDeletion("bob", admin.ScramMechanism.SCRAM_SHA_256))
    assert not by_librdkafka(place, "bob", "second", SCRAM_256)


def test_librdkafka_renews_its_session_and_loses_nothing(place: Place) -> None:
    errors = []
    producer = Producer(place.librdkafka("alice", "pw-512", SCRAM_512))
    renewed = place.counted("successful_reauthentication", SCRAM_512)
    deadline = time.monotonic() + 60
    while place.counted("successful_reauthentication", SCRAM_512) < renewed + 3:
        assert time.monotonic() < deadline
        producer.produce("renewed", b"x", on_delivery=lambda error, _: errors.append(error) if error else None)
        producer.poll(0.1)
    assert producer.flush(RESPONSE_S) == 0
    assert not errors


def test_kafkas_tool_makes_describes_and_deletes_users(place: Place, tmp_path: Path) -> None:
    config = tmp_path / "admin.properties"
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="secret";'
    config.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")

    def configs(*words: str) -> str:
        common = ("--bootstrap-server", place.bootstrap, "--command-config", str(config), "--entity-type", "users")
        return run_tool("ConfigCommand", *common, "--entity-name", "carol", *words).stdout

    configs("--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=carols]")
    assert "SCRAM-SHA-512=iterations=8192" in configs("--describe")
    assert by_librdkafka(place, "carol", "carols", SCRAM_512)
    configs("--alter", "--delete-config", "SCRAM-SHA-512")
    assert not by_librdkafka(place, "carol", "carols", SCRAM_512)
