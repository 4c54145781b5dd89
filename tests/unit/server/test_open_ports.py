"""Ports that serve whoever reaches them: which are open, and that a start with one must be asked for."""

from __future__ import annotations

import pytest

from bmq.core.config import ConfigError
from bmq.core.config_sources import load
from bmq.server.open_ports import check_open_ports, is_loopback, ports_with_clear_passwords

ETCD = {"meta": "etcd://e:2379"}
SECRET = {"internal.secret": "0123456789abcdef"}
INTERNAL_TLS = {"internal.ssl.keystore.location": "/k", "internal.ssl.truststore.location": "/t"}


@pytest.mark.parametrize(
    ("host", "is_own"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("LOCALHOST", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("proxy1", False),
        ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_loopback_addresses(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, []),
        ({"listen": "0.0.0.0:1"}, ["Kafka listener PLAINTEXT on 0.0.0.0:1, PLAINTEXT"]),
        ({"listen": "[::]:1"}, ["Kafka listener PLAINTEXT on [::]:1, PLAINTEXT"]),
        ({"listeners": "SSL://0.0.0.0:1"}, ["Kafka listener SSL on 0.0.0.0:1, SSL"]),
        ({"listeners": "SSL://0.0.0.0:1", "ssl.client.auth": "requested"}, ["Kafka listener SSL on 0.0.0.0:1, SSL"]),
        ({"listeners": "SSL://0.0.0.0:1", "ssl.client.auth": "required"}, []),
        (
            {
                "listeners": "PLAINTEXT://127.0.0.1:1,SSL://0.0.0.0:2",
                "listener.name.ssl.ssl.client.auth": "required",
            },
            [],
        ),
        ({"listen": "127.0.0.1:1", "shared_listen": "h:2"}, ["Kafka listener PLAINTEXT on h:2, PLAINTEXT"]),
        ({"listen": "0.0.0.0:1", "roles": "broker", **ETCD}, []),
        ({"internal": "0.0.0.0:1"}, []),
        ({"internal": "0.0.0.0:1", **ETCD}, ["internal port on 0.0.0.0:1"]),
        ({"internal": "0.0.0.0:1", **ETCD, **SECRET}, []),
        (
            {"internal": "0.0.0.0:1", **ETCD, **SECRET, "internal.secret.required": "false"},
            ["internal port on 0.0.0.0:1"],
        ),
        ({"internal": "0.0.0.0:1", **ETCD, **INTERNAL_TLS}, []),
        (
            {"internal": "0.0.0.0:1", **ETCD, **INTERNAL_TLS, "internal.ssl.required": "false"},
            ["internal port on 0.0.0.0:1"],
        ),
        ({"http": "h:1"}, ["HTTP port on h:1"]),
        ({"http": "h:1", "http_authentication": "bearer"}, []),
        (
            {"http": "h:1", "listen": "h:2", "internal": "h:3", **ETCD},
            ["Kafka listener PLAINTEXT on h:2, PLAINTEXT", "internal port on h:3", "HTTP port on h:1"],
        ),
    ],
)
def test_open_ports_must_be_asked_for(settings: dict[str, object], ports: list[str]) -> None:
    assert check_open_ports(load(file={**settings, "insecure": True}, environment={}, flags={})) == ports
    config = load(file=settings, environment={}, flags={})
    if not ports:
        assert check_open_ports(config) == []
        return
    with pytest.raises(ConfigError) as refused:
        check_open_ports(config)
    said = str(refused.value)
    assert all(port in said for port in ports)
    assert said.count("(give") == len(ports)
    assert "say --insecure" in said


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({}, []),
        ({"http": "h:1"}, []),  # open, but without passwords
        ({"http": "h:1", "http_authentication": "basic"}, ["HTTP port on h:1"]),
        ({"http": "h:1", "http_authentication": "bearer"}, ["HTTP port on h:1"]),
        ({"http": "h:1", "http_authentication": "basic", "http_tls": True}, []),
        ({"http": "127.0.0.1:1", "http_authentication": "basic"}, []),
        (
            {"listeners": "SASL_PLAINTEXT://h:1", "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512"},
            ["Kafka listener SASL_PLAINTEXT on h:1, PLAIN"],
        ),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:1", "sasl.enabled.mechanisms": "PLAIN"}, []),
        ({"listeners": "SASL_PLAINTEXT://h:1", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}, []),
        ({"listeners": "SASL_SSL://h:1", "sasl.enabled.mechanisms": "PLAIN"}, []),
        ({"listeners": "SASL_PLAINTEXT://h:1", "sasl.enabled.mechanisms": "PLAIN", "roles": "broker"}, []),
    ],
)
def test_ports_that_take_passwords_without_tls_are_named(settings: dict[str, object], ports: list[str]) -> None:
    assert ports_with_clear_passwords(load(file=settings, environment={}, flags={})) == ports
