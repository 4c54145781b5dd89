"""The sink of Spark on a SASL_SSL listener with SCRAM and ACLs: what is written, what is refused, what nobody sees."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin as confluent_admin
from pyspark.sql import DataFrame, SparkSession

from bmq.cli.main import main
from tests.harness.certificates import Certificates
from tests.services.bmq import BmqServer
from tests.services.processes import free_ports, wait_for
from tests.services.spark import frame, start_spark

PASSWORD = "open-sesame-7"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SOON_S = 60.0
"""Half of the producer's delivery.timeout.ms: a write that waits for that has failed."""
admin: Any = confluent_admin  # its module does not export all of its classes for type checkers


class Place:
    """A server with a SASL_SSL listener, on which alice may write to the topic `orders` alone."""

    def __init__(self, folder: Path, made: Certificates) -> None:
        self.folder, self.made = folder, made
        (self.port,) = free_ports(1)
        self.root = (folder / "root").as_uri()
        self.server = BmqServer(
            self.root,
            folder=folder,
            environment={
                "BMQ_LISTENERS": f"OUT://127.0.0.1:{self.port}",
                "BMQ_ADVERTISED_LISTENERS": f"OUT://localhost:{self.port}",
                "BMQ_LISTENER_SECURITY_PROTOCOL_MAP": "OUT:SASL_SSL",
                "BMQ_SSL_KEYSTORE_LOCATION": str(made.server),
                "BMQ_SASL_ENABLED_MECHANISMS": "PLAIN,SCRAM-SHA-512",
                "BMQ_LISTENER_NAME_OUT_PLAIN_SASL_JAAS_CONFIG": f"{PLAIN} required user_admin=secret;",
                "BMQ_AUTHORIZER_CLASS_NAME": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "BMQ_SUPER_USERS": "User:admin",
                "BMQ_AUTO_CREATE_TOPICS_ENABLE": "false",
            },
        )

    def prepare(self) -> None:
        config = self.folder / "admin.properties"
        config.touch(mode=0o600)
        config.write_text(
            f"security.protocol=SASL_SSL\nssl.truststore.location={self.made.trust}\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN} required username="admin" password="secret";\n'
        )
        server = ("--bootstrap-server", f"localhost:{self.port}", "--command-config", str(config))
        for topic in ("orders", "denied"):
            assert main(["topic", "create", topic, "--partitions", "1", *server]) == 0
        assert main(["acl", "add", "--principal", "User:alice", "--producer", "--topic", "orders", *server]) == 0
        rights = ("--operation", "describe", "--topic", "denied")
        assert main(["acl", "add", "--principal", "User:alice", *rights, *server]) == 0
        client = admin.AdminClient({
            "bootstrap.servers": f"localhost:{self.port}", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
            "sasl.username": "admin", "sasl.password": "secret", "ssl.ca.location": str(self.made.trust),
        })  # fmt: skip
        info = admin.ScramCredentialInfo(admin.ScramMechanism.SCRAM_SHA_512, 4096)
        change = admin.UserScramCredentialUpsertion("alice", info, PASSWORD.encode())
        for done in client.alter_user_scram_credentials([change], request_timeout=15).values():
            done.result(15)

    def options(self, password: str = PASSWORD, **others: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": f"localhost:{self.port}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": f'{SCRAM} required username="alice" password="{password}";',
            "kafka.ssl.truststore.location": str(self.made.trust),
            **others,
        }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("secured")
    running = Place(folder, Certificates.make(folder / "certificates"))
    with running.server:
        running.prepare()
        yield running


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def spark(events: Path) -> Iterator[SparkSession]:
    session = start_spark(
        spark_eventLog_enabled="true", spark_eventLog_dir=events.as_uri(), spark_eventLog_compress="false"
    )
    yield session
    session.stop()


def save(data: DataFrame, topic: str, options: dict[str, str]) -> None:
    data.write.format("bmq").mode("append").options(**options).option("topic", topic).save()


def refused(spark: SparkSession, topic: str, options: dict[str, str]) -> str:
    """Return why a write failed; fail if it took long, or if the reason has a password."""
    began = time.monotonic()
    with pytest.raises(Exception) as failed:
        save(spark.range(3).selectExpr("cast(id as string) as value"), topic, options)
    assert time.monotonic() - began < SOON_S
    assert PASSWORD not in str(failed.value)
    return str(failed.value)


@pytest.mark.needs_spark("stream writer")
def test_rows_are_written_and_nobody_sees_the_password(
    spark: SparkSession, place: Place, events: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Look for the password in Spark's event log, which is what its UI shows, and in what the driver writes."""
    data = spark.range(300).selectExpr("cast(id as string) as value")
    save(data, "orders", place.options())
    wait_for(lambda: frame(spark, place.root, topic="orders").count() == 300, "the rows in storage", timeout_s=60)

    folder = place.folder / "checkpoint"
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "5").load()
    writer = source.selectExpr("cast(value as string) as value").writeStream.format("bmq").trigger(availableNow=True)
    query = (
        writer.options(**place.options()).option("topic", "orders").option("checkpointLocation", str(folder)).start()
    )
    try:
        wait_for(lambda: query.lastProgress is not None, "a batch of the stream", timeout_s=60)
        query.explain(extended=True)
    finally:
        query.stop()
    found = [each.read_text(errors="replace") for each in events.rglob("*") if each.is_file()]
    assert any("SparkListenerSQLExecutionStart" in each for each in found)
    assert not any(PASSWORD in each for each in found)
    out, err = capfd.readouterr()
    assert "Physical Plan" in out
    assert PASSWORD not in out + err


def test_a_topic_that_may_not_be_written_is_named_with_the_right(spark: SparkSession, place: Place) -> None:
    assert "not authorised for Write on topic denied" in refused(spark, "denied", place.options())


def test_what_does_not_get_in_fails_at_once(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    error = refused(spark, "orders", place.options("wrong"))
    assert "no row can be written" in error
    assert "uthentication failed" in error
    other = Certificates.make(tmp_path)
    error = refused(spark, "orders", place.options(**{"kafka.ssl.truststore.location": str(other.trust)}))
    assert "certificate verify failed" in error
    error = refused(spark, "orders", place.options(**{"kafka.ssl.truststore.location": "/no/such/file"}))
    assert "ssl.truststore.location: cannot read /no/such/file" in error
    error = refused(spark, "orders", place.options(**{"kafka.sasl.mechanism": "SCRAM-SHA-1"}))
    assert "there is no mechanism 'SCRAM-SHA-1'" in error
