"""A process of the cluster, as it registers itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TypeVar

from bmq.core.errors import FormatError
from bmq.core.features import LEVEL_MAX, LevelRange, Levels, Ranges, unsupported

FORMAT = 1
PORT_MAX = 65_535
NODE_ID_MAX = (1 << 31) - 1
TEXT_BYTES_MAX = (1 << 15) - 1
"""The largest numbers and texts that Kafka's int32 and string, and so responses to clients, can hold."""
T = TypeVar("T")
PROXY, BROKER, CONTROLLER, COORDINATOR = "proxy", "broker", "controller", "coordinator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and port.  ``port`` 0: there is no address."""

    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member's record.  ``incarnation`` names this process start; ``node_id`` is a proxy's id for clients, else -1.

    ``listeners`` has the addresses of a proxy's listeners by name.  ``kafka`` has the address of the first listener,
    for versions that knew no listeners.  ``protocols`` is the range of the internal protocol that it speaks,
    ``formats`` the highest format of files and keys that it reads.  ``is_draining``: it is about to leave, and nothing
    more is assigned to it.  ``has_tls``: its internal port takes connections with TLS.  ``features``: the levels that
    it supports, by feature; a version without the field supports level 0 of all.  ``hdfs_user``: the owner of its files
    on HDFS, empty if there is none, if it is not known yet, and in records of versions without the field.
    """

    incarnation: str
    roles: frozenset[str]
    node_id: int = -1
    kafka: Address = Address()
    listeners: tuple[tuple[str, Address], ...] = ()
    internal: Address = Address()
    http: Address = Address()
    zone: str = ""
    version: str = ""
    protocols: tuple[int, int] = (0, 0)
    formats: int = 1
    is_draining: bool = False
    has_tls: bool = False
    features: tuple[tuple[str, LevelRange], ...] = ()
    hdfs_user: str = ""

    @property
    def ranges(self) -> Ranges:
        """The levels that the member supports, by feature."""
        return dict(self.features)

    def supports(self, levels: Levels) -> bool:
        """Return whether the member supports these levels of features: other members refuse it if not."""
        return not unsupported(levels, self.ranges)

    @property
    def is_starting(self) -> bool:
        """True until the process listens, and has published an address: it can neither be asked nor given anything."""
        return not (self.internal.port or self.http.port or self.kafka.port)

    def has(self, role: str) -> bool:
        return role in self.roles

    def kafka_at(self, listener: str) -> Address:
        """Return the address for clients of a listener of this name; no port if the proxy has none of that name.

        A member of a version before listeners has one address for all clients, whatever they connected to.
        """
        if not self.listeners:
            return self.kafka
        return next((address for name, address in self.listeners if name == listener), Address())

    def draining(self) -> Member:
        """Return this member as one that is about to leave."""
        return replace(self, is_draining=True)

    def with_id(self, node_id: int) -> Member:
        return replace(self, node_id=node_id)


def encode_member(member: Member) -> bytes:
    return json.dumps(
        {
            "format": FORMAT,
            "incarnation": member.incarnation,
            "roles": sorted(member.roles),
            "node_id": member.node_id,
            "kafka": [member.kafka.host, member.kafka.port],
            "listeners": {name: [address.host, address.port] for name, address in member.listeners},
            "internal": [member.internal.host, member.internal.port],
            "http": [member.http.host, member.http.port],
            "zone": member.zone,
            "version": member.version,
            "protocols": list(member.protocols),
            "formats": member.formats,
            "is_draining": member.is_draining,
            "has_tls": member.has_tls,
            "features": {name: list(levels) for name, levels in member.features},
            "hdfs_user": member.hdfs_user,
        },
        separators=(",", ":"),
    ).encode()


def decode_member(data: bytes) -> Member:
    """Return the member in ``data``.  Raises FormatError if it is not a member, or is of a later format."""
    try:
        raw = json.loads(data)
        if raw["format"] != FORMAT:
            raise FormatError(f"member of format {raw['format']}: this version reads {FORMAT}")
        return Member(
            incarnation=_typed(raw["incarnation"], str),
            roles=frozenset(_typed(role, str) for role in _typed(raw["roles"], list)),
            node_id=_node_id(raw["node_id"]),
            kafka=_address(raw["kafka"]),
            listeners=_listeners(raw.get("listeners", {})),
            internal=_address(raw["internal"]),
            http=_address(raw["http"]),
            zone=_text(raw["zone"]),
            version=_typed(raw["version"], str),
            protocols=(_typed(raw["protocols"][0], int), _typed(raw["protocols"][1], int)),
            formats=_typed(raw["formats"], int),
            is_draining=_typed(raw["is_draining"], bool),
            has_tls=_typed(raw.get("has_tls", False), bool),  # versions before had no field for it
            features=_features(raw.get("features", {})),
            hdfs_user=_text(raw.get("hdfs_user", "")),
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise FormatError(f"not a member: {data[:80]!r} ({error})") from error


def _listeners(raw: object) -> tuple[tuple[str, Address], ...]:
    """Return the addresses by name; none if the member's version wrote none."""
    named: dict[str, list[object]] = _typed(raw, dict)
    return tuple((_text(name), _address(address)) for name, address in named.items())


def _features(raw: object) -> tuple[tuple[str, LevelRange], ...]:
    """Return the ranges of levels by feature, also of features that this version does not know."""
    named: dict[str, list[object]] = _typed(raw, dict)
    return tuple((_text(name), _level_range(levels)) for name, levels in sorted(named.items()))


def _level_range(raw: list[object]) -> LevelRange:
    lowest, highest = (_typed(level, int) for level in raw)
    if not 0 <= lowest <= highest <= LEVEL_MAX:
        raise ValueError(f"levels {lowest} to {highest}")
    return LevelRange(lowest, highest)


def _address(raw: list[object]) -> Address:
    host, port = raw
    if not 0 <= _typed(port, int) <= PORT_MAX:
        raise ValueError(f"port {port!r}")
    return Address(host=_text(host), port=_typed(port, int))


def _node_id(value: object) -> int:
    number = _typed(value, int)
    if not -1 <= number <= NODE_ID_MAX:
        raise ValueError(f"node id {number!r:.80}")
    return number


def _text(value: object) -> str:
    """Return ``value``.  Raises ValueError if no response could hold it."""
    text = _typed(value, str)
    if len(text.encode()) > TEXT_BYTES_MAX:
        raise ValueError(f"a text of more than {TEXT_BYTES_MAX} bytes: {text[:80]!r}")
    return text


def _typed(value: object, kind: type[T]) -> T:
    """Return ``value``.  Raises TypeError if it is of another type; true and false are not numbers."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r:.80} is not {kind.__name__}")
    return value
