"""Error codes of a response, from every place of its schema: Kafka counts them as ``RequestMetrics`` errors.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

_FIELD = "error_code"
_OF_PARTITION = "partition_error_code"
"""The field's name in AddPartitionsToTxn."""


class _Plan(NamedTuple):
    """The places of error codes in a structure."""

    field: str | None
    """Name of the structure's own code; None if it has none."""
    arrays: Sequence[tuple[str, _Plan]]


def error_codes(message: Any) -> Iterator[int]:
    """Yield every error code of a response, 0 for success: the whole's, then those of its elements.

    An element without a code of its own yields 0, too, so the number of codes is the number of elements visited.
    """
    kind: type = type(message)
    yield from _codes(message, _plan(kind))


def _codes(structure: Any, plan: _Plan) -> Iterator[int]:
    yield getattr(structure, plan.field) if plan.field is not None else 0
    for name, inner in plan.arrays:
        for element in getattr(structure, name) or ():
            yield from _codes(element, inner)


@cache
def _plan(kind: type) -> _Plan:
    """Return the plan of a message class, or of a structure in one."""
    fields = getattr(kind, "fields", None) or {}
    inner = ((name, _plan(field.data_class)) for name, field in fields.items() if field.is_struct_array())
    own = next((name for name in (_FIELD, _OF_PARTITION) if name in fields), None)
    return _Plan(own, tuple((name, plan) for name, plan in inner if plan.field is not None or plan.arrays))
