"""Kafka's listeners: named addresses of one endpoint, and the addresses advertised to the clients of each.

Settings have Kafka's names, forms and rules (``SocketServerConfigs``, ``CoreUtils.listenerListToEndPoints``)::

    listeners                       INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094
    advertised.listeners            INSIDE://proxy-0.bmq:9092,OUTSIDE://kafka.example.org:31000
    listener.security.protocol.map  INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT

A client receives the addresses of the listener that it connected to.  ``listen`` and ``advertise`` are the short form
of one listener named PLAINTEXT.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

PLAINTEXT = "PLAINTEXT"
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")
LISTENERS_MAX = 16
"""Listeners of one process at most.  Each keeps its own encoded metadata."""
NAME_LENGTH_MAX = 64
ANY_HOST = ("0.0.0.0", "::")
"""Hosts that mean every address of the machine."""
_NAME = re.compile(r"[A-Z0-9][A-Z0-9_.-]*")


class ListenerError(ValueError):
    """A wrong setting of listeners; ``str`` names it and says what would be right."""


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """The address of one listener, its security protocol, and the address advertised to clients: empty if the same."""

    name: str
    host: str
    port: int
    advertised_host: str = ""
    advertised_port: int = 0
    protocol: str = PLAINTEXT

    @property
    def public_host(self) -> str:
        """The host advertised to clients, before a wildcard is replaced by the machine's name."""
        return self.advertised_host or self.host


def resolve(
    listeners: Sequence[str], advertised: Sequence[str], protocols: Sequence[str]
) -> tuple[ListenerAddress, ...]:
    """Return the listeners of the three settings, in the order of the first.

    Raises ListenerError, with the name of the setting, if a setting is wrong or contradicts another.
    """
    found = _parse(listeners, "listeners")
    _check_ports(found)
    of_names = _protocols_of([each.name for each in found], protocols)
    found = tuple(replace(each, protocol=of_names[each.name]) for each in found)
    if not advertised:
        return found
    told = {each.name: each for each in _parse(advertised, "advertised.listeners")}
    for each in told.values():
        if each.host in ANY_HOST or not each.port:
            address = address_text(each.host, each.port)
            raise ListenerError(
                f"advertised.listeners: clients cannot connect to {address!r} of {each.name}; give this machine's name"
                " and the port by which they reach it"
            )
    if unknown := sorted(set(told) - {each.name for each in found}):
        raise ListenerError(f"advertised.listeners: {', '.join(unknown)} is not in listeners={','.join(listeners)}")
    return tuple(
        replace(each, advertised_host=told[each.name].host, advertised_port=told[each.name].port)
        if each.name in told
        else each
        for each in found
    )


def check_apart(listeners: Sequence[ListenerAddress], ports: int) -> None:
    """Check that no listener's ports reach into the next listener's: a listener has ``ports`` ports in a row.

    Raises ListenerError if they do.
    """
    ordered = sorted(each.port for each in listeners if each.port)
    for port, following in pairwise(ordered):
        if following - port < ports:
            raise ListenerError(
                f"listeners: with these workers a listener has {ports} ports one after another, so {port} and"
                f" {following} are too near to each other; put {ports} or more between them"
            )


def address_text(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listener_text(name: str, host: str, port: int) -> str:
    """Return a listener in the settings' form."""
    return f"{name}://{address_text(host, port)}"


def _parse(parts: Sequence[str], setting: str) -> tuple[ListenerAddress, ...]:
    """Return the listeners of a setting.  An empty host means every address, as in Kafka."""
    found: dict[str, ListenerAddress] = {}
    for part in parts:
        name, colon, rest = part.partition("://")
        name = name.strip().upper()
        host, port = _host_and_port(rest)
        if not colon or port < 0 or not _NAME.fullmatch(name) or len(name) > NAME_LENGTH_MAX:
            raise ListenerError(f"{setting}: {part!r} is not NAME://HOST:PORT, as in PLAINTEXT://0.0.0.0:9092")
        if name in found:
            raise ListenerError(f"{setting}: each listener must have a different name, and {name} is listed twice")
        found[name] = ListenerAddress(name, host or ANY_HOST[0], port)
    if len(found) > LISTENERS_MAX:
        raise ListenerError(f"{setting}: {len(found)} listeners are over {LISTENERS_MAX}")
    return tuple(found.values())


def _host_and_port(text: str) -> tuple[str, int]:
    """Return host and port; port -1 if ``text`` is not an address."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65_535 or set(host) & set("/ @?#"):
        return host, -1
    return host, int(port)


def _check_ports(listeners: Sequence[ListenerAddress]) -> None:
    """Refuse two listeners on one port, unless one has an IPv4 and the other an IPv6 address (KIP-797)."""
    by_port: dict[int, list[ListenerAddress]] = {}
    for each in listeners:
        if each.port:
            by_port.setdefault(each.port, []).append(each)
    for port, same in by_port.items():
        if len(same) > 1 and sorted(filter(None, map(_ip_version, same))) != [4, 6]:
            names = " and ".join(each.name for each in same)
            raise ListenerError(
                f"listeners: {names} have the same port {port}; each listener must have a different port unless one has"
                " an IPv4 address and one other an IPv6 address"
            )


def _ip_version(listener: ListenerAddress) -> int:
    try:
        return ipaddress.ip_address(listener.host).version
    except ValueError:
        return 0


def _protocols_of(names: Sequence[str], parts: Sequence[str]) -> dict[str, str]:
    """Return the protocol of each listener.  Raises ListenerError if one has none."""
    protocols, found = _protocol_map(parts), {}
    for name in names:
        protocol = protocols.get(name)
        if protocol is None:
            raise ListenerError(
                f"listener.security.protocol.map: no security protocol is defined for listener {name};"
                f" add {name}:PLAINTEXT"
            )
        found[name] = protocol
    return found


def _protocol_map(parts: Sequence[str]) -> Mapping[str, str]:
    """Return the protocol of each listener's name.

    Kafka's default, if none is given: each protocol by its own name.
    """
    if not parts:
        return {name: name for name in PROTOCOLS}
    found: dict[str, str] = {}
    for part in parts:
        name, colon, protocol = part.upper().partition(":")
        name, protocol = name.strip(), protocol.strip()
        if not colon or not name:
            raise ListenerError(
                f"listener.security.protocol.map: {part!r} is not NAME:PROTOCOL, as in INSIDE:PLAINTEXT"
            )
        if protocol not in PROTOCOLS:
            raise ListenerError(
                f"listener.security.protocol.map: {protocol!r} of {name} is none of {', '.join(PROTOCOLS)}"
            )
        if name in found:
            raise ListenerError(f"listener.security.protocol.map: {name} is listed twice")
        found[name] = protocol
    return found
