"""Quotas of a cluster with two proxies, one of which leaves and comes back, and of one process, by real clients.

A byte rate is bounded from above in every window of eleven seconds, Kafka's, and from below over the whole time, by the
bytes that the client saw.  The quota is far below what a slow machine can send and read.
"""

from __future__ import annotations

import itertools
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.integration.cluster.conftest import SETTINGS
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.bmq_cluster import BmqCluster
from tests.services.etcd import EtcdCluster
from tests.services.kafka_tools import run_tool

TOPIC = "orders"
PARTITIONS = 6
LIMIT = 500_000
"""Bytes a second."""
VALUE = bytes(5_000)
BATCH_BYTES = 50_000
WINDOW_S = 11.0
SLACK = 1.1
LEAST = 0.9
"""Least part of its quota that a client gets if it wants more."""
WARM_UP_S = 3.0
"""Time in which shares begin to follow demand: a new leader only confirms shares for 2.5 s, then each proxy reports."""
STEADY_S = 14.0
"""Time between two changes of the proxies: more than a window."""
TIMEOUT_S = 120.0
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqCluster]:
    root: Path = tmp_path_factory.mktemp("root")
    with (
        EtcdCluster() as etcd,
        BmqCluster(
            root.as_uri(), etcd, proxies=2, brokers=1, controllers=1, coordinators=1, environment=SETTINGS
        ) as made,
    ):
        create_topic(made.bootstrap, TOPIC, PARTITIONS)
        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BmqServer]:
    with BmqServer(tmp_path.as_uri(), folder=tmp_path) as one:
        yield one


def set_quota(bootstrap: str, entity: tuple[str, ...], config: str) -> None:
    run_tool("ConfigCommand", "--bootstrap-server", bootstrap, "--alter", *entity, "--add-config", config)


def throttled(server: BmqServer, quota: str) -> int:
    with _HTTP.open(f"{server.http}/metrics", timeout=TIMEOUT_S) as response:
        text = response.read().decode()
    (count,) = re.findall(
        rf'^bmq_quota_throttled_total\{{[^}}]*quota="{quota}"[^}}]*\}} ([0-9.e+]+)', text, re.MULTILINE
    )
    return int(float(count))


class Seen:
    """Times at which a client saw bytes, and the longest time that it was told to wait for."""

    def __init__(self) -> None:
        self.events: list[tuple[float, int]] = []
        self.throttle_s = 0.0
        self.failed: list[KafkaError] = []

    def settings(self) -> dict[str, object]:
        return {"throttle_cb": self.throttle, "log_level": 0}

    def throttle(self, event: ThrottleEvent) -> None:
        self.throttle_s = max(self.throttle_s, event.throttle_time)

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
        else:
            self.events.append((time.monotonic(), len(message)))

    def most_in_a_window(self) -> int:
        """Return the most bytes of all windows that begin with an event."""
        most = total = last = 0
        for first, (begin, size) in enumerate(self.events):
            while last < len(self.events) and self.events[last][0] < begin + WINDOW_S:
                total += self.events[last][1]
                last += 1
            most = max(most, total)
            total -= size
            assert last > first
        return most

    def rate(self) -> float:
        """Return the bytes a second from the end of the warm-up to the last event."""
        begin, end = self.events[0][0] + WARM_UP_S, self.events[-1][0]
        return sum(size for at, size in self.events if at >= begin) / (end - begin)


def come_and_go(cluster: BmqCluster, client: threading.Thread, stop: threading.Event) -> None:
    """Let the client run with two proxies, with one, and with two again."""
    client.start()
    try:
        time.sleep(STEADY_S)
        cluster.stop_politely("proxy-1")
        time.sleep(STEADY_S)
        cluster.start_again("proxy-1")
        time.sleep(STEADY_S)
    finally:
        stop.set()
        client.join(TIMEOUT_S)
    assert not client.is_alive()


def test_a_producers_rate_holds_while_a_proxy_leaves_and_comes_back(cluster: BmqCluster) -> None:
    set_quota(cluster.bootstrap, ("--entity-type", "clients", "--entity-name", "writer"), f"producer_byte_rate={LIMIT}")
    seen, stop = Seen(), threading.Event()

    def work() -> None:
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap, "client.id": "writer", "batch.size": BATCH_BYTES,
                "linger.ms": 20, "queue.buffering.max.kbytes": 4_000, "enable.idempotence": True, **seen.settings(),
            }
        )  # fmt: skip
        for number in itertools.count():
            if stop.is_set():
                break
            while not stop.is_set():
                try:
                    producer.produce(TOPIC, VALUE, partition=number % PARTITIONS, on_delivery=seen.delivered)
                    break
                except BufferError:
                    producer.poll(0.05)
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0

    come_and_go(cluster, threading.Thread(target=work), stop)
    assert seen.failed == []
    assert seen.throttle_s > 0
    assert seen.most_in_a_window() <= SLACK * WINDOW_S * LIMIT
    assert seen.rate() >= LEAST * LIMIT
    assert throttled(cluster["proxy-0"], "producer_byte_rate") > 0


def test_a_consumers_rate_holds_while_a_proxy_leaves_and_comes_back(cluster: BmqCluster) -> None:
    filler = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": "filler", "batch.size": BATCH_BYTES})
    for number in range(8_000):
        filler.produce(TOPIC, VALUE, partition=number % PARTITIONS)
        filler.poll(0)
    assert filler.flush(TIMEOUT_S) == 0
    set_quota(cluster.bootstrap, ("--entity-type", "clients", "--entity-name", "reader"), f"consumer_byte_rate={LIMIT}")
    seen, stop = Seen(), threading.Event()

    def work() -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap, "client.id": "reader", "group.id": "readers",
                "auto.offset.reset": "earliest", **seen.settings(),
            }
        )  # fmt: skip
        consumer.subscribe([TOPIC])
        while not stop.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                seen.events.append((time.monotonic(), len(message)))
        consumer.close()

    come_and_go(cluster, threading.Thread(target=work), stop)
    assert seen.throttle_s > 0
    assert seen.most_in_a_window() <= SLACK * WINDOW_S * LIMIT
    assert seen.rate() >= LEAST * LIMIT


def test_connections_of_an_address_are_bounded_and_a_client_gets_in(server: BmqServer) -> None:
    rate = 5
    set_quota(server.bootstrap, ("--entity-type", "ips", "--entity-default"), f"connection_creation_rate={rate}")
    ask = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # ApiVersions, version 0
    served = refused = 0
    began = time.monotonic()
    while refused < 3 * rate:
        with socket.create_connection((server.host, server.port), timeout=TIMEOUT_S) as each:
            each.sendall(ask)
            try:
                is_served = bool(each.recv(4))
            except ConnectionResetError:
                is_served = False
        served, refused = served + is_served, refused + (not is_served)
    assert served <= rate * (time.monotonic() - began + 1) + 1
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
    producer.produce(TOPIC, b"in")
    assert producer.flush(TIMEOUT_S) == 0


def test_partitions_that_a_client_creates_are_bounded(server: BmqServer) -> None:
    rate, burst, count = 2, 22, 50
    set_quota(server.bootstrap, ("--entity-type", "users", "--entity-default"), f"controller_mutation_rate={rate}")
    create = ("--bootstrap-server", server.bootstrap, "--create", "--partitions", str(count), "--topic")
    began = time.monotonic()
    run_tool("TopicCommand", *create, "first")
    refused = 0
    while (done := run_tool("TopicCommand", *create, "second", codes=(0, 1))).code:
        assert "quota" in done.stdout + done.stderr
        refused += 1
    assert time.monotonic() - began >= (count - burst) / rate
    assert refused > 0
    assert throttled(server, "controller_mutation_rate") >= refused


def bmq_quota(bootstrap: str, *words: str) -> str:
    command = [
        str(Path(sys.executable).with_name("bmq")),
        "quota",
        words[0],
        "--bootstrap-server",
        bootstrap,
        *words[1:],
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout


def test_topics_and_partitions_of_a_user_are_bounded_and_deletion_gives_back(server: BmqServer) -> None:
    bmq_quota(server.bootstrap, "set", "--user-default", "max_topics=2", "max_partitions=5")
    users = ("--entity-type", "users", "--entity-default")
    shown = run_tool("ConfigCommand", "--bootstrap-server", server.bootstrap, "--describe", *users).stdout
    assert "max_topics=2.0" in shown
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})

    def create(name: str, partitions: int) -> KafkaError | None:
        (done,) = admin.create_topics([NewTopic(name, partitions)]).values()
        error: BaseException | None = done.exception(TIMEOUT_S)
        return error.args[0] if isinstance(error, KafkaException) else None

    def require_refused(error: KafkaError | None, quota: str) -> None:
        assert error is not None
        assert error.code() == KafkaError.POLICY_VIOLATION
        assert "User:ANONYMOUS may own" in error.str()
        assert quota in error.str()

    assert create("first", 3) is None
    require_refused(create("second", 3), "max_partitions")
    assert create("second", 2) is None
    require_refused(create("third", 1), "max_topics")
    (grown,) = admin.create_partitions([NewPartitions("second", 4)]).values()
    error = grown.exception(TIMEOUT_S)
    assert isinstance(error, KafkaException)
    require_refused(error.args[0], "max_partitions")
    (deleted,) = admin.delete_topics(["first"]).values()
    deleted.result(TIMEOUT_S)
    assert create("third", 3) is None


def test_connections_of_a_user_are_bounded_and_a_closed_one_makes_room(server: BmqServer) -> None:
    bound = 10
    bmq_quota(server.bootstrap, "set", "--user", "ANONYMOUS", f"max_connections={bound}")
    ask = struct.pack(">ihhih", 10, 18, 0, 7, -1)  # ApiVersions, version 0

    def is_served(client: socket.socket) -> bool:
        client.sendall(ask)
        try:
            return bool(client.recv(4))
        except ConnectionResetError:
            return False

    def connect() -> socket.socket:
        return socket.create_connection((server.host, server.port), timeout=TIMEOUT_S)

    live: list[socket.socket] = []
    refused = connect()
    while is_served(refused):
        live.append(refused)
        refused = connect()
    assert 0 < len(live) <= bound
    refused.close()
    for each in live:
        each.close()
    producer = Producer({"bootstrap.servers": server.bootstrap, "log_level": 0})
    producer.produce(TOPIC, b"in")
    assert producer.flush(TIMEOUT_S) == 0
