"""A setting that seems to close a port and does not is refused, or named; one line says what is in force."""

from __future__ import annotations

import pytest

from bmq.core.config import ConfigError, NodeConfig
from bmq.core.config_sources import load
from bmq.core.security.settings import STANDARD_AUTHORIZER
from bmq.server.security_in_force import check_effect, in_force, without_effect

TWO = {
    "listeners": "IN://127.0.0.1:1,OUT://127.0.0.1:2",
    "listener.security.protocol.map": "IN:PLAINTEXT,OUT:SASL_SSL",
    "ssl.keystore.location": "/k",
}
INTERNAL = {"internal.ssl.keystore.location": "/k", "internal.ssl.truststore.location": "/t"}


def loaded(**file: object) -> NodeConfig:
    return load(file=file, environment={}, flags={})


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ({"internal.ssl.truststore.location": "/t"}, ["internal.ssl.truststore.location", "keystore"]),
        ({"internal.ssl.endpoint.identification.algorithm": "https"}, ["identification.algorithm", "have no TLS"]),
        ({"listener.name.plaintext.ssl.client.auth": "required"}, ["ssl.client.auth (the listener's"]),
        (TWO | {"listener.name.in.sasl.enabled.mechanisms": "PLAIN"}, ["listener.name.in.sasl.enabled.mechanisms"]),
        (TWO | {"listener.name.in.plain.sasl.jaas.config": "x required;"}, ["in.plain.sasl.jaas.config"]),
        (TWO | {"listener.name.in.connections.max.reauth.ms": 5}, ["in.connections.max.reauth.ms"]),
        ({"listener.name.http.plain.sasl.jaas.config": "x required;"}, ["http_authentication is none"]),
        ({"listener.name.http.ssl.keystore.location": "/k"}, ["http_tls is false"]),
    ],
)  # fmt: skip
def test_a_setting_that_secures_nothing_is_refused(file: dict[str, object], named: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        check_effect(loaded(**file))
    for part in named:
        assert part in str(refused.value)


@pytest.mark.parametrize(
    "file",
    [
        {},
        INTERNAL,
        TWO | {"listener.name.out.sasl.enabled.mechanisms": "PLAIN", "listener.name.out.ssl.client.auth": "requested"},
        TWO | {"listener.name.out.plain.sasl.jaas.config": "x required;"},
        TWO | {"listener.name.in.max.connection.creation.rate": 5},
        {"http_authentication": "basic", "listener.name.http.plain.sasl.jaas.config": "x required;"},
        {"http_tls": True, "listener.name.http.ssl.keystore.location": "/k"},
    ],
)
def test_a_setting_that_is_used_is_not(file: dict[str, object]) -> None:
    check_effect(loaded(**file))


def test_listeners_whose_names_begin_alike_keep_their_own_settings() -> None:
    names = {
        "listeners": "A://127.0.0.1:1,A.SSL://127.0.0.1:2",
        "listener.security.protocol.map": "A:PLAINTEXT,A.SSL:SSL",
    }
    check_effect(loaded(**names, **{"listener.name.a.ssl.ssl.client.auth": "none"}))
    with pytest.raises(
        ConfigError, match=r"listener\.name\.a\.ssl\.client\.auth \(the listener's protocol is PLAINTEXT"
    ):
        check_effect(loaded(**names, **{"listener.name.a.ssl.client.auth": "none"}))


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        ({}, []),
        ({"super.users": "User:a"}, ["super.users: there is no authorizer: give authorizer.class.name"]),
        ({"super.users": "User:a", "authorizer.class.name": STANDARD_AUTHORIZER}, []),
        ({"ssl.client.auth": "required"}, ["ssl.client.auth: no listener has TLS"]),
        ({"sasl.enabled.mechanisms": "PLAIN"}, ["sasl.enabled.mechanisms: no client logs in at any listener"]),
        ({"sasl.enabled.mechanisms": "PLAIN", "http_authentication": "basic"}, []),
        (TWO | {"sasl.enabled.mechanisms": "PLAIN", "ssl.client.auth": "none"}, []),
        (
            TWO | {"listener.name.out.plain.sasl.jaas.config": "x required;"},
            [
                "listener.name.out.plain.sasl.jaas.config: the listener's sasl.enabled.mechanisms are"
                " SCRAM-SHA-256,SCRAM-SHA-512"
            ],
        ),
        (
            TWO
            | {
                "listener.name.out.plain.sasl.jaas.config": "x required;",
                "listener.name.out.sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
            },
            [],
        ),
        ({"http_authentication": "basic", "listener.name.http.plain.sasl.jaas.config": "x required;"}, []),
        ({"audit_lines_per_s": 5}, ["audit_lines_per_s: there is no audit_log"]),
        (INTERNAL | {"ssl.enabled.protocols": "TLSv1.3", "ssl.cipher.suites": "ECDHE+AESGCM"}, []),
        (INTERNAL | {"ssl.client.auth": "required"}, ["ssl.client.auth: no listener has TLS"]),
        ({"roles": "broker", "ssl.client.auth": "required", "sasl.enabled.mechanisms": "PLAIN"}, []),
    ],
)
def test_settings_that_others_leave_without_an_effect_are_named(file: dict[str, object], lines: list[str]) -> None:
    assert without_effect(loaded(**file)) == lines


def test_one_line_says_what_is_in_force() -> None:
    assert in_force(loaded()) == (
        "PLAINTEXT 127.0.0.1:9092 PLAINTEXT; HTTP 127.0.0.1:9080 http, log-in none; authorizer none; delegation tokens"
        " off; audit log none; files of topics as storage has them"
    )
    secured = loaded(
        **TWO, **INTERNAL,
        **{
            "internal.secret": "x" * 32, "authorizer.class.name": STANDARD_AUTHORIZER,
            "meta": "etcd://bmq:hunter2@127.0.0.1:2379?ca=/c&cert=/c&key=/k",
            "delegation.token.secret.key": "y" * 32, "audit_log": "topic:audit", "http_authentication": "basic",
            "listener.name.out.sasl.enabled.mechanisms": "PLAIN,GSSAPI", "root": "hdfs://nn:8020/bmq",
            "hdfs_keytab": "/b.keytab", "http_hosts": "bmq.example.org", "log.storage.mode": "750",
            "log.storage.group": "readers",
        },
    )  # fmt: skip
    assert in_force(secured) == (
        "IN 127.0.0.1:1 PLAINTEXT; OUT 127.0.0.1:2 SASL_SSL, log-in PLAIN,GSSAPI, client certificates none; HTTP"
        " 127.0.0.1:9080 http, log-in basic, hosts bmq.example.org; internal port 127.0.0.1:9093 TLS and secret;"
        " etcd TLS, client certificate, user bmq; authorizer StandardAuthorizer; delegation tokens on; audit log"
        " topic:audit; files of topics group readers mode 750; HDFS log-in keytab /b.keytab"
    )
    assert not any(secret in in_force(secured) for secret in ("x" * 32, "hunter2"))
    assert "; etcd no TLS, no user; " in in_force(loaded(meta="etcd://127.0.0.1:2379"))
