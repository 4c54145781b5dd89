"""`bmq` commands with ``--command-config`` on a real Apache Kafka, which ends connections in other ways than BMQ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bmq.cli.main import main
from tests.harness.certificates import PASSWORD, Certificates
from tests.services.kafka import KafkaCluster

pytestmark = pytest.mark.clients
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(made: Certificates) -> Iterator[KafkaCluster]:
    keystore = made.pkcs12(made.server, "kafka.p12")
    properties = {
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,MUTUAL:SSL,OUT:SASL_SSL,OPEN:SASL_PLAINTEXT"
        ),
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "ssl.truststore.location": str(made.trust),
        "ssl.truststore.type": "PEM",
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN",
        **{
            f"listener.name.{name}.plain.sasl.jaas.config": (f'{PLAIN} required user_admin="secret" user_bob="sesame";')
            for name in ("out", "open")
        },
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
    }
    with KafkaCluster(listeners=("MUTUAL", "OUT", "OPEN"), properties=properties) as started:
        yield started


@pytest.fixture
def config(tmp_path: Path, made: Certificates) -> str:
    path = tmp_path / "client.properties"
    path.touch(mode=0o600)
    path.write_text(f"ssl.truststore.location={made.trust}\nssl.endpoint.identification.algorithm=\n")
    return str(path)


def run(address: str, config: str, capsys: pytest.CaptureFixture[str], *words: str, **settings: str) -> tuple[int, str]:
    """Run `bmq`; return its status and its errors."""
    with Path(config).open("a") as stream:
        stream.writelines(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items())
    status = main([*words, "--bootstrap-server", address, "--command-config", config, "--timeout", "60"])
    return status, capsys.readouterr().err


def jaas(user: str, password: str) -> str:
    return f'{PLAIN} required username="{user}" password="{password}";'


LIST = ("topic", "list")


def test_acls_and_rights(kafka: KafkaCluster, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    address = kafka.address(1, "OUT")
    sasl = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": jaas("admin", "secret")}
    assert run(address, config, capsys, "topic", "create", "orders", **sasl) == (0, "")
    rights = ("--principal", "User:bob", "--operation", "describe", "--topic", "orders")
    assert run(address, config, capsys, "acl", "add", *rights) == (0, "")
    status, error = run(address, config, capsys, "topic", "delete", "orders", sasl_jaas_config=jaas("bob", "sesame"))
    assert (status, "not authorised for Delete on topic orders" in error) == (1, True), error
    status, error = run(address, config, capsys, "acl", "list")
    assert (status, "not authorised for Describe on the cluster" in error) == (1, True), error


@pytest.mark.parametrize(
    ("listener", "settings", "status", "said"),
    [
        ("PLAINTEXT", {"security_protocol": "SSL"}, 2, "is a plain port, without TLS"),
        ("MUTUAL", {"security_protocol": "PLAINTEXT"}, 2, "speaks TLS: give --command-config a file with"),
        ("MUTUAL", {"security_protocol": "SSL"}, 1, "ssl.keystore.location in --command-config gives none"),
        ("OPEN", {"security_protocol": "PLAINTEXT"}, 2, "serves nobody without a log-in (SASL)"),
        (
            "OUT",
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": jaas("admin", "wrong")},
            1,
            "refused the log-in as admin by PLAIN: Authentication failed",
        ),
        (
            "PLAINTEXT",
            {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_jaas_config": jaas("a", "b")},
            2,
            "listener without SASL",
        ),
        (
            "OUT",
            {
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_jaas_config": jaas("a", "b").replace("plain.Plain", "scram.Scram"),
            },
            2,
            "does not have sasl.mechanism=SCRAM-SHA-512 enabled; it has PLAIN",
        ),
    ],
)
def test_what_does_not_get_in(
    kafka: KafkaCluster, config: str, capsys: pytest.CaptureFixture[str],
    listener: str, settings: dict[str, str], status: int, said: str,
) -> None:  # fmt: skip
    if "SSL" not in settings["security_protocol"]:
        Path(config).write_text("")  # a truststore without TLS is refused before a connection
    found, error = run(kafka.address(1, listener), config, capsys, *LIST, **settings)
    assert (found, said in error) == (status, True), error
