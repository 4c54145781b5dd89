"""Others read what we write: a closed segment on HDFS is a plain file of plain Kafka record batches."""

from __future__ import annotations

import asyncio
import uuid
import warnings
from pathlib import Path
from urllib.parse import urlsplit

import hdfs_native
import pytest
import uvloop
from hdfs import InsecureClient

from bmq.core.records.batch import Batch
from bmq.storage.filesystem import FileSystem
from bmq.storage.open import open_filesystem
from tests.integration.driver import DriverProcess, partition_of
from tests.integration.history import Transcript, report, segment_names
from tests.services.hdfs import HdfsCluster
from tests.simulation.world import MARK, encode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas through importlib.resources
    from kafka.record import MemoryRecords

TIMEOUT_S = 120.0
SEGMENT_BYTES = 2 << 20


def test_other_clients_read_closed_segments(
    hdfs: HdfsCluster, hdfs_root: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """hdfs-native, WebHDFS and we ourselves get the same bytes; kafka-python parses every batch in them."""

    async def test() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            topic_id = uuid.uuid4()
            seen = await write_and_close(hdfs_root, tmp_path, topic_id)
            path, _ = partition_of(topic_id)
            fs = await open_filesystem(hdfs_root, holder="reader")
            names = sorted([name async for name in segment_names(fs, path)])
            assert len(names) >= 3
            native = hdfs_native.Client(hdfs.root)
            web = InsecureClient(hdfs.webhdfs_root.replace("webhdfs", "http"), user="reader")
            folder = urlsplit(hdfs_root).path
            stored: dict[int, bytes] = {}
            size = 0
            for name in names:
                file = folder + path.log(name)
                data = await read_whole(fs, path.log(name))
                assert await asyncio.to_thread(read_native, native, file) == data
                assert await asyncio.to_thread(read_web, web, file) == data
                stored |= parse(data, name.base)
                size += len(data)
            await fs.close()
            assert sorted(stored) == list(range(len(stored))), "every offset once"
            for ack in seen.acks:
                assert stored[ack.offset].startswith(MARK + encode(ack.producer, ack.number))
            report(request, f"{len(names)} segments, {size} bytes, {len(stored)} records read alike by three clients")

    uvloop.run(test())


async def write_and_close(root: str, folder: Path, topic_id: uuid.UUID) -> Transcript:
    """Write two and a half segments and end in order, which closes the last one too; return the transcript."""
    log = {"segment_bytes": SEGMENT_BYTES}
    driver = DriverProcess(folder, root, f"sqlite://{folder / 'meta.db'}", topic_id, size=10_000, log=log)
    try:
        driver.start()
        await driver.until_acks(int(2.5 * SEGMENT_BYTES) // 10_000)
        driver.terminate()
        await driver.until(lambda seen: bool(seen.of("closed")), "an orderly end")
    finally:
        driver.kill()
    (closed,) = driver.transcript.of("closed")
    assert not closed["reports"]
    return driver.transcript


async def read_whole(fs: FileSystem, path: str) -> bytes:
    status = await fs.status(path)
    return await fs.read(path, 0, status.length)


def read_native(client: hdfs_native.Client, path: str) -> bytes:
    with client.read(path) as file:
        return bytes(file.read())


def read_web(client: InsecureClient, path: str) -> bytes:
    with client.read(path) as file:
        return bytes(file.read())


def parse(data: bytes, base: int) -> dict[int, bytes]:
    """Return each record's value by its offset, as kafka-python parses them."""
    records = MemoryRecords(data)
    values: dict[int, bytes] = {}
    position = 0
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        header = Batch(memoryview(data)[position:])
        assert (batch.base_offset, batch.producer_id, batch.base_sequence) == (
            header.base_offset,
            header.producer_id,
            header.base_sequence,
        )
        position += header.size
        for record in batch:
            assert record.offset == base + len(values)
            values[record.offset] = bytes(record.value)
    assert position == len(data), "nothing is left over"
    return values
