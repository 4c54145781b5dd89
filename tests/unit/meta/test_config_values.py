"""Values of configs: the forms that Kafka accepts, the form that is kept, and the layers in which a value is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bmq.core.config import NodeConfig
from bmq.meta.config_values import (
    BrokerLayers,
    ConfigKey,
    ConfigSource,
    ConfigType,
    Described,
    Setting,
    as_text,
    at_least,
    between,
    one_of,
    parse_list,
)


def key(kind: ConfigType, **options: Any) -> ConfigKey:
    return ConfigKey(name="x.y", kind=kind, default="", doc="", **options)


@pytest.mark.parametrize(
    ("kind", "text", "kept"),
    [
        (ConfigType.BOOLEAN, " TRUE ", "true"),
        (ConfigType.BOOLEAN, "False", "false"),
        (ConfigType.INT, "+7", "7"),
        (ConfigType.INT, "-2147483648", "-2147483648"),
        (ConfigType.INT, "2147483647", "2147483647"),
        (ConfigType.LONG, "9223372036854775807", "9223372036854775807"),
        (ConfigType.LONG, "007", "7"),
        (ConfigType.DOUBLE, "1e-2", "0.01"),
        (ConfigType.DOUBLE, "+.5f", "0.5"),
        (ConfigType.DOUBLE, "1.D", "1.0"),
        (ConfigType.LIST, " a , b,c ", "a,b,c"),
        (ConfigType.LIST, "  ", ""),
        (ConfigType.STRING, " a b ", "a b"),
        (ConfigType.PASSWORD, "s3cret", "s3cret"),
    ],
)
def test_a_legal_value_is_kept_in_one_form(kind: ConfigType, text: str, kept: str) -> None:
    config = key(kind)
    assert config.canonical(text) == kept
    assert config.canonical(kept) == kept


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (ConfigType.BOOLEAN, "yes", "either true or false"),
        (ConfigType.BOOLEAN, "1", "either true or false"),
        (ConfigType.INT, "2147483648", "Not a number of type INT"),
        (ConfigType.INT, "-2147483649", "Not a number of type INT"),
        (ConfigType.LONG, "9223372036854775808", "Not a number of type LONG"),
        (ConfigType.LONG, "1" * 5_000, "Not a number of type LONG"),
        (ConfigType.INT, "1_000", "Not a number of type INT"),
        (ConfigType.INT, "١", "Not a number of type INT"),
        (ConfigType.INT, "", "Not a number of type INT"),
        (ConfigType.INT, "-", "Not a number of type INT"),
        (ConfigType.INT, "1.5", "Not a number of type INT"),
        (ConfigType.DOUBLE, "one", "Not a number of type DOUBLE"),
        (ConfigType.DOUBLE, "0_1", "Not a number of type DOUBLE"),
        (ConfigType.DOUBLE, "\uff10.5", "Not a number of type DOUBLE"),
        (ConfigType.DOUBLE, ".", "Not a number of type DOUBLE"),
    ],
)
def test_an_illegal_value_is_refused_in_kafkas_words(kind: ConfigType, text: str, reason: str) -> None:
    with pytest.raises(ValueError) as refused:
        key(kind).canonical(text)
    assert str(refused.value).startswith(f"Invalid value {text} for configuration x.y: ")
    assert str(refused.value).endswith(reason)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (at_least(1), [1, 2], [0, -1]),
        (between(0.0, 1.0), [0.0, 0.5, 1.0], [-0.1, 1.1]),
        (one_of("a", "b"), ["a", "b"], ["", "c", "A"]),
    ],
)
def test_a_check_accepts_its_bounds_and_names_them_if_not(check: Any, right: list[Any], wrong: list[Any]) -> None:
    assert [check(value) for value in right] == [""] * len(right)
    assert all(check(value) for value in wrong)


def test_a_value_that_its_check_refuses_is_named_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"Invalid value 0 for configuration x\.y: Value must be at least 1"):
        key(ConfigType.INT, check=at_least(1)).canonical(" 0 ")


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (False, "false"), (1, "1"), (("a", "b"), "a,b"), ([], ""), (0.5, "0.5")]
)
def test_a_value_is_written_as_kafka_writes_it(value: object, text: str) -> None:
    assert as_text(value) == text


def test_a_list_has_no_blanks_around_its_elements() -> None:
    assert parse_list(" a ,b , ") == ["a", "b", ""]
    assert parse_list(" ") == []
    assert parse_list("a\xa0,\x1f b\0") == ["a\xa0", "b"], "as Java trims"
    assert key(ConfigType.STRING).canonical("\tbmq\u2003 ") == "bmq\u2003"


# ------------------------------------------------------------------------------------------------------------ layers

NODE = replace(NodeConfig(), num_partitions=9)
PLAIN = NodeConfig()


def sources(layers: BrokerLayers, name: str, default: str = "d") -> list[tuple[str, ConfigSource]]:
    return [(each.value, each.source) for each in layers.settings(name, default)]


def test_the_layer_nearest_to_the_node_comes_first() -> None:
    layers = BrokerLayers(NODE, {"num.partitions": "5"}, {"num.partitions": "7"})
    assert sources(layers, "num.partitions") == [
        ("7", ConfigSource.DYNAMIC_BROKER_CONFIG),
        ("5", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("9", ConfigSource.STATIC_BROKER_CONFIG),
        (as_text(PLAIN.num_partitions), ConfigSource.DEFAULT_CONFIG),
    ]


def test_a_setting_that_was_given_its_default_counts_as_not_given() -> None:
    layers = BrokerLayers(PLAIN, {}, {})
    assert sources(layers, "num.partitions") == [(as_text(PLAIN.num_partitions), ConfigSource.DEFAULT_CONFIG)]


def test_a_name_that_is_not_a_setting_of_the_node_has_the_given_default() -> None:
    layers = BrokerLayers(NODE, {"other": "1"}, {})
    assert sources(layers, "other") == [
        ("1", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
        ("d", ConfigSource.DEFAULT_CONFIG),
    ]


def test_clients_do_not_see_the_value_of_a_secret() -> None:
    def described(**options: Any) -> Described:
        synonyms = [Setting("x.y", "v", ConfigSource.DEFAULT_CONFIG)]
        return Described(key(ConfigType.STRING, **options), "v", ConfigSource.DEFAULT_CONFIG, False, synonyms)

    assert described(is_sensitive=True).for_clients("secret") is None
    assert described().for_clients("plain") == "plain"
    shown = described().for_clients("etcd://user:secret@host/x")
    assert shown is not None
    assert "secret" not in shown
