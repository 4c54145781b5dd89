"""Fields of coordinators' records: strings in both of Kafka's forms, and a reader.  Pure."""

from __future__ import annotations

import struct

from bmq.core.errors import FormatError
from bmq.core.wire.primitives import uvarint

STRING_BYTES_MAX = 0x7FFF
"""Most bytes of a string in a record.  Compact strings may be longer, but older Kafka versions could not read them."""

_I8 = struct.Struct(">b")
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_I64 = struct.Struct(">q")


def string(text: str | None) -> bytes:
    """Return an i16 length and UTF-8, -1 for None.  Raises FormatError past ``STRING_BYTES_MAX``."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    if len(data) > STRING_BYTES_MAX:
        raise FormatError(f"a string of {len(data)} bytes: the format takes {STRING_BYTES_MAX}")
    return _I16.pack(len(data)) + data


def compact(text: str | None) -> bytes:
    """Return a compact string: a varint of the length and one, and UTF-8; 0 for None.

    Raises FormatError past ``STRING_BYTES_MAX``.
    """
    if text is None:
        return b"\0"
    data = text.encode()
    if len(data) > STRING_BYTES_MAX:
        raise FormatError(f"a string of {len(data)} bytes: the format takes {STRING_BYTES_MAX}")
    return uvarint(len(data) + 1) + data


class FieldReader:
    """Cursor over one key or value.  After ``version`` it reads strings in the form of that version, compact or not."""

    def __init__(self, data: bytes, *, is_flexible: bool = False) -> None:
        self._data = data
        self._at = 0
        self._is_flexible = is_flexible

    @property
    def at(self) -> int:
        """The position of the next byte."""
        return self._at

    @property
    def is_flexible(self) -> bool:
        """True if strings and arrays are compact, and tagged fields follow."""
        return self._is_flexible

    def skip_to(self, at: int) -> None:
        self._at = at

    def version(self, name: str, least: int, most: int, *, flexible_since: int = 4) -> int:
        version = self.i16()
        if not least <= version <= most:
            raise FormatError(f"{name} has version {version}, only {least} to {most} are known")
        self._is_flexible = version >= flexible_since
        return version

    def i8(self) -> int:
        return self._number(_I8)

    def i16(self) -> int:
        return self._number(_I16)

    def i32(self) -> int:
        return self._number(_I32)

    def i64(self) -> int:
        return self._number(_I64)

    def string(self) -> str:
        text = self.nullable()
        if text is None:
            raise FormatError(f"null at byte {self._at}, where a string must be")
        return text

    def nullable(self) -> str | None:
        if self._is_flexible:
            length = self._varint() - 1
        else:  # inlined: a record may have 10,000 members with four strings each
            (length,) = _I16.unpack_from(self._data, self._at)
            self._at += 2
        return None if length == -1 else self._take(length).decode()

    def data(self) -> bytes:
        length = self._varint() - 1 if self._is_flexible else self.i32()
        return b"" if length == -1 else self._take(length)

    def count(self) -> int:
        count = self._varint() - 1 if self._is_flexible else self.i32()
        if not 0 <= count <= len(self._data):
            raise FormatError(f"an array of {count} in {len(self._data)} bytes")
        return count

    def nullable_count(self) -> int | None:
        """Return the length of an array; None for null."""
        at = self._at
        if (self._varint() - 1 if self._is_flexible else self.i32()) == -1:
            return None
        self._at = at
        return self.count()

    def skip_tags(self) -> None:
        """Skip tagged fields: additions that readers may ignore (KIP-915)."""
        if self._is_flexible:
            self.tags()

    def tags(self) -> dict[int, bytes]:
        """Read the tagged fields at this position; return them by tag."""
        found = {}
        for _ in range(self._varint()):
            tag = self._varint()
            found[tag] = self._take(self._varint())
        return found

    def _number(self, form: struct.Struct) -> int:
        value: int
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise FormatError(f"a varint of over five bytes at byte {self._at}")

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise FormatError(f"{length} bytes at byte {self._at} of {len(self._data)}")
        part = self._data[self._at : end]
        self._at = end
        return part
