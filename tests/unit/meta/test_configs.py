"""Topic and broker configs: which are taken, what is in force, and what is said of it."""

from __future__ import annotations

import pytest

from bmq.core.config import OPTIONS, NodeConfig, option_name
from bmq.core.errors import ErrorCode, RequestError
from bmq.meta import broker_configs, topic_configs
from bmq.meta.config_changes import ConfigChange, Operation, apply
from bmq.meta.config_values import ConfigSource, ConfigType, Setting

NODE = NodeConfig()

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


def test_the_names_are_kafkas_and_one_of_ours() -> None:
    assert list(topic_configs.TABLE) == sorted([*KAFKA_4, "flush.mode"])


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
def test_taken(name: str, text: str, kept: str) -> None:
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
def test_refused(name: str, text: str | None) -> None:
    with pytest.raises(ValueError, match=name):
        topic_configs.validate({name: text})


def test_configs_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        topic_configs.validate({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_the_nearest_layer_wins_and_all_are_shown() -> None:
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


def test_every_setting_of_a_node_is_described() -> None:
    described = {d.key.name: d for d in broker_configs.describe(NodeConfig(num_partitions=7, node_id=3), {}, {})}
    assert {option_name(option) for option in OPTIONS} < set(described)
    partitions = described["num.partitions"]
    assert (partitions.value, partitions.source, partitions.is_read_only, partitions.key.kind) == (
        "7", ConfigSource.STATIC_BROKER_CONFIG, True, ConfigType.INT,
    )  # fmt: skip
    assert described["auto.create.topics.enable"].key.kind is ConfigType.BOOLEAN
    assert described["auto.create.topics.enable"].value == "true"
    assert described["log.retention.ms"].key.kind is ConfigType.LONG
    assert not described["log.retention.ms"].is_read_only
    assert described["broker.id"].value == "3"
    assert described["roles"].value == "proxy,broker,controller,coordinator"


def test_only_topic_defaults_may_be_altered_on_a_broker() -> None:
    assert broker_configs.validate({"log.retention.ms": " 5", "message.max.bytes": "1"}) == {
        "log.retention.ms": "5",
        "message.max.bytes": "1",
    }
    for name, value in (("num.partitions", "3"), ("listeners", "x"), ("nonsense", "1"), ("log.retention.ms", "x")):
        with pytest.raises(ValueError, match=name):
            broker_configs.validate({name: value})
    assert set(broker_configs.DYNAMIC) == {k.server for k in topic_configs.TABLE.values() if k.server}


def test_the_clusters_defaults_show_only_what_was_set() -> None:
    described = broker_configs.describe_defaults({"log.retention.ms": "5"})
    assert [(d.key.name, d.value, d.source) for d in described] == [
        ("log.retention.ms", "5", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    ]
    assert described[0].synonyms == [Setting("log.retention.ms", "5", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)]


def change(name: str, operation: Operation, value: str | None = None) -> ConfigChange:
    return ConfigChange(name, operation, value)


def lists(name: str) -> str | None:
    return topic_configs.default_list(name, NODE, {})


def test_operations_on_what_is_there() -> None:
    current = {"a": "1", "b": "2", "cleanup.policy": "compact"}
    changes = [
        change("a", Operation.SET, "3"),
        change("b", Operation.DELETE),
        change("missing", Operation.DELETE),
        change("cleanup.policy", Operation.APPEND, "delete,compact"),
    ]
    assert apply(current, changes, lists) == {"a": "3", "cleanup.policy": "compact,delete"}
    assert current["a"] == "1"
    assert apply({}, [change("cleanup.policy", Operation.APPEND, "compact")], lists) == {
        "cleanup.policy": "delete,compact"
    }
    assert apply(current, [change("cleanup.policy", Operation.SUBTRACT, "compact")], lists)["cleanup.policy"] == ""
    assert apply(current, {"z": "1"}, lists) == {"z": "1"}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (change("retention.ms", Operation.APPEND, "1"), ErrorCode.INVALID_CONFIG),
        (change("retention.ms", Operation.SET), ErrorCode.INVALID_REQUEST),
    ],
)
def test_operations_that_make_no_sense(wrong: ConfigChange, code: ErrorCode) -> None:
    with pytest.raises(RequestError) as caught:
        apply({}, [wrong], lists)
    assert caught.value.code is code
