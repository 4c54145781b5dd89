"""Catch-up reads of closed files on a real HDFS: BMQ's (`HdfsFileSystem.read`, `read_into`) beside hdfs-native's.

    python -m bench.hdfs_read [--datanodes 1 3] [--rounds 5] [--megabytes 512]

Each file is one block, read whole in ranges by one or several readers at once, and is in the page cache.  A round
runs every client in turn, in another order each time.  Printed: median (least to most) of throughput and of this
process's processor time, its threads' included; the datanodes' time is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence

import hdfs_native

from bmq.storage.filesystem import CreateOptions
from bmq.storage.hdfs import HdfsFileSystem
from tests.services.hdfs import HdfsCluster

MB = 1 << 20
FILE_BYTES = 128 * MB
CASES = ((1, 16 * MB), (16, 16 * MB), (1, 128 * MB), (16, 128 * MB))
"""Readers at once, and bytes of a range."""

Read = Callable[[str, int, int], Awaitable[int]]
"""A function that reads a range of a file and returns how many bytes came."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Start each cluster, measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.hdfs_read", description="reads of closed files on HDFS")
    parser.add_argument("--datanodes", type=int, nargs="+", default=[1, 3], help="one cluster of each size")
    parser.add_argument("--rounds", type=int, default=5, help="times that each client is measured in each case")
    parser.add_argument("--megabytes", type=int, default=512, help="read in each measurement, a multiple of 128")
    options = parser.parse_args(arguments)
    for datanodes in options.datanodes:
        with HdfsCluster(datanodes=datanodes) as cluster:
            asyncio.run(_measure_all(cluster.root, datanodes, options.rounds, options.megabytes * MB))


async def _measure_all(root: str, datanodes: int, rounds: int, total: int) -> None:
    fs = await HdfsFileSystem.open(root, holder="bench")
    try:
        paths = [await _write(fs, f"/bench/{number}", min(datanodes, 3)) for number in range(total // FILE_BYTES)]
        native = hdfs_native.AsyncClient(root)  # its readers need it for as long as they live
        clients = await _clients(fs, native, paths)
        for readers, range_bytes in CASES:
            figures: dict[str, list[tuple[float, float]]] = {name: [] for name in clients}
            for turn in range(rounds + 1):
                names = list(clients) if turn % 2 else list(reversed(clients))
                for name in names:
                    figure = await _measure(clients[name], paths, readers, range_bytes)
                    if turn:  # the first one only warms up
                        figures[name].append(figure)
            for name, measured in figures.items():
                _print(f"{datanodes} datanodes, {readers:2} x {range_bytes // MB:3} MB, {name:12}", measured)
    finally:
        await fs.close()


async def _write(fs: HdfsFileSystem, path: str, replication: int) -> str:
    """Write a file of one block and close it."""
    options = CreateOptions(block_bytes=FILE_BYTES, chunk_bytes=65_536, replication=replication)
    appender = await fs.create(path, options)
    part = os.urandom(4 * MB)
    for _ in range(FILE_BYTES // len(part)):
        appender.write(part)
        await appender.flush()
    await appender.close()
    return path


async def _clients(fs: HdfsFileSystem, native: hdfs_native.AsyncClient, paths: Sequence[str]) -> dict[str, Read]:
    opened = {path: await native.read(path) for path in paths}
    memory: dict[int, list[bytearray]] = {}

    async def by_native(path: str, position: int, length: int) -> int:
        return len(await opened[path].read_range(position, length))

    async def by_read(path: str, position: int, length: int) -> int:
        return len(await fs.read(path, position, length))

    async def by_read_into(path: str, position: int, length: int) -> int:
        free = memory.setdefault(length, [])
        out = free.pop() if free else bytearray(length)
        try:
            return await fs.read_into(path, position, memoryview(out))
        finally:
            free.append(out)

    return {"hdfs-native": by_native, "read": by_read, "read_into": by_read_into}


async def _measure(read: Read, paths: Sequence[str], readers: int, range_bytes: int) -> tuple[float, float]:
    """Return MB/s and processor seconds for each GB."""
    ranges = [(path, position) for path in paths for position in range(0, FILE_BYTES, range_bytes)]
    todo, total = iter(ranges), len(paths) * FILE_BYTES

    async def run() -> None:
        for path, position in todo:
            got = await read(path, position, range_bytes)
            assert got == range_bytes, f"{got} bytes instead of {range_bytes}"

    cpu, began = _cpu_s(), time.perf_counter()
    await asyncio.gather(*(run() for _ in range(readers)))
    took = time.perf_counter() - began
    return total / MB / took, (_cpu_s() - cpu) / (total / (1 << 30))


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _print(what: str, measured: Sequence[tuple[float, float]]) -> None:
    rates, costs = zip(*measured, strict=True)
    print(
        f"{what} {statistics.median(rates):5.0f} ({min(rates):.0f} to {max(rates):.0f}) MB/s,"
        f" {statistics.median(costs):.2f} ({min(costs):.2f} to {max(costs):.2f}) CPU s/GB",
        flush=True,
    )


if __name__ == "__main__":
    main()
