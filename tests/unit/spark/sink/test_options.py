"""The sink's options and columns: checks, defaults, and the producer's settings."""

from __future__ import annotations

import pickle
import re

import pytest

from bmq.spark.options import OptionError
from bmq.spark.sink.options import SINK_OPTIONS, sink_of
from tests.unit.spark.sink.writes import SERVERS, options, schema
from tests.unit.spark.test_source import PAGE


@pytest.mark.parametrize(
    ("ddl", "given", "text"),
    [
        ("value string", {}, "topic option required when no 'topic' attribute is present"),
        ("key string", {"topic": "t"}, "Required attribute 'value' not found"),
        ("value int", {"topic": "t"}, r"value attribute unsupported type int. value must be a\(n\) string or binary"),
        ("key bigint, value string", {"topic": "t"}, "key attribute unsupported type bigint"),
        ("value string, topic binary", {}, r"topic attribute unsupported type binary. topic must be a\(n\) string"),
        ("value string, partition bigint", {"topic": "t"}, "partition attribute unsupported type bigint"),
        ("value string, headers string", {"topic": "t"}, "headers attribute unsupported type string"),
        ("value string, timestamp timestamp_ntz", {"topic": "t"}, "timestamp attribute unsupported type timestamp_ntz"),
        ("value string", {"topic": " "}, "names no topic"),
        ("value string", {"topic": "t", "includeHeaders": "perhaps"}, "includeHeaders='perhaps'"),
        ("value string", {"topic": "t", "root": "file:///x"}, "the sink writes through kafka.bootstrap.servers"),
        ("value string", {"topic": "t", "speed": "1"}, "unknown option"),
        ("value string", {"topic": "t", "kafka.key.serializer": "x"}, "'key.serializer' is not supported"),
        ("value string", {"topic": "t", "kafka.ssl.trustore.location": "x"}, "did you mean ssl.truststore.location"),
        ("value string", {"topic": "t", "kafka.ssl.enabled.protocols": "TLSv1.3"}, "librdkafka has no such setting"),
        (
            "value string",
            {"topic": "t", "kafka.sasl.username": "a", "kafka.sasl.jaas.config": "x"},
            "kafka.sasl.jaas.config is of Kafka's client, kafka.sasl.username of librdkafka: not both",
        ),
        ("value string", {"topic": "t", "kafka.buffer.memory": "x"}, "expected bytes"),
    ],
)
def test_wrong_options_and_columns_are_refused(ddl: str, given: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        options(ddl, **given)


def test_the_endpoint_must_be_named() -> None:
    with pytest.raises(OptionError, match=r"Option 'kafka\.bootstrap\.servers' must be specified"):
        sink_of({"topic": "t"}, schema("value string"), overwrite=False)


def test_topics_are_not_overwritten() -> None:
    with pytest.raises(OptionError, match=r"use mode\('append'\)"):
        sink_of(SERVERS | {"topic": "t"}, schema("value string"), overwrite=True)


def test_settings_of_kafkas_producer_are_translated() -> None:
    given = {
        "topic": "t",
        "checkpointLocation": "/x",
        "queryName": "q",
        "kafka.LINGER.ms": "50",
        "kafka.max.request.size": "5000000",
        "kafka.buffer.memory": "1048576",
        "kafka.enable.idempotence": "false",
    }
    config = options(**given).config
    assert config == {
        "bootstrap.servers": "127.0.0.1:1",
        "acks": "all",
        "enable.idempotence": "false",
        "linger.ms": "50",
        "delivery.timeout.ms": "120000",
        "message.max.bytes": "5000000",
        "queue.buffering.max.kbytes": "1024",
        "partitioner": "murmur2_random",
    }
    assert options(topic="t").config["enable.idempotence"] == "true"
    assert options(topic="t").config["message.max.bytes"] == str(1 << 20), "max.request.size of the Java client"
    assert "secret" not in repr(options(topic="t", **{"kafka.sasl.password": "secret"}))


def test_the_page_names_every_option_of_the_sink() -> None:
    table = PAGE.read_text().partition("## Writing")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([\w.]+)` \| option", table, re.MULTILINE) == list(SINK_OPTIONS)


JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="sesame";'


def test_kafkas_settings_of_security_are_kept_for_the_executors_and_show_no_secret() -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS}
    found = options(**{"topic": "t", **{f"kafka.{key}": value for key, value in given.items()}})
    assert found.security is not None
    assert found.security.login is not None
    assert found.security.login.user == "a"
    assert not set(given) & set(found.config)
    assert "sesame" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_librdkafkas_own_settings_of_security_are_passed_on() -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b"}
    found = options(**{"topic": "t", **{f"kafka.{key}": value for key, value in given.items()}})
    assert found.security is None
    assert found.config.items() >= given.items()
