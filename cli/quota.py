"""``bmq quota``: the quotas and bounds of users, client ids and addresses of a running cluster."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kafka.protocol.admin import AlterClientQuotasRequest, DescribeClientQuotasRequest

from bmq.cli.admin_client import AdminClient, ask, describe_code
from bmq.cli.output import print_json, print_table, printable
from bmq.cli.usage import UsageError
from bmq.core.http_call import RequestRefused
from bmq.meta.security.client_quotas import TYPES

PRINCIPAL_PREFIX = "User:"
"""The type of a principal, as ACLs write it.  A quota of a user "User:alice" would never apply to alice."""
_EXACT, _DEFAULT = 0, 1
_TITLES = ("ENTITY", "QUOTA", "VALUE")


def _entity(arguments: argparse.Namespace) -> dict[str, str | None]:
    """Return the entity of the command line, by type; None names a default."""
    named: dict[str, str | None] = {}
    for kind in TYPES:
        attribute = kind.replace("-", "_")
        if getattr(arguments, f"{attribute}_default"):
            named[kind] = None
        elif getattr(arguments, attribute) is not None:
            named[kind] = getattr(arguments, attribute)
    return named


def list_quotas(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Print the quotas of all entities, or of the one that the flags name."""
    entity = _entity(arguments)
    component = DescribeClientQuotasRequest.ComponentData
    components = [
        component(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in entity.items()
    ]
    response = ask(admin, DescribeClientQuotasRequest(components=components, strict=bool(entity)))
    if response.error_code:
        raise RequestRefused(_text(response, "Describe Configs on the cluster"))
    rows = sorted(_rows(response.entries or ()))
    if arguments.json:
        for text, name, value in rows:
            print_json({"entity": text, "quota": name, "value": value})
    else:
        print_table(_TITLES, rows, if_none="the entity has no quotas" if entity else "there are no quotas")
    return 0


def _rows(entries: Sequence[Any]) -> Iterator[tuple[str, str, float]]:
    for entry in entries:
        entity = _written({each.entity_type: each.entity_name for each in entry.entity})
        for each in entry.values:
            yield entity, each.key, int(each.value) if each.value.is_integer() else each.value


def set_quotas(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Set quotas of one entity."""
    if (arguments.user or "").startswith(PRINCIPAL_PREFIX):
        name = arguments.user.removeprefix(PRINCIPAL_PREFIX)
        raise UsageError(f"a quota takes the name of a user, not a principal: --user {name}")
    changes = dict(arguments.quotas)
    for name, value in arguments.quotas:
        if changes[name] != value:
            raise UsageError(f"{name} is given twice, with two values")
    return _alter(admin, arguments, changes)


def remove_quotas(admin: AdminClient, arguments: argparse.Namespace) -> int:
    """Remove quotas of one entity.  A quota that is not set is no error, as in Kafka's tools."""
    return _alter(admin, arguments, dict.fromkeys(arguments.quotas))


def _alter(admin: AdminClient, arguments: argparse.Namespace, changes: Mapping[str, float | None]) -> int:
    entity = _entity(arguments)
    if not entity:
        raise UsageError("name an entity: --user NAME, --user-default, --client-id, --ip, ...")
    entry = AlterClientQuotasRequest.EntryData
    asked = entry(
        entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
    )
    (found,) = ask(admin, AlterClientQuotasRequest(entries=[asked], validate_only=False)).entries
    if found.error_code:
        raise RequestRefused(f"{_written(entity)}: {_text(found, 'Alter Configs on the cluster')}")
    for key, value in sorted(changes.items()):
        if arguments.json:
            print_json({"entity": _written(entity), "quota": key, "value": value})
        else:
            print(printable(f"{_written(entity)}: {key} " + ("removed" if value is None else f"= {value:.15g}")))
    return 0


def _written(entity: Mapping[str, str | None]) -> str:
    return ", ".join(f"{kind} {'<default>' if name is None else name}" for kind, name in sorted(entity.items()))


def _text(response: Any, right: str) -> str:
    return describe_code(response.error_code, response.error_message, right)
