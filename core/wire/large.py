"""The decision to encode a message off the loop, by its size."""

from __future__ import annotations

from functools import cache
from typing import Any

LARGE_ELEMENTS = 4_000
"""Array elements (100 KB and more, some 10 ms of work) from which on a message is encoded off the loop."""


def is_large(message: Any) -> bool:
    """Return whether encoding the message would hold up the loop: by its arrays and the arrays in their elements."""
    count = 0
    kind: type = type(message)
    for name in _array_fields(kind):
        elements = getattr(message, name)
        if not elements:
            continue
        count += len(elements)
        if count >= LARGE_ELEMENTS:
            return True
        element_kind: type = type(elements[0])
        for each in _array_fields(element_kind):
            count += sum(len(values) for element in elements if (values := getattr(element, each)))
        if count >= LARGE_ELEMENTS:
            return True
    return False


@cache
def _array_fields(kind: type) -> tuple[str, ...]:
    """Return the array fields of a message class or of a structure in one; none of a plain type."""
    fields = getattr(kind, "fields", None) or {}
    return tuple(name for name, field in fields.items() if field.is_array() or field.is_struct_array())
