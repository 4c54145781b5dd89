"""Java's property files: separators, escapes, comments, lines that go on, and other encodings."""

from __future__ import annotations

import pytest

from bmq.core.security.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b\nc:d\ne f\ng", {"a": "b", "c": "d", "e": "f", "g": ""}),
        ("  a \t= \tb = c \n", {"a": "b = c "}),
        ("# a=b\n! c=d\n\n \t\na=# b", {"a": "# b"}),
        ("a=b \\\n   c\\\n\td\ne=f", {"a": "b cd", "e": "f"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a\\=b\\ c=d", {"a=b c": "d"}),
        ("a=\\u00e9\\t\\n\\q", {"a": "\u00e9\t\nq"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=b\na=c", {"a": "c"}),
        ("a=b\\", {"a": "b"}),
        ("a=b\\\n# no comment", {"a": "b# no comment"}),
        ("", {}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, found: dict[str, str]) -> None:
    assert parse_properties(text.encode()) == found


def test_utf_8_is_read_and_what_is_not_is_latin_1() -> None:
    assert parse_properties("a=é".encode()) == {"a": "é"}
    assert parse_properties("a=é".encode("latin-1")) == {"a": "é"}
    assert parse_properties(b"\xef\xbb\xbfa=b") == {"a": "b"}


def test_a_binary_file_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        parse_properties(b"\x30\x82\x00")
