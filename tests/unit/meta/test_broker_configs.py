"""Configs of a node and of the cluster: what is described, and what may be altered."""

from __future__ import annotations

import pytest

from bmq.core.config import OPTIONS, NodeConfig, option_name
from bmq.meta import broker_configs, topic_configs
from bmq.meta.config_values import ConfigSource, ConfigType, Setting


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


def test_a_dynamic_config_that_only_kafka_has_is_refused_with_the_reason() -> None:
    """Tools set lists of configs at once: the text says which name is to go, and that it would do nothing."""
    with pytest.raises(ValueError, match=r"num\.io\.threads is Kafka's own and has no effect here"):
        broker_configs.validate({"log.retention.ms": "5", "num.io.threads": "1"})
    assert not broker_configs.KAFKAS_OWN & set(broker_configs.TABLE)


def test_the_clusters_defaults_show_only_what_was_set() -> None:
    described = broker_configs.describe_defaults({"log.retention.ms": "5"})
    assert [(d.key.name, d.value, d.source) for d in described] == [
        ("log.retention.ms", "5", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    ]
    assert described[0].synonyms == [Setting("log.retention.ms", "5", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)]
