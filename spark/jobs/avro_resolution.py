"""A comparison of the Avro schema that values were written with and the schema that they are read into.  Pure.

fastavro resolves types, names and defaults for each value.  It does not notice two differences: fields that the
reader does not have, and logical types.  It reads a number by the writer's logical type alone, so milliseconds of a
writer without one would be taken for microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_LOGICAL = ("logicalType", "scale")


def has_more_fields(writer: Any, names: Mapping[str, Any], reader: Any, reader_names: Mapping[str, Any]) -> bool:
    """Return whether a record of ``writer``, at any depth, has a field that ``reader`` does not have there.

    The schemas are as fastavro parsed them, with the types that they name.  Raises ValueError if a field has another
    logical type in the two.
    """
    return _Comparison(names, reader_names).has_more(writer, reader, "the value")


class _Comparison:
    """One comparison; records that were compared are not compared again, since they may refer to themselves."""

    def __init__(self, names: Mapping[str, Any], reader_names: Mapping[str, Any]) -> None:
        self._names = names
        self._reader_names = reader_names
        self._done: set[tuple[str, str]] = set()

    def has_more(self, writer: Any, reader: Any, path: str) -> bool:
        has_more = False
        for written in _branches(writer, self._names):
            kind = _kind(written)
            for read in _branches(reader, self._reader_names):
                if _kind(read) in _READ_FROM.get(kind, (kind,)):
                    has_more |= self._of_same_kind(written, read, kind, path)
        return has_more

    def _of_same_kind(self, writer: Any, reader: Any, kind: str, path: str) -> bool:
        written, read = (tuple(_part(each, name) for name in _LOGICAL) for each in (writer, reader))
        if written != read:
            raise ValueError(f"{path} was written as {written[0] or kind}, and is read as {read[0] or _kind(reader)}")
        match kind:
            case "record":
                return self._of_records(writer, reader, path)
            case "array":
                return self.has_more(writer["items"], reader["items"], f"{path}[]")
            case "map":
                return self.has_more(writer["values"], reader["values"], f"{path}{{}}")
        return False

    def _of_records(self, writer: Mapping[str, Any], reader: Mapping[str, Any], path: str) -> bool:
        pair = writer["name"], reader["name"]
        if pair in self._done:
            return False
        self._done.add(pair)
        fields = {name: field for field in reader["fields"] for name in (field["name"], *field.get("aliases", ()))}
        has_more = False
        for field in writer["fields"]:
            name = field["name"]
            if name not in fields or self.has_more(field["type"], fields[name]["type"], f"{path}.{name}"):
                has_more = True
        return has_more


_READ_FROM = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}
"""Types that a value of a type may be read as."""


def _branches(schema: Any, names: Mapping[str, Any]) -> Iterable[Any]:
    """Return the branches of a union, else the schema alone; names are replaced by what they stand for."""
    branches = schema if isinstance(schema, list) else [schema]
    return [names.get(each, each) if isinstance(each, str) else each for each in branches]


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _part(schema: Any, name: str) -> Any:
    found = schema.get(name) if isinstance(schema, Mapping) else None
    return found or None  # a scale of 0 is the default
