"""Every client with every mechanism that it has, over each protocol, at a server with ACLs (mechanisms.TABLE).

Right credentials make a topic, produce and consume, and reach no topic of others.  Wrong ones end with the client's own
error of authentication, in time.  Producers and consumers go on when their session's life is over: no record is lost,
none is there twice.  Kafka's own tools make users, ACLs, quotas and delegation tokens.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.harness.certificates import PASSWORD
from tests.integration.clients.drivers.base import STREAM_PAUSE_S, ClientError, Driver, Record
from tests.integration.clients.drivers.confluent import Confluent
from tests.integration.clients.drivers.kafka_python import KafkaPython
from tests.integration.clients.drivers.kcat import Kcat
from tests.integration.clients.drivers.login import Login, write_properties
from tests.integration.clients.drivers.program import Franz, Java, KafkaJs, Sarama
from tests.integration.clients.endpoint import TARGETS, target
from tests.integration.clients.mechanisms import CERTIFICATE, TABLE, TOKEN, ClientMeans, cells
from tests.integration.clients.secure import PREFIX, REAUTH_MS, SCRAM, USER, SecureServer
from tests.integration.clients.story import messages_for, new_name, require_same
from tests.services.kafka_tools import run_tool
from tests.services.kdc import missing

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(target() != TARGETS[0], reason="who gets in does not depend on the place of segments"),
]
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
    server: SecureServer,
    monkeypatch: pytest.MonkeyPatch,
    row: ClientMeans,
    address: str,
    login: Login,
    topic: str = PREFIX,
) -> None:
    """Produce a record.  Raises what the client raises, or ClientError with its text."""
    with connected(server, monkeypatch, row, address, login) as driver:
        if not isinstance(driver, KafkaPython):
            driver.produce(topic, messages_for(driver, seed="once", count=1, partitions=1), "none")
            return
        command = [sys.executable, "-W", "ignore", "-c", KAFKA_PYTHON, address, json.dumps(asdict(login)), topic]
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
        refused = server.refused(protocol, mechanism)
        started = time.monotonic()
        address, login = server.bootstrap(protocol), server.wrong(protocol, mechanism)
        with pytest.raises(Exception, match=AUTHENTICATION[row.client]):
            produce_once(server, monkeypatch, row, address, login)
        assert time.monotonic() - started < REFUSED_S
        if (row.client, mechanism) not in GIVES_UP:
            assert server.refused(protocol, mechanism) > refused


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
    """Sessions end after two seconds: each of its records is there once, and it is never refused."""
    skip_without_kdc(mechanism)
    topic = new_name(f"{PREFIX}-{row.client}")
    login = server.right("SASL_SSL", mechanism)
    with (
        connected(server, monkeypatch, row, server.bootstrap("renewed"), login) as driver,
        renewed(server, mechanism),
    ):
        driver.create_topic(topic, 1)
        sent = driver.stream(topic, STREAM_S)
        assert sent >= RECORDS_LEAST
        require_numbered(driver.consume([topic], new_name(PREFIX), sent), sent)
        assert server.end_offset(topic) == sent


@pytest.mark.parametrize("row", [pytest.param(row, id=row.client) for row in TABLE if row.renews])
def test_a_consumer_outlives_its_session(
    server: SecureServer, monkeypatch: pytest.MonkeyPatch, row: ClientMeans
) -> None:
    """A member of a group reads for longer than a session lasts: each record once."""
    topic = new_name(f"{PREFIX}-{row.client}")
    login = server.right("SASL_SSL", SCRAM[1])
    with (
        ThreadPoolExecutor(1) as threads,
        connected(server, monkeypatch, row, server.bootstrap("renewed"), login) as driver,
        renewed(server, SCRAM[1]),
    ):
        driver.create_topic(topic, 1)
        count = int(STREAM_S / STREAM_PAUSE_S)
        reading = threads.submit(driver.consume, [topic], new_name(PREFIX), count)
        producer = Producer(server.admin.librdkafka() | {"bootstrap.servers": server.bootstrap("SASL_SSL")})
        for number in range(count):
            producer.produce(topic, b"%d" % number, partition=0)
            producer.poll(0)
            time.sleep(STREAM_PAUSE_S)
        assert producer.flush(REFUSED_S) == 0
        require_numbered(reading.result(REFUSED_S), count)


@contextmanager
def renewed(server: SecureServer, mechanism: str) -> Iterator[None]:
    """Require that sessions are renewed twice or more meanwhile, and that none is refused."""

    def counted(name: str) -> float:
        return server.counted(name, "renewed", mechanism)

    again, failed = counted("successful_reauthentication"), counted("failed_reauthentication")
    yield
    assert counted("successful_reauthentication") >= again + 2
    assert counted("failed_reauthentication") == failed


def require_numbered(records: list[Record], count: int) -> None:
    """Require "0", "1", … in order, each once."""
    assert [each.message.value for each in records] == [b"%d" % number for number in range(count)]


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
    """Describe users; set, list, change and remove quotas of users, clients, addresses and all; list ACLs."""

    def configs(*words: str) -> str:
        return server.tool("ConfigCommand", *words)

    users = configs("--describe", "--entity-type", "users", "--entity-name", USER)
    assert "SCRAM-SHA-256=iterations=4096" in users
    for entity, quota in (
        (("--entity-type", "users", "--entity-name", "carol"), "producer_byte_rate=1048576"),
        (("--entity-type", "users", "--entity-default"), "consumer_byte_rate=4194304"),
        (("--entity-type", "clients", "--entity-name", "etl"), "consumer_byte_rate=2097152"),
        (("--entity-type", "users", "--entity-name", "carol", "--entity-type", "clients", "--entity-default"),
         "request_percentage=50"),
        (("--entity-type", "ips", "--entity-name", "192.0.2.1"), "connection_creation_rate=20"),
        (("--entity-type", "ips", "--entity-default"), "connection_creation_rate=1000"),
    ):  # fmt: skip
        name = quota.partition("=")[0]
        for value in (quota, f"{name}=42"):
            configs("--alter", *entity, "--add-config", value)
            assert value in configs("--describe", *entity)
        configs("--alter", *entity, "--delete-config", name)
        assert name not in configs("--describe", *entity)
    listed = server.tool("AclCommand", "--list", "--topic", PREFIX, "--resource-pattern-type", "prefixed")
    assert f"principal=User:{USER}" in listed


@pytest.mark.parametrize("client", [row.client for row in TABLE if TOKEN in row.has])
def test_a_delegation_tokens_life(server: SecureServer, monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    """Kafka's tool makes, describes, renews and ends a token: a client gets in by it until it has ended."""
    (row,) = [each for each in TABLE if each.client == client]
    name, secret = server.new_token()
    owner = server.right("SASL_SSL", "PLAIN")

    def tool(*arguments: str) -> str:
        return server.tool("DelegationTokenCommand", *arguments, login=owner)

    assert name in tool("--describe", "--owner-principal", f"User:{USER}")
    login = replace(owner, mechanism=SCRAM[1], user=name, password=secret, is_token=True)
    address = server.bootstrap("SASL_SSL")
    topic = new_name(PREFIX)
    server.tool("TopicCommand", "--create", "--topic", topic, "--partitions", "1")
    produce_once(server, monkeypatch, row, address, login, topic)
    tool("--renew", "--renew-time-period", "-1", "--hmac", secret)
    produce_once(server, monkeypatch, row, address, login, topic)
    assert server.end_offset(topic) == 2
    tool("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    assert name not in tool("--describe", "--owner-principal", f"User:{USER}")
    with pytest.raises(ClientError, match=AUTHENTICATION[client]):
        produce_once(server, monkeypatch, row, address, login, topic)
