"""The change of a table's schema: columns may be added to it, and nothing else.  Pure.

Schemas are Spark's JSON of a schema.  An added column is null in the records before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def refusal(known: str | None, wanted: str | None) -> str | None:
    """Return why a table of schema ``known`` cannot get the schema ``wanted``; None if it can."""
    if known == wanted:
        return None
    if known is None or wanted is None:
        return "one of the schemas is missing"
    return _difference(json.loads(known), json.loads(wanted), "value")


def _difference(known: Any, wanted: Any, path: str) -> str | None:
    kind = _kind(known)
    if kind != _kind(wanted):
        return f"{path} is {kind} in the table and {_kind(wanted)} in --schema"
    match kind:
        case "struct":
            return _of_structs(known, wanted, path)
        case "array":
            return _difference(known["elementType"], wanted["elementType"], f"{path}[]")
        case "map":
            return _difference(known["keyType"], wanted["keyType"], f"{path}'s key") or _difference(
                known["valueType"], wanted["valueType"], f"{path}'s value"
            )
    return None


def _of_structs(known: Mapping[str, Any], wanted: Mapping[str, Any], path: str) -> str | None:
    fields = {field["name"]: field for field in wanted["fields"]}
    for field in known["fields"]:
        name = field["name"]
        if name not in fields:
            return f"the table has {path}.{name}, which --schema does not have"
        found = _difference(field["type"], fields.pop(name)["type"], f"{path}.{name}")
        if found is not None:
            return found
    for name, field in fields.items():
        if not field["nullable"]:
            return f"{path}.{name} is new and NOT NULL, but the table has records without it"
    return None


def _kind(kind: Any) -> str:
    return str(kind["type"] if isinstance(kind, Mapping) else kind)
