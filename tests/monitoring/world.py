"""Subjects of the tests of rules and dashboards: the chart's files, and a small live cluster with clients."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.chart.drawn import CHART
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.processes import wait_for

RULES = CHART / "files" / "rules.yaml"
LABELS = {"namespace": "kafka", "app_kubernetes_io_instance": "orders"}
"""Labels that the ServiceMonitor gives every series, beside the pod."""
WITHIN_S = 90.0


def rules() -> list[dict[str, Any]]:
    """Return the chart's rules, alerts and recorded ones."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def queries() -> Iterator[tuple[str, str]]:
    """Yield what each panel asks, with its dashboard's and its own name, as Grafana would send it."""
    for path in sorted((CHART / "files" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{path.stem}: {panel['title']}: {target['legendFormat']}", filled_in(target["expr"])


def filled_in(expression: str) -> str:
    """Return an expression with Grafana's variables replaced by values."""
    for name, value in {
        "$__rate_interval": "30s",
        "$namespace": LABELS["namespace"],
        "$cluster": LABELS["app_kubernetes_io_instance"],
        "$topic": ".*",
        "$group": ".*",
    }.items():
        expression = expression.replace(name, value)
    return expression


def scrape(server: BmqServer) -> str:
    """Return what /metrics says."""
    with urllib.request.urlopen(f"{server.http}/metrics", timeout=10) as response:
        return str(response.read().decode())


def targets(servers: Mapping[str, BmqServer]) -> dict[str, dict[str, str]]:
    """Return what Prometheus is to scrape, with the labels of a pod."""
    return {f"{server.host}:{server.http_port}": {**LABELS, "pod": pod} for pod, server in servers.items()}


@contextmanager
def cluster(folder: Path, etcd: EtcdCluster, **roles: str) -> Iterator[dict[str, BmqServer]]:
    """Run a process for each name, with these roles ("" for all), on one local folder."""
    with ExitStack() as stack:
        servers = {}
        for number, (name, of_name) in enumerate(roles.items()):
            arguments = ("--node-id", str(number), *(("--roles", of_name) if of_name else ()))
            own = folder / name
            own.mkdir()
            server = BmqServer(f"file://{folder}/root", etcd.url, arguments=arguments, folder=own)
            servers[name] = stack.enter_context(server)
        yield servers


class Clients:
    """A producer that goes on writing, one with transactions, and a group that reads more slowly, until the end of the
    block; and one request that is refused."""

    def __init__(self, bootstrap: str, topic: str = "orders", group: str = "billing") -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._group = group
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._write, self._transact, self._read)]
        self.errors: list[BaseException] = []

    def __enter__(self) -> Clients:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        admin.create_topics([NewTopic(self._topic, 4, 1)])[self._topic].result(30)
        wait_for(lambda: self._topic in admin.list_topics(timeout=10).topics, "the topic", timeout_s=WITHIN_S)
        with pytest.raises(KafkaException, match="already exists"):  # for the panel of errors
            admin.create_topics([NewTopic(self._topic, 4, 1)])[self._topic].result(30)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        number = 0
        while not self._is_over.wait(0.05):
            for _ in range(20):
                number += 1
                producer.produce(self._topic, b"x" * 100, partition=number % 4)
            producer.poll(0)
        if producer.flush(30):
            self.errors.append(KafkaException("records are left"))

    def _transact(self) -> None:
        """Write transactions, of which every fourth is aborted."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "transactional.id": self._topic})
        number = 0
        try:
            producer.init_transactions(WITHIN_S)
            while not self._is_over.wait(0.1):
                number += 1
                producer.begin_transaction()
                producer.produce(self._topic, b"x" * 100, partition=number % 4)
                if number % 4:
                    producer.commit_transaction(WITHIN_S)
                else:
                    producer.abort_transaction(WITHIN_S)
        except KafkaException as error:
            self.errors.append(error)

    def _read(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": self._group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([self._topic])
        while not self._is_over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                consumer.commit(message=message, asynchronous=False)
        consumer.close()
