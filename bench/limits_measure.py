"""The measurements of bench.limits: the same bytes through a broker, through a bare HDFS client, and by the kernel."""

from __future__ import annotations

import resource
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import run

from bench import raw_client, reference_loop
from bench.deployments import ETCD, OWN, Deployment
from bench.metrics import metric_sum
from bench.mover import Mover, hadoop_command
from bench.perf_tools import PRODUCER, produce
from bench.results import Sample
from bmq.broker.files.chunk_sizes import chunk_for
from tests.services.hdfs import HdfsCluster
from tests.services.processes import ServiceProcess

MB, GB = 1000**2, 1000**3
FILES = 6
"""Files at once, and partitions of a topic."""
REPLICAS = 3
BLOCK_BYTES = 128 << 20
"""Block of a bare writer's file, as of BMQ's segments; a file has one."""
BATCH_BYTES = 64 << 10
REQUESTS_IN_FLIGHT = 5
"""Requests of one connection without a response: Kafka's producer's max.in.flight.requests.per.connection."""
RECORD_BYTES = 1000
FLUSHES = 'bmq_produce_stage_seconds_count{stage="flush"'
"""The counter of flushes in a broker's /metrics, up to its last label."""
TOOL_TIMEOUT_S = 300.0
BENCH = "write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Amounts and repetitions of a run."""

    rounds: int = 10
    warm_rounds_most: int = 8
    megabytes: int = 300
    """Bytes of one measurement, all files together."""
    warm_share: float = 0.15
    """Share of the records that Kafka's perf tool sends first, and does not count."""


FULL = Plan()
QUICK = Plan(rounds=2, warm_rounds_most=1, megabytes=16)


@dataclass(frozen=True, slots=True)
class Site:
    """The storage that all write to, and the packets of this run."""

    hdfs: HdfsCluster
    folder: Path
    packet_bytes: int

    @property
    def chunk_bytes(self) -> int:
        """The checksum chunk that BMQ takes for flushes of this size."""
        return chunk_for(self.packet_bytes)

    def groups(self) -> dict[str, Sequence[ServiceProcess]]:
        """Return the processes of storage, by the first part of their metrics' names."""
        return {"namenode_cpu": self.hdfs.namenodes, "datanode_cpu": [node.process for node in self.hdfs.datanodes]}


@dataclass(frozen=True, slots=True)
class Side:
    """One way to write the same bytes.  ``write`` returns the metrics of one measurement."""

    name: str
    write: Callable[[Plan, Site], dict[str, float]]
    is_resident: bool = True
    """Whether what is measured lives from round to round, and so can get warm."""


def measure(side: Side, plan: Plan, site: Site, number: int) -> Iterator[Sample]:
    """Measure one side once."""
    yield Sample(adapter=side.name, bench=BENCH, case="", round=number, metrics=side.write(plan, site))


@contextmanager
def storage_cpu(site: Site, cost: dict[str, float]) -> Iterator[None]:
    """Add the processor seconds of the NameNode and of the datanodes to ``cost``."""
    before = {name: _cpu_s(group) for name, group in site.groups().items()}
    yield
    cost |= {name: _cpu_s(group) - before[name] for name, group in site.groups().items()}


def metrics_of(size: int, seconds: float, cpu_s: Mapping[str, float]) -> dict[str, float]:
    """Return the rate in MB/s, and processor seconds a GB of each group and of all of them."""
    costs = {f"{name}_s_gb": value / size * GB for name, value in cpu_s.items()}
    return {"bytes": size, "mb_s": size / MB / seconds} | costs | {"all_cpu_s_gb": sum(costs.values())}


# ------------------------------------------------------------------------------------------------------ without broker


def moved(name: str, mover: Mover, *, window: int, is_storage: bool) -> Side:
    """Return the side of a program that moves bytes; ``is_storage``: through HDFS."""

    def write(plan: Plan, site: Site) -> dict[str, float]:
        packets = max(1, plan.megabytes * MB // FILES // site.packet_bytes)
        if (packets + 1) * site.packet_bytes > BLOCK_BYTES:
            raise ValueError(f"{plan.megabytes} MB do not fit into {FILES} files of one block")
        mover.open(
            f"/limits/{name}-{uuid.uuid4().hex[:8]}", files=FILES, packet_bytes=site.packet_bytes,
            chunk_bytes=site.chunk_bytes, replicas=REPLICAS, block_bytes=BLOCK_BYTES,
        )  # fmt: skip
        cost: dict[str, float] = {}
        with storage_cpu(site, cost):
            found = mover.write(packets, window)
        mover.close()
        used = {"own_cpu": found.cpu_s} | (cost if is_storage else {})
        return metrics_of(packets * site.packet_bytes * FILES, found.seconds, used)

    return Side(name, write)


def put(plan: Plan, site: Site) -> dict[str, float]:
    """Measure ``hdfs dfs -put`` of a local file; the start of its JVM is in the figures."""
    size = plan.megabytes * MB
    local = site.folder / "put.bin"
    local.write_bytes(bytes(size))
    command = hadoop_command(
        site.hdfs, "org.apache.hadoop.fs.FsShell", "-put", str(local), f"/limits-put-{uuid.uuid4().hex[:8]}"
    )
    cost: dict[str, float] = {}
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    with storage_cpu(site, cost):
        begun = time.monotonic()
        done = run(command, capture_output=True, text=True, check=False, timeout=TOOL_TIMEOUT_S)
        seconds = time.monotonic() - begun
    if done.returncode:
        raise OSError(f"-put ended with {done.returncode}: {done.stderr[-1000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    run([*command[:-3], "-rm", "-skipTrash", command[-1]], capture_output=True, check=True, timeout=TOOL_TIMEOUT_S)
    return metrics_of(size, seconds, {"own_cpu": used} | cost)


# --------------------------------------------------------------------------------------------------------- with broker


def ready_made(deployment: Deployment) -> Side:
    """Return the side of requests that are made beforehand, one connection a partition: a client that costs little."""

    def write(plan: Plan, site: Site) -> dict[str, float]:
        topic = deployment.create_topic(FILES)
        value = bytes(BATCH_BYTES - 200)
        frames = [raw_client.produce_frame(topic, value, partition) for partition in range(FILES)]
        count = max(1, plan.megabytes * MB // FILES // len(frames[0]))
        any_node = raw_client.addresses_of(deployment.bootstrap)[0]
        with raw_client.connect(any_node) as connection:
            leaders = [raw_client.leader_of(connection, topic, partition) for partition in range(FILES)]
        connections = [raw_client.connect(leader.address, timeout_s=TOOL_TIMEOUT_S) for leader in leaders]
        try:
            pairs = list(zip(connections, frames, strict=True))
            for connection, frame in pairs:
                raw_client.produce(connection, frame)
            flushes = _flushes(deployment)
            cost: dict[str, float] = {}
            with storage_cpu(site, cost), own_cpu(deployment, cost), ThreadPoolExecutor(FILES) as pool:
                client, begun = time.process_time(), time.monotonic()
                for end in [pool.submit(_send, connection, frame, count) for connection, frame in pairs]:
                    end.result()
                seconds, client = time.monotonic() - begun, time.process_time() - client
            size = count * sum(map(len, frames))
            made = _flushes(deployment) - flushes
            for connection, frame in pairs:
                offset = raw_client.produce(connection, frame)
                if offset != count + 1:
                    raise AssertionError(f"{offset} of {count + 1} records have an offset: some were refused")
        finally:
            for connection in connections:
                connection.close()
        deployment.delete_topic(topic)
        extra = {"client_cpu_s_gb": client / size * GB, "flush_bytes": size / max(1.0, made)}
        return metrics_of(size, seconds, cost) | extra

    return Side(f"{deployment.name}, ready-made requests", write)


def perf_tool(deployment: Deployment) -> Side:
    """Return the side of Kafka's own perf tool, a Java client that shares the processor."""

    def write(plan: Plan, site: Site) -> dict[str, float]:
        topic = deployment.create_topic(FILES)
        count = plan.megabytes * MB // RECORD_BYTES
        warm = int(count * plan.warm_share)
        flushes = _flushes(deployment)
        cost: dict[str, float] = {}
        with storage_cpu(site, cost), own_cpu(deployment, cost):
            figures = produce(
                deployment.bootstrap, topic, count=count, record_bytes=RECORD_BYTES, properties=PRODUCER,
                warm_count=warm,
            )  # fmt: skip
        made = _flushes(deployment) - flushes
        deployment.delete_topic(topic)
        size = (count + warm) * RECORD_BYTES  # the processor worked for those that are not counted, too
        found = metrics_of(size, size / (figures["records_s"] * RECORD_BYTES), cost)
        return found | {"flush_bytes": size / max(1.0, made)}

    return Side(f"{deployment.name}, Kafka's perf tool", write)


@contextmanager
def own_cpu(deployment: Deployment, cost: dict[str, float]) -> Iterator[None]:
    """Add the processor seconds of BMQ's processes and of etcd to ``cost``."""
    groups = {"own_cpu": deployment.groups[OWN], "etcd_cpu": deployment.groups.get(ETCD, ())}
    before = {name: _cpu_s(group) for name, group in groups.items()}
    yield
    cost |= {name: _cpu_s(group) - before[name] for name, group in groups.items() if group}


def _send(connection: socket.socket, frame: bytes, count: int) -> None:
    reference_loop.pipelined(connection, frame, count=count, window=REQUESTS_IN_FLIGHT)


def _flushes(deployment: Deployment) -> float:
    return sum(metric_sum(url, FLUSHES) for url in deployment.metrics_urls)


def _cpu_s(processes: Sequence[ServiceProcess]) -> float:
    return sum(process.cpu_seconds for process in processes)
