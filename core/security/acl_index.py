"""The decision by ACLs, as Kafka's ``StandardAuthorizer`` makes it.  Pure.

========================================= ========================================================================
the ACLs that apply to the resource       the operation is
========================================= ========================================================================
none at all, of any principal             allowed if ``allow.everyone.if.no.acl.found``, else denied
an ACL denies it, or ALL, to the client   denied
an ACL allows it, or ALL, or an operation allowed
that implies it, to the client
only others                               denied
========================================= ========================================================================

An ACL applies to a resource if it has its name, a prefix of its name, or ``*``.  It applies to a client if it names its
principal or ``User:*``, and its host or ``*``.  READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS implies
DESCRIBE_CONFIGS; only where they are allowed: a denied READ does not deny DESCRIBE.

A decision costs a few look-ups for each length that a prefix of this resource type has, however many ACLs there are.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from bmq.core.security.acls import ANY_PRINCIPAL, WILDCARD, Acl, AclOperation, AclPermission, PatternType, ResourceType

K = TypeVar("K")
ALL_OPERATIONS = sum(1 << each for each in AclOperation if each > AclOperation.ALL)
"""All operations, as a set of bits: bit n is the operation with code n."""
_IMPLIES_DESCRIBE = (
    1 << AclOperation.READ | 1 << AclOperation.WRITE | 1 << AclOperation.DELETE | 1 << AclOperation.ALTER
)


class AclIndex:
    """A set of ACLs by the resources that they apply to."""

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._types: dict[ResourceType, _TypeIndex] = {}
        for acl in acls:
            self.add(acl)

    def __repr__(self) -> str:
        return f"<AclIndex {[f'{kind.name}: {len(index)} patterns' for kind, index in self._types.items()]}>"

    def add(self, acl: Acl) -> None:
        """Add an ACL.  No effect if it is there."""
        self._types.setdefault(acl.resource_type, _TypeIndex()).add(acl)

    def remove(self, acl: Acl) -> None:
        """Remove an ACL.  No effect if it is not there."""
        index = self._types.get(acl.resource_type)
        if index is not None:
            index.remove(acl)
            if not len(index):
                del self._types[acl.resource_type]

    def allowed(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int | None:
        """Return the operations that the client may do to a resource, as bits; None if no ACL applies to it.

        ``host`` is a result of ``canonical_host``.
        """
        index = self._types.get(resource_type)
        return None if index is None else index.allowed(principal, host, name)

    def may_allow_some(self, principal: str, host: str, resource_type: ResourceType, operation: AclOperation) -> bool:
        """Return whether ACLs allow the client the operation on a resource of the type that may exist.

        As Kafka's ``Authorizer.authorizeByResourceType``, implied operations do not count.
        """
        index = self._types.get(resource_type)
        return index is not None and index.may_allow_some(principal, host, 1 << operation)


class _TypeIndex:
    """The ACLs of one resource type, by pattern."""

    def __init__(self) -> None:
        self._literal: dict[str, _PatternAcls] = {}
        self._prefixed: dict[str, _PatternAcls] = {}
        self._lengths: Counter[int] = Counter()  # of the prefixes
        # By principal; the patterns of prefixes with True.
        self._patterns: dict[str, Counter[tuple[bool, str]]] = {}

    def __len__(self) -> int:
        return len(self._literal) + len(self._prefixed)

    def add(self, acl: Acl) -> None:
        is_prefix = acl.pattern_type is PatternType.PREFIXED
        patterns = self._prefixed if is_prefix else self._literal
        found = patterns.get(acl.name)
        if found is None:
            found = patterns[acl.name] = _PatternAcls()
            if is_prefix:
                self._lengths[len(acl.name)] += 1
        if found.add(acl):
            self._patterns.setdefault(acl.principal, Counter())[is_prefix, acl.name] += 1

    def remove(self, acl: Acl) -> None:
        is_prefix = acl.pattern_type is PatternType.PREFIXED
        patterns = self._prefixed if is_prefix else self._literal
        found = patterns.get(acl.name)
        if found is None or not found.remove(acl):
            return
        if not found:
            del patterns[acl.name]
            if is_prefix:
                _count_down(self._lengths, len(acl.name))
        named = self._patterns[acl.principal]
        _count_down(named, (is_prefix, acl.name))
        if not named:
            del self._patterns[acl.principal]

    def _applying(self, name: str) -> Iterator[_PatternAcls]:
        literal = self._literal
        if (found := literal.get(name)) is not None:
            yield found
        if name != WILDCARD and (found := literal.get(WILDCARD)) is not None:
            yield found
        prefixed, size = self._prefixed, len(name)
        for length in self._lengths:
            if length <= size and (found := prefixed.get(name[:length])) is not None:
                yield found

    def allowed(self, principal: str, host: str, name: str) -> int | None:
        allowed = denied = 0
        is_found = False
        for acls in self._applying(name):
            is_found = True
            some, others = acls.operations(principal, host)
            allowed |= some
            denied |= others
        return _with_implied(allowed) & ~denied if is_found else None

    def may_allow_some(self, principal: str, host: str, operation: int) -> bool:
        allowed: list[tuple[bool, str]] = []
        denied: set[tuple[bool, str]] = set()
        for pattern in {*self._patterns.get(principal, ()), *self._patterns.get(ANY_PRINCIPAL, ())}:
            is_prefix, name = pattern
            some, others = (self._prefixed if is_prefix else self._literal)[name].operations(principal, host)
            if others & operation:
                denied.add(pattern)
            if some & operation:
                allowed.append(pattern)
        if (False, WILDCARD) in denied:
            return False
        if (False, WILDCARD) in allowed:
            return True
        return any(pattern not in denied and not _has_prefix_in(pattern[1], denied) for pattern in allowed)


def _has_prefix_in(name: str, denied: set[tuple[bool, str]]) -> bool:
    return any((True, name[:length]) in denied for length in range(1, len(name) + 1))


class _PatternAcls:
    """The ACLs of one pattern, by client: a set of ACLs, and what they allow and deny as bits."""

    __slots__ = ("_acls", "_operations")

    def __init__(self) -> None:
        self._acls: dict[tuple[str, str], set[Acl]] = {}
        self._operations: dict[tuple[str, str], tuple[int, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._acls)

    def add(self, acl: Acl) -> bool:
        """Add an ACL.  Return False if it was there."""
        client = acl.principal, canonical_host(acl.host)
        acls = self._acls.setdefault(client, set())
        if acl in acls:
            return False
        acls.add(acl)
        self._operations[client] = _operations_of(acls)
        return True

    def remove(self, acl: Acl) -> bool:
        """Remove an ACL.  Return False if it was not there."""
        client = acl.principal, canonical_host(acl.host)
        acls = self._acls.get(client)
        if acls is None or acl not in acls:
            return False
        acls.remove(acl)
        if acls:
            self._operations[client] = _operations_of(acls)
        else:
            del self._acls[client], self._operations[client]
        return True

    def operations(self, principal: str, host: str) -> tuple[int, int]:
        """Return the operations that the client's ACLs allow, without implied operations, and the denied operations."""
        allowed = denied = 0
        for client in ((principal, host), (principal, WILDCARD), (ANY_PRINCIPAL, host), (ANY_PRINCIPAL, WILDCARD)):
            pair = self._operations.get(client)
            if pair is not None:
                allowed |= pair[0]
                denied |= pair[1]
        return allowed, denied


def _operations_of(acls: Iterable[Acl]) -> tuple[int, int]:
    allowed = denied = 0
    for acl in acls:
        operations = ALL_OPERATIONS if acl.operation is AclOperation.ALL else 1 << acl.operation
        if acl.permission is AclPermission.DENY:
            denied |= operations
        else:
            allowed |= operations
    return allowed, denied


def _with_implied(allowed: int) -> int:
    if allowed & _IMPLIES_DESCRIBE:
        allowed |= 1 << AclOperation.DESCRIBE
    if allowed & 1 << AclOperation.ALTER_CONFIGS:
        allowed |= 1 << AclOperation.DESCRIBE_CONFIGS
    return allowed


def _count_down(counter: Counter[K], key: K) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def canonical_host(host: str) -> str:
    """Return the one form of an address that ACLs are compared by; ``host`` itself if it is not an address.

    Java writes ``0:0:0:0:0:0:0:1``, Python ``::1``, and a socket for both families ``::ffff:10.0.0.1``.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.compressed
