"""What stands before a value that was written by way of a schema registry.  Pure.

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
    return len(value) >= HEAD_BYTES and value[0] == MAGIC


def unframed(value: bytes, framing: str) -> bytes:
    """Without the registry's head, if ``framing`` says that there is one.  ValueError."""
    if framing == "none":
        return value
    if not has_head(value):
        raise ValueError("no registry's head: a 0 and four bytes of schema id")
    return value[HEAD_BYTES:]


def past_message_path(value: bytes) -> bytes:
    """Without the path of the message, which ``unframed`` leaves before a Protobuf value.  ValueError."""
    count, at = _zigzag(value, 0)
    if count < 0:
        raise ValueError("a message path of negative length")
    for _ in range(count):
        _, at = _zigzag(value, at)
    return value[at:]


def _zigzag(value: bytes, at: int) -> tuple[int, int]:
    """(number, position behind it)."""
    number = shift = 0
    while True:
        if at >= len(value) or shift > 63:
            raise ValueError("a message path that does not end")
        number |= (value[at] & 0x7F) << shift
        shift += 7
        at += 1
        if value[at - 1] < 0x80:
            return number >> 1 ^ -(number & 1), at
