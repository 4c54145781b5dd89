"""Kerberos principals of HDFS's servers and of this process.  Pure.

A server names its principal in its offer.  The client takes no other one than the configuration has: a principal, with
``_HOST`` for the server's own name, or a pattern (SaslRpcClient.getServerPrincipal).
"""

from __future__ import annotations

import fnmatch
import ipaddress
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from bmq.storage.hdfs.address import canonical_host
from bmq.storage.hdfs.sasl import LoginFailed

HOST = "_HOST"
PRINCIPAL = "dfs.namenode.kerberos.principal"


@dataclass(frozen=True, slots=True)
class ServerPrincipal:
    """The principal that a server must have, by the configuration ``source``."""

    principal: str
    pattern: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        service, slash, rest = self.principal.partition("/")
        host, at, realm = rest.partition("@")
        if not (service and slash and host and at and realm) or "/" in host:
            raise ValueError(
                f"{self.source}: {PRINCIPAL}={self.principal or '(not set)'} is not service/host@REALM, as in"
                " nn/_HOST@EXAMPLE.ORG"
            )

    def __str__(self) -> str:
        return self.pattern or self.principal

    @property
    def has_own_host(self) -> bool:
        """True if the principal depends on the name by which the server is reached."""
        return f"/{HOST}@" in self.principal and not self.pattern

    def of_hosts(self, hosts: Iterable[str]) -> list[str]:
        """Return the principals that servers at ``hosts`` have, as far as the configuration shows it."""
        if self.pattern:
            return []
        names = [canonical_host(host) for host in hosts if not _is_address(host)]
        return list(dict.fromkeys(self.principal.replace(HOST, name) for name in names))

    def check(self, host: str, names: Collection[str], service: str, server_id: str) -> str:
        """Return the principal of a server that was reached as ``host``, and also has ``names``.

        Raises LoginFailed if its offer, ``service`` and ``server_id``, is another one.
        """
        realm = self.principal.rpartition("@")[2]
        offered = f"{service}/{server_id}@{realm}"
        if self.pattern:
            if fnmatch.fnmatchcase(offered, self.pattern):
                return offered
        elif offered in {self.principal.replace(HOST, canonical_host(name)) for name in (host, *names)}:
            return offered
        property_name = f"{PRINCIPAL}.pattern" if self.pattern else PRINCIPAL
        raise LoginFailed(
            f"the server at {host} has the principal {offered[:300]!r}; {self.source} has"
            f" {property_name}={self.pattern or self.principal}"
        )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def own_principal(principal: str) -> str:
    """Return this process's principal: ``_HOST`` stands for this machine's full name."""
    if f"/{HOST}@" not in principal and not principal.endswith(f"/{HOST}"):
        return principal
    return principal.replace(HOST, socket.getfqdn().lower())
