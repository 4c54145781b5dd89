"""A mistyped ``--root``, local and on HDFS, is refused; a cluster that an older version split is merged.

And a root that two clusters use: the second one does not start, or the first one ends.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from bmq.meta.kv import Delete
from bmq.meta.open import open_keyvalue
from bmq.meta.root import root_key
from bmq.storage import layout
from bmq.storage.filesystem import Lease, write_once
from bmq.storage.open import open_filesystem
from tests.services.bmq import BmqServer

BMQ = str(Path(sys.executable).with_name("bmq"))
TIMEOUT_S = 120.0
RECORDS = 500


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BMQ, *arguments], cwd=folder, env=dict(os.environ), capture_output=True, text=True, timeout=TIMEOUT_S,
        check=False,
    )  # fmt: skip


def produce(server: BmqServer, topic: str) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=0)
    assert producer.flush(60) == 0


def consume(server: BmqServer, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[int] = []
    while len(values) < RECORDS:
        messages = consumer.consume(100, 30)
        assert messages, f"{topic} ends at {len(values)}"
        for message in messages:
            assert message.error() is None, message.error()
            values.append(int(message.value() or b""))
    consumer.close()
    return values


async def as_an_older_version_left_it(meta: str, right: str, wrong: str) -> None:
    """No root has an id, and the wrong one has been taken for the cluster's, too."""
    kv = await open_keyvalue(meta)
    await kv.commit([], [Delete(root_key("bmq"))])
    await kv.close()
    roots = [await open_filesystem(url, holder="test") for url in (right, wrong)]
    await roots[0].delete("/root.json")
    await write_once(roots[1], "/cluster.json", await roots[0].read("/cluster.json", 0, 10_000))
    for fs in roots:
        await fs.close()


@pytest.mark.parametrize("kind", ["file", "hdfs"])
def test_a_mistyped_root_is_refused_and_a_split_cluster_merged(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    base = tmp_path.as_uri() if kind == "file" else request.getfixturevalue("hdfs_root")
    right, wrong, meta = f"{base}/root", f"{base}/rot", f"sqlite://{tmp_path}/meta.db"
    with BmqServer(right, meta, folder=tmp_path / "a") as server:
        produce(server, "orders")
    places = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
    refused = run(tmp_path, "serve", "--root", wrong, "--meta", meta, *places)
    assert refused.returncode == 1
    assert f"{wrong} is not the cluster's root" in refused.stderr
    assert f"served from {right}" in refused.stderr
    with BmqServer(right, meta, folder=tmp_path / "b") as server:
        assert consume(server, "orders") == list(range(RECORDS))

    asyncio.run(as_an_older_version_left_it(meta, right, wrong))
    with BmqServer(wrong, meta, folder=tmp_path / "c") as server:
        produce(server, "late")
    refused = run(tmp_path, "serve", "--root", right, "--meta", meta, *places)
    assert refused.returncode == 1
    assert "bmq cluster merge-root" in refused.stderr
    merged = run(tmp_path, "cluster", "merge-root", "--root", right, "--from", wrong, "--meta", meta)
    assert merged.returncode == 0, merged.stderr
    with BmqServer(right, meta, folder=tmp_path / "d") as server:
        for topic in ("orders", "late"):
            assert consume(server, topic) == list(range(RECORDS))


def test_a_copy_of_the_store_is_not_served_beside_its_original(tmp_path: Path) -> None:
    """A second process with a copied SQLite file, and the commands that write to the root, are refused meanwhile."""
    root = (tmp_path / "root").as_uri()
    with BmqServer(root, folder=tmp_path / "first") as server:
        produce(server, "t")
        (tmp_path / "second").mkdir()
        for file in (tmp_path / "first").glob("meta.db*"):
            (tmp_path / "second" / file.name).write_bytes(file.read_bytes())
        copy = ("--root", root, "--meta", f"sqlite://{tmp_path}/second/meta.db")
        ports = ("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--internal", "127.0.0.1:0")
        refused = run(tmp_path, "serve", *copy, *ports)
        assert refused.returncode == 1
        assert f"in use by pid {server.process.pid} " in refused.stderr
        new = ("--root", root, "--meta", f"sqlite://{tmp_path}/new.db")
        for command in (
            ("cluster", "rebuild", *new),
            ("cluster", "merge-root", *copy),
            ("segment", "repair", "t", "0", *copy, "--yes"),
        ):
            refused = run(tmp_path, *command)
            assert refused.returncode == 2, refused
            assert f"in use by pid {server.process.pid} " in refused.stderr
        assert consume(server, "t") == list(range(RECORDS))


async def fence_all(root: str, topic: str) -> int:
    """Fence every segment of the topic, as the owner of another cluster would; return their number."""
    fs, count = await open_filesystem(root, holder="another-cluster"), 0
    try:
        async for topic_id in fs.list(f"{layout.TOPICS}/{topic}"):
            async for file in fs.list(f"{topic_id.path}/0"):
                if file.path.endswith(".log"):
                    count += 1
                    await fs.fence(Lease(paths=(file.path,), holder="another-cluster", file_id=0))
    finally:
        await fs.close()
    return count


def test_a_process_whose_open_segment_another_cluster_fences_ends_with_status_1(tmp_path: Path) -> None:
    """The store still names the process as the owner.  It acknowledges nothing more, and starts again afterwards."""
    root = (tmp_path / "root").as_uri()
    with BmqServer(root, folder=tmp_path / "bmq") as server:
        produce(server, "t")
        assert asyncio.run(fence_all(root, "t")) == 1
        errors: list[object] = []
        producer = Producer({"bootstrap.servers": server.bootstrap, "message.timeout.ms": 3_000})
        producer.produce("t", b"lost?", partition=0, on_delivery=lambda error, _: errors.append(error))
        assert server.process.wait_end(timeout_s=TIMEOUT_S) == 1
        assert producer.flush(60) == 0
        assert [error is not None for error in errors] == [True]
        assert "was fenced by a process that the metadata store does not know" in server.log.read_text()
        server.start()
        assert consume(server, "t") == list(range(RECORDS))
