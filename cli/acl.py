"""``bmq acl``: the access control lists of a running cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from bmq.cli.admin_client import AdminClient, describe_code, needs
from bmq.cli.output import fail, print_json, print_table, printable
from bmq.cli.parsers.acl import TYPES
from bmq.cli.usage import UsageError
from bmq.core.errors import ErrorCode
from bmq.core.http_call import RequestRefused
from bmq.core.security import acls

_TITLES = ("TYPE", "PATTERN", "NAME", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION")
_KEYS = tuple(title.lower() for title in _TITLES)
_PRODUCER = (ACLOperation.WRITE, ACLOperation.DESCRIBE, ACLOperation.CREATE)
_CONSUMER = {
    ResourceType.TOPIC: (ACLOperation.READ, ACLOperation.DESCRIBE),
    ResourceType.GROUP: (ACLOperation.READ,),
}
"""Operations of ``--producer`` on topics and of ``--consumer``, as kafka-acls.sh gives them."""


class Row(NamedTuple):
    """One ACL as it is printed."""

    type: str
    pattern: str
    name: str
    principal: str
    host: str
    operation: str
    permission: str


# ------------------------------------------------------------------------------------------------------------ list


def list_acls(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the ACLs that all flags choose."""
    found: set[Row] = set()
    with needs("Describe on the cluster"):
        for each in _filters(arguments):
            found.update(map(_row, _described(admin, each)))
    rows = sorted(found)
    if arguments.json:
        for row in rows:
            print_json(dict(zip(_KEYS, row, strict=True)))
    else:
        print_table(_TITLES, rows, if_none="no ACL is chosen" if _is_narrow(arguments) else "there are no ACLs")
    return 0


def _described(admin: AdminClient, wanted: ACLFilter) -> Sequence[ACL]:
    try:
        found, _ = admin.describe_acls(wanted)
    except ValueError as error:  # kafka-python has an enumeration of its own
        raise RequestRefused(f"the cluster has an ACL that this command cannot read: {error}") from error
    return found


def _filters(arguments: argparse.Namespace) -> Iterator[ACLFilter]:
    for pattern in _patterns(arguments) or [(ResourceType.ANY, None)]:
        kind, name = pattern
        yield ACLFilter(
            arguments.principal,
            arguments.host,
            ACLOperation(arguments.operation or ACLOperation.ANY),
            ACLPermissionType[(arguments.permission or "any").upper()],
            ResourcePatternFilter(
                kind, name, ACLResourcePatternType.ANY if name is None else _pattern_type(arguments, kind)
            ),
        )


def _patterns(arguments: argparse.Namespace) -> list[tuple[ResourceType, str | None]]:
    """Return the resources of the command line, by type and name."""
    named: list[tuple[ResourceType, str | None]] = [
        (ResourceType(kind), name)
        for flag, (kind, _, _) in TYPES.items()
        for name in dict.fromkeys(getattr(arguments, flag))
    ]
    return named + ([(ResourceType.CLUSTER, acls.CLUSTER_NAME)] if arguments.cluster else [])


def _pattern_type(arguments: argparse.Namespace, kind: ResourceType) -> ACLResourcePatternType:
    is_prefix = kind == ResourceType.CLUSTER and arguments.pattern == "prefixed"
    return ACLResourcePatternType.LITERAL if is_prefix else ACLResourcePatternType[arguments.pattern.upper()]


def _is_narrow(arguments: argparse.Namespace) -> bool:
    """Return whether a flag chooses some of the ACLs."""
    chosen = (arguments.principal, arguments.host, arguments.operation, arguments.permission)
    return bool(_patterns(arguments)) or any(each is not None for each in chosen)


def _row(acl: ACL) -> Row:
    pattern = acl.resource_pattern
    return Row(
        pattern.resource_type.name.lower(),
        pattern.pattern_type.name.lower(),
        pattern.resource_name,
        acl.principal,
        acl.host,
        acl.operation.name.lower(),
        acl.permission_type.name.lower(),
    )


# ------------------------------------------------------------------------------------------------------------- add


def add(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Add the ACLs, one for each resource, principal, host and operation.  An existing ACL is not an error.

    Returns 1 if one of them was not added; the others are.
    """
    status = 0
    for acl in _wanted(arguments):
        failed: Sequence[type[Any]] = admin.create_acls([acl])["failed"]
        text = _text(_row(acl))
        if failed:
            status = fail(f"{text}: not added: {describe_code(failed[0].errno, right='Alter on the cluster')}")
        elif arguments.json:
            print_json({**dict(zip(_KEYS, _row(acl), strict=True)), "added": True})
        else:
            print(printable(f"added: {text}"))
    return status


def _wanted(arguments: argparse.Namespace) -> list[ACL]:
    """Return the ACLs of the command line.  Raises UsageError if an operation does not fit a resource."""
    patterns = _patterns(arguments)
    if not patterns:
        raise UsageError("name a resource: --topic, --group, --cluster, --transactional-id, ...")
    made = []
    for kind, name in patterns:
        for operation in _operations(arguments, kind):
            pattern = ResourcePattern(kind, name, _pattern_type(arguments, kind))
            made += [
                ACL(principal, host, operation, ACLPermissionType[arguments.permission.upper()], pattern)
                for principal in arguments.principal
                for host in arguments.host or [acls.WILDCARD]
            ]
    return made


def _operations(arguments: argparse.Namespace, kind: ResourceType) -> Sequence[ACLOperation]:
    what = kind.name.lower().replace("_", "-")
    if arguments.producer or arguments.consumer:
        given = {ResourceType.TOPIC: _PRODUCER} if arguments.producer else _CONSUMER
        if kind not in given:
            raise UsageError(f"--{'producer' if arguments.producer else 'consumer'} means nothing for a {what}")
        return given[kind]
    legal = acls.RESOURCE_OPERATIONS[acls.ResourceType(kind)]
    operations = [ACLOperation(each) for each in arguments.operation]
    for operation in operations:
        if operation != ACLOperation.ALL and acls.AclOperation(operation) not in legal:
            there = ", ".join(sorted(each.name.lower().replace("_", "-") for each in legal))
            raise UsageError(
                f"a {what} has no operation {operation.name.lower().replace('_', '-')}; it has {there}, all"
            )
    return list(dict.fromkeys(operations))


def _text(row: Row) -> str:
    name = f"{row.name}..." if row.pattern == "prefixed" else row.name
    where = "" if row.host == acls.WILDCARD else f" from {row.host}"
    return f"{row.permission} {row.principal} {row.operation} on {row.type} {name}{where}"


# ---------------------------------------------------------------------------------------------------------- remove


def remove(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Remove the ACLs.  Returns 1 if there are none, or some were not removed.  Raises UsageError without a flag."""
    if not _is_narrow(arguments):
        raise UsageError("all ACLs would be removed: choose some by a resource, --principal, --operation, ...")
    removed: set[Row] = set()
    status = 0
    for _, found, error in admin.delete_acls(list(_filters(arguments))):
        if error.errno != ErrorCode.NONE:
            status = fail(f"ACLs were not removed: {describe_code(error.errno, right='Alter on the cluster')}")
        removed.update(map(_row, found))
    for row in sorted(removed):
        if arguments.json:
            print_json({**dict(zip(_KEYS, row, strict=True)), "removed": True})
        else:
            print(printable(f"removed: {_text(row)}"))
    if not removed and not status:
        return fail("no ACL is chosen; `bmq acl list` shows what exists")
    return status
