"""Kafka's client settings as librdkafka takes them, and what its errors mean.

Settings with the names of Kafka's Java client are translated (``core.security.client_settings``, as for commands).
Files are read where the producer runs: on each executor, by the same path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError

from bmq.core.options import ConfigError
from bmq.core.security.client_login import Login
from bmq.core.security.client_settings import ClientSecuritySettings
from bmq.core.security.oauth_token import TokenSource
from bmq.core.security.stores import authorities_of, identity_of, openssl_suites

_KEY = re.compile(rb"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?-----END \1-----\n?", re.DOTALL)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)
_FINAL_TLS = re.compile(r"verify failed|wrong version number|alert|PLAINTEXT broker listener", re.IGNORECASE)
"""What librdkafka says of a TLS handshake that no second try mends."""
Fetch = Callable[[str], tuple[str, float]]


def producer_settings(security: ClientSecuritySettings) -> dict[str, Any]:
    """Return settings of librdkafka, some of which are secrets.

    Raises ConfigError, which shows none, if a file cannot be read, or librdkafka has no such log-in.
    """
    settings: dict[str, Any] = {"security.protocol": security.protocol}
    if security.has_tls:
        settings |= _tls(security)
    if security.login is not None:
        settings |= _log_in(security.login)
    return settings


def _tls(security: ClientSecuritySettings) -> dict[str, str]:
    where = "kafka.*"
    settings = {"ssl.endpoint.identification.algorithm": "https" if security.checks_name else "none"}
    suites = openssl_suites(security.listed("ssl.cipher.suites"))
    if suites:
        settings["ssl.cipher.suites"] = ":".join(suites)
    authorities = authorities_of(security.get, where)
    if authorities is not None:
        settings["ssl.ca.pem"] = authorities.decode("ascii", "replace")
    identity = identity_of(security.get, where)
    if identity is not None:
        both = identity.key + b"\n" + identity.chain
        key = _KEY.search(both)
        if key is None:
            raise ConfigError(f"{where}: {identity.source}: there is no private key with a certificate")
        settings["ssl.key.pem"] = key[0].decode("ascii", "replace")
        settings["ssl.certificate.pem"] = b"".join(_CERTIFICATE.findall(both)).decode("ascii", "replace")
        if identity.password:
            settings["ssl.key.password"] = identity.password
    return settings


def _log_in(login: Login) -> dict[str, Any]:
    settings: dict[str, Any] = {"sasl.mechanism": login.mechanism}
    match login.mechanism:
        case "OAUTHBEARER":
            return {**settings, "oauth_cb": _fetch(login)}
        case "GSSAPI":
            own = {"sasl.kerberos.keytab": login.keytab, "sasl.kerberos.principal": login.user}
            settings["sasl.kerberos.service.name"] = login.service
            return {**settings, **{key: value for key, value in own.items() if value}}
        case _:
            if login.is_token:
                raise ConfigError("sasl.jaas.config: librdkafka has no delegation tokens (tokenauth=true)")
            return {**settings, "sasl.username": login.user, "sasl.password": login.password}


def _fetch(login: Login) -> Fetch:
    source = TokenSource(login)

    def fetch(_: str) -> tuple[str, float]:
        token = source.token()
        return token, source.expires_at

    return fetch


def is_final(error: KafkaError) -> bool:
    """Return whether no second try mends an error of the connection: the log-in, a certificate, the protocol."""
    if error.code() == KafkaError._AUTHENTICATION:
        return True
    return error.code() == KafkaError._SSL and _FINAL_TLS.search(error.str()) is not None


def explain(error: KafkaError, topic: str, *, has_key: bool = True) -> str:
    """Return what an error of a row means; a missing right is named with its resource.

    ``has_key``: the row has a key.
    """
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return f"not authorised for Write on topic {topic} (TOPIC_AUTHORIZATION_FAILED)"
    if error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
        return (
            f"not authorised for Write on topic {topic}, or IdempotentWrite on the cluster"
            " (CLUSTER_AUTHORIZATION_FAILED)"
        )
    if error.code() == KafkaError.INVALID_RECORD and not has_key:
        return f"{error.str()} (INVALID_RECORD): a topic whose cleanup.policy has compact needs a key in each row"
    return str(error.str())
