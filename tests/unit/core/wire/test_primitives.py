"""Varints: what is written is read, and a varint that is cut or too long is refused."""

from __future__ import annotations

import pytest

from bmq.core.errors import FormatError
from bmq.core.wire.primitives import read_uvarint, uvarint


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, (1 << 28) - 1, 1 << 28, (1 << 31) - 1])
def test_a_varint_is_read_as_written_and_refused_if_cut_or_too_long(value: int) -> None:
    data = uvarint(value)
    assert read_uvarint(data + b"\xff", 0) == (value, len(data))
    for size in range(len(data)):
        with pytest.raises(IndexError):
            read_uvarint(data[:size], 0)
    with pytest.raises(FormatError):
        read_uvarint(b"\x80" * 5 + b"\x01", 0)
