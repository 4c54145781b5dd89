"""Topic configs: which are accepted, what is in force, and from which layer."""

from __future__ import annotations

import pytest

from bmq.core.config import NodeConfig
from bmq.meta import topic_configs
from bmq.meta.config_values import ConfigSource, Setting

NODE = NodeConfig()

OURS = ["flush.mode", "storage.group", "storage.mode", "storage.owner"]
KAFKA_4 = [
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "follower.replication.throttled.replicas",
    "index.interval.bytes",
    "leader.replication.throttled.replicas",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "preallocate",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
    "unclean.leader.election.enable",
]


def test_the_names_are_kafkas_and_some_of_ours() -> None:
    assert list(topic_configs.TABLE) == sorted([*KAFKA_4, *OURS])


def test_every_default_is_valid_and_canonical() -> None:
    for key in topic_configs.TABLE.values():
        assert key.canonical(key.default) == key.default, key.name


def test_node_settings_and_topic_defaults_agree() -> None:
    """A NodeConfig without settings gives the defaults of the topic table."""
    assert topic_configs.effective({}, NODE, {}, {}) == {k.name: k.default for k in topic_configs.TABLE.values()}


@pytest.mark.parametrize(
    ("name", "text", "kept"),
    [
        ("retention.ms", " -1 ", "-1"),
        ("retention.ms", "+5", "5"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("min.cleanable.dirty.ratio", "0.25", "0.25"),
        ("compression.gzip.level", "-1", "-1"),
        ("leader.replication.throttled.replicas", "0:1,1:2", "0:1,1:2"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("remote.storage.enable", "false", "false"),
        ("flush.mode", "hsync", "hsync"),
        ("unclean.leader.election.enable", "true", "true"),
    ],
)
def test_a_valid_config_is_kept_in_canonical_form(name: str, text: str, kept: str) -> None:
    assert topic_configs.validate({name: text}) == {name: kept}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no.such.config", "1"),
        ("message.format.version", "3.0"),  # gone from Kafka 4
        ("retention.ms", "-2"),
        ("retention.ms", "1e3"),
        ("retention.ms", ""),
        ("retention.ms", "٣"),
        ("retention.ms", "9223372036854775808"),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "1000"),
        ("segment.ms", "0"),
        ("max.message.bytes", "-1"),
        ("preallocate", "yes"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,delete"),
        ("cleanup.policy", "shrink"),
        ("compression.type", "none"),
        ("compression.gzip.level", "0"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "much"),
        ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "0"),
        ("remote.storage.enable", "true"),
        ("flush.mode", "none"),
        ("retention.ms", None),
    ],
)
def test_an_invalid_config_is_refused_by_name(name: str, text: str | None) -> None:
    with pytest.raises(ValueError, match=name):
        topic_configs.validate({name: text})


def test_configs_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        topic_configs.validate({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_the_nearest_layer_is_in_force_and_all_are_described() -> None:
    node = NodeConfig(log_retention_ms=4)
    defaults, own = {"log.retention.ms": "3"}, {"log.retention.ms": "2"}
    described = {d.key.name: d for d in topic_configs.describe({"retention.ms": "1"}, node, defaults, own)}
    retention = described["retention.ms"]
    assert (retention.value, retention.source) == ("1", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert retention.synonyms == [
        Setting("retention.ms", "1", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        Setting("log.retention.ms", "2", ConfigSource.DYNAMIC_BROKER_CONFIG),
        Setting("log.retention.ms", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        Setting("log.retention.ms", "4", ConfigSource.STATIC_BROKER_CONFIG),
        Setting("log.retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG),
    ]
    assert topic_configs.effective({}, node, defaults, own)["retention.ms"] == "2"
    assert topic_configs.effective({}, node, defaults, {})["retention.ms"] == "3"
    assert topic_configs.effective({}, node, {}, {})["retention.ms"] == "4"
    assert described["remote.storage.enable"].synonyms == []
    assert described["remote.storage.enable"].source is ConfigSource.DEFAULT_CONFIG
