"""Kafka's Java client goes to a moved partition's new owner at once, and loses or doubles nothing (KIP-951)."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bmq.core.model import PartitionKey
from tests.integration.clients.drivers.program import Java
from tests.integration.cluster.conftest import SETTINGS
from tests.integration.load import create_topic
from tests.services.bmq_cluster import NODE, BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.processes import wait_for

pytestmark = pytest.mark.clients
TOPIC = "orders"
STREAM_S = 25.0
"""Far below the five minutes of `metadata.max.age.ms`."""
READ = 200
TIMEOUT_S = 30.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[BmqCluster]:
    """Two processes with all roles."""
    with (
        EtcdCluster() as etcd,
        BmqCluster(
            tmp_path.as_uri(), etcd, proxies=0, brokers=0, controllers=0, coordinators=0, nodes=2, environment=SETTINGS
        ) as cluster,
    ):
        create_topic(cluster.bootstrap, TOPIC, 2)
        cluster.wait_stable()
        yield cluster


def count(cluster: BmqCluster, name: str, pattern: str) -> int:
    """Return the sum of a process's counters that match."""
    with _HTTP.open(f"{cluster[name].http}/metrics", timeout=TIMEOUT_S) as response:
        text = response.read().decode()
    return int(sum(float(value) for value in re.findall(pattern, text, re.MULTILINE | re.IGNORECASE)))


def forwarded(cluster: BmqCluster, name: str) -> int:
    """Return the number of produce requests that this process has sent on to an owner elsewhere."""
    return count(cluster, name, r'produce_stage_seconds_count\{[^}]*stage="route"[^}]*\} (\S+)$')


def received(cluster: BmqCluster, name: str) -> int:
    """Return the number of the topic's records that clients have produced through this process."""
    return count(cluster, name, rf'brokertopicmetrics_messagesin_total\{{[^}}]*topic="{TOPIC}"[^}}]*\}} (\S+)$')


def sent(cluster: BmqCluster, name: str) -> int:
    """Return the bytes of the topic's records that this process has sent to consumers."""
    return count(cluster, name, rf'brokertopicmetrics_bytesout_total\{{[^}}]*topic="{TOPIC}"[^}}]*\}} (\S+)$')


def move(cluster: BmqCluster, name: str) -> None:
    (incarnation,) = [each for each, known in cluster.registered().items() if known == name]
    body = json.dumps({"topic": TOPIC, "partition": 0, "member": incarnation}).encode()
    request = urllib.request.Request(
        f"{cluster[name].http}/api/v1/cluster/move", body, {"Content-Type": "application/json"}, method="POST"
    )
    with _HTTP.open(request, timeout=TIMEOUT_S) as response:
        response.read()


def test_a_java_client_follows_a_move_at_once(nodes: BmqCluster) -> None:
    """Move the partition while a producer and a consumer use it: soon the former owner serves and forwards nothing."""
    key = next(each for each in nodes.partitions() if each.partition == 0 and is_of_topic(nodes, each))
    former = nodes.owners()[key]
    (new,) = {*nodes.names(NODE)} - {former}
    writer, reader = Java(nodes.bootstrap), Java(nodes.bootstrap)
    try:
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(writer.stream, TOPIC, STREAM_S)
            reading = pool.submit(reader.consume, [TOPIC], "readers", READ)
            wait_for(lambda: received(nodes, former) > 20 and sent(nodes, former) > 0, "records", timeout_s=TIMEOUT_S)
            assert received(nodes, new) == 0
            move(nodes, new)
            wait_for(lambda: nodes.owners()[key] == new, "the new owner", timeout_s=TIMEOUT_S)
            wait_for(lambda: received(nodes, new) > 20 and sent(nodes, new) > 0, "the clients", timeout_s=TIMEOUT_S)
            at_former = forwarded(nodes, former), received(nodes, former), sent(nodes, former)
            assert not writing.done(), "the producer has to go on for a while"
            acknowledged, read = writing.result(), reading.result()
            assert (forwarded(nodes, former), received(nodes, former), sent(nodes, former)) == at_former
        assert nodes.owners()[key] == new
        assert [int(each.message.value or b"") for each in read] == list(range(READ))
        all_read = reader.consume([TOPIC], "all", acknowledged)
        assert [int(each.message.value or b"") for each in all_read] == list(range(acknowledged))
        assert [each.offset for each in all_read] == list(range(acknowledged))
    finally:
        writer.close()
        reader.close()


def is_of_topic(cluster: BmqCluster, key: PartitionKey) -> bool:
    """Return whether the partition is of TOPIC."""
    with _HTTP.open(f"{cluster['node-0'].http}/api/v1/topics/{TOPIC}", timeout=TIMEOUT_S) as response:
        return str(key.topic_id) in response.read().decode()
