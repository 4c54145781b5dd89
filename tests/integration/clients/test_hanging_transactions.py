"""Transactions that hang in a restored topic, found and aborted by Kafka's own tools.

A topic's files are copied while transactions are open, and are served from a root of their own, as in "A single topic"
of docs/operations/backup.md.  Without ``__transaction_state`` no coordinator knows the transactions.  With a later copy
of its files, a coordinator has one transaction as committed, and the other one as open.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from tests.integration.clients.endpoint import SETTINGS
from tests.integration.clients.transaction_rows import Row, one, transactions, transactions_tool
from tests.integration.clients.transaction_story import PARTITIONS, end, ends, send_plain
from tests.integration.clients.transactional.confluent import ConfluentTransactional, ConfluentTransactor
from tests.integration.load import create_topic
from tests.services.bmq import BmqServer
from tests.services.processes import wait_for

pytestmark = pytest.mark.clients

BMQ = str(Path(sys.executable).with_name("bmq"))
TOPIC = "restored"
STATE_TOPIC = "__transaction_state"
ENVIRONMENT = {"BMQ_" + name.replace(".", "_").upper(): value for name, value in SETTINGS.items()} | {
    "BMQ_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "4"
}
COMMITTED, OPEN = "committed-later", "open-for-good"
"""Transactional ids of two transactions that are open when the topic's files are copied."""
TIMEOUT_MS = 900_000
HOUR_S = 3_600
REBUILD_S = 120.0
Place = tuple[str, int, int]
"""A topic, a partition and the offset at which a transaction begins there."""


def write(producer: ConfluentTransactor, timestamp_s: float, *partitions: int) -> None:
    """Begin a transaction with a record of this time in each of the partitions."""
    producer.begin()
    for partition in partitions:
        producer.producer.produce(TOPIC, b"open", partition=partition, timestamp=int(timestamp_s * 1000))
    assert producer.producer.flush(REBUILD_S) == 0


def state(admin: KafkaAdminClient, transactional_id: str) -> str:
    """Return the transaction's state at its coordinator."""
    return str(admin.describe_transactions([transactional_id])[transactional_id].state.value)


@pytest.fixture(scope="module")
def copies() -> Iterator[Path]:
    """Yield a folder with copies of two topics' files: the second one is of a later time than the first one."""
    folder = Path(tempfile.mkdtemp(prefix="bmq-hanging-"))
    root, copied = folder / "root", folder / "copied"
    server = BmqServer(root.as_uri(), environment=ENVIRONMENT, folder=folder / "server")
    (folder / "server").mkdir()
    try:
        server.start()
        create_topic(server.bootstrap, TOPIC, PARTITIONS)
        send_plain(server.bootstrap, TOPIC, {place: [b"before"] for place in range(PARTITIONS)})
        now_s = time.time()
        committed = ConfluentTransactor(server.bootstrap, COMMITTED, TIMEOUT_MS)
        write(committed, now_s - HOUR_S, 0, 1)
        opened = ConfluentTransactor(server.bootstrap, OPEN, TIMEOUT_MS)
        write(opened, now_s, 1, 2)
        shutil.copytree(root / "topics" / TOPIC, copied / "topics" / TOPIC)
        committed.commit()
        with closing(KafkaAdminClient(bootstrap_servers=server.bootstrap)) as admin:
            wait_for(lambda: state(admin, COMMITTED) == "CompleteCommit", "a complete transaction", timeout_s=REBUILD_S)
        server.kill()
        shutil.copytree(root / "topics" / STATE_TOPIC, copied / "topics" / STATE_TOPIC)
        for name in ("cluster.json", "root.json"):
            shutil.copy(root / name, copied)
        yield copied
    finally:
        server.kill()
        shutil.rmtree(folder)


@contextmanager
def restored(copies: Path, folder: Path, *topics: str) -> Iterator[str]:
    """Serve the copied files of these topics alone, and yield the bootstrap address."""
    root, meta = folder / "root", f"sqlite://{folder / 'meta.db'}"
    root.mkdir()
    for name in ("cluster.json", "root.json"):
        shutil.copy(copies / name, root)
    for topic in topics:
        shutil.copytree(copies / "topics" / topic, root / "topics" / topic)
    subprocess.run(
        [BMQ, "cluster", "rebuild", "--root", root.as_uri(), "--meta", meta],
        env=os.environ | ENVIRONMENT, check=True, timeout=REBUILD_S,
    )  # fmt: skip
    with BmqServer(root.as_uri(), meta, environment=ENVIRONMENT, folder=folder) as server:
        yield server.bootstrap


def places(rows: list[Row]) -> list[Place]:
    """Return topic, partition and start offset of the rows, sorted."""
    return sorted((row["Topic"], int(row["Partition"]), int(row["StartOffset"])) for row in rows)


def find(bootstrap: str, *arguments: str) -> list[Place]:
    """Return the places that kafka-transactions.sh prints as hanging."""
    return places(transactions(bootstrap, "find-hanging", *arguments))


def abort(bootstrap: str, place: Place) -> None:
    """Abort the transaction by kafka-transactions.sh, which prints nothing."""
    topic, partition, start = place
    where = ("--topic", topic, "--partition", str(partition), "--start-offset", str(start))
    assert transactions_tool(bootstrap, "abort", *where).lines == []


def bmq(bootstrap: str, *arguments: str) -> str:
    """Return the output of `bmq transaction`."""
    command = [BMQ, "transaction", *arguments, "--bootstrap-server", bootstrap]
    return subprocess.run(command, check=True, timeout=REBUILD_S, capture_output=True, text=True).stdout


def read(bootstrap: str) -> dict[int, list[bytes]]:
    """Return the committed records of every partition."""
    return ConfluentTransactional(bootstrap).read(TOPIC, PARTITIONS, is_committed=True)


def test_transactions_that_no_coordinator_knows(copies: Path, tmp_path: Path) -> None:
    """All hang; each filter finds its own.  Aborted by their starts, they let readers of committed records go on."""
    first, second, *recent = ((TOPIC, 0, 1), (TOPIC, 1, 1), (TOPIC, 1, 2), (TOPIC, 2, 1))
    at_all_ages = ("--max-transaction-timeout", "0")
    with restored(copies, tmp_path, TOPIC) as bootstrap:
        assert find(bootstrap, "--topic", TOPIC) == [first, second], "open for longer than a quarter of an hour"
        assert find(bootstrap, "--topic", TOPIC, "--partition", "1", *at_all_ages) == [second, recent[0]]
        with closing(KafkaAdminClient(bootstrap_servers=bootstrap)) as admin:
            (broker,) = admin.describe_cluster()["brokers"]
        by_broker = ("--broker-id", str(broker["broker_id"]), *at_all_ages)
        assert find(bootstrap, *by_broker) == [first, second, *recent]
        own = [json.loads(line) for line in bmq(bootstrap, "find-hanging", "--json").splitlines()]
        assert [(each["topic"], each["partition"], each["start_offset"]) for each in own] == [first, second]
        end(bootstrap, TOPIC)
        for place in (first, second):
            abort(bootstrap, place)
        assert find(bootstrap, *by_broker) == recent
        for topic, partition, start in recent:
            bmq(bootstrap, "abort", topic, str(partition), "--start-offset", str(start))
        assert ends(bootstrap, TOPIC, "read_committed") == ends(bootstrap, TOPIC, "read_uncommitted")
        assert read(bootstrap) == {partition: [b"before"] for partition in range(PARTITIONS)}


def test_a_transaction_that_its_coordinator_has_as_committed(copies: Path, tmp_path: Path) -> None:
    """The transaction hangs, unlike the one open at the coordinator.  After the abort its id goes on there."""
    with restored(copies, tmp_path, TOPIC, STATE_TOPIC) as bootstrap:
        listed = transactions(bootstrap, "list")
        assert one(listed, TransactionalId=COMMITTED)["TransactionState"] == "CompleteCommit"
        assert one(listed, TransactionalId=OPEN)["TransactionState"] == "Ongoing"
        found = find(bootstrap, "--topic", TOPIC, "--max-transaction-timeout", "0")
        assert found == [(TOPIC, 0, 1), (TOPIC, 1, 1)]
        for place in found:
            abort(bootstrap, place)
        transactions(bootstrap, "forceTerminateTransaction", "--transactionalId", OPEN)
        producer = ConfluentTransactor(bootstrap, COMMITTED, TIMEOUT_MS)
        producer.begin()
        producer.send(TOPIC, {0: [b"after"], 1: [b"after"]})
        producer.commit()
        end(bootstrap, TOPIC)
        assert read(bootstrap) == {0: [b"before", b"after"], 1: [b"before", b"after"], 2: [b"before"]}
