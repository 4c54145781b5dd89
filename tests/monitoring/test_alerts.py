"""Alerts whose conditions can be caused on one machine: each is caused, fires in a real Prometheus, and clears.

The rules are the chart's, but for their patience (`for`): minutes there, none here.  BmqLoopBusy takes over two
minutes all the same, since the idle share is an average over a minute.
"""

from __future__ import annotations

import asyncio
import select
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from bmq.core.wire.api_keys import ApiKey
from bmq.meta.kv import Delete, Put
from bmq.meta.open import open_keyvalue
from tests.integration.hostile_requests import sized
from tests.integration.largest_requests import largest
from tests.integration.test_etcd_full import QUOTA_BYTES, fill, free
from tests.integration.test_serve import consume, produce
from tests.monitoring.world import RULES, WITHIN_S, cluster, targets
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.hdfs import HdfsCluster
from tests.services.prometheus import Prometheus

CHECKPOINTS = "bmq_checkpoint_flush_seconds_count"
CROWD = 600
"""Partitions that share one open file: a place is passed on ten times a second at most, so the last waits a minute."""
FLOOD_SHARE = 0.01
"""Share of the most that a request may ask for: some thousands of partitions."""
SEGMENT_BYTES = 1 << 20
IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent"
UNDER_REPLICATED = "kafka_server_replicamanager_underreplicatedpartitions"
OFFLINE_WINDOW_S = 120.0
"""Time for which a partition that was OFFLINE counts: it is not OFFLINE while it is tried again."""
BUSY_WITHIN_S = 400.0
"""Bound of the wait until the idle share is below 0.1: 60 s x ln(10) = 138 s of a loop without a pause."""


def impatient() -> dict[str, Any]:
    """Return the chart's rules, to be evaluated each second, whose alerts fire at once."""
    found: dict[str, Any] = yaml.safe_load(RULES.read_text())
    for group in found["groups"]:
        group.pop("interval", None)
        for rule in group["rules"]:
            rule.pop("for", None)
    return found


def fires(prometheus: Prometheus, name: str) -> dict[str, Any]:
    """Wait until the alert fires; return its labels and annotations."""
    prometheus.wait(lambda p: name in p.firing(), f"{name} fires", WITHIN_S)
    (alert, *_) = prometheus.firing()[name]
    return {**alert["labels"], **alert["annotations"]}


def clears(prometheus: Prometheus, name: str, window_s: float = 0.0) -> None:
    """Wait until the alert does not fire any more; ``window_s``: of the past that its rule looks at."""
    prometheus.wait(lambda p: name not in p.firing(), f"{name} clears", window_s + WITHIN_S)


def create(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = NewTopic(name, partitions, -1, config={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([topic])[name].result(30)


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster(arguments=(f"--quota-backend-bytes={QUOTA_BYTES}",)) as made:
        yield made


def test_no_leader(etcd: EtcdCluster, tmp_path: Path) -> None:
    with (
        cluster(tmp_path, etcd, lead="controller", work="proxy,broker,coordinator") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        prometheus.wait(lambda p: bool(p.query("bmq_is_leader == 1")), "a leader", WITHIN_S)
        clears(prometheus, "BmqNoLeader")
        servers["lead"].kill()
        found = fires(prometheus, "BmqNoLeader")
        assert (found["namespace"], found["app_kubernetes_io_instance"]) == ("kafka", "orders")
        assert found["severity"] == "critical"
        servers["lead"].start()
        clears(prometheus, "BmqNoLeader")


def test_no_owner(etcd: EtcdCluster, tmp_path: Path) -> None:
    with (
        cluster(tmp_path, etcd, lead="proxy,controller,coordinator", work="broker") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        create(servers["lead"].bootstrap, "orders")
        prometheus.wait(lambda p: bool(p.query("bmq_partitions_without_owner == 0")), "an owner", WITHIN_S)
        servers["work"].kill()
        found = fires(prometheus, "BmqNoOwner")
        assert found["summary"] == "1 partitions or shards have no owner"
        servers["work"].start()
        clears(prometheus, "BmqNoOwner")


def test_under_min_isr(etcd: EtcdCluster, tmp_path: Path) -> None:
    with (
        cluster(tmp_path, etcd, all="") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        bootstrap = servers["all"].bootstrap
        create(bootstrap, "orders", min_insync_replicas="2")
        refused: list[Any] = []
        producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 3_000})
        producer.produce("orders", b"x", on_delivery=lambda error, _: refused.append(error))
        assert producer.flush(30) == 0
        assert refused[0] is not None
        found = fires(prometheus, "BmqUnderMinIsr")
        assert found["summary"] == "1 partitions of all refuse produces with acks=all"
        entry = ConfigEntry("min.insync.replicas", "1", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(30)
        clears(prometheus, "BmqUnderMinIsr")


def test_quarantined(etcd: EtcdCluster, tmp_path: Path) -> None:
    async def act(*operations: Put | Delete) -> None:
        kv = await open_keyvalue(etcd.url)
        await kv.commit([], list(operations))
        await kv.close()

    with (
        cluster(tmp_path, etcd, all="") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        asyncio.run(act(Put("/bmq/catalog/topics/broken", b"no topic")))
        found = fires(prometheus, "BmqQuarantined")
        assert found["summary"] == "1 keys or topics cannot be used by all"
        asyncio.run(act(Delete("/bmq/catalog/topics/broken")))
        clears(prometheus, "BmqQuarantined")


def test_a_full_store(etcd: EtcdCluster, tmp_path: Path) -> None:
    """Nearly full, full, partitions that wait for it; then room is made as its runbook says."""
    with (
        cluster(tmp_path, etcd, all="") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        bootstrap = servers["all"].bootstrap
        create(bootstrap, "orders")
        asyncio.run(fill(etcd.url))
        producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 300_000})
        producer.produce("orders", b"needs a segment")
        fires(prometheus, "BmqStoreFull")
        if prometheus.query("bmq_etcd_quota_bytes > 0"):  # etcd reports it from 3.6 on
            fires(prometheus, "BmqStoreNearlyFull")
        found = fires(prometheus, "BmqWaitingForStore")
        assert found["summary"] == "1 partitions of all wait for the metadata store"
        asyncio.run(free(etcd))
        assert producer.flush(WITHIN_S) == 0
        for name in ("BmqStoreFull", "BmqStoreNearlyFull", "BmqWaitingForStore"):
            clears(prometheus, name)


def test_offline_partitions_and_shards_that_cannot_be_loaded(etcd: EtcdCluster, tmp_path: Path) -> None:
    """Files whose end is lost, of a topic and of __consumer_offsets; then they are put back."""
    with (
        cluster(tmp_path, etcd, all="") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        server = servers["all"]
        create(server.bootstrap, "orders")
        produce(server.bootstrap, 100)
        consume(server.bootstrap, 100)
        # A loss behind the last checkpoint would not be noticed: those records may never have been acknowledged.
        prometheus.wait(lambda p: bool(p.query(CHECKPOINTS)), "a scrape", WITHIN_S)
        flushed = prometheus.query(CHECKPOINTS)[0][1]
        produce(server.bootstrap, 1)
        prometheus.wait(lambda p: p.query(CHECKPOINTS)[0][1] > flushed, "a checkpoint", WITHIN_S)
        server.kill()
        topics = tmp_path / "root" / "topics"
        logs = [path for path in topics.rglob("*.log") if path.stat().st_size > 0]
        whole = {path: path.read_bytes() for path in logs}
        assert {"orders", "__consumer_offsets"} <= {path.relative_to(topics).parts[0] for path in logs}
        for path in logs:
            path.write_bytes(b"")
        server.start()
        found = fires(prometheus, "BmqPartitionOffline")
        assert found["severity"] == "critical"
        found = fires(prometheus, "BmqShardsNotLoaded")
        assert "reason" not in found
        reasons = {labels["reason"]: value for labels, value in prometheus.query("bmq_shards_not_loaded > 0")}
        assert reasons == {"storage": 1} or reasons == {"no_owner": 1}
        server.kill()
        for path, data in whole.items():
            path.write_bytes(data)
        server.start()
        clears(prometheus, "BmqPartitionOffline", OFFLINE_WINDOW_S)
        clears(prometheus, "BmqShardsNotLoaded")


def test_not_a_member(etcd: EtcdCluster, tmp_path: Path) -> None:
    """Fill etcd and revoke the member's lease, so that it gets no new one: the alert fires until there is space."""
    with (
        cluster(tmp_path, etcd, all="") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        prometheus.wait(lambda p: bool(p.query("bmq_is_member == 1")), "a member", WITHIN_S)
        asyncio.run(fill(etcd.url))
        for lease in etcd.call("lease/leases", {})["leases"]:
            etcd.call("lease/revoke", {"ID": lease["ID"]})
        found = fires(prometheus, "BmqNotAMember")
        assert found["summary"] == "all is not a member of the cluster"
        asyncio.run(free(etcd))
        clears(prometheus, "BmqNotAMember")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of a file system of 6 MB; skip the test where none can be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no file system of its own for the test: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_storage_stalled(small_disk: Path) -> None:
    filler = small_disk / "filler"
    with (
        BmqServer(f"file://{small_disk}/root") as server,
        Prometheus(targets({"all": server}), impatient()) as prometheus,
    ):
        create(server.bootstrap, "orders")
        producer = Producer({"bootstrap.servers": server.bootstrap, "message.timeout.ms": 300_000})
        producer.produce("orders", b"there is room")
        assert producer.flush(30) == 0
        prometheus.wait(lambda p: bool(p.query("bmq_storage_stalled == 0")), "a scrape", WITHIN_S)
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(8 << 20))
        producer.produce("orders", bytes(500_000))
        found = fires(prometheus, "BmqStorageStalled")
        assert found["summary"] == "Storage acknowledges nothing to all"
        filler.unlink()
        assert producer.flush(WITHIN_S) == 0
        clears(prometheus, "BmqStorageStalled")


def test_audit_lost(small_disk: Path, tmp_path: Path) -> None:
    """The disk of the audit log is full; clients are served, and the lines are written once there is room."""
    filler, audit_log = small_disk / "filler", small_disk / "audit.jsonl"
    environment = {"BMQ_AUDIT_LOG": str(audit_log)}
    with (
        BmqServer(f"file://{tmp_path}/root", environment=environment, folder=tmp_path) as server,
        Prometheus(targets({"all": server}), impatient()) as prometheus,
    ):
        prometheus.wait(lambda p: bool(p.query("bmq_audit_is_failing == 0")), "a scrape", WITHIN_S)
        with pytest.raises(OSError, match="No space left"):
            filler.write_bytes(bytes(8 << 20))
        names = [f"topic-{number}" for number in range(20)]
        for name in names:
            create(server.bootstrap, name)
        found = fires(prometheus, "BmqAuditLost")
        assert found["summary"] == "The audit log of all is not written, or lines found no room"
        filler.unlink()
        clears(prometheus, "BmqAuditLost")
        assert all(f'"resource":"{name}"' in audit_log.read_text() for name in names)


def test_under_replicated(tmp_path: Path) -> None:
    """One of three datanodes dies under an open segment and comes back; the next segment has three copies."""
    with (
        HdfsCluster(datanodes=3) as hdfs,
        BmqServer(f"{hdfs.root}/bmq", folder=tmp_path) as server,
        Prometheus(targets({"all": server}), impatient()) as prometheus,
    ):
        create(server.bootstrap, "orders", segment_bytes=str(SEGMENT_BYTES))
        producer = Producer({"bootstrap.servers": server.bootstrap, "acks": "all", "message.timeout.ms": 300_000})

        def write(value: bytes) -> None:
            producer.produce("orders", value)
            assert producer.flush(WITHIN_S) == 0

        write(b"three copies")
        prometheus.wait(lambda p: bool(p.query(f"{UNDER_REPLICATED} == 0")), "a scrape", WITHIN_S)
        hdfs.kill_datanode(0)
        write(b"two copies")
        found = fires(prometheus, "BmqUnderReplicated")
        assert found["summary"] == "1 partitions of all are written with fewer copies than asked"
        hdfs.restart_datanode(0)

        def is_over(prometheus: Prometheus) -> bool:
            write(bytes(SEGMENT_BYTES // 2))
            return "BmqUnderReplicated" not in prometheus.firing()

        prometheus.wait(is_over, "BmqUnderReplicated clears", WITHIN_S)


def test_waiting_for_place(tmp_path: Path) -> None:
    """Many partitions are written at once where one file may be open; each has its turn."""
    with (
        BmqServer(f"file://{tmp_path}/root", environment={"BMQ_OPEN_PIPELINES_MAX": "1"}, folder=tmp_path) as server,
        Prometheus(targets({"all": server}), impatient()) as prometheus,
    ):
        bootstrap = server.bootstrap
        create(bootstrap, "orders", CROWD)
        patient = {"message.timeout.ms": 600_000, "request.timeout.ms": 300_000}
        producer = Producer({"bootstrap.servers": bootstrap, **patient})
        for partition in range(CROWD):
            producer.produce("orders", b"x", partition=partition)
        producer.poll(0)
        found = fires(prometheus, "BmqWaitingForPlace")
        assert found["summary"].startswith("A partition of all waits 3")
        assert producer.flush(BUSY_WITHIN_S) == 0
        clears(prometheus, "BmqWaitingForPlace")


def test_loop_busy(etcd: EtcdCluster, tmp_path: Path) -> None:
    """A client sends requests as fast as they are answered; then it goes."""
    with (
        cluster(tmp_path, etcd, all="") as servers,
        Prometheus(targets(servers), impatient()) as prometheus,
    ):
        server = servers["all"]
        prometheus.wait(lambda p: bool(p.query(f"{IDLE} > 0.5")), "an idle loop", WITHIN_S)
        with flood(server):
            prometheus.wait(lambda p: "BmqLoopBusy" in p.firing(), "BmqLoopBusy fires", BUSY_WITHIN_S)
        clears(prometheus, "BmqLoopBusy")


@contextmanager
def flood(server: BmqServer) -> Iterator[None]:
    """Send large requests without a pause, and drop the responses, until the end of the block."""
    frames = b"".join(sized(frame) for _, frame in largest(ApiKey.LIST_OFFSETS, 7, FLOOD_SHARE))
    is_over = threading.Event()

    def run() -> None:
        with socket.create_connection((server.host, server.port)) as client:
            client.setblocking(False)
            left, dropped = memoryview(b""), bytearray(1 << 20)
            while not is_over.is_set():
                left = left or memoryview(frames)
                readable, writable, _ = select.select([client], [client], [], 1.0)
                if readable:
                    assert client.recv_into(dropped), "the server closed the connection"
                if writable:
                    left = left[client.send(left) :]

    with ThreadPoolExecutor(1) as pool:
        flooding = pool.submit(run)
        try:
            yield
        finally:
            is_over.set()
        flooding.result()
