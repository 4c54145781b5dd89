"""The story of a cell: produce, roll, takeover, append, read, query by Spark, on a real HDFS of the cell's version."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bmq.core.hdfs_login import HdfsLogin
from bmq.storage.filesystem import CreateOptions, FileSystem
from bmq.storage.open import open_filesystem
from tests.hadoop_matrix.cells import Cell
from tests.services.bmq import BmqServer
from tests.services.hdfs import HdfsCluster
from tests.services.hdfs_security import HdfsSecurity
from tests.services.hdfs_tools import open_root
from tests.services.kdc import REALM
from tests.services.processes import wait_for

TOPIC = "orders"
A_BATCH = 100
COPIES = 3
VALUE_BYTES = 500
TIMEOUT_S = 120.0
SPARK_TIMEOUT_S = 300.0
PAYLOAD = bytes(range(256)) * 1024
_HIDDEN = ("HADOOP_", "KRB5", "BMQ_")
_OPTIONS = CreateOptions(replication=COPIES)


class Story:
    """One cell's story on a running cluster.  ``folder`` is for files of this machine."""

    def __init__(self, cell: Cell, hdfs: HdfsCluster, folder: Path) -> None:
        self.cell = cell
        self.hdfs = hdfs
        self.folder = folder
        self.keytab = ""
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(_HIDDEN)}
        if hdfs.security is not None:
            kdc = hdfs.security.kdc
            open_root(hdfs)
            self.keytab = str(kdc.add_service(f"bmq@{REALM}"))
            self.environment |= {
                **kdc.environment,
                "KRB5CCNAME": f"FILE:{folder}/none",
                "BMQ_HDFS_KEYTAB": self.keytab,
            }
        self.environment["BMQ_HADOOP_CONF_DIR"] = str(hdfs.conf_folder)
        self.root = f"{hdfs.root}/bmq"
        self.server = BmqServer(self.root, environment=self.environment, folder=folder / "bmq")
        self.produced = 0

    def play(self, passed: Callable[[str], None]) -> None:
        """Play all steps; ``passed`` gets the name of each one that succeeded.  Raises what a step raises."""
        steps: Mapping[str, Callable[[], None]] = {
            "produce": self.produce,
            "roll": self.roll,
            "takeover": self.take_over,
            "append": lambda: asyncio.run(self._append()),
            "failover": self.fail_over,
            "read": self.read,
            "Spark": self.query,
        }
        self.server.folder.mkdir(parents=True, exist_ok=True)
        self.server.start()
        try:
            configs = {"segment.ms": "1000", "min.insync.replicas": "2"}
            admin = AdminClient({"bootstrap.servers": self.server.bootstrap})
            admin.create_topics([NewTopic(TOPIC, 1, COPIES, config=configs)])[TOPIC].result(TIMEOUT_S)
            for name, step in steps.items():
                if name != "failover" or self.cell.is_ha:
                    step()
                    passed(name)
        finally:
            self.server.kill()

    def produce(self) -> None:
        """Append a hundred records; each is acknowledged by all copies."""
        errors: list[KafkaError] = []
        producer = Producer({"bootstrap.servers": self.server.bootstrap, "acks": "all", "enable.idempotence": True})
        for number in range(self.produced, self.produced + A_BATCH):
            producer.produce(TOPIC, f"{number}:".encode().ljust(VALUE_BYTES, b"x"), on_delivery=_noting(errors))
        left = producer.flush(TIMEOUT_S)
        if left or errors:
            raise AssertionError(f"{left} records without a response, errors {errors[:3]}")
        self.produced += A_BATCH

    def roll(self) -> None:
        """Produce until the log has a second segment."""
        wait_for(self._has_rolled, "a second segment", timeout_s=TIMEOUT_S, interval_s=0.3)

    def take_over(self) -> None:
        """Kill the owner with an open segment, and append behind what it acknowledged."""
        self.produce()
        self.server.restart()
        self.produce()

    def fail_over(self) -> None:
        """Kill the active NameNode, and append meanwhile."""
        former = self.hdfs.kill_namenode()
        self.produce()
        self.hdfs.wait_failover(former)
        self.produce()

    def read(self) -> None:
        """Consume all records in their order, then verify the segments without the server."""
        consumer = Consumer({"bootstrap.servers": self.server.bootstrap, "group.id": "all"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        until = time.monotonic() + TIMEOUT_S
        found: list[int] = []
        while len(found) < self.produced and time.monotonic() < until:
            for message in consumer.consume(A_BATCH, 1.0):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                found.append(int((message.value() or b"").split(b":")[0]))
        consumer.close()
        assert found == list(range(self.produced)), f"{len(found)} of {self.produced} records, or in another order"
        command = [str(Path(sys.executable).with_name("bmq")), "segment", "verify", "--root", self.root]
        self._run([*command, "--topic", TOPIC], TIMEOUT_S)

    def query(self) -> None:
        """Read the topic by Spark, whose Python workers have a delegation token alone."""
        place = self.folder / "spark"
        place.mkdir()
        command = [sys.executable, "-m", "tests.integration.secure_spark", "batch", self.root, str(place)]
        output = self._run([*command, str(self.produced)], SPARK_TIMEOUT_S)
        (offsets,) = (json.loads(line)["offsets"] for line in output.splitlines() if line.startswith('{"offsets"'))
        assert offsets == list(range(self.produced))

    def _has_rolled(self) -> bool:
        self.produce()
        return asyncio.run(self._segments()) > 1

    async def _segments(self) -> int:
        fs = await self._filesystem()
        try:
            topics = [entry.path async for entry in fs.list(f"/topics/{TOPIC}") if not entry.path.endswith(".json")]
            paths = [entry.path for topic in topics async for entry in fs.list(f"{topic}/0")]
            return sum(path.endswith(".log") for path in paths)
        finally:
            await fs.close()

    async def _append(self) -> None:
        fs = await self._filesystem()
        try:
            appender = await fs.create("/appended", _OPTIONS)
            appender.write(PAYLOAD)
            await appender.flush()
            assert await fs.read("/appended", 0, len(PAYLOAD)) == PAYLOAD, "an open file"
            await appender.close()
            appender = await fs.append("/appended", _OPTIONS)
            appender.write(PAYLOAD)
            await appender.flush(sync=True)
            await appender.close()
            assert await fs.read("/appended", 0, 2 * len(PAYLOAD)) == PAYLOAD * 2, "a file that was appended to"
        finally:
            await fs.close()

    async def _filesystem(self) -> FileSystem:
        login = HdfsLogin(self.keytab)
        return await open_filesystem(
            self.root, holder="matrix", hadoop_conf_dir=str(self.hdfs.conf_folder), hdfs_login=login
        )

    def _run(self, command: list[str], timeout_s: float) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        if done.returncode:
            raise AssertionError(f"{command[1:4]} ended with {done.returncode}: {(done.stdout + done.stderr)[-3000:]}")
        return done.stdout


@contextmanager
def cluster(cell: Cell) -> Iterator[tuple[HdfsCluster, Path]]:
    """Run the cell's HDFS, and give it with a folder; the Kerberos of this process is the cluster's meanwhile."""
    with tempfile.TemporaryDirectory(prefix="bmq-matrix-") as name:
        folder = Path(name)
        security = None
        if cell.protection.calls:
            security = HdfsSecurity(
                folder / "security", rpc_protection=cell.protection.calls, transfer=cell.protection.transfer
            )
        hdfs = HdfsCluster(
            datanodes=3,
            folder=folder / "hdfs",
            version=cell.version,
            security=security,
            is_ha=cell.is_ha,
            is_automatic=cell.is_ha,
            namenode_heap_mb=192,
            datanode_heap_mb=128,
        )
        before = os.environ.get("KRB5_CONFIG")
        with hdfs:
            if security is not None:
                os.environ["KRB5_CONFIG"] = security.kdc.environment["KRB5_CONFIG"]
            try:
                yield hdfs, folder
            finally:
                os.environ.pop("KRB5_CONFIG", None)
                if before is not None:
                    os.environ["KRB5_CONFIG"] = before


def _noting(errors: list[KafkaError]) -> Callable[[KafkaError | None, object], None]:
    def note(error: KafkaError | None, _: object) -> None:
        if error is not None:
            errors.append(error)

    return note
