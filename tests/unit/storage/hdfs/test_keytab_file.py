"""The entries of a keytab, by bytes as MIT's ktutil writes them."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.storage.hdfs.keytab_file import KeytabEntry, parse_keytab

HEADER = b"\x05\x02"


def counted(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def entry(*names: str, realm: str = "R", number: int = 3, encryption: int = 18, whole: int | None = None) -> bytes:
    """Return an entry; ``whole`` is the number of four bytes at its end, None to leave it out."""
    body = struct.pack(">H", len(names)) + counted(realm) + b"".join(map(counted, names))
    body += struct.pack(">iIBHH", 1, 1_700_000_000, number & 0xFF, encryption, 4) + b"KEY!"
    if whole is not None:
        body += struct.pack(">I", whole)
    return struct.pack(">i", len(body)) + body


def test_the_entries_of_a_file_with_a_hole() -> None:
    hole = struct.pack(">i", -8) + b"deleted!"
    data = (
        HEADER + entry("bmq", "host.example.org") + hole + entry("nn", whole=300) + entry("x", whole=0, encryption=99)
    )
    assert parse_keytab(data) == [
        KeytabEntry("bmq/host.example.org@R", 3, "aes256-cts-hmac-sha1-96"),
        KeytabEntry("nn@R", 300, "aes256-cts-hmac-sha1-96"),
        KeytabEntry("x@R", 3, "type 99"),
    ]
    assert parse_keytab(HEADER) == []
    assert "KEY!" not in repr(parse_keytab(data))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x05\x01",
        b"password",
        HEADER + struct.pack(">i", 0),
        HEADER + struct.pack(">i", 100) + b"x",
        HEADER + struct.pack(">i", -100),
        HEADER + struct.pack(">i", 1) + b"x",
        HEADER + struct.pack(">i", 6) + b"\x00\x01\xff\xffab",
        HEADER + entry("a")[:-6],
    ],
)
def test_bytes_that_are_no_keytab_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_keytab(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_keytab(HEADER + data)
