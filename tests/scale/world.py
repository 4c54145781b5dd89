"""A cluster whose controllers are processes, whose brokers are stubs, and whose partitions are as many as one likes.

The store is a real etcd.  Used by the tests beside it and by ``bench.scaling``.
"""

import asyncio
import json
import re
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bmq.meta.catalog import Topic, encode_topic, topic_key
from bmq.meta.cluster.assignment import decode_chunk
from bmq.meta.cluster.keys import assignment_prefix, controller_key
from bmq.meta.cluster.kv_view import KvClusterView
from bmq.meta.kv import COMMIT_OPERATIONS_MAX, KeyValue, Put
from bmq.meta.open import open_keyvalue
from tests.scale import watched_server
from tests.scale.stub_brokers import StubBrokers
from tests.services.etcd import EtcdCluster
from tests.services.processes import free_ports

CLUSTER = "bmq"
UNSYNCED = ("--unsafe-no-fsync",)
"""Disks are not measured here: one that takes two seconds costs any leader its lease."""
WITHIN_S = 300.0
"""Bound of each step on any machine; the time that it took is reported."""


class ControllerProcess:
    """`bmq serve --roles controller`, watched."""

    def __init__(self, folder: Path, number: int, meta: str) -> None:
        self._stops = folder / f"stops-{number}.json"
        self._log = folder / f"controller-{number}.log"
        internal, http = free_ports(2)
        settings = {
            "roles": "controller", "meta": meta, "root": f"file://{folder}/data", "cluster": CLUSTER,
            "internal": f"127.0.0.1:{internal}", "http": f"127.0.0.1:{http}",
        }  # fmt: skip
        self._process = watched_server.start(self._stops, self._log, settings)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def is_ready(self) -> bool:
        assert self._process.poll() is None, f"the controller ended:\n{self.log[-3000:]}"
        return "ready " in self.log

    @property
    def declared(self) -> set[str]:
        """Members that it has given up."""
        return set(re.findall(r": (?:a member does not answer|a member is gone).* member=(\S+)", self.log))

    def stops(self, since: float) -> list[float]:
        """Long stretches, in ms, after this time of the machine's clock."""
        found = [json.loads(line) for line in self._stops.read_text().splitlines()]
        return [each["ms"] for each in found if each["at"] >= since]

    @property
    def rss_mb(self) -> int:
        return int(psutil.Process(self._process.pid).memory_info().rss >> 20)

    def cpu_s(self) -> float:
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def leave(self) -> None:
        self._process.terminate()
        assert self._process.wait(WITHIN_S) == 0, self.log[-3000:]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Cost of one step: its seconds, and of each controller the CPU time, the longest stop and the memory."""

    took_s: float
    cpu_s: Sequence[float]
    stop_ms: Sequence[float]
    rss_mb: Sequence[int]

    def __str__(self) -> str:
        used = [round(each, 1) for each in self.cpu_s]
        return f"{self.took_s:.1f} s, cpu {used} s, longest stop {list(self.stop_ms)} ms, rss {list(self.rss_mb)} MB"


class ScaleWorld:
    """Cluster under test: its controllers, stub brokers and key-value store."""

    def __init__(
        self,
        etcd: EtcdCluster,
        kv: KeyValue,
        view: KvClusterView,
        controllers: list[ControllerProcess],
        brokers: StubBrokers,
        started: float,
    ) -> None:
        self.etcd = etcd
        self.kv = kv
        self._view = view
        self._started = started
        self.controllers = controllers
        self.brokers = brokers

    async def assigned(self) -> Counter[str]:
        """Return how many partitions each broker is assigned."""
        counts: Counter[str] = Counter()
        async for entry in self.kv.list(assignment_prefix(CLUSTER)):
            counts.update(decode_chunk(entry.value).owners)
        return counts

    async def until_assigned(
        self, partitions: int, is_so: Callable[[Counter[str]], bool], *, from_start: bool = False
    ) -> Step:
        """Wait until each of so many partitions has an owner and ``is_so``.

        Returns the cost from now, or from the start of the controllers.
        """
        began, cpu = time.monotonic(), [each.cpu_s() for each in self.controllers]
        if from_start:
            began, cpu = self._started, [0.0 for _ in self.controllers]
        async with asyncio.timeout(WITHIN_S):
            while True:
                counts = Counter({owner: self._view.owned_count(owner) for owner in self._view.owners})
                if counts.total() == partitions and is_so(counts):
                    break
                await asyncio.sleep(0.1)
        took = time.monotonic() - began
        step = Step(
            took_s=took,
            cpu_s=[each.cpu_s() - before for each, before in zip(self.controllers, cpu, strict=True)],
            stop_ms=[max(each.stops(began), default=0.0) for each in self.controllers],
            rss_mb=[each.rss_mb for each in self.controllers],
        )
        counts = await self.assigned()
        assert counts.total() == partitions
        assert not counts[""]
        return step

    async def term(self) -> int:
        """Return the revision of the election key, 0 without a leader; another revision is another term."""
        entry = await self.kv.get(controller_key(CLUSTER))
        return entry.revision if entry is not None else 0


@asynccontextmanager
async def scale_world(folder: Path, topics: int, partitions: int, *, joined: int = 0) -> AsyncIterator[ScaleWorld]:
    """Run two controllers over so many topics of so many partitions; ``joined`` brokers are there before them."""
    with EtcdCluster(folder=folder / "etcd", arguments=UNSYNCED) as etcd:
        kv = await open_keyvalue(etcd.url)
        view = KvClusterView(kv, CLUSTER, "test")
        brokers = StubBrokers(kv, CLUSTER)
        controllers: list[ControllerProcess] = []
        try:
            first = ControllerProcess(folder, 0, etcd.url)
            await until_ready(first)
            first.leave()  # the cluster has its root
            await create_topics(kv, topics, partitions)
            await brokers.join(joined)
            started = time.monotonic()
            controllers += [ControllerProcess(folder, number, etcd.url) for number in range(2)]
            await until_ready(*controllers)
            await view.start()
            yield ScaleWorld(etcd, kv, view, controllers, brokers, started)
        finally:
            for each in controllers:
                each.end()
            await brokers.close()
            await view.close()
            await kv.close()


async def until_ready(*controllers: ControllerProcess) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not all(each.is_ready for each in controllers):  # noqa: ASYNC110 - another process's state
            await asyncio.sleep(0.1)


async def create_topics(kv: KeyValue, topics: int, partitions: int) -> None:
    """Store topics in the key-value store as the leader does, without their files."""
    made = [Topic(name=f"t-{n:06d}", topic_id=uuid.uuid4(), partitions=partitions) for n in range(topics)]
    puts = [Put(topic_key(CLUSTER, topic.name), encode_topic(topic)) for topic in made]
    step = COMMIT_OPERATIONS_MAX
    for start in range(0, len(puts), step):
        await kv.commit([], puts[start : start + step])
