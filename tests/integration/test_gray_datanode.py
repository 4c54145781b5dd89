"""One of five datanodes goes silent (SIGSTOP) or dies under partitions that are written all the time.

Its pipelines are left as soon as it does not answer a probe, and nothing new goes through it.  So the longest pause is
the time to find that out, and the time to open the files that are needed.  How long files take to open is measured in
the same run, under the same load: at its beginning each partition opens its first one.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest
import uvloop

from bmq.broker.config import BrokerConfig
from bmq.meta.kv_memory import MemoryStore
from bmq.storage.hdfs import HdfsSettings
from tests.integration.conftest import HdfsFactory
from tests.integration.driver import DriverProcess
from tests.integration.history import Ack, Transcript, report
from tests.integration.kv_server import serve_store
from tests.integration.test_log_faults import is_segment
from tests.services.hdfs import HdfsCluster

TIMEOUT_S = 600.0
WAIT_S = 300.0
"""Bound of a wait for a condition, on a loaded machine."""
PAUSE_MS = {1: 5, 8: 20, 1000: 1000}
"""Pause, by the number of partitions, of each one's producer after an acknowledgement: a thousand get a light load."""
SILENT_S = BrokerConfig().silent_flush_ms / 1000 + HdfsSettings().probe_timeout_s
OPENINGS = 6
"""So many times the opening of all files is granted: what comes on top is the machine's unevenness.  What this test is
there to notice are time-outs of acknowledgements and set-ups (5 s), one after another."""
UNDER_WAY_S = {1: 0.0, 8: 0.0, 1000: 1.0}
"""A file whose pipeline stood when the fault began may be reported as created so long after it: a thousand partitions,
for which there are as many places, open a hundred a second all the time."""
SIZES = [1, 8, pytest.param(1000, marks=pytest.mark.soak)]


class Watch:
    """A driver's acknowledgements and files."""

    def __init__(self, hdfs: HdfsCluster, driver: DriverProcess, partitions: int) -> None:
        self._hdfs = hdfs
        self._driver = driver
        self._partitions = partitions

    @property
    def seen(self) -> Transcript:
        self._driver.transcript.refresh()
        return self._driver.transcript

    def created(self, since_s: float = 0.0) -> list[tuple[str, list[int]]]:
        """Return the partition's folder and the datanodes of each segment created from this time on."""
        created = [event for event in self.seen.of("created") if is_segment(event["path"]) and event["at_s"] >= since_s]
        return [
            (event["path"].rpartition("/")[0], [self._hdfs.datanode_of(node) for node in event["nodes"]])
            for event in created
        ]

    def open_pipelines(self) -> dict[str, list[int]]:
        """Return the datanodes of each partition's last segment."""
        return dict(self.created())

    def most_used(self) -> int:
        nodes = [node for pipeline in self.open_pipelines().values() for node in pipeline]
        return max(set(nodes), key=nodes.count)

    async def until_all_flow(self, since_s: float = 0.0) -> None:
        """Wait for an acknowledgement of each partition."""
        flowing: set[int] = set()
        looked_at = 0

        def all_flow(seen: Transcript) -> bool:
            nonlocal looked_at
            fresh, looked_at = seen.acks[looked_at:], len(seen.acks)
            flowing.update(ack.partition for ack in fresh if ack.at_s >= since_s)
            return len(flowing) == self._partitions

        await self._driver.until(all_flow, "acknowledgements in every partition", timeout_s=WAIT_S)

    def opening_s(self) -> float:
        """Return the seconds from the first partition's readiness until each has had its first acknowledgement."""
        ready_s = min(event["at_s"] for event in self.seen.of("ready"))
        first: dict[int, float] = {}
        for ack in self.seen.acks:
            first.setdefault(ack.partition, ack.at_s)
        return float(max(first.values()) - ready_s)

    def pause_s(self, since_s: float) -> float:
        return max(pauses(self.seen.acks, since_s).values())


def pauses(acks: Iterable[Ack], since_s: float) -> dict[int, float]:
    """Return, by partition, the longest time without an acknowledgement of those that ended after ``since_s``."""
    last: dict[int, float] = {}
    found: dict[int, float] = defaultdict(float)
    for ack in acks:
        if ack.at_s >= since_s and ack.partition in last:
            found[ack.partition] = max(found[ack.partition], ack.at_s - last[ack.partition])
        last[ack.partition] = ack.at_s
    return found


@pytest.mark.parametrize("partitions", SIZES)
def test_a_gray_datanode(
    partitions: int, hdfs_new: HdfsFactory, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """First one is paused, and runs again; then one is killed."""

    async def test() -> None:
        hdfs = await asyncio.to_thread(hdfs_new, datanodes=5)
        async with asyncio.timeout(TIMEOUT_S), serve_store(MemoryStore(), tmp_path / "kv") as meta:
            options = {"partitions": partitions, "producers": 1, "window": 1, "pause_ms": PAUSE_MS[partitions]}
            driver = DriverProcess(tmp_path, f"{hdfs.root}/gray", meta, uuid.uuid4(), **options)
            watch = Watch(hdfs, driver, partitions)
            try:
                driver.start()
                await driver.until_ready(partitions, timeout_s=WAIT_S)
                await watch.until_all_flow()
                gray = watch.most_used()
                await check(watch, "paused", gray, partial(hdfs.stop_datanode, gray))
                hdfs.resume_datanode(gray)
                await asyncio.to_thread(hdfs.wait_live)
                gray = watch.most_used()
                await check(watch, "killed", gray, partial(hdfs.kill_datanode, gray))
                assert not driver.transcript.of("error")
                assert not driver.transcript.of("ended")
            finally:
                driver.kill()

    async def check(watch: Watch, fault: str, gray: int, begin: Callable[[], None]) -> None:
        affected = sum(gray in nodes for nodes in watch.open_pipelines().values())
        broken_s = time.monotonic()
        await asyncio.to_thread(begin)
        over_s = time.monotonic() + UNDER_WAY_S[partitions]
        while any(gray in nodes for nodes in watch.open_pipelines().values()):
            await watch.until_all_flow(time.monotonic())
        await watch.until_all_flow(time.monotonic())
        pause_s, opening_s = watch.pause_s(broken_s), watch.opening_s()
        report(request, f"{fault}: longest pause {pause_s:.2f} s, {affected} pipelines; {opening_s:.2f} s to open all")
        silent_s = SILENT_S if fault == "paused" else 0.0
        assert pause_s <= PAUSE_MS[partitions] / 1000 + silent_s + OPENINGS * max(opening_s, 0.1)
        fresh = watch.created(over_s)
        assert not any(gray in nodes for _, nodes in fresh), f"datanode {gray} is {fault}: {fresh}"

    uvloop.run(test())
