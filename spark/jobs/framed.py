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
PATH_MAX = 32
"""Most levels of Protobuf messages that are nested in one another."""


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


def head_of(value: bytes) -> tuple[int, bytes]:
    """Return (schema id, the bytes after the head).  Raises ValueError if there is no head."""
    body = unframed(value, "confluent")
    return int.from_bytes(value[1:HEAD_BYTES], "big"), body


def message_path(body: bytes) -> tuple[tuple[int, ...], bytes]:
    """Return (the path of the message within its file, the message) of a Protobuf value without its head.

    Raises ValueError if the path is invalid.
    """
    count, at = _zigzag(body, 0)
    if count == 0:
        return (0,), body[at:]
    if not 0 < count <= PATH_MAX:
        raise ValueError(f"a message path of {count} levels; up to {PATH_MAX} are allowed")
    path = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        path.append(index)
    return tuple(path), body[at:]


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
