"""Ports that other machines can reach, without authentication or with passwords in clear text."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from bmq.core.config import ConfigError, NodeConfig, parse_address
from bmq.core.net.listener_config import address_text
from bmq.meta.cluster.member import PROXY
from bmq.meta.open import is_shared

_IN_CLEAR = frozenset(("PLAIN", "OAUTHBEARER"))
"""Mechanisms whose clients send what lets them in."""


def check_open_ports(config: NodeConfig) -> list[str]:
    """Return a line for each open port of a process whose settings say ``insecure``.

    Raises ConfigError, with all of them and how each is secured, if they do not say so.
    """
    found = list(_open_ports(config))
    if found and not config.insecure:
        ports = "; ".join(f"{port} ({remedy})" for port, remedy in found)
        raise ConfigError(
            f"whoever reaches these ports may use them without showing who he is: {ports}. Listen on 127.0.0.1, secure"
            " them, or say --insecure (BMQ_INSECURE=true) if only a trusted network reaches them"
        )
    return [port for port, _ in found]


def _open_ports(config: NodeConfig) -> Iterator[tuple[str, str]]:
    """Yield each open port, and how it is secured."""
    if PROXY in config.roles:
        security = config.listener_security()
        for each in (*config.kafka_listeners(), *config.shared_listeners()):
            if not security[each.name].asks and not is_loopback(each.host):
                port = f"Kafka listener {each.name} on {address_text(each.host, each.port)}, {each.protocol}"
                yield port, "give it the protocol SASL_SSL, or SSL with ssl.client.auth=required"
    host, number = parse_address(config.internal, "internal")
    if is_shared(config.meta) and not config.is_internal_authenticated and not is_loopback(host):
        yield (
            f"internal port on {address_text(host, number)}",
            "give internal.secret, or internal.ssl.keystore.location",
        )
    host, number = parse_address(config.http, "http")
    if "none" in config.http_authentication and not is_loopback(host):
        yield f"HTTP port on {address_text(host, number)}", "give http_authentication=basic"


def ports_with_clear_passwords(config: NodeConfig) -> list[str]:
    """Return a line for each port that takes passwords, or tokens as good as passwords, without TLS, from elsewhere.

    They start all the same, as in Kafka: something before them, or a network, may encrypt.
    """
    found = []
    if PROXY in config.roles:
        security = config.listener_security()
        for each in (*config.kafka_listeners(), *config.shared_listeners()):
            taken = sorted(_IN_CLEAR.intersection(security[each.name].get("sasl.enabled.mechanisms")))
            if each.protocol == "SASL_PLAINTEXT" and taken and not is_loopback(each.host):
                found.append(f"Kafka listener {each.name} on {address_text(each.host, each.port)}, {','.join(taken)}")
    host, number = parse_address(config.http, "http")
    if "none" not in config.http_authentication and not config.http_tls and not is_loopback(host):
        found.append(f"HTTP port on {address_text(host, number)}")
    return found


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address; of names, only localhost is known to be one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
