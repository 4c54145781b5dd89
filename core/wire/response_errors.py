"""Error codes of a response, from every place of its schema: Kafka counts them as ``RequestMetrics`` errors.  Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

_FIELD = "error_code"


class _Plan(NamedTuple):
    """The places of error codes in a structure."""

    has_own: bool
    arrays: Sequence[tuple[str, _Plan]]


def error_codes(message: Any) -> Iterator[int]:
    """Yield every error code of a response, 0 for success: the whole's, then those of its elements.

    An element without a code of its own yields 0, too, so the number of codes is the number of elements visited.
    """
    kind: type = type(message)
    yield from _codes(message, _plan(kind))


def _codes(structure: Any, plan: _Plan) -> Iterator[int]:
    yield structure.error_code if plan.has_own else 0
    for name, inner in plan.arrays:
        for element in getattr(structure, name) or ():
            yield from _codes(element, inner)


@cache
def _plan(kind: type) -> _Plan:
    """Return the plan of a message class, or of a structure in one."""
    fields = getattr(kind, "fields", None) or {}
    inner = ((name, _plan(field.data_class)) for name, field in fields.items() if field.is_struct_array())
    return _Plan(_FIELD in fields, tuple((name, plan) for name, plan in inner if plan.has_own or plan.arrays))
