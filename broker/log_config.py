"""Conversion of a topic's configs, as Kafka names them, to the `LogConfig` of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bmq.broker.config import LogConfig
from bmq.core.records.batch import BatchRules
from bmq.core.records.compression import Compression
from bmq.storage.log_segments import FOR_EVER

_LEVEL_DEFAULTS = {"gzip": -1, "lz4": 9, "zstd": 3}  # Kafka's


def log_config(values: Mapping[str, str], replication: int, *, is_internal: bool = False) -> LogConfig:
    """Return the settings that a topic's partitions follow.  Raises ValueError, which names the wrong config.

    ``values``: the effective configs; for one that is missing, Kafka's default is taken.  ``replication``: copies of a
    segment.  ``is_internal``: the topic is written by coordinators, and min.insync.replicas does not apply to it.

    With ``cleanup.policy=compact`` alone nothing expires: compaction is not done, and a log that keeps more than the
    last record of each key still keeps that policy's promise.
    """
    default, rules = LogConfig(), BatchRules()

    def number(name: str, otherwise: int) -> int:
        text = values.get(name)
        try:
            return otherwise if text is None else int(text)
        except ValueError:
            raise ValueError(f"{name}={text!r} is not a whole number") from None

    expires = "delete" in values.get("cleanup.policy", "delete").replace(" ", "").split(",")
    config = LogConfig(
        segment_bytes=number("segment.bytes", default.segment_bytes),
        segment_ms=number("segment.ms", default.segment_ms),
        retention_ms=number("retention.ms", default.retention_ms) if expires else FOR_EVER,
        retention_bytes=number("retention.bytes", default.retention_bytes) if expires else FOR_EVER,
        file_delete_delay_ms=number("file.delete.delay.ms", default.file_delete_delay_ms),
        index_interval_bytes=number("index.interval.bytes", default.index_interval_bytes),
        replication=replication,
        min_insync=1 if is_internal else number("min.insync.replicas", default.min_insync),
        flush_sync=_one_of(values, "flush.mode", ("hflush", "hsync")) == "hsync",
        compression=_compression(values, number),
        rules=BatchRules(
            max_message_bytes=number("max.message.bytes", rules.max_message_bytes),
            log_append_time=_one_of(values, "message.timestamp.type", ("CreateTime", "LogAppendTime"))
            == "LogAppendTime",
            timestamp_before_max_ms=number("message.timestamp.before.max.ms", rules.timestamp_before_max_ms),
            timestamp_after_max_ms=number("message.timestamp.after.max.ms", rules.timestamp_after_max_ms),
        ),
    )
    config.validate()
    return config


def _one_of(values: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """Return the config's value, the first choice if it is not set.  Raises ValueError for any other value."""
    value = values.get(name, choices[0])
    if value not in choices:
        raise ValueError(f"{name}={value!r}; choose from {', '.join(choices)}")
    return value


def _compression(values: Mapping[str, str], number: Callable[[str, int], int]) -> Compression | None:
    choices = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
    name = _one_of(values, "compression.type", choices)
    if name == "producer":
        return None
    if name == "uncompressed":
        return Compression("none")
    return Compression(name, number(f"compression.{name}.level", _LEVEL_DEFAULTS[name]) if name != "snappy" else 0)
