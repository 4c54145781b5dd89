"""Programs that move bytes and do nothing else: the limits that a broker cannot pass on this machine.

    python -m bench.byte_movers hdfs ROOT        the HDFS client of bmq.storage alone, without a broker
    python -m bench.byte_movers append FOLDER    a local file, without fsync
    python -m bench.byte_movers loopback         a TCP connection to another process of this machine

Commands come on standard input, a line each, and each has one line of response that begins with "=".  HdfsWriter.java
does the same with Hadoop's own client; ``bench.mover`` sends the commands.

    open FOLDER FILES PACKET CHUNK REPLICAS BLOCK   creates the files, and writes and flushes one packet to each
    write PACKETS WINDOW                            writes so many packets to each file, with at most WINDOW of them in
                                                    flight a file: "= SECONDS CPU_SECONDS"
    close                                           closes the files, and removes them
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import uvloop

from bmq.storage.filesystem import Appender, CreateOptions
from bmq.storage.hdfs import HdfsFileSystem

_COUNT = struct.Struct(">q")
_CPU = struct.Struct(">d")


class Mover(Protocol):
    """A place that packets go to."""

    async def open(self, folder: str, files: int, packet: bytes, options: CreateOptions) -> None:
        """Create the files, and write one packet to each."""

    async def write(self, packets: int, window: int) -> float:
        """Write so many packets to each file; return the processor seconds of other processes that took part."""

    async def close(self) -> None:
        """Close the files, and remove them."""


class HdfsMover:
    """Files on HDFS, by the pipelines that brokers use; each file has one block."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._fs: HdfsFileSystem | None = None
        self._folder = ""
        self._packet = b""
        self._files: list[Appender] = []

    async def open(self, folder: str, files: int, packet: bytes, options: CreateOptions) -> None:
        """Create the files, and flush one packet to each."""
        if self._fs is None:
            self._fs = await HdfsFileSystem.open(self._root, holder=f"bench-{os.getpid()}")
        self._folder, self._packet = folder, packet
        for number in range(files):
            self._files.append(await self._fs.create(f"{folder}/{number}", options))
        await self.write(1, 1)

    async def write(self, packets: int, window: int) -> float:
        """Write and flush packets; a flush is one packet on the wire."""
        async with asyncio.TaskGroup() as group:
            for file in self._files:
                group.create_task(self._fill(file, packets, window))
        return 0.0

    async def close(self) -> None:
        """Close the files, and remove the folder."""
        assert self._fs is not None
        for file in self._files:
            await file.close()
        self._files.clear()
        await self._fs.delete(self._folder, recursive=True)

    async def _fill(self, file: Appender, packets: int, window: int) -> None:
        flushes: deque[asyncio.Future[int]] = deque()
        for _ in range(packets):
            if len(flushes) == window:
                await flushes.popleft()
            file.write(self._packet)
            flushes.append(file.flush())
        for flush in flushes:
            await flush


class AppendMover:
    """Local files, appended to in turn; they are removed when they are closed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packet = b""
        self._files: dict[Path, int] = {}

    async def open(self, folder: str, files: int, packet: bytes, options: CreateOptions) -> None:
        """Create the files."""
        place = self._folder / folder.strip("/")
        place.mkdir(parents=True)
        self._packet = packet
        for number in range(files):
            path = place / str(number)
            self._files[path] = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
        await self.write(1, 1)

    async def write(self, packets: int, window: int) -> float:
        """Append packets, to one file after another."""
        for _ in range(packets):
            for file in self._files.values():
                written = os.write(file, self._packet)
                if written != len(self._packet):
                    raise OSError(f"{written} of {len(self._packet)} bytes were written: the disk is full")
        return 0.0

    async def close(self) -> None:
        """Close the files, and remove them."""
        for path, file in self._files.items():
            os.close(file)
            path.unlink()
        self._files.clear()


class LoopbackMover:
    """A connection to a process that receives and drops; "files" are sent one after another."""

    def __init__(self) -> None:
        self._connection: socket.socket | None = None
        self._packet = b""
        self._files = 0

    async def open(self, folder: str, files: int, packet: bytes, options: CreateOptions) -> None:
        """Start the receiver, and send it a packet for each file."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            multiprocessing.get_context("spawn").Process(target=receive, args=(listener,), daemon=True).start()
            self._connection = socket.create_connection(listener.getsockname())
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._packet, self._files = packet, files
        await self.write(1, 1)

    async def write(self, packets: int, window: int) -> float:
        """Send packets, and wait until the receiver has all of them; return its processor seconds."""
        assert self._connection is not None
        count = packets * self._files
        self._connection.sendall(_COUNT.pack(count * len(self._packet)))
        for _ in range(count):
            self._connection.sendall(self._packet)
        (cpu_s,) = _CPU.unpack(self._connection.recv(_CPU.size, socket.MSG_WAITALL))
        return float(cpu_s)

    async def close(self) -> None:
        """Close the connection, which ends the receiver."""
        assert self._connection is not None
        self._connection.close()


def receive(listener: socket.socket) -> None:
    """Receive as many bytes as announced, again and again; respond with the processor seconds that they took."""
    connection, _ = listener.accept()
    listener.close()
    buffer = memoryview(bytearray(1 << 20))
    while head := connection.recv(_COUNT.size, socket.MSG_WAITALL):
        (missing,) = _COUNT.unpack(head)
        cpu = time.process_time()
        while missing:
            received = connection.recv_into(buffer[: min(missing, len(buffer))])
            if not received:
                return
            missing -= received
        connection.sendall(_CPU.pack(time.process_time() - cpu))


async def serve(mover: Mover, commands: Iterator[str]) -> None:
    """Do what each line says, and respond on standard output."""
    while line := await asyncio.to_thread(next, commands, ""):
        print("=", await run(mover, line.split()), flush=True)


async def run(mover: Mover, words: list[str]) -> str:
    """Do what one command says, and return the response.  Raises ValueError for an unknown one."""
    match words:
        case ["open", folder, files, packet_bytes, chunk_bytes, replicas, block_bytes]:
            options = CreateOptions(
                block_bytes=int(block_bytes), chunk_bytes=int(chunk_bytes), replication=int(replicas)
            )
            await mover.open(folder, int(files), os.urandom(int(packet_bytes)), options)
            return "0"
        case ["write", packets, window]:
            cpu, begun = time.process_time(), time.perf_counter()
            other_s = await mover.write(int(packets), int(window))
            seconds = time.perf_counter() - begun
            return f"{seconds} {time.process_time() - cpu + other_s}"
        case ["close"]:
            await mover.close()
            return "0"
    raise ValueError(f"unknown command {' '.join(words)}")


def main(arguments: list[str]) -> None:
    """Serve commands until standard input ends."""
    match arguments:
        case ["hdfs", root]:
            mover: Mover = HdfsMover(root)
        case ["append", folder]:
            mover = AppendMover(Path(folder))
        case ["loopback"]:
            mover = LoopbackMover()
        case _:
            raise SystemExit("python -m bench.byte_movers hdfs ROOT | append FOLDER | loopback")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(mover, iter(sys.stdin)))


if __name__ == "__main__":
    main(sys.argv[1:])
