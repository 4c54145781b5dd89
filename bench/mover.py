"""A program that moves bytes on command: started once and used in every round, so that it is warm as a server is."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from bench.roots import JAVA_OPTIONS
from tests.services import clients, jars
from tests.services.hdfs import HdfsCluster
from tests.services.processes import NotReady, tail

RESPONSE_TIMEOUT_S = 300.0
END_TIMEOUT_S = 10.0
HEAP_MB = 512
"""Heap of Hadoop's client, as that of Kafka's perf tools."""
JAVA_SOURCE = Path(__file__).with_name("java")
REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Moved:
    """One load: its seconds, and the processor seconds of the program and of its helpers."""

    seconds: float
    cpu_s: float


class Mover:
    """One program of ``bench.byte_movers``, or Hadoop's own client, as a context: it ends with it."""

    def __init__(self, name: str, command: Sequence[str], *, folder: Path) -> None:
        self.name = name
        self.command = list(command)
        self.log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=REPOSITORY
            )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()  # which it ends at
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def open(
        self, folder: str, *, files: int, packet_bytes: int, chunk_bytes: int, replicas: int, block_bytes: int
    ) -> None:
        """Have the files created, each with one packet in it."""
        self._ask("open", folder, files, packet_bytes, chunk_bytes, replicas, block_bytes)

    def write(self, packets: int, window: int) -> Moved:
        """Have so many packets written to each file, ``window`` of them in flight at most."""
        return Moved(*self._ask("write", packets, window))

    def close(self) -> None:
        """Have the files closed and removed."""
        self._ask("close")

    def _ask(self, *words: object) -> list[float]:
        """Send a command; return the numbers of its response.  Raises NotReady if there is none in time."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        command = " ".join(map(str, words))
        try:
            process.stdin.write(f"{command}\n".encode())
            process.stdin.flush()
        except BrokenPipeError:
            raise self._failed(command) from None
        end = time.monotonic() + RESPONSE_TIMEOUT_S
        while True:
            line = self._line(process.stdout, end)
            if line is None:
                raise self._failed(command)
            if line.startswith(b"= "):  # anything else is what a library prints
                return [float(word) for word in line[2:].split()]

    def _line(self, output: IO[bytes], end: float) -> bytes | None:
        """Return the next line of output; None if it ended, or none came in time."""
        while b"\n" not in self._received:
            ready, _, _ = select.select([output], [], [], max(0.0, end - time.monotonic()))
            data = os.read(output.fileno(), 1 << 16) if ready else b""
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _failed(self, command: str) -> NotReady:
        return NotReady(f"{self.name}: no response to {command!r}; its log {self.log} ends in:\n{tail(self.log)}")


def python_mover(name: str, *arguments: str, folder: Path) -> Mover:
    """Return a program of ``bench.byte_movers``."""
    return Mover(name, [sys.executable, "-m", "bench.byte_movers", *arguments], folder=folder)


def hadoop_command(hdfs: HdfsCluster, *arguments: str, classes: Path | None = None) -> list[str]:
    """Return the command of a Java program over Hadoop's client: its JVM chooses the rest, as in production."""
    class_path = f"{hdfs.conf_folder}:{hdfs.class_path}"
    if classes is not None:
        class_path = f"{classes}:{class_path}"
    return ["java", f"-Xmx{HEAP_MB}m", *JAVA_OPTIONS, "-Dlog4j.configuration=", "-cp", class_path, *arguments]


def hadoop_mover(name: str, hdfs: HdfsCluster, *, folder: Path) -> Mover:
    """Return Hadoop's own client, compiled at the first time."""
    classes = clients.java_classes(f"hdfs-writer-{jars.HADOOP_VERSION}", JAVA_SOURCE, hdfs.class_path)
    return Mover(name, hadoop_command(hdfs, "HdfsWriter", classes=classes), folder=folder)
