"""Storage that takes no bytes: producers wait, the broker makes no storm of files, and goes on by itself."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from bmq.broker.config import BrokerConfig
from bmq.core.errors import ErrorCode
from bmq.storage.filesystem import CreateOptions, OutOfSpace
from bmq.storage.memory import Faults
from tests.harness.log_text import lines
from tests.harness.waiting import until
from tests.simulation.world import read_log
from tests.unit.broker.world import World, batch, world

pytestmark = pytest.mark.slow


def count_creations(w: World) -> list[str]:
    made: list[str] = []
    plain = w.storage.create

    def create(path: str, holder: str, options: CreateOptions) -> Any:
        if "/topics/" in path and ".idx" not in path:
            made.append(path)
        return plain(path, holder, options)

    setattr(w.storage, "create", create)  # noqa: B010  (mypy: no plain assignment to a method)
    return made


async def segments(w: World, partition: int = 0) -> list[str]:
    folder = w.path("orders", partition).folder
    return [status.path async for status in w.fs.list(folder) if status.path.endswith(".log")]


async def test_flushes_that_fail_cost_a_new_file_every_two_seconds_and_not_more() -> None:
    async with world() as w:
        w.topic("orders", 4)
        for partition in range(4):
            assert (await w.produce_one(batch(), partition)).base_offset == 0
        made = count_creations(w)
        revision = w.store.revision
        w.storage.faults = Faults(pipeline_fails=1.0)
        waiting = [w.produce_one(batch(), partition, timeout_ms=120_000) for partition in range(4)]
        tasks = [asyncio.ensure_future(each) for each in waiting]
        await asyncio.sleep(60)
        assert len(made) <= 4 * 36
        assert w.store.revision - revision <= 4 * 36
        assert not any(task.done() for task in tasks)
        w.storage.faults = Faults()
        for task in tasks:
            assert (await task).base_offset == 1
        for partition in range(4):  # and no litter stays
            await w.produce_one(batch(), partition)
            await asyncio.sleep(1)
            assert len(await segments(w, partition)) <= 4
            assert [each.base_offset for each in await read_log(w.fs, 3, w.path("orders", partition))] == [0, 1, 2]


async def test_a_segment_that_fails_at_its_first_flush_is_followed_at_once_and_the_next_ones_later() -> None:
    async with world() as w:
        w.topic()
        await w.owner()
        times: list[float] = []
        plain = w.storage.create

        def create(path: str, holder: str, options: CreateOptions) -> Any:
            times.append(asyncio.get_running_loop().time())
            return plain(path, holder, options)

        setattr(w.storage, "create", create)  # noqa: B010
        w.storage.faults = Faults(pipeline_fails=1.0)
        task = asyncio.ensure_future(w.produce_one(batch(), timeout_ms=30_000))
        await asyncio.sleep(10)
        gaps = [round(later - earlier, 1) for earlier, later in itertools.pairwise(times)]
        assert gaps[:6] == [0.0, 0.2, 0.4, 0.8, 1.6, 2.0]
        w.storage.faults = Faults()
        assert (await task).error_code == ErrorCode.NONE


async def test_a_flush_without_room_closes_the_line_and_names_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    """ENOSPC of a local disk comes with the flush, not with the file: it counts as a refusal, like HDFS's."""

    async with world(broker=BrokerConfig(stalled_ms=5_000)) as w:
        w.topic("orders", 20)
        for partition in range(20):
            await w.produce_one(batch(), partition)
        for appender in list(w.storage.appenders):
            _refuse_flushes(appender)
        made = count_creations(w)
        plain = w.fs.create

        async def create(path: str, options: CreateOptions) -> Any:
            appender = await plain(path, options)
            if path.rpartition("/")[2].startswith("."):
                _refuse_flushes(appender)
            return appender

        setattr(w.fs, "create", create)  # noqa: B010
        waiting = [asyncio.ensure_future(w.produce_one(batch(), each, timeout_ms=120_000)) for each in range(20)]
        await asyncio.sleep(60)
        assert not any(task.done() for task in waiting)
        assert len(made) <= 120, "twenty partitions share the tries: one of them finds out whether there is room again"
        assert not w.broker.is_serving
        assert "No space left on device" in w.broker.storage_trouble
        setattr(w.fs, "create", plain)  # noqa: B010
        for task in waiting:
            assert (await task).base_offset == 1
        await until(lambda: w.broker.storage_trouble == "")
    assert "No space left on device" in caplog.text
    assert len([line for line in lines(caplog) if "No space left" in line]) <= 3


@pytest.mark.parametrize("drain_s", [4.0, 0.0])
async def test_a_stop_keeps_to_its_deadline_while_nothing_can_be_flushed(drain_s: float) -> None:
    """A second is granted always, for what does not hang on storage; then the partitions are left to their next owner.

    The journal's last entries have a file's time to close beside it."""

    async with world() as w:
        w.topic("orders", 4)
        for partition in range(4):
            await w.produce_one(batch(), partition)
        w.storage.faults = Faults(pipeline_fails=1.0)
        waiting = [asyncio.ensure_future(w.produce_one(batch(), each, timeout_ms=120_000)) for each in range(4)]
        await asyncio.sleep(5)
        loop = asyncio.get_running_loop()
        asked = loop.time()
        await w.assigned.close()
        await w.broker.close(asked + drain_s)
        assert loop.time() - asked <= max(drain_s, 1.0) + w.broker_config.close_timeout_ms / 1000
        for task in waiting:
            assert (await task).error_code != ErrorCode.NONE
        w.storage.faults = Faults()
        await w.start()  # a process that owns what was left
        w.assign()
        for partition in range(4):
            assert (await w.produce_one(batch(), partition)).base_offset == 1


def _refuse_flushes(appender: Any) -> None:
    def flush(*, sync: bool = False) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_exception(OutOfSpace("/data/x.log: No space left on device"))
        return future

    appender.flush = flush


async def test_partitions_that_cannot_be_flushed_leave_room_for_the_others() -> None:
    """Each partition holds a share of the free part of the process's buffers, and no more."""

    async with world(broker=BrokerConfig(buffer_bytes_total=8 << 20)) as w:
        w.topic("orders", 41)
        for partition in range(41):
            await w.produce_one(batch(), partition)
        w.storage.faults = Faults(hung_ack=1.0)
        held: list[int] = []
        waiting = []
        for partition in range(40):
            owner = await w.owner("orders", partition)
            before = w.broker.context.budget.used
            while owner.has_room:
                waiting.append(w.produce({("orders", partition): batch(b"x" * 20_000)}, timeout_ms=60_000))
                assert len(waiting) < 1_000, "their shares end"
                await asyncio.sleep(0)
            held.append(w.broker.context.budget.used - before)
        assert max(held) <= (8 << 20) // 16 + 30_000
        assert min(held) > 0
        w.storage.faults = Faults()
        last = await w.owner("orders", 40)
        for _ in range(20):
            assert last.has_room
            assert (await w.produce_one(batch(b"x" * 20_000), 40)).error_code == ErrorCode.NONE
        for task in waiting:
            task.cancel()


async def test_a_probe_that_is_never_answered_hides_no_stall() -> None:
    """Hang a probe, as on a host that is cut off from storage after a datanode died: without the stall's report,
    partitions would stay where they are."""

    async with world(broker=BrokerConfig(stalled_ms=5_000)) as w:
        w.topic()
        assert (await w.produce_one(batch())).base_offset == 0
        probed = asyncio.Event()
        plain = w.fs.probe

        async def probe(node: str) -> bool:
            probed.set()
            await asyncio.Event().wait()
            raise AssertionError

        setattr(w.fs, "probe", probe)  # noqa: B010
        w.broker.context.health.failed(["dn0"], w.broker.context.now_ms())
        await probed.wait()
        w.storage.faults = Faults(hung_ack=1.0)
        waiting = asyncio.ensure_future(w.produce_one(batch(), timeout_ms=120_000))
        await until(lambda: not w.broker.is_serving)
        w.storage.faults = Faults()
        setattr(w.fs, "probe", plain)  # noqa: B010
        waiting.cancel()
