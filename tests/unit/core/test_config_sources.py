"""Settings come from four layers, the nearest wins, and a wrong one is named."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from bmq.core.config import OPTIONS, ConfigError, NodeConfig, environment_name, option_name
from bmq.core.config_sources import is_of_security, load, unknown_names


def loaded(
    file: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    **flags: object,
) -> NodeConfig:
    return load(file=file, environment=environment or {}, flags=flags)


def test_defaults_are_valid() -> None:
    assert loaded() == NodeConfig()


def test_the_nearest_layer_wins() -> None:
    file, environment = {"listen": "h:1", "num.partitions": 2, "zone": "f"}, {"BMQ_LISTEN": "h:2", "BMQ_ZONE": "e"}
    config = loaded(file, environment, listen="h:3", zone=None)
    assert (config.listen, config.zone, config.num_partitions) == ("h:3", "e", 2)


@pytest.mark.slow
def test_every_option_can_be_set_by_its_names() -> None:
    for option in OPTIONS:
        value = getattr(NodeConfig(), option.name)
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        key, name = option_name(option), environment_name(option)
        if text or not is_of_security(name):
            assert getattr(loaded({key: text}), option.name) == value
            assert getattr(loaded(environment={name: text}), option.name) == value
            continue
        with pytest.raises(ConfigError, match=f"{key} is set, but empty"):
            loaded({key: text})
        with pytest.raises(ConfigError, match=f"{name} is set, but empty"):
            loaded(environment={name: text})


def test_a_dash_in_the_file_is_an_underscore() -> None:
    assert loaded({"node-id": 4}).node_id == 4


@pytest.mark.parametrize(
    ("file", "environment", "flags", "said"),
    [
        ({"num.partition": 1}, {}, {}, "the file: unknown setting 'num.partition'; did you mean num.partitions?"),
        ({"colour": 1}, {}, {}, "the file: unknown setting 'colour'"),
        ({"Num.Partitions": 1}, {}, {}, "unknown setting 'Num.Partitions'; did you mean num.partitions?"),
        ({"broker.id": 1}, {}, {}, "unknown setting 'broker.id'; set node_id instead"),
        ({"node.id": 1}, {}, {}, "unknown setting 'node.id'; set node_id instead"),
        ({"broker.rack": "a"}, {}, {}, "unknown setting 'broker.rack'; set zone instead"),
        ({"log.dirs": "/d"}, {}, {}, "unknown setting 'log.dirs'; set root, where segments are stored, instead"),
        ({"log.retention.hours": 1}, {}, {}, "'log.retention.hours'; set log.retention.ms instead"),
        ({"num.partitions": "many"}, {}, {}, "the file: num.partitions: 'many' is not a whole number"),
        ({"num.partitions": True}, {}, {}, "True is not a whole number"),
        ({"num.partitions": 1.5}, {}, {}, "1.5 is not a whole number"),
        ({"num.partitions": math.inf}, {}, {}, "inf is not a whole number"),
        ({"tail_fraction": "most"}, {}, {}, "'most' is not a number"),
        ({"tail_fraction": math.nan}, {}, {}, "tail_fraction=nan"),
        ({"zone": ["a"]}, {}, {}, "the file: zone: ['a'] is not a text; write it in quotes"),
        ({"zone": False}, {}, {}, "False is not a text"),
        ({}, {"BMQ_NUM_PARTITIONS": "0"}, {}, "num.partitions=0 is under 1"),
        ({}, {"BMQ_AUTO_CREATE_TOPICS_ENABLE": "perhaps"}, {}, "BMQ_AUTO_CREATE_TOPICS_ENABLE: 'perhaps'"),
        ({}, {}, {"listen": "9092"}, "listen: '9092' is not HOST:PORT"),
        ({}, {}, {"advertise": "0.0.0.0:9092"}, "advertise: clients cannot connect to '0.0.0.0:9092'"),
        ({}, {}, {"advertise": "host:0"}, "advertise: clients cannot connect to 'host:0'"),
        ({}, {}, {"roles": "proxy,baker"}, "roles: baker"),
        ({}, {}, {"roles": "proxy,\xa0broker"}, "roles: \xa0broker"),
        ({}, {}, {"roles": ""}, "roles: none"),
        ({"roles": 3}, {}, {}, "is not a list"),
        ({"log_level": "LOUD"}, {}, {}, "log_level='LOUD'"),
        ({"tail_fraction": 1}, {}, {}, "tail_fraction=1.0"),
        ({"workers": 0}, {}, {}, "workers=0"),
        ({"log.cleaner.threads": 2, "log.cleaner.dedupe.buffer.size": (2 << 20) - 1}, {}, {}, "for each of"),
        ({"group.min.session.timeout.ms": 9, "group.max.session.timeout.ms": 8}, {}, {}, "exceeds"),
        ({"queued.max.request.bytes": 1 << 20}, {}, {}, "queued.max.request.bytes"),
    ],
)
def test_what_is_wrong_is_named(
    file: dict[str, object], environment: dict[str, str], flags: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(file=file, environment=environment, flags=flags)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("BMQ_AUTHORIZER_CLAS_NAME", "BMQ_AUTHORIZER_CLASS_NAME"),
        ("BMQ_SSL_CLIENT_AUHT", "BMQ_SSL_CLIENT_AUTH"),
        ("BMQ_SUPER_USER", "BMQ_SUPER_USERS"),
        ("BMQ_INTERNAL_SECRETS", "BMQ_INTERNAL_SECRET"),
        ("BMQ_HTTP_AUTENTICATION", "BMQ_HTTP_AUTHENTICATION"),
        ("bmq_authorizer_class_name", "BMQ_AUTHORIZER_CLASS_NAME"),
        ("Bmq_Internal_Secret", "BMQ_INTERNAL_SECRET"),
        ("BMQ_LISTENER_SECURITY_PROTOCOLS_MAP", "BMQ_LISTENER_SECURITY_PROTOCOL_MAP"),
    ],
)
def test_a_misspelt_variable_of_security_is_refused(name: str, right: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting {name}; did you mean {right}"):
        unknown_names({name: "x"})


@pytest.mark.parametrize(
    "name",
    [
        "BMQ_LISTENERS_NAME_OUT_SSL_CLIENT_AUTH", "BMQ_LISTENERS_NAME_SASL_CONNECTIONS_MAX_REAUTH_MS",
        "BMQ_LISTENER_OUT_SSL_CLIENT_AUTH", "BMQ_AUTHORIZER", "BMQ_AUTHORIZER_CLASS", "BMQ_HTTP_AUTH",
        "BMQ_SSL_CLIENT_AUTHENTICATION", "BMQ_INTERNAL_TLS", "BMQ_AUDIT_FILE", "BMQ_AUDIT_LOG_FILE",
        "BMQ_CLUSTER_SECRET",
        "BMQ_METAPASSWORD_FILE", "BMQ_CLIENT_CERT_REQUIRED", "BMQ_TOKEN_KEY", "BMQ_KEYTAB", "BMQ_ENCRYPTION",
        "BMQ_HTTPS", "BMQ_HDFS_KEYTBA",
    ],
)  # fmt: skip
def test_an_unknown_variable_with_a_word_of_security_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown setting {name}"):
        unknown_names({name: "x"})


def test_variables_of_other_programs_are_not_refused() -> None:
    of_kubernetes = (
        "BMQ_PORT", "BMQ_AUTH_SERVICE_HOST", "BMQ_AUTH_SERVICE_PORT", "BMQ_AUTH_SERVICE_PORT_HTTP_TLS", "BMQ_TLS_PORT",
        "BMQ_TLS_PORT_9093_TCP", "BMQ_TLS_PORT_9093_TCP_PROTO", "BMQ_TLS_PORT_9093_TCP_ADDR",
        "BMQ_TLS_PORT_9093_TCP_PORT",
    )  # fmt: skip
    foreign = ("BMQ_AUTHOR_NAME", "BMQ_SUPERVISOR_URL", "BMQ_ORACLE_HOME", "BMQ_TITLE")
    assert unknown_names(dict.fromkeys(foreign, "x")) == []
    of_commands = (
        "BMQ_HTTP_USER", "BMQ_HTTP_PASSWORD", "BMQ_HTTP_PASSWORD_FILE", "BMQ_HTTP_TOKEN", "BMQ_HTTP_TOKEN_FILE",
        "BMQ_HTTP_CA",
    )  # fmt: skip
    assert unknown_names(dict.fromkeys((*of_kubernetes, *of_commands, "BMQ_CACHE_DIR", "BMQ_PROFILE"), "x")) == []


@pytest.mark.parametrize("value", ["", " ", "\t"])
@pytest.mark.parametrize(
    "name",
    [
        "BMQ_AUTHORIZER_CLASS_NAME",
        "BMQ_INTERNAL_SECRET",
        "BMQ_AUDIT_LOG",
        "BMQ_LISTENER_NAME_PLAINTEXT_SSL_CLIENT_AUTH",
        "BMQ_LOG_STORAGE_MODE",
        "BMQ_STORAGE_SHARED_MODE",
        "BMQ_HTTP_HOSTS",
        "BMQ_HDFS_KEYTAB",
        "BMQ_ROOT",
        "BMQ_META",
        "BMQ_META_USER",
        "BMQ_HADOOP_CONF_DIR",
    ],
)
def test_an_empty_variable_does_not_open_what_the_file_closes(name: str, value: str) -> None:
    file = {"internal.secret": "x" * 32, "audit_log": "/a", "super.users": "User:a"}
    with pytest.raises(ConfigError, match=f"{name} is set, but empty: give it a value, or remove the variable"):
        loaded(file, {name: value})


@pytest.mark.parametrize(
    "name",
    [
        "authorizer.class.name",
        "audit_log",
        "root",
        "meta",
        "meta_user",
        "hadoop_conf_dir",
        "internal.secret.file",
        "http_authentication",
        "listener.name.plaintext.ssl.client.auth",
    ],
)
def test_an_empty_key_of_the_file_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is set, but empty: give it a value, or remove the key"):
        loaded({name: " "})


def test_a_blank_secret_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"internal\.secret is blank"):
        loaded({"internal.secret": " , "})


def test_a_misspelt_variable_is_told() -> None:
    environment = {"BMQ_NUM_PARTITONS": "3", "BMQ_NUM_PARTITIONS": "3", "BMQ_PORT_9092_TCP": "x", "BMQ_CONFIG": "f"}
    assert unknown_names(environment) == ["unknown setting BMQ_NUM_PARTITONS; did you mean BMQ_NUM_PARTITIONS?"]
    assert unknown_names({"bmq_num_partitions": "3"}) == [
        "unknown setting bmq_num_partitions; did you mean BMQ_NUM_PARTITIONS?"
    ]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("BMQ_LOG_CLEANER_IO_BUFFER_SIZE", "BMQ_LOG_CLEANER_"),
        ("bmq_log_cleaner_io_buffer_size", "BMQ_LOG_CLEANER_"),
        ("BMQ_LOG_RETENTION_CHECK_INTERVAL_MS", "BMQ_LOG_RETENTION_MS"),
    ],
)
def test_an_unknown_variable_of_a_family_of_settings_is_reported_with_the_nearest_setting(
    name: str, nearest: str
) -> None:
    """Kafka has settings which have no effect here; in the file, such a name is refused."""
    (line,) = unknown_names({name: "1"})
    assert line.startswith(f"unknown setting {name}, which has no effect; the nearest setting is {nearest}")
