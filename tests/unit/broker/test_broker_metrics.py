"""A broker's metrics of its flushes, takeovers and copies."""

from __future__ import annotations

from bmq.broker.config import log_config
from bmq.core.errors import ErrorCode
from tests.harness.waiting import until
from tests.unit.broker.world import World, batch, world


def open_with_three_copies(w: World) -> None:
    w.topic("orders", assign=False)
    w.assigned.assign(w.path(), w.key(), log_config({}, 3))


async def test_each_flush_is_in_the_histograms_of_queue_and_flush() -> None:
    async with world() as w:
        open_with_three_copies(w)
        shared = w.broker.context
        for count in range(1, 4):
            assert ErrorCode((await w.produce_one(batch())).error_code) is ErrorCode.NONE
            assert sum(shared.queue_ms.buckets) == count
            assert sum(shared.flush_ms.buckets) == count
        assert sum(shared.takeover_ms.buckets) == 1
        assert sum(w.broker.journal.flush_ms.buckets) > 0


async def test_a_segment_with_fewer_copies_than_asked_is_counted_until_there_are_enough() -> None:
    async with world() as w:
        open_with_three_copies(w)
        names = sorted(w.storage.datanodes)
        for name in names[2:]:
            w.storage.kill_datanode(name)
        assert (await w.produce_one(batch())).error_code == 0
        assert w.broker.under_replicated == 1
        for name in names[2:]:
            w.storage.start_datanode(name)
        owner = await w.owner()
        await until(lambda: owner.high_watermark == 1)
        await w.broker.move(w.key())
        assert w.broker.under_replicated == 0
        assert w.broker.moved_total == 1


async def test_reports_are_counted_past_those_that_are_remembered() -> None:
    async with world() as w:
        for number in range(150):
            w.broker.context.report(f"condition {number}")
        assert w.broker.reports_total == 150
        assert len(w.broker.reports) == 100
