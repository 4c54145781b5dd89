"""The arithmetic of the storage bill, by figures that can be computed by hand."""

from __future__ import annotations

import math

import pytest

from bench.storage_model import DAY_S, Limits, Measured, bill, kept, segments_a_day
from bmq.broker.cleanup.config import JanitorConfig
from bmq.broker.config import BrokerConfig, LogConfig

LIMITS = Limits()
MEASURED = Measured(
    idle_calls_s=2.0,
    steady_calls_s=0.25,
    segment_calls=10.0,
    segment_etcd_writes=1.0,
    inode_bytes=200.0,
    block_bytes=300.0,
    etcd_partition_bytes=250.0,
    etcd_write_bytes=300.0,
)


def test_the_limits_are_the_defaults_of_brokers_and_topics() -> None:
    broker, log, janitor = BrokerConfig(), LogConfig(), JanitorConfig()
    assert (LIMITS.block_bytes, LIMITS.first_block_bytes) == (broker.block_bytes, broker.first_block_bytes)
    assert LIMITS.idle_close_s * 1000 == broker.idle_close_ms
    assert LIMITS.open_files_most == broker.open_pipelines_max
    assert LIMITS.merge_after == janitor.merge_after
    assert (LIMITS.segment_bytes, LIMITS.copies) == (log.segment_bytes, log.replication)
    assert (LIMITS.segment_s * 1000, LIMITS.retention_s * 1000) == (log.segment_ms, log.retention_ms)


@pytest.mark.parametrize(
    ("every_s", "batch_bytes", "segments"),
    [
        (1.0, 1 << 20, DAY_S / 128),  # a megabyte a second fills a block in 128 s
        (1.0, 1024, DAY_S * 1024 / (128 << 20)),
        (60.0, 1024, 1 / 7),  # 10 MB a week: segment.ms ends the segment
        (600.0, 1024, 144),  # closed after each batch
        (math.inf, 1024, 0),
    ],
)
def test_segments_a_day(every_s: float, batch_bytes: int, segments: float) -> None:
    assert segments_a_day(every_s, batch_bytes, LIMITS) == pytest.approx(segments)


def test_merging_keeps_blocks_and_not_files() -> None:
    # a thousand small segments: one merged log and eight that wait, an index each
    assert kept(1000, 1_000_000, LIMITS) == (18, 1009)
    assert kept(2, 2_000_000, LIMITS) == (4, 4)
    # three gigabytes in large segments
    assert kept(24, 3 * 2**30, LIMITS) == (22, 35)


def test_the_bill_of_partitions_that_are_written_each_second() -> None:
    found = bill(10_000, 1.0, 1024, MEASURED, LIMITS)
    segments_s = 10_000 * 1024 / (128 << 20)
    assert found.calls_s == pytest.approx(2 + 2500 + 10 * segments_s)
    assert found.files_day == pytest.approx(2 * segments_s * DAY_S)
    assert found.open_files == 10_000
    assert found.reserved_first_bytes == 10_000 * 3 * (16 << 20)
    assert found.reserved_bytes == 10_000 * 3 * (128 << 20)
    assert found.stored_bytes == 10_000 * 3 * 7 * DAY_S * 1024
    assert found.brokers == 10
    assert found.datanodes == 15
    assert found.etcd_bytes == pytest.approx(2_500_000 + segments_s * 3600 * 300)


def test_a_batch_a_minute_keeps_small_blocks_open() -> None:
    found = bill(10_000, 60.0, 256, MEASURED, LIMITS)
    assert found.reserved_bytes == found.reserved_first_bytes == 10_000 * 3 * (16 << 20)
    assert found.segments_day == pytest.approx(10_000 / 7)


def test_partitions_that_are_written_seldom_open_a_segment_for_each_batch() -> None:
    found = bill(10_000, 600.0, 1024, MEASURED, LIMITS)
    assert found.calls_s == pytest.approx(2 + 2500 + 10_000 / 600 * 10)
    assert (found.open_files, found.brokers, found.datanodes) == (4000, 4, 6)  # each is open for 240 of 600 s
    assert found.reserved_bytes == 4000 * 3 * (16 << 20)
    assert found.blocks_kept == 10_000 * (1008 + 9) + 4000


def test_idle_partitions_keep_a_folder_and_their_last_segment() -> None:
    found = bill(10_000, math.inf, 1024, MEASURED, LIMITS)
    assert (found.segments_day, found.stored_bytes) == (0, 0)
    assert (found.files_kept, found.blocks_kept) == (30_000, 20_000)
    assert found.heap_bytes == 30_000 * 200 + 20_000 * 300
