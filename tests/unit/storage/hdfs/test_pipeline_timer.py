"""The timer of a process's pipelines: what is late, what is over, and heartbeats of quiet ones."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from bmq.storage.filesystem import PipelineFailed
from bmq.storage.hdfs.pipeline import Pipeline
from bmq.storage.hdfs.pipeline_timer import TICK_S, PipelineClock
from bmq.storage.hdfs.settings import HdfsSettings
from tests.harness.waiting import now

SETTINGS = HdfsSettings(ack_timeout_s=10.0, heartbeat_s=5.0)


class QuietPipeline:
    """A pipeline that notes what the clock does with it, and when."""

    has_sent_since_check = False
    suspects: tuple[str, ...] = ("dn1",)
    oldest_seqno = 0

    def __init__(self, clock: PipelineClock) -> None:
        self._clock = clock
        self.heartbeats: list[float] = []
        self.failure: PipelineFailed | None = None
        self.failed_at = 0.0
        self.is_aborted = False
        clock.add(self.seen)

    @property
    def seen(self) -> Pipeline:
        return cast(Pipeline, self)

    def heartbeat(self) -> None:
        self.heartbeats.append(now())

    def fail(self, error: PipelineFailed) -> None:
        self.failure, self.failed_at = error, now()
        self._clock.remove(self.seen)

    def abort(self) -> None:
        self.is_aborted = True
        self._clock.remove(self.seen)


def clock(late: list[Any] | None = None) -> PipelineClock:
    return PipelineClock(SETTINGS, (late if late is not None else []).append)


async def test_a_packet_is_late_after_half_of_the_time_and_fails_its_pipeline_after_all_of_it() -> None:
    late: list[Any] = []
    timer = clock(late)
    waiting, other = QuietPipeline(timer), QuietPipeline(timer)
    timer.busy(waiting.seen)
    await asyncio.sleep(SETTINGS.ack_timeout_s / 2 - TICK_S)
    assert late == []
    await asyncio.sleep(3 * TICK_S)
    assert late == [waiting]
    await asyncio.sleep(SETTINGS.ack_timeout_s)
    assert waiting.failure is not None
    assert waiting.failure.suspects == ("dn1",)
    assert "no acknowledgement within 10 s; silent: dn1" in str(waiting.failure)
    assert SETTINGS.ack_timeout_s <= waiting.failed_at <= SETTINGS.ack_timeout_s + 2 * TICK_S
    assert late == [waiting], "once"
    assert other.failure is None
    timer.close()


async def test_each_acknowledgement_gives_the_next_packet_its_own_time() -> None:
    late: list[Any] = []
    timer = clock(late)
    waiting = QuietPipeline(timer)
    timer.busy(waiting.seen)
    for _ in range(10):
        await asyncio.sleep(SETTINGS.ack_timeout_s / 2 - 2 * TICK_S)
        waiting.oldest_seqno += 1
    timer.quiet(waiting.seen)
    await asyncio.sleep(10 * SETTINGS.ack_timeout_s)
    assert late == []
    assert waiting.failure is None
    timer.close()


async def test_a_quiet_pipeline_sends_a_heartbeat_in_each_turn_and_a_busy_one_sends_none() -> None:
    timer = clock()
    pipeline = QuietPipeline(timer)
    await asyncio.sleep(3 * SETTINGS.heartbeat_s + TICK_S / 2)
    assert pipeline.heartbeats == [SETTINGS.heartbeat_s * number for number in (1, 2, 3)]
    pipeline.has_sent_since_check = True
    await asyncio.sleep(SETTINGS.heartbeat_s)
    assert len(pipeline.heartbeats) == 3
    await asyncio.sleep(SETTINGS.heartbeat_s)
    assert len(pipeline.heartbeats) == 4, "it has sent nothing since"
    timer.close()


async def test_without_pipelines_there_is_no_timer_and_the_next_one_starts_it() -> None:
    loop, timer = asyncio.get_running_loop(), clock()
    first = QuietPipeline(timer)
    timer.remove(first.seen)
    timer.remove(first.seen)
    assert len(timer) == 0
    await asyncio.sleep(1)
    assert timer._timer is None
    second = QuietPipeline(timer)
    began = loop.time()
    await asyncio.sleep(SETTINGS.heartbeat_s + 2 * TICK_S)
    assert first.heartbeats == []
    assert len(second.heartbeats) == 1
    assert second.heartbeats[0] - began <= SETTINGS.heartbeat_s + TICK_S
    timer.close()


async def test_its_end_aborts_all() -> None:
    timer = clock()
    pipelines = [QuietPipeline(timer) for _ in range(3)]
    timer.busy(pipelines[0].seen)
    timer.close()
    assert [pipeline.is_aborted for pipeline in pipelines] == [True] * 3
    await asyncio.sleep(10 * SETTINGS.ack_timeout_s)
    assert all(pipeline.failure is None and pipeline.heartbeats == [] for pipeline in pipelines)
