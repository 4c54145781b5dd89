"""The decision to encode a message off the loop, by its size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

LARGE_ELEMENTS = 4_000
"""Array elements (100 KB and more, some 10 ms of work) from which on a message is encoded off the loop."""


def is_large(message: Any) -> bool:
    """Return whether encoding the message would hold up the loop: by its arrays, at any depth."""
    return _count([message], 0) >= LARGE_ELEMENTS


def _count(structures: Sequence[Any], count: int) -> int:
    """Return ``count`` plus the elements in the arrays of ``structures``, all of the same class.

    The count ends at ``LARGE_ELEMENTS``: more elements are not visited.
    """
    kind: type = type(structures[0])
    for name in _array_fields(kind):
        arrays = [values for each in structures if (values := getattr(each, name))]
        count += sum(map(len, arrays))
        if count >= LARGE_ELEMENTS:
            return count
        element_kind: type = type(arrays[0][0]) if arrays else type(None)
        if _array_fields(element_kind):
            count = _count(list(chain.from_iterable(arrays)), count)
    return count


@cache
def _array_fields(kind: type) -> tuple[str, ...]:
    """Return the array fields of a message class or of a structure in one; none of a plain type."""
    fields = getattr(kind, "fields", None) or {}
    return tuple(name for name, field in fields.items() if field.is_array() or field.is_struct_array())
