"""Settings of single listeners: which win, which are refused, and that no text shows a secret among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load, unknown_names
from bmq.core.options import LISTENER, MECHANISM, in_environment
from bmq.core.security.listener_settings import TABLE, legal_keys, security_of
from bmq.core.security.settings import SASL_MECHANISMS
from bmq.server.workers import worker_environment

FILE: dict[str, object] = {
    "listeners": "INSIDE://127.0.0.1:1,OUT.SIDE-2://127.0.0.1:2",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUT.SIDE-2:PLAINTEXT",
}
OUTSIDE = "listener.name.out.side-2"


def loaded(file: dict[str, object] | None = None, /, **environment: str) -> NodeConfig:
    return load(file={**FILE, **(file or {})}, environment=environment, flags={})


def test_the_more_special_setting_wins() -> None:
    config = loaded(
        {
            "ssl.client.auth": "requested",
            "connections.max.reauth.ms": 1,
            "listener.name.inside.ssl.client.auth": "required",
            "listener.name.inside.connections.max.reauth.ms": 2,
            "listener.name.inside.scram-sha-512.connections.max.reauth.ms": "3",
            f"{OUTSIDE}.plain.sasl.jaas.config": "x required user_a=b;",
        }
    )
    inside, outside = config.listener_security().values()
    assert (inside.name, outside.name) == ("INSIDE", "OUT.SIDE-2")
    assert (inside.get("ssl.client.auth"), outside.get("ssl.client.auth")) == ("required", "requested")
    assert [
        each.for_mechanism(mechanism, "connections.max.reauth.ms")
        for each in (inside, outside)
        for mechanism in ("SCRAM-SHA-512", "PLAIN")
    ] == [3, 2, 1, 1]
    assert inside.get("connections.max.reauth.ms") == 2
    assert outside.for_mechanism("PLAIN", "sasl.jaas.config") == "x required user_a=b;"
    assert inside.for_mechanism("PLAIN", "sasl.jaas.config") == ""
    assert outside.get("ssl.enabled.protocols") == ("TLSv1.2", "TLSv1.3")


def test_the_environment_wins_over_the_file() -> None:
    config = loaded(
        {f"{OUTSIDE}.ssl.cipher.suites": ["a", "b"], "listener.name.inside.ssl.client.auth": "none"},
        BMQ_LISTENER_NAME_INSIDE_SSL_CLIENT_AUTH="required",
        BMQ_LISTENER_NAME_OUT_SIDE_2_SCRAM_SHA_256_CONNECTIONS_MAX_REAUTH_MS="7",
    )
    inside, outside = config.listener_security().values()
    assert inside.get("ssl.client.auth") == "required"
    assert outside.for_mechanism("SCRAM-SHA-256", "connections.max.reauth.ms") == 7
    assert outside.get("ssl.cipher.suites") == ("a", "b")


@pytest.mark.slow
def test_every_key_of_the_table_can_be_set_in_the_file_and_in_the_environment() -> None:
    values = {bool: "true", int: "2000", str: "x", tuple: "x,y"}
    keys = [key for key in legal_keys(["INSIDE"]) if not key.endswith((".file", ".command"))]
    mechanisms = [key for key, option in TABLE.items() if option.metadata["scope"] == MECHANISM]
    assert len(keys) == len(TABLE) + len(mechanisms) * len(SASL_MECHANISMS)
    assert {option.metadata["scope"] for option in TABLE.values()} == {LISTENER, MECHANISM}
    for key in keys:
        (option,) = [each for name, each in TABLE.items() if key.endswith(name)]
        text = option.metadata["choices"][-1] if option.metadata["choices"] else values[type(option.default)]
        of_file = dict(loaded({key: text}).listener_settings)
        assert of_file == dict(loaded(**{in_environment(key): text}).listener_settings)
        assert list(of_file) == [key]
        assert type(of_file[key]) is type(option.default)


@pytest.mark.parametrize(
    ("file", "environment", "said"),
    [
        (
            {"listener.name.inside.ssl.client.aut": "none"},
            {},
            "the file: unknown setting 'listener.name.inside.ssl.client.aut'; did you mean"
            " listener.name.inside.ssl.client.auth?",
        ),
        ({"listener.name.insde.ssl.client.auth": "none"}, {}, "did you mean listener.name.inside.ssl.client.auth?"),
        ({"listener.name.other.ssl.client.auth": "none"}, {}, "it is of none of the listeners INSIDE, OUT.SIDE-2"),
        ({"listener.name.inside.num.partitions": 1}, {}, "no listener has a setting of that name"),
        ({"listener.name.inside.plain.ssl.client.auth": "none"}, {}, "unknown setting"),
        ({"listener.name.inside.ssl.client.auth": "always"}, {}, "='always'; choose from 'none', 'requested'"),
        ({"listener.name.inside.ssl.enabled.protocols": "TLSv1.1"}, {}, "='TLSv1.1'; choose from 'TLSv1.2'"),
        ({"listener.name.inside.connections.max.reauth.ms": -1}, {}, "connections.max.reauth.ms=-1 is under 0"),
        ({"listener.name.inside.connections.max.reauth.ms": "x"}, {}, "'x' is not a whole number"),
        ({"ssl.client.auth": "always"}, {}, "ssl.client.auth='always'; choose from"),
        ({"sasl.enabled.mechanisms": "PLAIN,NTLM"}, {}, "sasl.enabled.mechanisms='NTLM'; choose from"),
        (
            {},
            {"BMQ_LISTENER_NAME_INSIDE_SSL_CLIENT_AUHT": "none"},
            "unknown setting BMQ_LISTENER_NAME_INSIDE_SSL_CLIENT_AUHT; did you mean"
            " BMQ_LISTENER_NAME_INSIDE_SSL_CLIENT_AUTH?",
        ),
        (
            {
                "listeners": "A-B://127.0.0.1:1,A_B://127.0.0.1:2",
                "listener.security.protocol.map": "A-B:PLAINTEXT,A_B:PLAINTEXT",
            },
            {"BMQ_LISTENER_NAME_A_B_SSL_CLIENT_AUTH": "none"},
            "means listener.name.a-b.ssl.client.auth and listener.name.a_b.ssl.client.auth; set it in the file",
        ),
    ],
)
def test_what_is_wrong_is_named(file: dict[str, object], environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(file, **environment)
    assert said in str(refused.value)


def test_no_text_shows_a_secret(tmp_path: Path) -> None:
    config = loaded(
        {"ssl.key.password": "S3cret", f"{OUTSIDE}.ssl.keystore.password": "S3cret", "sasl.jaas.config": "S3cret"}
    )
    outside = config.listener_security()["OUT.SIDE-2"]
    assert outside.get("ssl.keystore.password") == "S3cret"
    assert "S3cret" not in f"{config!r}{outside!r}{config.listener_security()}"
    with pytest.raises(ConfigError) as refused:
        loaded({"listener.name.inside.ssl.key.password": ["S3cret"]})
    assert "S3cret" not in str(refused.value)


def test_a_secret_is_read_from_a_file_or_a_command_in_every_layer(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one\n")
    command = "printf 'two words'"
    config = loaded(
        {
            "ssl.key.password.file": str(tmp_path / "one"),
            "sasl.jaas.config.command": command,
            f"{OUTSIDE}.ssl.key.password.command": command,
        },
        BMQ_SSL_KEYSTORE_PASSWORD_COMMAND=command,
        BMQ_LISTENER_NAME_INSIDE_PLAIN_SASL_JAAS_CONFIG_FILE=str(tmp_path / "one"),
        BMQ_LISTENER_NAME_OUT_SIDE_2_SSL_KEYSTORE_PASSWORD_FILE=str(tmp_path / "one"),
    )
    inside, outside = config.listener_security().values()
    assert (config.ssl_key_password, config.sasl_jaas_config, config.ssl_keystore_password) == (
        "one", "two words", "two words",
    )  # fmt: skip
    assert (inside.for_mechanism("PLAIN", "sasl.jaas.config"), inside.get("ssl.key.password")) == ("one", "one")
    assert (outside.get("ssl.keystore.password"), outside.get("ssl.key.password")) == ("one", "two words")
    assert (
        unknown_names({"BMQ_SSL_KEY_PASSWORD_FILE": "x", "BMQ_LISTENER_NAME_INSIDE_SSL_KEY_PASSWORD_FILE": "x"}) == []
    )


@pytest.mark.parametrize(
    ("file", "environment"),
    [
        ({"ssl.key.password": "a", "ssl.key.password.command": "echo b"}, {}),
        ({}, {"BMQ_SSL_KEY_PASSWORD": "a", "BMQ_SSL_KEY_PASSWORD_COMMAND": "echo b"}),
        ({f"{OUTSIDE}.ssl.key.password": "a", f"{OUTSIDE}.ssl.key.password.command": "echo b"}, {}),
    ],
)
def test_a_secret_has_one_source(file: dict[str, object], environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.key\.password is set in another way, too"):
        loaded(file, **environment)


def test_only_secrets_are_read_from_elsewhere() -> None:
    with pytest.raises(ConfigError, match="unknown setting"):
        loaded({"ssl.keystore.location.file": "/x"})


def test_workers_get_the_settings_and_not_the_ways_to_secrets(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("one")
    environment = {
        "BMQ_SSL_KEY_PASSWORD_FILE": str(tmp_path / "one"),
        "BMQ_LISTENER_NAME_INSIDE_SSL_KEY_PASSWORD_COMMAND": "echo two",
    }
    config = loaded({f"{OUTSIDE}.ssl.cipher.suites": "a,b", f"{OUTSIDE}.ssl.client.auth": "required"}, **environment)
    (tmp_path / "one").unlink()
    worker = load(environment=worker_environment(environment, config, 0), flags={})
    assert worker.listener_settings == config.listener_settings
    assert worker.ssl_key_password == "one"


@pytest.mark.parametrize(
    ("protocol", "client_auth", "facts"),
    [
        ("PLAINTEXT", "required", (False, False, False)),
        ("SSL", "none", (True, False, False)),
        ("SSL", "requested", (True, False, False)),
        ("SSL", "required", (True, False, True)),
        ("SASL_PLAINTEXT", "none", (False, True, True)),
        ("SASL_SSL", "none", (True, True, True)),
    ],
)
def test_what_a_protocol_means(protocol: str, client_auth: str, facts: tuple[bool, bool, bool]) -> None:
    listener = security_of("A", protocol, NodeConfig(ssl_client_auth=client_auth), ())
    assert (listener.has_tls, listener.has_sasl, listener.asks) == facts
