"""The ten minutes of docs/security.md, walked step by step with the page's own settings and commands.

The page is read, so it and this test cannot drift apart: only addresses, paths and passwords are replaced.  Shown: a
producer loses nothing in step 1; users and ACLs are made as ``admin``; in the end the open listener is closed, a client
of either listener may do what the page's ACLs say and nothing else, and no port is open to strangers.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import admin as confluent_admin

from tests.harness.certificates import Certificates
from tests.integration.load import create_topic
from tests.services.kafka_tools import run_tool
from tests.services.processes import ServiceProcess, free_ports, wait_for

PAGES = Path(__file__).resolve().parents[2] / "docs"
ADMIN = "admins-password"
TIMEOUT_S = 60.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
admin: Any = confluent_admin  # its module does not export all of its classes for type checkers
Settings = dict[str, Any]


def section(page: str, title: str) -> str:
    """Return the text below a heading of a page, up to the next heading."""
    text = (PAGES / page).read_text()
    (found,) = re.findall(rf"^#+ {re.escape(title)}\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def blocks(text: str, language: str) -> list[str]:
    return [block for named, block in _BLOCK.findall(text) if named == language]


def commands(text: str, program: str) -> list[list[str]]:
    """Return the arguments of a program's commands in a text's blocks of shell lines."""
    lines = "".join(blocks(text, "sh") + blocks(text, "")).replace("\\\n", " ").splitlines()
    return [words[1:] for line in lines if (words := shlex.split(line, comments=True))[:1] == [program]]


class Walk:
    """One server, the files that the page names, and the settings that it has by now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = section("security.md", "Ten minutes: mTLS, SCRAM and ACLs")
        self.made = Certificates.make(folder / "etc")
        (folder / "etc/clients-ca.pem").write_bytes(self.made.trust.read_bytes())
        (folder / "etc/admin").write_text(ADMIN)
        self.open, self.scram, self.mtls, self.http, internal = free_ports(5)
        self.config: dict[str, str] = {}
        self.set('root = "file:///var/lib/bmq/log"\nmeta = "sqlite:///var/lib/bmq/meta.db"\n')
        self.set(
            f'http = "127.0.0.1:9080"\ninternal = "127.0.0.1:{internal}"\nlisteners = "PLAINTEXT://127.0.0.1:9092"'
        )
        (serve,) = [words for words in commands(self.steps, "bmq") if words[0] == "serve"]
        command = [self.bmq, *(self.here(word) for word in serve)]
        self.server = ServiceProcess("bmq", command, log=folder / "bmq.log")

    @property
    def bmq(self) -> str:
        return str(Path(sys.executable).with_name("bmq"))

    def here(self, text: str) -> str:
        """Return a text of the page with the ports and folders of this test."""
        for number, port in ((9092, self.open), (9094, self.scram), (9096, self.mtls), (9080, self.http)):
            text = re.sub(rf":{number}\b", f":{port}", text)
        text = text.replace("/etc/bmq/", f"{self.folder}/etc/").replace("/var/lib/bmq/", f"{self.folder}/")
        return f"{self.folder}/bmq.toml" if text == "bmq.toml" else text

    def set(self, block: str) -> None:
        """Add the settings of a block of TOML to the file, or replace those that are there."""
        for line in block.splitlines():
            name, _, value = line.partition(" = ")
            self.config[name] = self.here(value)
        (self.folder / "bmq.toml").write_text("".join(f"{name} = {value}\n" for name, value in self.config.items()))

    def start(self) -> None:
        began = self.server.log.stat().st_size if self.server.log.exists() else 0
        self.server.start()
        wait_for(lambda: self.is_ready(began), "a server that is ready", timeout_s=TIMEOUT_S)

    def is_ready(self, began: int) -> bool:
        assert self.server.is_running, self.server.log.read_text()
        return any(line.startswith(b"ready") for line in self.server.log.read_bytes()[began:].splitlines())

    def stop(self) -> None:
        assert self.server.terminate(timeout_s=TIMEOUT_S) == 0

    def restart(self, block: str) -> None:
        self.stop()
        self.set(block)
        self.start()

    def run_page(self, tool: str, words: list[str]) -> None:
        """Run a command of Kafka's at the SCRAM listener, as ``admin``."""
        properties = str(self.folder / "admin.properties")
        given = {"node:9092": f"localhost:{self.scram}", "admin.properties": properties}
        assert set(given) <= set(words)
        run_tool(tool, *(given.get(word, word) for word in words))

    def write_admin_properties(self) -> None:
        (block,) = blocks(section("cli.md", "TLS and log-in: --command-config"), "properties")
        truststore = "ssl.truststore.type=PEM\n"  # Kafka's own tools have to be told
        text = self.here(block).replace('"alice"', '"admin"').replace("alice-secret", ADMIN)
        (self.folder / "admin.properties").write_text(truststore + text)

    def settings_of(self, user: str, password: str) -> Settings:
        return {
            "bootstrap.servers": f"localhost:{self.scram}", "security.protocol": "SASL_SSL", "log_level": 0,
            "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password,
            "ssl.ca.location": str(self.made.trust),
        }  # fmt: skip

    def settings_by_certificate(self, common_name: str) -> Settings:
        issued = self.made.authority.issue_cert(
            f"{common_name}@example.org", common_name=common_name, organization_unit_name="ServiceUsers"
        )
        file = self.folder / f"{common_name}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(file)
        return {
            "bootstrap.servers": f"localhost:{self.mtls}", "security.protocol": "SSL", "log_level": 0,
            "ssl.ca.location": str(self.made.trust), "ssl.certificate.location": str(file),
            "ssl.key.location": str(file),
        }  # fmt: skip

    def curl(self, *, logs_in: bool) -> int:
        """Return the status of the page's request, with its log-in or without."""
        (line,) = re.findall(r"`(curl [^`]*)`", self.steps)
        words = shlex.split(self.here(line))
        place = words.index("-u")
        words[place + 1] += f":{ADMIN}"
        if not logs_in:
            del words[place : place + 2]
        words[words.index("--cacert") + 1] = str(self.made.trust)
        command = [*words, "-s", "-o", "/dev/null", "-w", "%{http_code}", "--noproxy", "*"]
        return int(subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout)


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    made = Walk(tmp_path)
    try:
        yield made
    finally:
        made.server.kill()


def produce(settings: Settings, topic: str, count: int = 1) -> KafkaError | None:
    """Return the error of the last record, None if all were written."""
    errors: list[KafkaError | None] = []
    producer = Producer({**settings, "log_level": 0})
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return errors[-1]


def consume(settings: Settings, group: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values: list[bytes] = []

    def has_all() -> bool:
        for message in consumer.consume(count - len(values), 0.5):
            error = message.error()
            assert error is None, error
            values.append(message.value() or b"")
        return len(values) == count

    wait_for(has_all, f"{count} records", timeout_s=TIMEOUT_S)
    consumer.close()
    return values


def is_served(settings: Settings) -> bool:
    try:
        admin.AdminClient({**settings, "log_level": 0}).list_topics(timeout=5)
    except KafkaException:
        return False
    return True


def test_the_ten_minutes_of_the_page(walk: Walk) -> None:
    first, authorizer, last = blocks(walk.steps, "toml")
    (add_scram,) = [words for words in commands(walk.steps, "bmq") if words[0] == "cluster"]
    opened: Settings = {"bootstrap.servers": f"localhost:{walk.open}"}
    walk.start()
    create_topic(opened["bootstrap.servers"], "orders", 1)
    create_topic(opened["bootstrap.servers"], "orders-of-may", 1)

    # Step 1, with a producer that runs through it.
    errors: list[KafkaError | None] = []
    producer = Producer({**opened, "log_level": 0, "enable.idempotence": True})
    for number in range(100):
        producer.produce("orders", b"%d" % number, on_delivery=lambda error, _: errors.append(error))
        producer.poll(0)
    walk.stop()
    for number in range(100, 200):
        producer.produce("orders", b"%d" % number, on_delivery=lambda error, _: errors.append(error))
    subprocess.run([walk.bmq, *map(walk.here, add_scram)], check=True, timeout=TIMEOUT_S)
    walk.config.pop("listeners")
    walk.set(first)
    walk.start()
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [None] * 200
    assert is_served(walk.settings_of("admin", ADMIN))
    assert not is_served(walk.settings_of("admin", "wrong"))

    # Step 2: clients of the open listener keep their rights, others need ACLs.
    walk.restart(authorizer)
    walk.write_admin_properties()
    make_alice, *_ = commands(section("security.md", "SCRAM"), "kafka-configs.sh")
    (secret,) = re.findall(r"password=([^]]*)\]", make_alice[-1])
    walk.run_page("ConfigCommand", make_alice)
    alice = walk.settings_of("alice", secret)
    refused = produce(alice, "orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    for words in commands(section("security.md", "Authorisation"), "kafka-acls.sh"):
        walk.run_page("org.apache.kafka.tools.AclCommand", words)
    assert consume(alice, "billing", "orders", 200) == [b"%d" % number for number in range(200)]
    assert produce(opened, "orders") is None

    # Step 3: without the open listener; by certificates whoever the mapping rule names.
    walk.restart(last)
    assert not is_served(opened)
    by_certificate = walk.settings_by_certificate("Alice")
    assert consume(by_certificate, "billing", "orders", 1) == [b"0"]
    refused = produce(by_certificate, "orders")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert produce(walk.settings_by_certificate("Bob"), "orders-of-may") is None
    assert not is_served({"bootstrap.servers": f"localhost:{walk.mtls}", "security.protocol": "SSL",
                          "ssl.ca.location": str(walk.made.trust)})  # fmt: skip

    # Step 4: only a log-in gets in, and no port is open: it starts on all addresses without --insecure.
    assert (walk.curl(logs_in=True), walk.curl(logs_in=False)) == (200, 401)
    walk.restart(f"listeners = {walk.config['listeners'].replace('127.0.0.1', '0.0.0.0')}")
    assert is_served(alice)
