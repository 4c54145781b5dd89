"""A broker in a process of its own, under a load that never pauses, to be killed, stopped and overtaken by tests.

    python -m tests.integration.driver --root URL --meta URL --topic-id UUID --out FILE ...

Some idempotent producers, each with five batches in flight as a Kafka client has, write to each partition.  Every batch
names its producer and number (``tests.simulation.world``).  Whatever happens is appended to FILE by one ``write`` each,
so that a process which is killed has told all that it acknowledged: ``[partition, producer, number, offset, time]`` for
an acknowledgement, an object with ``event`` for the rest.  Started again on the same FILE it goes on as the client
would: from the first batch of each producer that was not acknowledged.  SIGTERM: everything is handed over.

``DriverProcess`` is the test's end of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvloop

from bmq.broker.broker import Broker, new_incarnation
from bmq.broker.config import BrokerConfig, LogConfig
from bmq.broker.partition.driver import PartitionDriver
from bmq.broker.partition.states import PartitionState
from bmq.core.errors import RequestError
from bmq.core.model import PartitionKey
from bmq.storage.filesystem import Appender, CreateOptions, FileSystem, Lease
from bmq.storage.layout import PartitionPath
from bmq.storage.open import open_filesystem
from tests.harness.members import lone_broker
from tests.integration.history import Transcript
from tests.integration.kv_server import open_shared
from tests.services.processes import NotReady, ServiceProcess, tail
from tests.simulation.world import make

WINDOW = 5
TOPIC = "driven"
Tell = Callable[[dict[str, Any]], None]


def partition_of(topic_id: uuid.UUID, partition: int = 0) -> tuple[PartitionPath, PartitionKey]:
    return PartitionPath(TOPIC, str(topic_id), partition), PartitionKey(topic_id, partition)


class WatchedFs:
    """File system that passes every call on, reports new files and fences, and counts the bytes read of logs."""

    def __init__(self, fs: FileSystem, tell: Tell) -> None:
        self._fs = fs
        self._tell = tell
        self.log_bytes_read: Counter[str] = Counter()  # by folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    async def create(self, path: str, options: CreateOptions) -> Appender:
        appender = await self._fs.create(path, options)
        self._tell({"event": "created", "path": path, "nodes": appender.nodes, "exclude": options.exclude})
        return appender

    async def fence(self, lease: Lease, *, sync: bool = False) -> int:
        self._tell({"event": "fence", "path": lease.paths[0]})
        length = await self._fs.fence(lease, sync=sync)
        self._tell({"event": "fence done", "path": lease.paths[0], "length": length})
        return length

    async def read(self, path: str, position: int, length: int) -> bytes:
        data = await self._fs.read(path, position, length)
        if path.endswith(".log"):
            self.log_bytes_read[path.rpartition("/")[0]] += len(data)
        return data


def watched(fs: FileSystem, tell: Tell) -> tuple[FileSystem, WatchedFs]:
    """Return a watched file system twice: typed as the broker takes it, and with its counter."""
    watch = WatchedFs(fs, tell)
    return cast(FileSystem, watch), watch


class Driver:
    """Load generator of one process: a broker, and producers that never pause."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self._out = os.open(arguments.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._stop = asyncio.Event()

    def tell(self, event: dict[str, Any]) -> None:
        self._write({"at_s": time.monotonic(), **event})

    def _write(self, item: object) -> None:
        os.write(self._out, json.dumps(item, separators=(",", ":")).encode() + b"\n")

    async def run(self) -> None:
        arguments = self.arguments
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop.set)
        incarnation = new_incarnation()
        fs, watch = watched(await open_filesystem(arguments.root, holder=incarnation), self.tell)
        kv = await open_shared(arguments.meta)
        config = BrokerConfig(**json.loads(arguments.broker))
        log_config = LogConfig(**json.loads(arguments.log))
        topic_id = uuid.UUID(arguments.topic_id)
        async with lone_broker(fs, kv, incarnation=incarnation, config=config) as broker:
            self.tell({"event": "started", "pid": os.getpid()})
            load = asyncio.gather(
                *(self._partition(broker, watch, topic_id, at, log_config) for at in range(arguments.partitions))
            )
            load.add_done_callback(lambda _: self._stop.set())
            await self._stop.wait()
            if load.done():
                load.result()  # a bug in here ends the process, seen
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
        self.tell({"event": "closed", "reports": broker.reports})
        await kv.close()
        await fs.close()

    async def _partition(
        self, broker: Broker, watch: WatchedFs, topic_id: uuid.UUID, at: int, log_config: LogConfig
    ) -> None:
        path, key = partition_of(topic_id, at)
        began = time.monotonic()
        try:
            writer = await broker.open(path, key, log_config)
        except RequestError as error:
            self.tell({"event": "ended", "partition": at, "state": "refused", "why": str(error)})
            return
        self.tell(
            {
                "event": "ready",
                "partition": at,
                "epoch": writer.machine.epoch,
                "end": writer.machine.high_watermark,
                "took_ms": (time.monotonic() - began) * 1000,
                "bytes_read": watch.log_bytes_read[path.folder],
            }
        )
        transcript = Transcript(Path(self.arguments.out))
        transcript.refresh()
        first = transcript.acked(at)
        await asyncio.gather(
            *(self._produce(writer, at, each, first.get(each, 0)) for each in range(self.arguments.producers))
        )
        self.tell({"event": "ended", "partition": at, "state": writer.machine.state.name})

    async def _produce(self, writer: PartitionDriver, at: int, producer: int, number: int) -> None:
        """Produce until the partition has another owner.  Reports any error before that: there should be none."""
        window: deque[tuple[int, asyncio.Future[int]]] = deque()
        size = self.arguments.size
        try:
            while True:
                while len(window) < self.arguments.window:
                    window.append((number, writer.append(make(producer, number, pid=producer, size=size))))
                    number += 1
                sent, future = window.popleft()
                offset = await future
                self._write([at, producer, sent, offset, time.monotonic()])
                if self.arguments.pause_ms:
                    await asyncio.sleep(self.arguments.pause_ms / 1000)
        except RequestError as error:
            if writer.machine.state is PartitionState.WRITE:
                self.tell({"event": "error", "partition": at, "producer": producer, "why": str(error)})
        finally:
            for _, future in window:
                future.add_done_callback(lambda done: done.cancelled() or done.exception())  # all end the same way


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("root", "meta", "topic-id", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--window", type=int, default=WINDOW, help="batches in flight of each producer")
    parser.add_argument("--size", type=int, default=1000, help="bytes of a record")
    parser.add_argument("--pause-ms", type=float, default=0, help="of each producer, between batches")
    parser.add_argument("--broker", default="{}", help="BrokerConfig's fields, JSON")
    parser.add_argument("--log", default="{}", help="LogConfig's fields, JSON")
    return parser.parse_args(argv)


class DriverProcess:
    """The test's end: starts, breaks and follows one driver.  ``kill`` it in the end, whatever happens."""

    def __init__(self, folder: Path, root: str, meta: str, topic_id: uuid.UUID, **options: object) -> None:
        name = f"driver-{topic_id.hex[:8]}"
        out = folder / f"{name}.jsonl"
        self.transcript = Transcript(out)
        command = [sys.executable, "-m", "tests.integration.driver"]
        command += ["--root", root, "--meta", meta, "--topic-id", str(topic_id), "--out", str(out)]
        for option, value in options.items():
            text = json.dumps(value) if isinstance(value, dict) else str(value)
            command += [f"--{option.replace('_', '-')}", text]
        # The package of this process, which need not be the installed one.
        places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {"PYTHONPATH": os.pathsep.join(places)}
        self.process = ServiceProcess(name, command, log=folder / f"{name}.log", environment=environment)

    def start(self) -> None:
        self.process.start()

    def kill(self) -> None:
        """Send SIGKILL; afterwards the transcript is complete."""
        self.process.kill()
        self.transcript.refresh()

    def terminate(self) -> None:
        """Send SIGTERM, at which the driver hands everything over; the event ``closed`` ends that."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)

    async def until(self, is_met: Callable[[Transcript], bool], what: str, *, timeout_s: float = 60.0) -> None:
        """Wait for something in the transcript.  Raises NotReady if it does not come, or if the process ends before."""
        deadline = time.monotonic() + timeout_s
        while True:
            is_running, looked_s = self.process.is_running, time.monotonic()
            self.transcript.refresh()
            if is_met(self.transcript):
                return
            if not is_running or time.monotonic() > deadline:
                state = f"not within {timeout_s:.0f} s" if is_running else "the driver ended"
                log = tail(self.process.log)
                raise NotReady(f"{what}: {state}; {self.transcript.events[-5:]}; its log ends in:\n{log}")
            await asyncio.sleep(max(0.002, 5 * (time.monotonic() - looked_s)))  # the driver's store may be on this loop

    async def until_acks(self, more: int, *, timeout_s: float = 60.0) -> None:
        """Wait for so many acknowledgements more than now."""
        self.transcript.refresh()
        wanted = len(self.transcript.acks) + more
        await self.until(lambda seen: len(seen.acks) >= wanted, f"{more} more acknowledgements", timeout_s=timeout_s)

    async def until_ready(self, count: int = 1, *, timeout_s: float = 60.0) -> None:
        """Wait for so many more partitions to be opened."""
        self.transcript.refresh()
        wanted = len(self.transcript.of("ready")) + count
        await self.until(lambda seen: len(seen.of("ready")) >= wanted, "open partitions", timeout_s=timeout_s)


if __name__ == "__main__":
    uvloop.run(Driver(parse()).run())
