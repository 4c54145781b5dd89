"""The times at which a late pipeline is probed, or suspected of slowness."""

from __future__ import annotations

from bmq.broker.config import BrokerConfig
from bmq.broker.partition.pipeline_watch import PipelineWatch

CONFIG = BrokerConfig(silent_flush_ms=100, slow_flush_ms=400, slow_roll_interval_ms=10_000)


def test_a_pipeline_is_probed_when_its_flush_is_late_and_again_after_a_while() -> None:
    watch = PipelineWatch(CONFIG)
    assert watch.due_ms(0) == 100
    assert watch.late(99, 99) is None
    assert watch.late(100, 100) is False
    assert watch.late(101, 101) is None
    assert watch.due_ms(0) == 400


def test_slowness_is_suspected_once_in_an_interval_whichever_pipeline_it_was() -> None:
    watch = PipelineWatch(CONFIG)
    assert watch.late(400, 400) is True
    assert not watch.may_roll(401)
    assert watch.late(800, 800) is False, "a probe, no suspicion"
    assert watch.may_roll(10_400)
    assert watch.late(400, 10_400) is True


def test_a_roll_for_slowness_counts_as_a_suspicion() -> None:
    watch = PipelineWatch(CONFIG)
    watch.rolled(1000)
    assert not watch.may_roll(1001)
    assert watch.late(400, 1400) is False
    assert watch.due_ms(10_900) == 11_000, "a probe comes first"
