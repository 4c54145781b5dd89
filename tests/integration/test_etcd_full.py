"""A full etcd database: it is reported with the remedy, no member counts as broken, and afterwards all goes on.

On a real etcd with a tiny quota, and a `bmq serve` of all roles.
"""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bmq.meta.kv import KvError, Put
from bmq.meta.maintenance import Maintained, StoreStatus
from bmq.meta.open import open_keyvalue
from tests.services.bmq import BmqServer
from tests.services.etcd import EtcdCluster
from tests.services.processes import wait_for

pytestmark = pytest.mark.etcd

QUOTA_BYTES = 8 << 20
PUTS = 2 * QUOTA_BYTES // 500_000
WITHIN_S = 90.0


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    with EtcdCluster(arguments=(f"--quota-backend-bytes={QUOTA_BYTES}",)) as cluster:
        yield cluster


async def fill(url: str) -> None:
    """Fill the database with the history of one key, until etcd refuses more."""
    kv = await open_keyvalue(url)

    async def put() -> None:
        for _ in range(PUTS):
            await kv.commit([], [Put("/junk", bytes(500_000))])

    try:
        with pytest.raises(KvError, match="database is full"):
            await put()
    finally:
        await kv.close()


async def free(etcd: EtcdCluster) -> None:
    """Free space as operators are to do: compact, defragment, disarm the alarm."""
    kv = await open_keyvalue(etcd.url)
    try:
        assert isinstance(kv, Maintained)
        revision = await kv.revision()
        await kv.compact(revision)
        await kv.compact(revision)  # done already is done
    finally:
        await kv.close()
    etcd.call("maintenance/defragment", {})
    assert (await status(etcd.url)).bytes < QUOTA_BYTES / 2
    for alarm in etcd.call("maintenance/alarm", {"action": "GET"})["alarms"]:
        etcd.call("maintenance/alarm", {**alarm, "action": "DEACTIVATE"})


async def status(url: str) -> StoreStatus:
    kv = await open_keyvalue(url)
    try:
        assert isinstance(kv, Maintained)
        return await kv.status()
    finally:
        await kv.close()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def is_logged(server: BmqServer, text: str) -> Callable[[], bool]:
    return lambda: text in server.log.read_text()


def test_a_full_database_is_told_and_all_goes_on_by_itself_after_it(etcd: EtcdCluster, tmp_path: Path) -> None:
    server = BmqServer(f"file://{tmp_path}/root", etcd.url, folder=tmp_path / "server")
    server.folder.mkdir()
    with server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": server.bootstrap, "message.timeout.ms": 300_000})
        producer.produce("orders", b"before", partition=0)
        assert producer.flush(30) == 0
        before = asyncio.run(status(etcd.url))
        assert not before.is_full
        assert 0 < before.bytes_in_use <= before.bytes
        assert before.quota_bytes in (0, QUOTA_BYTES), "told from 3.6 on"

        asyncio.run(fill(etcd.url))
        assert asyncio.run(status(etcd.url)).is_full
        acknowledged: list[object] = []
        producer.produce("orders", b"with a segment", partition=0)
        assert producer.flush(30) == 0, "what has a segment is written"
        producer.produce(
            "orders", b"without one", partition=1, on_delivery=lambda *outcome: acknowledged.append(outcome)
        )
        wait_for(is_logged(server, "the metadata store has not answered for over"), "a line", timeout_s=WITHIN_S)
        wait_for(is_logged(server, "etcd's database is full ("), "the leader's line", timeout_s=WITHIN_S)
        assert "etcdctl alarm disarm" in server.log.read_text()
        metrics = get(f"{server.http}/metrics")
        assert "bmq_etcd_is_full 1" in metrics
        assert "bmq_waiting_for_store 1" in metrics
        assert get(f"{server.http}/readyz")
        producer.poll(0)
        assert not acknowledged

        asyncio.run(free(etcd))
        assert producer.flush(WITHIN_S) == 0
        assert [error for error, _ in acknowledged] == [None]  # type: ignore[misc, has-type]
        admin.create_topics([NewTopic("after", 1, 1)])["after"].result(60)
        wait_for(is_logged(server, "etcd's database takes writes again"), "the end", timeout_s=WITHIN_S)
        log = server.log.read_text()
        assert "storage has acknowledged nothing" not in log
        assert "says that it cannot serve" not in log
