"""A running open cluster becomes a secured one, as docs/security.md says ("From open to secured, without a stop").

Three processes over a real etcd and a local folder; they restart one after another, three times.  librdkafka's clients
produce and consume throughout, and move from the open listener to the secured one.  Shown: no record that was
acknowledged is lost or read twice, no client sees another error than a connection that went, and in the end nobody is
served without a log-in.
"""

from __future__ import annotations

import base64
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import admin as confluent_admin

from tests.harness.certificates import Certificates
from tests.integration.cluster.conftest import SETTINGS
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.processes import free_ports, wait_for

TOPIC, GROUP, PARTITIONS = "orders", "billing", 6
ADMIN, ALICE = ("admin", "the-admins-password"), ("alice", "the-clients-password")
SECRET = secrets.token_hex(32)
WENT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}
"""Errors that librdkafka tells of connections, and mends by itself."""
admin: Any = confluent_admin  # its module does not export all of its classes for type checkers
Settings = dict[str, Any]


class Clients:
    """A producer and a consumer of a group, each in a thread, which move to other settings without a gap."""

    def __init__(self, settings: Settings) -> None:
        self.errors: list[str] = []
        self.acknowledged: list[bytes] = []
        self.read: Counter[bytes] = Counter()
        self._settings = settings
        self._version = 0
        self._moved: Counter[int] = Counter()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=run) for run in (self._produce, self._consume)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def move(self, settings: Settings) -> None:
        """Let both go on with these settings; return when they do."""
        self._settings = settings
        self._version += 1
        wait_for(lambda: self._moved[self._version] == 2, "clients that have moved", timeout_s=90)
        self.progress()

    def progress(self) -> None:
        """Wait until records are acknowledged and read that were not there before."""
        acknowledged = len(self.acknowledged)
        wait_for(lambda: len(self.acknowledged) > acknowledged + 50, "more records acknowledged", timeout_s=90)
        wait_for(lambda: len(self.read) > acknowledged + 20, "more records read", timeout_s=90)
        assert self.errors == []

    def _on_error(self, error: KafkaError) -> None:
        if error.code() not in WENT:
            self.errors.append(str(error))

    def _given(self) -> Settings:
        return {**self._settings, "error_cb": self._on_error, "log_level": 0, "reconnect.backoff.max.ms": 500}

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.errors.append(f"produce: {error}")

    def _produce(self) -> None:
        number = 0
        while not self._is_over.is_set():
            version = self._version
            producer = Producer({**self._given(), "linger.ms": 5, "enable.idempotence": True})
            self._moved[version] += 1
            while not self._is_over.is_set() and self._version == version:
                producer.produce(TOPIC, b"%d" % number, on_delivery=self._delivered)
                number += 1
                producer.poll(0.01)
            left = producer.flush(90)
            if left:
                self.errors.append(f"{left} records were not acknowledged")

    def _consume(self) -> None:
        while True:
            version = self._version
            settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
            consumer = Consumer({**self._given(), **settings})
            consumer.subscribe([TOPIC])
            self._moved[version] += 1
            while self._version == version:
                is_over = self._is_over.is_set() and len(self.read) >= len(self.acknowledged)
                if is_over or not self._take(consumer):
                    consumer.close()
                    return
            consumer.close()

    def _take(self, consumer: Consumer) -> bool:
        """Read and commit; return False if that is not possible any more."""
        for message in consumer.consume(500, 0.2):
            error = message.error()
            if error is None:
                self.read[message.value() or b""] += 1
                end = TopicPartition(TOPIC, message.partition() or 0, (message.offset() or 0) + 1)
                deadline = time.monotonic() + 60
                while not self._is_committed(consumer, end):
                    if time.monotonic() > deadline:
                        self.errors.append("cannot commit")
                        return False
            elif not error.retriable() and error.code() not in WENT:
                self.errors.append(f"consume: {error}")
        return True

    def _is_committed(self, consumer: Consumer, end: TopicPartition) -> bool:
        try:
            consumer.commit(offsets=[end], asynchronous=False)
        except KafkaException as error:
            reason = error.args[0]
            if not reason.retriable() and reason.code() not in WENT:
                self.errors.append(f"commit: {reason}")
                return True
            return False
        return True


class UpgradePath:
    """The three processes, and what each of them is started with."""

    def __init__(self, folder: Path, etcd: EtcdCluster) -> None:
        self.etcd = etcd
        self.made = Certificates.make(folder / "certificates")
        root = folder / "root"
        root.mkdir()
        self.three = BmqCluster(
            root.as_uri(), etcd, proxies=0, brokers=0, controllers=0, coordinators=0, nodes=3,
            environment={**SETTINGS, "BMQ_CLUSTER": "bmq"},
        )  # fmt: skip
        names = self.three.names(NODE)
        self.secured = dict(zip(names, free_ports(3), strict=True))

    def listeners(self, name: str, *, is_open: bool) -> dict[str, str]:
        """Return the listeners of a process: the secured one, and the open one if that is still there."""
        addresses = {"PLAINTEXT": self.three[name].port} if is_open else {}
        addresses["SECURED"] = self.secured[name]
        return {
            "BMQ_LISTENERS": ",".join(f"{each}://127.0.0.1:{port}" for each, port in addresses.items()),
            "BMQ_ADVERTISED_LISTENERS": ",".join(f"{each}://localhost:{port}" for each, port in addresses.items()),
            "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,SECURED:SASL_SSL",
            "BMQ_LISTENER_NAME_SECURED_SASL_ENABLED_MECHANISMS": "SCRAM-SHA-512",
            "BMQ_SSL_KEYSTORE_LOCATION": str(self.made.server),
        }

    def restart(self, *, is_open: bool, **settings: str) -> None:
        """Restart the processes one after another."""
        for name in self.three.names(NODE):
            server = self.three[name]
            server.stop()
            server.process.environment = {
                **SETTINGS, "BMQ_CLUSTER": "bmq", **self.listeners(name, is_open=is_open), **settings
            }  # fmt: skip
            server.start()
            self.three.wait_stable()

    def open_client(self) -> Settings:
        return {"bootstrap.servers": self.three.bootstrap}

    def client(self, login: tuple[str, str]) -> Settings:
        return {
            "bootstrap.servers": ",".join(f"localhost:{port}" for port in self.secured.values()),
            "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": login[0],
            "sasl.password": login[1], "ssl.ca.location": str(self.made.trust),
        }  # fmt: skip


def add_first_user(path: UpgradePath, folder: Path) -> None:
    (folder / "password").write_text(ADMIN[1])
    words = ["--meta", path.etcd.url, "--mechanism", "SCRAM-SHA-512", "--password-file", str(folder / "password")]
    bmq = Path(sys.executable).with_name("bmq")
    done = subprocess.run(
        [bmq, "cluster", "add-scram", *words, ADMIN[0]], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def add_user(path: UpgradePath) -> None:
    credential = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
    change = admin.UserScramCredentialUpsertion(ALICE[0], credential, ALICE[1].encode())
    client = admin.AdminClient(path.client(ADMIN))  # its requests end with it
    for done in client.alter_user_scram_credentials([change]).values():
        done.result(30)


def add_acls(path: UpgradePath) -> None:
    literal, allow, operation = admin.ResourcePatternType.LITERAL, admin.AclPermissionType.ALLOW, admin.AclOperation
    rights = [
        (admin.ResourceType.TOPIC, TOPIC, operation.READ), (admin.ResourceType.TOPIC, TOPIC, operation.WRITE),
        (admin.ResourceType.GROUP, GROUP, operation.READ),
    ]  # fmt: skip
    acls = [admin.AclBinding(kind, name, literal, "User:alice", "*", each, allow) for kind, name, each in rights]
    client = admin.AdminClient(path.client(ADMIN))
    for done in client.create_acls(acls).values():
        done.result(30)


def status_of(server: BmqServer, path: str, login: tuple[str, str] | None = None) -> int:
    headers = {} if login is None else {"Authorization": f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(server.http + path, headers=headers), timeout=15
        ) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def is_served(settings: Settings) -> bool:
    try:
        admin.AdminClient({**settings, "log_level": 0}).list_topics(timeout=5)
    except KafkaException:
        return False
    return True


def test_an_open_cluster_becomes_a_secured_one_while_clients_work(tmp_path: Path) -> None:
    standard = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with EtcdCluster() as etcd:
        path = UpgradePath(tmp_path, etcd)
        with path.three:
            create_topic(path.three.bootstrap, TOPIC, PARTITIONS)
            with Clients(path.open_client()) as clients:
                clients.progress()
                add_first_user(path, tmp_path)
                path.restart(is_open=True, BMQ_INTERNAL_SECRET=SECRET, BMQ_INTERNAL_SECRET_REQUIRED="false")
                clients.progress()
                add_user(path)
                path.restart(
                    is_open=True, BMQ_INTERNAL_SECRET=SECRET, BMQ_AUTHORIZER_CLASS_NAME=standard,
                    BMQ_SUPER_USERS="User:admin;User:ANONYMOUS", BMQ_HTTP_AUTHENTICATION="basic",
                )  # fmt: skip
                clients.progress()
                add_acls(path)
                clients.move(path.client(ALICE))
                path.restart(
                    is_open=False, BMQ_INTERNAL_SECRET=SECRET, BMQ_AUTHORIZER_CLASS_NAME=standard,
                    BMQ_SUPER_USERS="User:admin", BMQ_HTTP_AUTHENTICATION="basic",
                )  # fmt: skip
                clients.progress()
            assert clients.errors == []
            assert clients.read == Counter(clients.acknowledged)
            assert max(clients.read.values()) == 1
            assert not is_served(path.open_client())
            assert not is_served({**path.client(ALICE), "sasl.password": "wrong"})
            client = admin.AdminClient(path.client(ALICE))
            refused = client.create_topics([admin.NewTopic("other", 1, 1)])["other"].exception(30)
            assert refused.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
            for name in path.three.names(NODE):
                server = path.three[name]
                assert status_of(server, "/api/v1/cluster") == 401
                assert status_of(server, "/api/v1/cluster", ALICE) == 403
                assert status_of(server, "/api/v1/cluster", ADMIN) == 200
                assert "does not have this cluster's secret" not in server.log.read_text()
