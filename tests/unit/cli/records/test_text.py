"""Separators and encodings of records' keys and values."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given

from bmq.cli.records.text import Encoding, NotEncoded, decode, encode, from_json, separator, to_json
from tests.unit.cli.records.consumed import BYTES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "expected"),
    [("\\n", b"\n"), ("\\t", b"\t"), ("\\0", b"\0"), ("\\x1e", b"\x1e"), ("\\\\n", b"\\n"), ("a\\r\\nb", b"a\r\nb")],
)
def test_separators_have_escapes(text: str, expected: bytes) -> None:
    assert separator(text) == expected


@pytest.mark.parametrize("text", ["", "\\", "\\q", "\\x1", "x" * 65])
def test_malformed_separators_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        separator(text)


@pytest.mark.parametrize("encoding", Encoding)
@given(data=BYTES)
def test_encoded_bytes_are_decoded_again(encoding: Encoding, data: bytes) -> None:
    assert decode(encode(data, encoding), encoding) == data
    assert from_json(to_json(data, encoding), encoding) == data


@pytest.mark.parametrize(
    ("found", "encoding", "why"),
    [
        (5, Encoding.TEXT, "expected a string"),
        ({"base64": "AA==", "more": ""}, Encoding.TEXT, "expected a string"),
        ({"base64": 5}, Encoding.TEXT, "expected a string"),
        ({"base64": "AA"}, Encoding.TEXT, "not base64"),
        ("abc", Encoding.HEX, "not hex"),
        ("\ud800", Encoding.TEXT, "half of a surrogate pair is not text"),
        ({"base64": "\ud800"}, Encoding.TEXT, "half of a surrogate pair is not base64"),
    ],
)
def test_json_that_is_not_in_the_encoding_is_refused(found: object, encoding: Encoding, why: str) -> None:
    with pytest.raises(NotEncoded, match=why):
        from_json(found, encoding)
    assert from_json(None, encoding) is None
