"""Every client with every mechanism that it has, over each protocol, at a server with ACLs (mechanisms.TABLE).

Right credentials make a topic, produce and consume, and reach no topic of others.  Wrong ones end with the client's own
error of authentication, in time.  A producer goes on when its session's life is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.harness.certificates import PASSWORD
from tests.integration.clients.drivers.base import ClientError, Driver
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.drivers.kafka_python import KafkaPython
from tests.integration.clients.drivers.kcat import Kcat
from tests.integration.clients.drivers.login import Login, write_properties
from tests.integration.clients.drivers.program import Franz, Java, KafkaJs, Sarama
from tests.integration.clients.mechanisms import CERTIFICATE, TABLE, TOKEN, ClientMeans, cells
from tests.integration.clients.secure import PREFIX, REAUTH_MS, SCRAM, USER, SecureServer
from tests.integration.clients.story import messages_for, new_name, require_same
from tests.services.kafka_tools import run_tool
from tests.services.kdc import missing

pytestmark = pytest.mark.clients
KINDS: dict[str, type[Driver]] = {
    kind.name: kind for kind in (Java, Confluent, Kcat, Franz, KafkaPython, Sarama, KafkaJs)
}
ROOT = Path(__file__).parents[3]
MESSAGES = 5
REFUSED_S = 30.0
"""How long the slowest client takes to say that it is refused, its start included."""
AUTHENTICATION = {
    "java": r"SaslAuthenticationException|SslAuthenticationException",
    "confluent": r"code=_AUTHENTICATION|SSL alert",
    "kcat": r"SASL authentication error|SSL alert",
    "franz-go": r"SASL_AUTHENTICATION_FAILED|unexpected data in oauth response|tls: ",
    "kafka-python": r"Unable to bootstrap",  # it has no other error for it
    "sarama": r"SASL|tls: ",
    # The second one for access tokens: it takes the server's reason for a success, goes on, and is closed.
    "kafkajs": r"KafkaJSSASLAuthenticationError|KafkaJSConnectionClosedError|SSL",
}
"""How each client says that the server did not believe who it is; for a certificate, that TLS failed."""
GIVES_UP = {("franz-go", "OAUTHBEARER")}
"""Who closes the connection at the server's reason, before the server does: no failed log-in is counted."""
KAFKA_PYTHON = """
import json, sys
from tests.integration.clients.drivers.base import Message
from tests.integration.clients.drivers.kafka_python import KafkaPython
from tests.integration.clients.drivers.login import Login
driver = KafkaPython(sys.argv[1], Login(**json.loads(sys.argv[2])))
driver.produce(sys.argv[3], [Message(0, None, b"x", (), 0)], "none")
"""
"""A process of its own: a client that cannot start leaves its sockets open."""
STREAM_S = 3.5 * REAUTH_MS / 1000
RECORDS_LEAST = 10


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    with SecureServer(tmp_path_factory.mktemp("secure")) as started:
        yield started
        assert "Traceback" not in started.server.log.read_text()


@contextmanager
def connected(
    server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, address: str, login: Login
) -> Iterator[Driver]:
    """Yield a client; afterwards its program must end by itself."""
    for name, value in login.environment.items():
        monkeypatch.setenv(name, value)
    if row.client == "kcat":
        driver: Driver = Kcat(address, login, replace(server.admin, protocol=login.protocol) if login.keytab else None)
    else:
        driver = KINDS[row.client](address, login)
    try:
        yield driver
    finally:
        driver.close()


def produce_once(
    server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, address: str, login: Login
) -> None:
    """Produce a record.  Raises what the client raises, or ClientError with its text."""
    with connected(server, monkeypatch, row, address, login) as driver:
        if not isinstance(driver, KafkaPython):
            driver.produce(PREFIX, messages_for(driver, seed="wrong", count=1, partitions=1), "none")
            return
        command = [sys.executable, "-W", "ignore", "-c", KAFKA_PYTHON, address, json.dumps(asdict(login)), PREFIX]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=REFUSED_S)
        if done.returncode:
            raise ClientError(done.stderr)


def skip_without_kdc(mechanism: str) -> None:
    if mechanism == "GSSAPI" and missing():
        pytest.skip(f"this machine lacks {missing()}")


@pytest.mark.parametrize(
    ("row", "protocol", "mechanism"),
    [pytest.param(*cell, id=f"{cell[0].client}-{cell[1]}-{cell[2]}") for cell in cells()],
)
class TestMechanisms:
    def test_right_credentials(
        self, server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, protocol: str, mechanism: str
    ) -> None:
        skip_without_kdc(mechanism)
        topic = new_name(f"{PREFIX}-{row.client}")
        with connected(
            server, monkeypatch, row, server.bootstrap(protocol), server.right(protocol, mechanism)
        ) as driver:
            driver.create_topic(topic, 1)
            sent = messages_for(driver, seed=topic, count=MESSAGES, partitions=1)
            driver.produce(topic, sent, "none")
            require_same(sent, driver.consume([topic], new_name(PREFIX), MESSAGES), driver, topic)
            with pytest.raises(Exception, match=r"(?i)authori[sz]ation|not authorized"):
                driver.produce("of-bob", sent, "none")

    def test_wrong_credentials(
        self, server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, protocol: str, mechanism: str
    ) -> None:
        skip_without_kdc(mechanism)
        name = SCRAM[0] if mechanism == TOKEN else mechanism
        failed = 0.0 if mechanism == CERTIFICATE else server.counted("failed_authentication", protocol, name)
        started = time.monotonic()
        address, login = server.bootstrap(protocol), server.wrong(protocol, mechanism)
        with pytest.raises(Exception, match=AUTHENTICATION[row.client]):
            produce_once(server, monkeypatch, row, address, login)
        assert time.monotonic() - started < REFUSED_S
        if mechanism != CERTIFICATE and (row.client, mechanism) not in GIVES_UP:
            assert server.counted("failed_authentication", protocol, name) > failed


RENEWED = [
    pytest.param(row, mechanism, id=f"{row.client}-{mechanism}")
    for row in TABLE
    for mechanism in ("SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
    if row.renews and mechanism in row.has
]


@pytest.mark.parametrize(("row", "mechanism"), RENEWED)
def test_a_producer_outlives_its_session(
    server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans, mechanism: str
) -> None:
    """Sessions end after two seconds: none of its records fails meanwhile, and it is never refused."""
    skip_without_kdc(mechanism)
    again, failed = (
        server.counted(name, "renewed", mechanism)
        for name in ("successful_reauthentication", "failed_reauthentication")
    )
    topic = new_name(f"{PREFIX}-{row.client}")
    login = server.right("SASL_SSL", mechanism)
    with connected(server, monkeypatch, row, server.bootstrap("renewed"), login) as driver:
        driver.create_topic(topic, 1)
        sent = driver.stream(topic, STREAM_S)
        assert sent >= RECORDS_LEAST
        assert len(driver.consume([topic], new_name(PREFIX), sent)) == sent
    assert server.counted("successful_reauthentication", "renewed", mechanism) >= again + 2
    assert server.counted("failed_reauthentication", "renewed", mechanism) == failed


@pytest.mark.parametrize("has_key", [True, False])
def test_java_reads_pkcs12(server: SecureServer, tmp_path: Path, has_key: bool) -> None:
    """A keystore and a truststore as keytool makes them: for a client's certificate, and for SASL_SSL without one."""
    made = server.certificates
    trust = tmp_path / "trust.p12"
    store = ["-storetype", "PKCS12", "-storepass", PASSWORD, "-keystore", str(trust)]
    command = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", str(made.trust), *store]
    subprocess.run(command, check=True, capture_output=True)
    protocol, mechanism = ("SSL", CERTIFICATE) if has_key else ("SASL_SSL", "SCRAM-SHA-256")
    properties = {
        name: value for name, value in server.right(protocol, mechanism).java().items() if "store" not in name
    }
    properties |= {
        "ssl.truststore.type": "PKCS12", "ssl.truststore.location": str(trust), "ssl.truststore.password": PASSWORD
    }  # fmt: skip
    if has_key:
        pair = made.pkcs12(Path(server.alice), "alice.p12")
        properties |= {
            "ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(pair), "ssl.keystore.password": PASSWORD
        }  # fmt: skip
    file = write_properties(tmp_path / "client.properties", properties)
    topic = new_name(PREFIX)
    common = ("--bootstrap-server", server.bootstrap(protocol), "--command-config", str(file))
    run_tool("TopicCommand", *common, "--create", "--topic", topic)
    assert topic in run_tool("TopicCommand", *common, "--list").lines


def test_kafkas_tools_make_what_security_needs(server: SecureServer) -> None:
    """Describe users; set, list and remove quotas of users, clients and addresses; list ACLs."""

    def configs(*words: str) -> str:
        return server.tool("ConfigCommand", *words)

    users = configs("--describe", "--entity-type", "users", "--entity-name", USER)
    assert "SCRAM-SHA-256=iterations=4096" in users
    for entity, quota in (
        (("--entity-type", "users", "--entity-name", "carol"), "producer_byte_rate=1048576"),
        (("--entity-type", "clients", "--entity-name", "etl"), "consumer_byte_rate=2097152"),
        (("--entity-type", "users", "--entity-name", "carol", "--entity-type", "clients", "--entity-default"),
         "request_percentage=50"),
        (("--entity-type", "ips", "--entity-name", "192.0.2.1"), "connection_creation_rate=20"),
    ):  # fmt: skip
        configs("--alter", *entity, "--add-config", quota)
        assert quota in configs("--describe", *entity)
        configs("--alter", *entity, "--delete-config", quota.partition("=")[0])
        assert quota not in configs("--describe", *entity)
    listed = server.tool("AclCommand", "--list", "--topic", PREFIX, "--resource-pattern-type", "prefixed")
    assert f"principal=User:{USER}" in listed
