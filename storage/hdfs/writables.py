"""Hadoop's Writables: numbers of variable length, texts, and bytes with their length before them.  Pure.

A number from -112 to 127 is one byte.  Any other number begins with a byte that says its sign and how many bytes
follow, the highest first (WritableUtils.writeVLong).  A text is its length in bytes, and UTF-8 (Text).
"""

from __future__ import annotations

_SHORT_MIN = -112
_NEGATIVE_MAX = -120
_INT32 = range(-(1 << 31), 1 << 31)


class Malformed(ValueError):
    """Bytes of another format than Hadoop's.  The text names the fault and its place, and shows none of the bytes."""


class WritableReader:
    """A position in ``data``.  Every method takes the next value, and raises Malformed if there is none."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self.position = position

    def __repr__(self) -> str:
        return f"WritableReader({self.position} of {len(self._data)})"

    @property
    def left(self) -> int:
        """The number of bytes behind the position."""
        return len(self._data) - self.position

    def byte(self) -> int:
        """Return a byte, from 0 to 255."""
        return self._take(1)[0]

    def number(self) -> int:
        """Return a number of 64 bits (vlong)."""
        first = int.from_bytes(self._take(1), signed=True)
        if first >= _SHORT_MIN:
            return first
        is_negative = first < _NEGATIVE_MAX
        value = int.from_bytes(self._take((_NEGATIVE_MAX if is_negative else _SHORT_MIN) - first))
        value = ~value if is_negative else value
        return (value + (1 << 63)) % (1 << 64) - (1 << 63)  # Java's long wraps around

    def int32(self) -> int:
        """Return a number of 32 bits (vint)."""
        value = self.number()
        if value not in _INT32:
            raise self.malformed("a number of more than 32 bits")
        return value

    def data(self, bytes_max: int) -> bytes:
        """Return at most ``bytes_max`` bytes, with their length before them."""
        length = self.int32()
        if not 0 <= length <= bytes_max:
            raise self.malformed(f"a field of {length} bytes, at most {bytes_max} are taken")
        return self._take(length)

    def text(self, bytes_max: int) -> str:
        """Return a text of at most ``bytes_max`` bytes."""
        try:
            return self.data(bytes_max).decode()
        except UnicodeDecodeError:
            raise self.malformed("a text that is not UTF-8") from None

    def require_end(self) -> None:
        """Raise Malformed if anything follows."""
        if self.left:
            raise self.malformed(f"{self.left} bytes behind the end")

    def malformed(self, what: str) -> Malformed:
        """Return the error for ``what``, with the position."""
        return Malformed(f"{what}, before byte {self.position}")

    def _take(self, length: int) -> bytes:
        if length > self.left:
            raise Malformed(
                f"it ends within a field: {length} bytes are wanted at byte {self.position}, {self.left} are there"
            )
        taken = self._data[self.position : self.position + length]
        self.position += length
        return taken
