"""Client quotas: entities, values, and the records of the store.  Pure.

An entity is a user, a client id, both, or an ip; each may be a default (Kafka's ``ClientQuotaEntity``).  Its record is
the key ``/<cluster>/quotas/<entity>``, with percent-encoded names, and an empty name for a default::

    quotas/user=alice&client-id=reports     {"format": 1, "values": {"producer_byte_rate": 1048576.0}}
    quotas/user=                            the default of users

For each request the first entity counts that has a value of the kind (``ClientQuotaManager``)::

    user, client id  >  user, any client id  >  user  >
    any user, client id  >  any user, any client id  >  any user  >
    client id  >  any client id

The rate belongs to the *holder*: everything that the entity stands for is counted together.  Under a default, every
user or client id has a rate of its own.

Beside Kafka's rates a user may have *bounds*: numbers of what one user may own (``BOUND_KEYS``).  A user has the bound
of its own entity, else that of the default of users.  Users never share a bound.

Departures from Kafka: an ip is an address, not a host's name; a rate is 1 at least; names have a limit, and so has the
number of entities.
"""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from bmq.core.errors import FormatError
from bmq.meta.kv import Entry

FORMAT = 1
USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (USER, CLIENT_ID, IP)
PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"
CLIENT_KEYS: Mapping[str, int | None] = {
    PRODUCER_BYTE_RATE: (1 << 63) - 1,
    CONSUMER_BYTE_RATE: (1 << 63) - 1,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""Quotas of users and client ids, with the largest value of those that are whole numbers."""
IP_KEYS: Mapping[str, int | None] = {CONNECTION_CREATION_RATE: (1 << 31) - 1}
"""Quotas of ips."""
MAX_TOPICS = "max_topics"
MAX_PARTITIONS = "max_partitions"
MAX_CONNECTIONS = "max_connections"
MAX_GROUPS = "max_groups"
MAX_TRANSACTIONAL_IDS = "max_transactional_ids"
BOUND_KEYS = (MAX_CONNECTIONS, MAX_GROUPS, MAX_PARTITIONS, MAX_TOPICS, MAX_TRANSACTIONAL_IDS)
"""Bounds of users.  Kafka bounds connections only, by address, listener and broker, and nothing by user."""
BOUND_MAX = (1 << 31) - 1
NAME_BYTES_MAX = 1_024
"""Bytes of a name in an entity: of Kafka's own, the longest principals are distinguished names."""
ENTITIES_MAX = 10_000
"""Entities of a cluster, about 500 bytes each in every proxy."""

Entity = tuple[tuple[str, str | None], ...]
"""Types with names, in the order of ``TYPES``; None is the default of the type."""
Values = Mapping[str, float]


class InvalidQuota(ValueError):
    """A quota that Kafka refuses with INVALID_REQUEST; ``str`` is the error message."""


class Bounds(Protocol):
    """The bounds of principals, as ``meta.security.quotas_view`` has them."""

    def find_bound(self, kind: str, principal: str) -> int | None:
        """Return how many things of a kind a principal may own; None: any number."""


class NoBounds:
    """The bounds of a cluster without any."""

    def find_bound(self, kind: str, principal: str) -> int | None:
        return None


class Holder(NamedTuple):
    """A user, a client id, or a user's client id, whose traffic one quota counts; "" for what is not distinguished."""

    user: str
    client_id: str


# ------------------------------------------------------------------------------------------------------------ rules


def make_entity(pairs: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity of these types and names.  Raises InvalidQuota as ``ClientQuotaControlManager`` does."""
    named: dict[str, str | None] = {}
    for kind, name in pairs:
        if kind in named:
            raise InvalidQuota(f"Invalid client quota entity, duplicate entity entry {kind}")
        if kind not in TYPES:
            raise InvalidQuota(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidQuota(f"Empty {kind} not supported")
        if name is not None and len(name.encode()) > NAME_BYTES_MAX:
            raise InvalidQuota(f"{kind} has more than {NAME_BYTES_MAX} bytes")
        named[kind] = name
    if not named:
        raise InvalidQuota("Invalid empty client quota entity")
    if IP in named:
        if len(named) > 1:
            raise InvalidQuota(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        address = named[IP]
        if address is not None and canonical_ip(address) is None:
            raise InvalidQuota(f"{address} is not a valid IP address")
    return tuple((kind, named[kind]) for kind in TYPES if kind in named)


def check_value(entity: Entity, key: str, value: float) -> None:
    """Raise InvalidQuota if an entity cannot have this value."""
    keys = IP_KEYS if entity[0][0] == IP else CLIENT_KEYS
    if key in BOUND_KEYS and len(entity) == 1 and entity[0][0] == USER:
        _check_bound(key, value)
        return
    if key not in keys:
        raise InvalidQuota(f"Invalid configuration key {key}")
    if not value > 0:
        raise InvalidQuota(f"Quota {key} must be greater than 0")
    most = keys[key]
    if math.isinf(value) or (most is not None and value > most):
        raise InvalidQuota(f"Proposed value for {key} is too large")
    # Kafka takes a millionth, too; the wait for a request is endless then, or not even a number.
    if most is not None and (abs(value % 1.0) > 1e-6 or value < 0.5):
        raise InvalidQuota(f"{key} cannot be a fractional value.")


def _check_bound(key: str, value: float) -> None:
    if not value >= 0:
        raise InvalidQuota(f"Bound {key} must be 0 or more")
    if value > BOUND_MAX:
        raise InvalidQuota(f"Proposed value for {key} is too large")
    if value % 1.0:
        raise InvalidQuota(f"{key} cannot be a fractional value.")


def canonical_ip(text: str) -> str | None:
    """Return the usual form of an address, an IPv4 address for one that is mapped to IPv6; None if it is not one."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


def changed(values: Values, changes: Mapping[str, float | None]) -> dict[str, float]:
    """Return ``values`` with ``changes``, where None removes a key."""
    after = {key: value for key, value in values.items() if key not in changes}
    after.update({key: value for key, value in changes.items() if value is not None})
    return after


def find_client_quota(
    limit_of: Callable[[Entity], float | None], user: str, client_id: str
) -> tuple[Holder, float] | None:
    """Return the quota of a request, and who it counts for; None if there is none.

    ``limit_of`` returns an entity's value of one kind.
    """
    users: tuple[str | None, ...] = (user, None)
    client_ids: tuple[str | None, ...] = (client_id, None)
    for name in users:
        for client in client_ids:
            limit = limit_of(((USER, name), (CLIENT_ID, client)))
            if limit is not None:
                return Holder(user, client_id), limit
        limit = limit_of(((USER, name),))
        if limit is not None:
            return Holder(user, ""), limit
    for client in client_ids:
        limit = limit_of(((CLIENT_ID, client),))
        if limit is not None:
            return Holder("", client_id), limit
    return None


def has_client_quota(limit_of: Callable[[Entity], float | None], holder: Holder) -> bool:
    """Return whether a quota counts for a holder: whether ``find_client_quota`` can return the holder."""
    user, client_id = holder
    clients: tuple[str | None, ...] = (client_id, None)
    if not user:
        return any(limit_of(((CLIENT_ID, each),)) is not None for each in clients)
    return any(
        limit_of(((USER, name), (CLIENT_ID, each))) is not None for name in (user, None) for each in clients
    ) or (not client_id and any(limit_of(((USER, name),)) is not None for name in (user, None)))


def find_user_bound(limit_of: Callable[[Entity], float | None], user: str) -> int | None:
    """Return the bound of a user, its own or the default; None if there is none."""
    for name in (user, None):
        limit = limit_of(((USER, name),))
        if limit is not None:
            return int(limit)
    return None


def find_ip_quota(limit_of: Callable[[Entity], float | None], ip: str) -> float | None:
    """Return the quota of an address, its own or the default; None if there is none."""
    own = limit_of(((IP, canonical_ip(ip)),))
    return own if own is not None else limit_of(((IP, None),))


# ------------------------------------------------------------------------------------------------- keys and records


def quotas_prefix(cluster: str) -> str:
    return f"/{cluster}/quotas/"


def quotas_key(cluster: str, entity: Entity) -> str:
    """Return the key of an entity's record."""
    return quotas_prefix(cluster) + "&".join(f"{kind}={quote(name or '', safe='')}" for kind, name in entity)


def entity_of(cluster: str, key: str) -> Entity:
    """Return the entity of a record's key.  Raises FormatError if it does not name one."""
    parts = (part.partition("=") for part in key.removeprefix(quotas_prefix(cluster)).split("&"))
    try:
        entity = make_entity((kind, unquote(name, errors="strict") or None) for kind, _, name in parts)
    except ValueError as error:
        raise FormatError(f"{key} does not name an entity of quotas: {error}") from None
    if quotas_key(cluster, entity) != key:
        raise FormatError(f"{key} does not name an entity of quotas as this version writes it")
    return entity


def encode_quotas(values: Values) -> bytes:
    return json.dumps({"format": FORMAT, "values": dict(sorted(values.items()))}, separators=(",", ":")).encode()


def decode_quotas(entity: Entity, entry: Entry) -> dict[str, float]:
    """Return the values in ``entry``.  Raises FormatError if it does not hold any, or is of a later format."""
    try:
        raw = json.loads(entry.value)
        if raw["format"] != FORMAT:
            raise FormatError(f"{entry.key} is of format {raw['format']}: this version reads {FORMAT}")
        values = {str(key): _number(value) for key, value in raw["values"].items()}
        for key, value in values.items():
            check_value(entity, key, value)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{entry.key} does not hold quotas: {entry.value[:80]!r} ({error})") from None
    return values


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.80} is not a number")
    return float(value)
