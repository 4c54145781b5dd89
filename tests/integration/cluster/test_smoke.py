"""The one path through a cluster of processes: two proxies, two brokers, a controller, a coordinator, a local folder.

One assertion of each kind: produced through one proxy and read through another, a group over both, and ``kill -9`` of a
broker under load that leaves no trace but time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from tests.integration.cluster.conftest import SETTINGS
from tests.integration.cluster.workload import describe_pauses, workload
from tests.integration.history import report
from tests.integration.load import create_topic
from tests.services.bmq_cluster import BROKER, BmqCluster
from tests.services.etcd import EtcdCluster

pytestmark = pytest.mark.smoke
RECORDS = 200
PARTITIONS = 4


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BmqCluster]:
    root: Path = tmp_path_factory.mktemp("root")
    with (
        EtcdCluster() as etcd,
        BmqCluster(
            root.as_uri(), etcd, proxies=2, brokers=2, controllers=1, coordinators=1, environment=SETTINGS
        ) as cluster,
    ):
        yield cluster


def test_every_proxy_serves_every_partition(small: BmqCluster) -> None:
    """Produce by every proxy and consume all of it by every proxy: clients need not know the owners."""
    create_topic(small.bootstrap, "orders", PARTITIONS)
    for number, name in enumerate(small.names("proxy")):
        producer = Producer({"bootstrap.servers": small[name].bootstrap})
        for at in range(RECORDS):
            producer.produce("orders", b"%d" % (number * RECORDS + at), partition=at % PARTITIONS)
        assert producer.flush(30) == 0
    for name in small.names("proxy"):
        consumer = Consumer(
            {"bootstrap.servers": small[name].bootstrap, "group.id": name, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["orders"])
        values: list[int] = []
        while len(values) < 2 * RECORDS:
            messages = consumer.consume(2 * RECORDS - len(values), 30)
            assert messages, f"{name} gave {len(values)} records of {2 * RECORDS}"
            assert not [message.error() for message in messages if message.error()]
            values += [int(message.value() or b"") for message in messages]
        consumer.close()
        assert sorted(values) == list(range(2 * RECORDS))


def test_kill_9_of_a_broker_under_load(small: BmqCluster, request: pytest.FixtureRequest) -> None:
    with workload(small, PARTITIONS) as load:
        small.wait_stable()
        name = small.busiest(BROKER)
        load.take_pauses()
        small.kill(name)
        load.rebalance()
        load.progress()
        pauses = load.take_pauses()
        assert set(small.owners().values()) == {*small.names(BROKER)} - {name}
        small.start_again(name)
        load.progress()
    report(request, f"kill -9 of a broker: {describe_pauses(pauses)}; {load.summary()}")
