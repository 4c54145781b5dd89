"""A root by the name of its HA service: servers and `bmq segment` find the NameNodes as Hadoop's clients do.

The files are those that the HDFS of the test writes for its clients: `fs.defaultFS` and `dfs.nameservices`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.integration.conftest import HdfsFactory
from tests.services.bmq import BmqServer

BMQ = str(Path(sys.executable).with_name("bmq"))
RECORDS = 20
TIMEOUT_S = 600.0


def produce(bootstrap: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, first + RECORDS):
        producer.produce("orders", str(number).encode())
    assert producer.flush(60) == 0


def consume(bootstrap: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    values: list[int] = []
    while len(values) < count:
        messages = consumer.consume(count - len(values), 60)
        assert messages, f"{len(values)} records of {count}"
        assert not [message.error() for message in messages if message.error()]
        values += [int(message.value() or b"") for message in messages]
    consumer.close()
    return sorted(values)


def bmq(*arguments: str, conf: Path | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("HADOOP_CONF_DIR", "HADOOP_HOME")}
    if conf is not None:
        environment["HADOOP_CONF_DIR"] = str(conf)
    return subprocess.run([BMQ, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)


def test_a_root_on_a_name_service(hdfs_ha: HdfsFactory, tmp_path: Path) -> None:
    hdfs = hdfs_ha(datanodes=3)
    by_name, by_default = f"{hdfs.root}/bmq", "hdfs:///bmq"
    server = BmqServer(by_name, environment={"HADOOP_CONF_DIR": str(hdfs.conf_folder)})
    with server:
        produce(server.bootstrap, 0)
        hdfs.kill_namenode()
        hdfs.failover()
        produce(server.bootstrap, RECORDS)
        assert consume(server.bootstrap, 2 * RECORDS) == list(range(2 * RECORDS))
    hdfs.heal()

    # The same root by the default file system, with the folder named by the setting; it is the same cluster's.
    again = BmqServer(
        by_default, f"sqlite:///{server.folder / 'meta.db'}", arguments=("--hadoop-conf-dir", str(hdfs.conf_folder))
    )
    with again:
        produce(again.bootstrap, 2 * RECORDS)
    for root in (by_name, by_default):
        verified = bmq("segment", "verify", "--root", root, "--topic", "orders", "--records", conf=hdfs.conf_folder)
        assert verified.returncode == 0, verified.stdout + verified.stderr
    read = bmq("segment", "cat", "--root", by_default, "--topic", "orders", "--json", conf=hdfs.conf_folder)
    values = [int(json.loads(line)["value"]) for line in read.stdout.splitlines()]
    assert sorted(values) == list(range(3 * RECORDS)), read.stderr

    unknown = bmq("segment", "verify", "--root", by_default, "--topic", "orders", conf=None)
    assert unknown.returncode == 2
    assert "names no NameNode, and no HADOOP_CONF_DIR is given" in unknown.stderr
    server.remove(keep_log=False)
    again.remove(keep_log=False)
