"""A topic's configs under Kafka's names become what its partitions follow."""

from __future__ import annotations

import pytest

from bmq.broker.config import LogConfig, log_config
from bmq.core.config import NodeConfig
from bmq.core.file_access import NO_ACCESS, Access
from bmq.core.records.batch import BatchRules
from bmq.core.records.compression import Compression
from bmq.meta.topic_configs import effective
from bmq.storage.cleaning.plan import CleaningConfig


def test_the_defaults_are_kafkas() -> None:
    assert log_config({}, 3) == LogConfig()
    assert log_config(effective({}, NodeConfig(), {}, {}), 3) == LogConfig()


def test_every_config() -> None:
    values = {
        "segment.bytes": "1048576",
        "segment.ms": "60000",
        "retention.ms": "-1",
        "retention.bytes": "123",
        "file.delete.delay.ms": "7",
        "index.interval.bytes": "4096",
        "flush.mode": "hsync",
        "compression.type": "zstd",
        "compression.zstd.level": "5",
        "max.message.bytes": "99",
        "message.timestamp.type": "LogAppendTime",
        "message.timestamp.before.max.ms": "11",
        "message.timestamp.after.max.ms": "12",
        "min.cleanable.dirty.ratio": "0.25",
        "min.compaction.lag.ms": "13",
        "max.compaction.lag.ms": "14",
        "delete.retention.ms": "15",
    }
    assert log_config(effective(values, NodeConfig(), {}, {}), 3) == LogConfig(
        segment_bytes=1048576,
        segment_ms=60000,
        retention_ms=-1,
        retention_bytes=123,
        file_delete_delay_ms=7,
        index_interval_bytes=4096,
        flush_sync=True,
        compression=Compression("zstd", 5),
        rules=BatchRules(
            max_message_bytes=99, log_append_time=True, timestamp_before_max_ms=11, timestamp_after_max_ms=12
        ),
        cleaning=CleaningConfig(
            is_compacted=False,
            min_cleanable_dirty_ratio=0.25,
            min_compaction_lag_ms=13,
            max_compaction_lag_ms=14,
            delete_retention_ms=15,
            segment_bytes=1048576,
        ),
    )


@pytest.mark.parametrize(
    ("policy", "expires"), [("delete", True), ("compact", False), ("compact,delete", True), ("delete, compact", True)]
)
def test_compacted_topics_expire_only_with_delete(policy: str, expires: bool) -> None:
    config = log_config({"cleanup.policy": policy, "retention.ms": "5", "retention.bytes": "6"}, 3)
    assert (config.retention_ms, config.retention_bytes) == ((5, 6) if expires else (-1, -1))
    assert config.rules.needs_key is ("compact" in policy)


@pytest.mark.parametrize(("policy", "segment_ms"), [("delete", 60_000), ("compact", 5_000), ("compact,delete", 5_000)])
def test_an_open_segment_of_a_compacted_log_is_closed_in_time_to_be_cleaned(policy: str, segment_ms: int) -> None:
    values = {"cleanup.policy": policy, "segment.ms": "60000", "max.compaction.lag.ms": "5000"}
    assert log_config(values, 3).segment_ms == segment_ms
    assert log_config(values, 3, is_internal=True).segment_ms == 60_000
    assert log_config(values | {"segment.ms": "4000"}, 3).segment_ms == 4_000


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_an_internal_topic_is_never_cleaned(policy: str) -> None:
    """A coordinator may load a shard at any time: no record of its log goes but by a snapshot."""
    assert log_config({"cleanup.policy": policy}, 3).cleaning.is_compacted
    assert not log_config({"cleanup.policy": policy}, 3, is_internal=True).cleaning.is_compacted


def test_an_internal_topic_expires_never() -> None:
    """A policy that an earlier version let pass must not delete the offsets of groups."""
    values = {"cleanup.policy": "delete", "retention.ms": "5", "retention.bytes": "6"}
    config = log_config(values, 3, is_internal=True)
    assert (config.retention_ms, config.retention_bytes) == (-1, -1)


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("producer", None),
        ("uncompressed", Compression("none")),
        ("gzip", Compression("gzip", -1)),
        ("snappy", Compression("snappy")),
        ("lz4", Compression("lz4", 9)),
        ("zstd", Compression("zstd", 3)),
    ],
)
def test_compression(name: str, compression: Compression | None) -> None:
    assert log_config({"compression.type": name}, 3).compression == compression
    assert log_config(effective({"compression.type": name}, NodeConfig(), {}, {}), 3).compression == compression


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "long"),
        ("flush.mode", "fsync"),
        ("compression.type", "brotli"),
        ("message.timestamp.type", "createtime"),
        ("segment.bytes", "1"),
    ],
)
def test_wrong_values_are_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        log_config({name: value}, 3)


def test_the_rights_on_files_are_those_of_the_topic() -> None:
    values = {"storage.owner": "", "storage.group": "readers", "storage.mode": "750"}
    assert log_config(values, 3).access == Access(group="readers", mode=0o750)
    assert log_config({}, 3).access == NO_ACCESS
