"""`bmq` commands with ``--command-config`` on real listeners: what gets in, and what each failure says, at once.

Shown: SASL_SSL with PLAIN, TLS with a client's certificate, PEM and
PKCS#12; each error of the list in docs/security.md, which ends the command long before its time-out.
"""

from __future__ import annotations

import datetime
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.harness.certificates import PASSWORD, Certificates
from tests.services.bmq import BmqServer
from tests.services.processes import free_ports

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
TIMEOUT_S = 30.0
SOON_S = 15.0
"""Half of a command's time-out: a command that retries until then has failed."""


class Place:
    """A server with a listener of each protocol, ACLs, and the super user `admin`."""

    def __init__(self, folder: Path, made: Certificates, other: Certificates) -> None:
        self.folder, self.made, self.other = folder, made, other
        self.plain, self.tls, self.mutual, self.sasl, self.sasl_tls, self.expired, self.lost = free_ports(7)
        names = {
            "PLAIN": (self.plain, "PLAINTEXT"), "TLS": (self.tls, "SSL"), "MUTUAL": (self.mutual, "SSL"),
            "SASL": (self.sasl, "SASL_PLAINTEXT"), "OUT": (self.sasl_tls, "SASL_SSL"),
            "OLD": (self.expired, "SSL"), "LOST": (self.lost, "SSL"),
        }  # fmt: skip
        past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        expired = made.authority.issue_cert("localhost", "127.0.0.1", not_after=past)
        expired.private_key_and_cert_chain_pem.write_to_path(folder / "expired.pem")
        by_name = made.authority.issue_cert("localhost")
        by_name.private_key_and_cert_chain_pem.write_to_path(folder / "by-name.pem")
        self.server = BmqServer(
            (folder / "root").as_uri(),
            folder=folder,
            environment={
                "BMQ_LISTENERS": ",".join(f"{name}://127.0.0.1:{port}" for name, (port, _) in names.items()),
                "BMQ_ADVERTISED_LISTENERS": ",".join(
                    f"{name}://{'127.0.0.1' if name == 'LOST' else 'localhost'}:{port}"
                    for name, (port, _) in names.items()
                ),
                "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": ",".join(f"{name}:{each}" for name, (_, each) in names.items()),
                "BMQ_SSL_KEYSTORE_LOCATION": str(made.server),
                "BMQ_LISTENER_NAME_OLD_SSL_KEYSTORE_LOCATION": str(folder / "expired.pem"),
                "BMQ_LISTENER_NAME_LOST_SSL_KEYSTORE_LOCATION": str(folder / "by-name.pem"),
                "BMQ_SSL_TRUSTSTORE_LOCATION": str(made.trust),
                "BMQ_LISTENER_NAME_MUTUAL_SSL_CLIENT_AUTH": "required",
                "BMQ_LISTENER_NAME_MUTUAL_SSL_PRINCIPAL_MAPPING_RULES": "RULE:^.*CN=([a-z]+).*$/$1/",
                "BMQ_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-512",
                "BMQ_LISTENER_NAME_SASL_PLAIN_SASL_JAAS_CONFIG": f"{PLAIN} required user_admin=secret;",
                "BMQ_LISTENER_NAME_OUT_PLAIN_SASL_JAAS_CONFIG": f"{PLAIN} required user_admin=secret user_bob=sesame;",
                "BMQ_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "BMQ_SUPER_USERS": "User:admin;User:alice;User:ANONYMOUS",
                "BMQ_OFFSETS_TOPIC_NUM_PARTITIONS": "2",
            },
        )

    def config(self, name: str, **settings: object) -> str:
        """Write a file of settings, in which an underscore stands for a dot; return its path."""
        path = self.folder / f"{name}.properties"
        path.write_text("".join(f"{key.replace('_', '.')}={value}\n" for key, value in settings.items()))
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        return str(path)

    def run(self, port: int, config: str | None, *words: str, host: str = "localhost") -> tuple[int, str, str]:
        """Run `bmq`; return its status, output and errors.  Fails if it takes long."""
        given = [*words, "--bootstrap-server", f"{host}:{port}", "--timeout", f"{TIMEOUT_S:g}"]
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self.folder), "BMQ_COMMAND_CONFIG": config or ""}
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "bmq.cli.main", *given],
            env=environment, capture_output=True, text=True, input="one\n", timeout=120, check=False,
        )  # fmt: skip
        assert time.monotonic() - began < SOON_S, done.stderr
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("commands")
    made = Certificates.make(folder / "certificates")
    other = Certificates.make(folder / "others")
    running = Place(folder, made, other)
    with running.server:
        yield running
        assert "Traceback" not in running.server.log.read_text()


def scram(user: str, password: str) -> str:
    return f'{SCRAM} required username="{user}" password="{password}";'


def plain(user: str, password: str) -> str:
    return f'{PLAIN} required username="{user}" password="{password}";'


def admin_config(place: Place) -> str:
    return place.config(
        "admin", security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=plain("admin", "secret"),
        ssl_truststore_location=place.made.trust, ssl_truststore_type="PEM",
    )  # fmt: skip


def test_topics_records_and_groups_over_sasl_ssl(place: Place) -> None:
    config = admin_config(place)
    for words in (
        ("topic", "create", "orders", "--partitions", "2"),
        ("produce", "orders"),
        ("consume", "orders", "--to", "latest"),
        ("consume", "orders", "--group", "billing", "--to", "latest"),
        ("group", "describe", "billing"),
        ("cluster", "configs"),
        ("cluster", "status"),
    ):
        status, _, errors = place.run(place.sasl_tls, config, *words)
        assert (status, errors) == (0, ""), words
    assert "orders" in place.run(place.sasl_tls, config, "topic", "list")[1]


def test_a_clients_certificate_in_pem_and_in_pkcs12(place: Place) -> None:
    made = place.made
    store, trust = made.pkcs12(made.client, "c.p12"), made.pkcs12(made.trust, "ca.p12", has_key=False)
    pem = place.config(
        "pem", security_protocol="SSL", ssl_truststore_location=made.trust, ssl_keystore_location=made.client
    )
    packed = place.config(
        "p12", security_protocol="SSL", ssl_truststore_location=trust, ssl_truststore_password=PASSWORD,
        ssl_keystore_location=store, ssl_keystore_password=PASSWORD, ssl_keystore_type="PKCS12",
    )  # fmt: skip
    for config in (pem, packed):
        status, _, errors = place.run(place.mutual, config, "cluster", "configs")
        assert (status, errors) == (0, "")


def refused(place: Place, port: int, config: str | None, *words: str, host: str = "localhost") -> tuple[int, str]:
    status, _, errors = place.run(port, config, *(words or ("topic", "list")), host=host)
    assert errors.startswith("bmq: ")
    assert errors.count("\n") == 1
    assert "secret" not in errors
    return status, errors


def test_tls_at_a_plain_port(place: Place) -> None:
    config = place.config("tls", security_protocol="SSL", ssl_truststore_location=place.made.trust)
    status, error = refused(place, place.plain, config)
    assert status == 2
    assert "is a plain port, without TLS: security.protocol=SSL does not fit, PLAINTEXT does" in error
    config = place.config(
        "sasl-tls-at-plain", security_protocol="SASL_SSL", sasl_mechanism="PLAIN",
        sasl_jaas_config=plain("admin", "secret"), ssl_truststore_location=place.made.trust,
    )  # fmt: skip
    status, error = refused(place, place.plain, config)
    assert status == 2
    assert "is a plain port, without TLS: security.protocol=SASL_SSL does not fit, PLAINTEXT does" in error
    status, error = refused(place, place.sasl, config)
    assert status == 2
    assert "is a plain port, without TLS: security.protocol=SASL_SSL does not fit, SASL_PLAINTEXT does" in error


def test_plain_text_at_a_tls_port(place: Place) -> None:
    status, error = refused(place, place.tls, None)
    assert status == 2
    assert "speaks TLS: give --command-config a file with security.protocol=SSL" in error
    config = place.config(
        "sasl", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=plain("admin", "secret")
    )
    status, error = refused(place, place.sasl_tls, config)
    assert status == 2
    assert "speaks TLS: give --command-config a file with security.protocol=SASL_SSL" in error


def test_no_log_in_at_a_sasl_port_and_a_log_in_where_none_is_asked(place: Place) -> None:
    status, error = refused(place, place.sasl, None)
    assert status == 2
    assert "serves nobody without a log-in (SASL)" in error
    config = place.config(
        "sasl", security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=plain("admin", "secret")
    )
    status, error = refused(place, place.plain, config)
    assert status == 2
    assert "listener without SASL" in error


def test_a_certificate_that_is_not_trusted_expired_or_of_another_name(place: Place) -> None:
    config = place.config("other", security_protocol="SSL", ssl_truststore_location=place.other.trust)
    status, error = refused(place, place.tls, config)
    assert status == 2
    assert "is not trusted" in error
    assert "ssl.truststore.location in --command-config names the file of its authority" in error
    config = place.config("right", security_protocol="SSL", ssl_truststore_location=place.made.trust)
    assert "has expired" in refused(place, place.expired, config)[1]
    status, error = refused(place, place.lost, config, host="127.0.0.1")
    assert (status, "is not for 127.0.0.1: connect by a name that it has" in error) == (2, True)
    config = place.config(
        "any", security_protocol="SSL", ssl_truststore_location=place.made.trust,
        ssl_endpoint_identification_algorithm="",
    )  # fmt: skip
    assert place.run(place.lost, config, "topic", "list", host="127.0.0.1")[0] == 0


def test_an_advertised_address_that_the_certificate_does_not_have(place: Place) -> None:
    config = place.config("right", security_protocol="SSL", ssl_truststore_location=place.made.trust)
    environment = {**os.environ, "BMQ_COMMAND_CONFIG": config, "XDG_CONFIG_HOME": str(place.folder)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bmq.cli.main", "topic", "list", "--timeout", "3",
         "--bootstrap-server", f"localhost:{place.lost}"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"the certificate of 127.0.0.1:{place.lost} is not for 127.0.0.1" in done.stderr


@pytest.mark.parametrize("user", ["admin", "nobody"])
def test_a_wrong_password(place: Place, user: str) -> None:
    settings = {"security_protocol": "SASL_SSL", "ssl_truststore_location": place.made.trust}
    for mechanism, jaas in (("PLAIN", plain(user, "wr0ng")), ("SCRAM-SHA-512", scram(user, "wr0ng"))):
        config = place.config("wrong", **settings, sasl_mechanism=mechanism, sasl_jaas_config=jaas)
        status, error = refused(place, place.sasl_tls, config)
        assert status == 1
        assert f"refused the log-in as {user} by {mechanism}: " in error
        assert "wr0ng" not in error


def test_a_mechanism_that_is_not_enabled(place: Place) -> None:
    config = place.config(
        "mechanism", security_protocol="SASL_SSL", ssl_truststore_location=place.made.trust,
        sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=scram("admin", "secret"),
    )  # fmt: skip
    status, error = refused(place, place.sasl_tls, config)
    assert status == 2
    assert "does not have sasl.mechanism=SCRAM-SHA-256 enabled; it has PLAIN, SCRAM-SHA-512" in error


def test_a_clients_certificate_that_is_missing_expired_or_of_another_authority(place: Place) -> None:
    trust = {"security_protocol": "SSL", "ssl_truststore_location": place.made.trust}
    status, error = refused(place, place.mutual, place.config("none", **trust))
    assert status == 1
    assert "ssl.keystore.location in --command-config gives none" in error
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    issued = place.made.authority.issue_cert("alice@example.org", common_name="alice", not_after=past)
    issued.private_key_and_cert_chain_pem.write_to_path(place.folder / "old.pem")
    status, error = refused(
        place, place.mutual, place.config("old", **trust, ssl_keystore_location=place.folder / "old.pem")
    )
    assert (status, "refused the client's certificate: it has expired" in error) == (1, True), error
    stranger = trustme.CA().issue_cert("alice@example.org", common_name="alice")
    stranger.private_key_and_cert_chain_pem.write_to_path(place.folder / "stranger.pem")
    status, error = refused(
        place, place.mutual, place.config("stranger", **trust, ssl_keystore_location=place.folder / "stranger.pem")
    )
    assert (status, "refused the client's certificate: unknown ca" in error) == (1, True), error


def test_what_a_user_may_not_do_is_named_with_the_right_and_the_resource(place: Place) -> None:
    """Give bob some rights by `bmq acl`, and let him try what he may not do."""
    admin = admin_config(place)
    bob = place.config(
        "bob", security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=plain("bob", "sesame"),
        ssl_truststore_location=place.made.trust,
    )  # fmt: skip
    assert place.run(place.sasl_tls, admin, "topic", "create", "secrets", "--partitions", "1")[0] == 0
    assert place.run(place.sasl_tls, admin, "topic", "create", "letters", "--partitions", "1")[0] == 0
    given = ("--principal", "User:bob", "--operation", "describe", "--topic", "letters", "--group", "mine")
    status, out, _ = place.run(place.sasl_tls, admin, "acl", "add", *given)
    assert (status, out.count("added: ")) == (0, 2)
    for words, right in (
        (("topic", "describe", "secrets"), "Describe on topic secrets (TOPIC_AUTHORIZATION_FAILED)"),
        (("topic", "describe", "letters"), "DescribeConfigs on it"),
        (("topic", "create", "new"), "Create on topic new, or on the cluster (TOPIC_AUTHORIZATION_FAILED)"),
        (("topic", "delete", "letters"), "Delete on topic letters (TOPIC_AUTHORIZATION_FAILED)"),
        (("topic", "alter", "letters", "--partitions", "2"), "Alter on topic letters (TOPIC_AUTHORIZATION_FAILED)"),
        (("topic", "alter", "letters", "--config", "retention.ms=1"), "AlterConfigs on topic letters (TOPIC_AUTHORI"),
        (("produce", "secrets"), "Describe on topic secrets (TOPIC_AUTHORIZATION_FAILED)"),
        (("produce", "letters"), "Write on topic letters"),
        (("consume", "secrets", "--to", "latest"), "Describe on topic secrets (TOPIC_AUTHORIZATION_FAILED)"),
        (("consume", "letters", "--group", "mine", "--to", "latest"), "Read on group mine (GROUP_AUTHORIZATION_FAI"),
        (("group", "describe", "billing"), "Describe on group billing (GROUP_AUTHORIZATION_FAILED)"),
        (("group", "delete", "mine"), "Delete on group mine (GROUP_AUTHORIZATION_FAILED)"),
        (("group", "reset-offsets", "billing", "--to-latest", "--topic", "letters"), "Describe on group billing"),
        (("cluster", "configs"), "DescribeConfigs on the cluster"),
        (("acl", "list"), "Describe on the cluster (CLUSTER_AUTHORIZATION_FAILED)"),
        (("acl", "remove", "--topic", "letters"), "Alter on the cluster (CLUSTER_AUTHORIZATION_FAILED)"),
    ):
        status, _, errors = place.run(place.sasl_tls, bob, *words)
        assert (status, f"not authorised for {right}" in errors) == (1, True), (words, errors)
    assert place.run(place.sasl_tls, admin, "produce", "letters")[0] == 0
    status, _, errors = place.run(place.sasl_tls, bob, "consume", "letters", "--to", "latest")
    assert (status, "not authorised for Read on topic letters (TOPIC_AUTHOR" in errors) == (1, True), errors
    status, out, _ = place.run(place.sasl_tls, admin, "acl", "remove", "--principal", "User:bob", "--pattern", "any")
    assert (status, out.count("removed: ")) == (0, 2)
