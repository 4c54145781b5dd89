"""The head of a value that was written with a schema registry.  Pure.
::

    0          magic 0
    1          schema id, i32
    5          the value; of Protobuf, after the path of the message within its file, as zigzag varints: their
               number and they, or a single 0 for the first message, which is nearly always
"""

from __future__ import annotations

MAGIC = 0
HEAD_BYTES = 5


def has_head(value: bytes) -> bool:
    """Return whether ``value`` begins as one with a schema registry's head does."""
    return len(value) >= HEAD_BYTES and value[0] == MAGIC


def unframed(value: bytes, framing: str) -> bytes:
    """Return ``value`` without the registry's head, if ``framing`` promises one.  Raises ValueError if it has none."""
    if framing == "none":
        return value
    if not has_head(value):
        raise ValueError("no schema registry's head, which is a 0 and four bytes of schema id")
    return value[HEAD_BYTES:]


def past_message_path(value: bytes) -> bytes:
    """Return ``value`` without the path of the message, which ``unframed`` leaves before a Protobuf value.

    Raises ValueError if the path is invalid.
    """
    count, at = _zigzag(value, 0)
    if count < 0:
        raise ValueError("a message path of negative length")
    for _ in range(count):
        _, at = _zigzag(value, at)
    return value[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """Return (number, position after it).  Raises ValueError if the number does not end."""
    number = shift = 0
    while True:
        if at >= len(value) or shift > 63:
            raise ValueError("a message path that does not end")
        number |= (value[at] & 0x7F) << shift
        shift += 7
        at += 1
        if value[at - 1] < 0x80:
            return number >> 1 ^ -(number & 1), at
