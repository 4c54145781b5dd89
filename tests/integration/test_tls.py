"""`bmq serve` with TLS listeners, and the clients that people use: kafka-python, confluent-kafka and aiokafka.

Shown: topics, records, groups over SSL and with clients' certificates; whoever has none is refused; a certificate is
replaced while clients go on; a start that cannot be is refused with status 2; memory of connections that hold back.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient

from tests.harness.certificates import PASSWORD, Certificates
from tests.services.bmq import BmqServer
from tests.services.processes import free_ports, wait_for

RECORDS = 200


class TlsServer(BmqServer):
    """A server with a listener for everybody on this machine, one with TLS, and one that asks for certificates."""

    def __init__(self, folder: Path, made: Certificates, *, meta: str | None = None) -> None:
        self.tls_port, self.mutual_port = free_ports(2)
        keystore = made.pkcs12(made.server, "server.p12")
        self.keystore = keystore
        (folder / "password").write_text(f"{PASSWORD}\n")
        environment = {
            "BMQ_LISTENERS": f"TLS://127.0.0.1:{self.tls_port},MUTUAL://127.0.0.1:{self.mutual_port}",
            "BMQ_ADVERTISED_LISTENERS": f"TLS://localhost:{self.tls_port},MUTUAL://localhost:{self.mutual_port}",
            "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "TLS:SSL,MUTUAL:SSL",
            "BMQ_SSL_KEYSTORE_LOCATION": str(made.server),
            "BMQ_SSL_TRUSTSTORE_LOCATION": str(made.trust),
            "BMQ_LISTENER_NAME_MUTUAL_SSL_CLIENT_AUTH": "required",
            "BMQ_LISTENER_NAME_MUTUAL_SSL_KEYSTORE_LOCATION": str(keystore),
            "BMQ_LISTENER_NAME_MUTUAL_SSL_KEYSTORE_PASSWORD_FILE": str(folder / "password"),
            "BMQ_TLS_HANDSHAKE_MS": "2000",
            "BMQ_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }
        super().__init__(f"file://{folder}/log", meta, environment=environment, folder=folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with TlsServer(tmp_path_factory.mktemp("server"), made) as running:
        yield running
        assert "Traceback" not in running.log.read_text()


def clients_context(made: Certificates, *, has_certificate: bool) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.trust))
    if has_certificate:
        context.load_cert_chain(made.client)
    return context


def confluent(made: Certificates, port: int, *, has_certificate: bool) -> dict[str, Any]:
    settings = {
        "bootstrap.servers": f"localhost:{port}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(made.trust),
    }
    if has_certificate:
        settings |= {"ssl.certificate.location": str(made.client), "ssl.key.location": str(made.client)}
    return settings


@pytest.mark.smoke
@pytest.mark.parametrize("is_mutual", [False, True])
def test_confluent_kafka(server: TlsServer, made: Certificates, is_mutual: bool) -> None:
    topic = f"confluent-{is_mutual}"
    settings = confluent(made, server.mutual_port if is_mutual else server.tls_port, has_certificate=is_mutual)
    producer = Producer({**settings, "compression.type": "lz4"})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number + bytes(20_000))
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []
    while len(values) < RECORDS:
        for message in consumer.consume(RECORDS - len(values), 30):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    consumer.close()
    assert values == [b"%d" % number + bytes(20_000) for number in range(RECORDS)]


@pytest.mark.parametrize("is_mutual", [False, True])
def test_kafka_python(server: TlsServer, made: Certificates, is_mutual: bool) -> None:
    topic = f"kafka-python-{is_mutual}"
    settings = {
        "bootstrap_servers": f"localhost:{server.mutual_port if is_mutual else server.tls_port}",
        "security_protocol": "SSL",
        "ssl_context": clients_context(made, has_certificate=is_mutual),
    }
    producer = KafkaProducer(**settings)
    for number in range(RECORDS):
        producer.send(topic, b"%d" % number)
    producer.flush()
    producer.close()
    consumer = KafkaConsumer(topic, group_id=uuid.uuid4().hex, auto_offset_reset="earliest", **settings)
    values = [next(consumer).value for _ in range(RECORDS)]
    consumer.close()
    assert values == [b"%d" % number for number in range(RECORDS)]
    admin = KafkaAdminClient(**settings)
    assert topic in admin.list_topics()
    admin.close()


@pytest.mark.parametrize("is_mutual", [False, True])
def test_aiokafka(server: TlsServer, made: Certificates, is_mutual: bool) -> None:
    topic = f"aiokafka-{is_mutual}"
    port = server.mutual_port if is_mutual else server.tls_port
    context = clients_context(made, has_certificate=is_mutual)

    async def story() -> list[bytes]:
        where = {"bootstrap_servers": f"localhost:{port}", "security_protocol": "SSL", "ssl_context": context}
        async with aiokafka.AIOKafkaProducer(**where) as producer:
            for number in range(RECORDS):
                await producer.send(topic, b"%d" % number)
        async with aiokafka.AIOKafkaConsumer(
            topic, group_id=uuid.uuid4().hex, auto_offset_reset="earliest", **where
        ) as consumer:
            return [(await consumer.getone()).value for _ in range(RECORDS)]

    assert asyncio.run(story()) == [b"%d" % number for number in range(RECORDS)]


def test_the_store_may_be_a_sqlite_file_of_its_own(made: Certificates, tmp_path: Path) -> None:
    with TlsServer(tmp_path, made, meta=f"sqlite:///{tmp_path}/own.db") as running:
        settings = confluent(made, running.mutual_port, has_certificate=True)
        assert AdminClient(settings).list_topics(timeout=10).brokers


@pytest.mark.smoke
def test_a_client_without_a_certificate_is_refused(server: TlsServer, made: Certificates) -> None:
    with pytest.raises(KafkaException):
        AdminClient(confluent(made, server.mutual_port, has_certificate=False)).list_topics(timeout=3)
    wait_for(lambda: "has shown no certificate" in server.log.read_text(), "a line", timeout_s=10)


def test_a_client_without_tls_is_refused_with_a_line(server: TlsServer) -> None:
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": f"localhost:{server.tls_port}"}).list_topics(timeout=3)
    wait_for(
        lambda: "plain bytes at a TLS port: the client needs security.protocol=SSL" in server.log.read_text(),
        "a line",
        timeout_s=10,
    )


def test_a_secret_is_told_by_nobody(server: TlsServer, made: Certificates) -> None:
    """Ask for the configs, the metrics and the API, and read the log and the command line: the password is in none."""
    admin = AdminClient(confluent(made, server.tls_port, has_certificate=False))
    (asked,) = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "0")]).values()
    described = " ".join(f"{name}={config.value}" for name, config in asked.result(timeout=10).items())
    assert "listener.name.mutual.ssl.keystore.password" in described
    texts = [described, server.log.read_text()]
    for path in ("/metrics", "/api/v1/cluster", "/api/v1/cluster/status"):
        with urllib.request.urlopen(server.http + path, timeout=10) as response:
            texts.append(response.read().decode())
    assert server.process.pid is not None
    texts.append(Path(f"/proc/{server.process.pid}/cmdline").read_text())
    assert 'bmq_certificate_expires_in_seconds{listener="MUTUAL"}' in texts[2]
    assert not [text for text in texts if PASSWORD in text]


def test_a_replaced_certificate_is_shown_to_new_clients(made: Certificates, tmp_path: Path) -> None:
    own = Certificates.make(tmp_path / "certificates")
    with TlsServer(tmp_path, own) as running:
        producer = Producer(confluent(own, running.tls_port, has_certificate=False))
        producer.produce("t", b"1")
        assert producer.flush(20) == 0
        before = ssl.get_server_certificate(("localhost", running.tls_port))
        own.server.write_text("half a file")
        wait_for(lambda: "cannot use the changed certificates" in running.log.read_text(), "a line", timeout_s=20)
        assert ssl.get_server_certificate(("localhost", running.tls_port)) == before
        own.issue_server()
        wait_for(
            lambda: ssl.get_server_certificate(("localhost", running.tls_port)) != before, "the new one", timeout_s=20
        )
        producer.produce("t", b"2")  # by the connection that it has
        assert producer.flush(20) == 0
        assert AdminClient(confluent(own, running.tls_port, has_certificate=False)).list_topics(timeout=10).brokers


def test_connections_that_hold_back_are_bounded_in_memory_and_time(server: TlsServer, made: Certificates) -> None:
    """Open 500 connections that send half a hello: below 40 KB each, gone in time, while a client is served."""
    before = server.rss_bytes
    silent = []
    for _ in range(500):
        sock = socket.create_connection(("127.0.0.1", server.tls_port))
        sock.sendall(b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(1_000))
        silent.append(sock)
    admin = AdminClient(confluent(made, server.tls_port, has_certificate=False))
    assert admin.list_topics(timeout=10).brokers
    assert server.rss_bytes - before < 500 * (80 << 10)
    for sock in silent:
        sock.settimeout(20)
        while sock.recv(1 << 10):
            pass
        sock.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "listener SSL: TLS needs a certificate: give ssl.keystore.location"),
        ({"BMQ_SSL_KEYSTORE_LOCATION": "/does/not/exist"}, "cannot read /does/not/exist"),
        ({"BMQ_LISTENER_NAME_SSL_KEYSTORE_LOCATION": "x"}, "unknown setting BMQ_LISTENER_NAME_SSL_KEYSTORE_LOCATION"),
    ],
)
def test_a_start_that_cannot_be_is_refused(tmp_path: Path, settings: dict[str, str], said: str) -> None:
    ran = subprocess.run(
        [str(Path(sys.executable).with_name("bmq")), "serve", "--listeners", "SSL://127.0.0.1:0"],
        cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, said in ran.stderr) == (2, True), ran.stderr
    assert "Traceback" not in ran.stderr
