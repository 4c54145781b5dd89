"""Logs, log levels and traces of processes that are a cluster: on real etcd, segments in a local folder."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from bmq.core.wire.api_keys import ApiKey
from tests.services.bmq_cluster import BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.otlp import CollectedSpan, collector
from tests.services.processes import wait_for

BMQ = str(Path(sys.executable).with_name("bmq"))
RECORDS = 20
TIMEOUT_S = 60.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))

pytestmark = pytest.mark.etcd


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "till\x1b[2J\n7", "linger.ms": 0, "log_level": 0})
    for number in range(RECORDS):
        producer.produce("orders", str(number).encode())
        assert producer.flush(60) == 0


def levels(http: str, member: str) -> dict[str, str]:
    with _HTTP.open(f"{http}/api/v1/members/{member}/log-level", timeout=TIMEOUT_S) as response:
        notified: dict[str, Any] = json.load(response)
    return {each["logger"]: each["level"] for each in notified["loggers"]}


def whole(spans: list[CollectedSpan]) -> list[set[str]]:
    """Return the names of each trace that has come to a broker."""
    traces: dict[bytes, set[str]] = {}
    for each in spans:
        traces.setdefault(each.trace, set()).add(each.name)
    return [names for names in traces.values() if "flush" in names]


def test_processes_of_a_cluster_are_traced_and_told_to_log_more(etcd: EtcdCluster, tmp_path: Path) -> None:
    with collector() as collected:
        environment = {
            "BMQ_LOG_FORMAT": "json",
            "BMQ_DEFAULT_REPLICATION_FACTOR": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url,
            "OTEL_TRACES_SAMPLER": "always_on",
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        cluster = BmqCluster(
            f"file://{tmp_path / 'data'}", etcd, proxies=1, brokers=1, controllers=1, coordinators=1,
            environment=environment, folder=tmp_path / "cluster",
        )  # fmt: skip
        (tmp_path / "data").mkdir()
        with cluster:
            proxy, broker = cluster["proxy-0"], cluster["broker-0"]
            produce(cluster.bootstrap)
            wait_for(lambda: bool(whole(collected.spans())), "a trace from proxy to broker", timeout_s=TIMEOUT_S)

            def set_level(*words: str) -> subprocess.CompletedProcess[str]:
                command = [BMQ, "cluster", "log-level", *words, "--http", proxy.http]
                return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

            assert set_level("broker", "bmq.broker", "debug").returncode == 0
            assert levels(broker.http, "broker")["bmq.broker"] == "DEBUG", "whichever process is asked"
            assert levels(broker.http, "proxy")["bmq"] == "INFO"
            wrong = set_level("broker", "bmq.nothing", "debug")
            assert wrong.returncode == 1
            assert "there is no logger 'bmq.nothing'" in wrong.stderr

            admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
            loggers = ConfigResource(ConfigResourceType.BROKER_LOGGER, "0", configs={"bmq.proxy": "DEBUG"})
            admin.alter_configs([loggers])
            admin.close()
            assert levels(proxy.http, "proxy")["bmq.proxy"] == "DEBUG"
        spans = collected.spans()
    names = next(iter(whole(spans)))
    assert {"Produce", "route", "append", "flush", "acknowledge"} <= names
    of_flush = next(each for each in spans if each.name == "flush")
    route = next(each for each in spans if each.name == "route" and each.trace == of_flush.trace)
    inside = next(each for each in spans if each.parent == route.span)
    assert (inside.name, inside.span) == ("Produce", of_flush.parent)
    assert route.instance.startswith("proxy-")
    assert inside.instance.startswith("broker-")


def test_lines_are_json_whatever_clients_send(etcd: EtcdCluster, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    environment = {"BMQ_LOG_FORMAT": "json", "BMQ_DEFAULT_REPLICATION_FACTOR": "1"}
    with BmqCluster(
        f"file://{tmp_path / 'data'}", etcd, proxies=1, brokers=1, controllers=1, coordinators=1,
        environment=environment, folder=tmp_path / "cluster",
    ) as cluster:  # fmt: skip
        proxy = cluster["proxy-0"]
        with socket.create_connection((proxy.host, proxy.port), timeout=TIMEOUT_S) as client:
            name = b"a\x1b[2J\nb"
            asks = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 1, len(name)) + name
            client.sendall(struct.pack(">i", len(asks)) + asks)
            assert client.recv(4)
            client.sendall(b"\xff" * 8)
            while client.recv(1 << 16):
                pass
        said = [line for line in proxy.log.read_text().splitlines() if not line.startswith("ready ")]
    found = [json.loads(line) for line in said]
    (line,) = [each for each in found if each["message"].startswith("closing a connection")]
    assert line["client_id"] == "a\x1b[2J\nb"
    assert line["level"] == "WARNING"
    assert line["connection"].startswith("127.0.0.1:")
