"""Consumers with `client.rack` read from a proxy of their zone, whichever proxy they begin with: docs/operations.md."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.integration.cluster.conftest import SETTINGS
from tests.integration.load import create_topic
from tests.services.bmq_cluster import BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.kafka_tools import run_tool

TOPIC = "orders"
PARTITIONS = 6
RECORDS = 600
ZONES = {"proxy-0": "here", "proxy-1": "there"}
TIMEOUT_S = 120.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def zoned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqCluster]:
    """One broker, and a proxy in each of two zones; the topic's records are there."""
    root: Path = tmp_path_factory.mktemp("root")
    with EtcdCluster() as etcd:
        cluster = BmqCluster(
            root.as_uri(), etcd, proxies=2, brokers=1, controllers=1, coordinators=1, environment=SETTINGS
        )
        for name, zone in ZONES.items():
            cluster[name].process.environment["BMQ_ZONE"] = zone
        with cluster:
            create_topic(cluster.bootstrap, TOPIC, PARTITIONS)
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            for number in range(RECORDS):
                producer.produce(TOPIC, b"%d" % number, partition=number % PARTITIONS)
            assert producer.flush(TIMEOUT_S) == 0
            yield cluster


def bytes_out(cluster: BmqCluster, proxy: str) -> int:
    """Return the bytes of the topic's records that this proxy has sent to consumers."""
    with _HTTP.open(f"{cluster[proxy].http}/metrics", timeout=TIMEOUT_S) as response:
        text = response.read().decode()
    pattern = rf'^kafka_server_brokertopicmetrics_bytesout_total\{{[^}}]*topic="{TOPIC}"[^}}]*\}} (\d+)'
    return sum(int(value) for value in re.findall(pattern, text, re.MULTILINE))


def librdkafka(bootstrap: str, rack: str) -> int:
    """Read everything; return how many records came."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"librdkafka-{rack}",
            "auto.offset.reset": "earliest",
            "client.rack": rack,
        }
    )
    consumer.subscribe([TOPIC])
    seen = 0
    try:
        while seen < RECORDS:
            messages = consumer.consume(RECORDS - seen, TIMEOUT_S)
            assert messages, f"{seen} records of {RECORDS}"
            assert not [message.error() for message in messages if message.error()]
            seen += len(messages)
    finally:
        consumer.close()
    return seen


def java(bootstrap: str, rack: str) -> int:
    settings = {"client.rack": rack, "auto.offset.reset": "earliest", "group.id": f"java-{rack}"}
    properties = [word for name, value in settings.items() for word in ("--command-property", f"{name}={value}")]
    wanted = ["--topic", TOPIC, "--max-messages", str(RECORDS), "--timeout-ms", str(int(TIMEOUT_S * 1000))]
    done = run_tool("ConsoleConsumer", "--bootstrap-server", bootstrap, *wanted, *properties, timeout_s=2 * TIMEOUT_S)
    return len(done.lines)


@pytest.mark.parametrize("client", [librdkafka, java])
def test_a_consumer_reads_from_the_proxy_of_its_rack(zoned: BmqCluster, client: Callable[[str, str], int]) -> None:
    """Begin with a proxy of the other zone: it sends no records, the proxy of the consumer's zone sends all."""
    for begins, reads in (("proxy-0", "proxy-1"), ("proxy-1", "proxy-0")):
        before = {name: bytes_out(zoned, name) for name in ZONES}
        assert client(zoned[begins].bootstrap, ZONES[reads]) == RECORDS
        after = {name: bytes_out(zoned, name) for name in ZONES}
        assert after[begins] == before[begins]
        assert after[reads] > before[reads]
