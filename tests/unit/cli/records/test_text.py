"""Records as text: separators, encodings, what `bmq produce` reads and what `bmq consume` writes of them."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.cli.records.input import FixedFields, InputError, InputRecord, JsonReader, TextReader, join, split
from bmq.cli.records.output import fields_writer, for_terminal, json_writer, raw_writer, text_writer
from bmq.cli.records.text import Encoding, separator

pytestmark = pytest.mark.slow

BYTES = st.binary(max_size=40)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@dataclass(frozen=True)
class Consumed:
    key: bytes | None = None
    value: bytes | None = b"v"
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    topic: str = "orders"
    partition: int = 3
    offset: int = 7
    timestamp: int = 1_000


# ------------------------------------------------------------------------------------------------------- separators


@pytest.mark.parametrize(
    ("text", "expected"),
    [("\\n", b"\n"), ("\\t", b"\t"), ("\\0", b"\0"), ("\\x1e", b"\x1e"), ("\\\\n", b"\\n"), ("a\\r\\nb", b"a\r\nb")],
)
def test_separators(text: str, expected: bytes) -> None:
    assert separator(text) == expected


@pytest.mark.parametrize("text", ["", "\\", "\\q", "\\x1", "x" * 65])
def test_separators_that_are_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        separator(text)


@given(
    st.lists(BYTES, max_size=6), st.binary(min_size=1, max_size=3), st.integers(min_value=1, max_value=9), st.booleans()
)
def test_chunks_make_no_difference(records: list[bytes], delimiter: bytes, size: int, is_ended: bool) -> None:
    """Whatever the chunks, records are what stands between the delimiters of the whole."""
    data = delimiter.join(records) + (delimiter if is_ended else b"")
    expected = data.split(delimiter)
    if not expected[-1]:
        expected.pop()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(split(chunks, delimiter)) == expected
    assert list(join(chunks)) == [data]


def test_input_without_end_is_refused() -> None:
    with pytest.raises(InputError, match="more than 9 bytes without a delimiter"):
        list(split([b"12345", b"67890"], b"\n", bytes_max=9))
    with pytest.raises(InputError, match="more than 9 bytes"):
        list(join([b"12345", b"67890"], bytes_max=9))


# -------------------------------------------------------------------------------------------------------- text input


def test_text() -> None:
    plain = TextReader(fixed=FixedFields(key=b"k", headers=[("a", b"1")], partition=2, timestamp=5))
    assert plain.read(b"hello\tyou") == InputRecord(b"k", b"hello\tyou", [("a", b"1")], 2, 5)
    keyed = TextReader(fixed=FixedFields(), key_separator=b"\t", null=b"")
    assert keyed.read(b"k\tv\tw") == InputRecord(b"k", b"v\tw", [])
    assert keyed.read(b"k\t") == InputRecord(b"k", None, [])
    assert keyed.read(b"\tv") == InputRecord(None, b"v", [])
    assert TextReader(fixed=FixedFields()).read(b"") == InputRecord(None, b"", [])
    coded = TextReader(
        fixed=FixedFields(), key_separator=b":", key_encoding=Encoding.HEX, value_encoding=Encoding.BASE64, null=b"-"
    )
    assert coded.read(b"00ff:AAE=") == InputRecord(b"\x00\xff", b"\x00\x01", [])
    assert coded.read(b"00:-") == InputRecord(b"\x00", None, [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"value", "no key separator b'\\\\t'"),
        (b"0\t", "key: not hex"),
        (b"zz\tAAE=", "key: not hex"),
        (b"00\t@@", "value: not base64"),
        (b"-\t-", "key and value are both null"),
    ],
)
def test_text_that_is_refused(line: bytes, why: str) -> None:
    reader = TextReader(
        fixed=FixedFields(), key_separator=b"\t", key_encoding=Encoding.HEX, value_encoding=Encoding.BASE64, null=b"-"
    )
    with pytest.raises(InputError, match=why):
        reader.read(line)


# -------------------------------------------------------------------------------------------------------- JSON input


def read(line: str, **options: object) -> InputRecord | None:
    return JsonReader(fixed=FixedFields(), **options).read(line.encode())  # type: ignore[arg-type]


def test_json() -> None:
    assert read('{"value": "v"}') == InputRecord(None, b"v", [])
    assert read('{"key": {"base64": "AP8="}, "value": null}') == InputRecord(b"\x00\xff", None, [])
    assert read('{"value": "v", "headers": {"a": "1"}, "partition": 4, "timestamp": 9, "topic": "x", "offset": 1}') == (
        InputRecord(None, b"v", [("a", b"1")], 4, 9)
    )
    assert read('{"value": "v", "partition": 4, "timestamp": 9}', ignores_partition=True, ignores_timestamp=True) == (
        InputRecord(None, b"v", [])
    )
    assert read('{"value": "v", "timestamp": -1}') == InputRecord(None, b"v", [])
    assert read('{"value": "00ff"}', value_encoding=Encoding.HEX) == InputRecord(None, b"\x00\xff", [])
    assert read("  ") is None
    assert read('{"key": {"base64": "AAAAAQ=="}, "value": null, "isControl": true}') is None


def test_the_command_line_is_stronger_than_json() -> None:
    reader = JsonReader(fixed=FixedFields(key=b"K", headers=[("b", b"2")], partition=0, timestamp=1))
    line = b'{"key": "k", "value": "v", "headers": [{"key": "a", "value": "1"}], "partition": 4, "timestamp": 9}'
    assert reader.read(line) == InputRecord(b"K", b"v", [("a", b"1"), ("b", b"2")], 0, 1)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ('{"value": "v", "vlaue": "w"}', "unknown field 'vlaue'"),
        ('{"value": 5}', "value: expected a string"),
        ('{"value": {"a": 1}}', "value: expected a string"),
        ('{"value": {"base64": "@"}}', "value: not base64"),
        ('{"value": "\\ud800"}', "value: half of a surrogate pair"),
        ('{"key": null}', "key and value are both null"),
        ('{"value": "v", "partition": "1"}', "partition: '1' is not a whole number"),
        ('{"value": "v", "partition": 2147483648}', "partition: 2147483648 is not"),
        ('{"value": "v", "partition": true}', "partition: True is not"),
        ('{"value": "v", "timestamp": 1.5}', "timestamp: 1.5 is not"),
        ('{"value": "v", "timestamp": -2}', "timestamp: -2 is not"),
        ('{"value": "v", "headers": "a"}', "headers: expected"),
        ('{"value": "v", "headers": [{"name": "a"}]}', "headers: expected"),
        ('{"value": "v", "headers": {"a": null}}', "header 'a': a header needs"),
        ('{"value": "v", "headers": {"a": 1}}', "header 'a': expected a string"),
        ('{"value": "v", "headers": [{"value": "1"}]}', "header None: a header needs"),
        ('{"value": "v", "headers": {"\\ud800": "1"}}', "surrogates not allowed"),
    ],
)
def test_json_that_is_refused(line: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read(line)


# ------------------------------------------------------------------------------------------------------------ output


@given(
    key=st.none() | BYTES,
    value=st.none() | BYTES,
    headers=st.lists(st.tuples(NAMES, BYTES), max_size=3),
    encoding=st.sampled_from(Encoding),
)
def test_what_consume_writes_produce_reads(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]], encoding: Encoding
) -> None:
    """Every record survives JSON, but for those that Kafka's clients cannot produce."""
    record = Consumed(key, value, [*headers])
    line = json_writer(key_encoding=encoding, value_encoding=encoding)(record)
    assert line.count(b"\n") == 1
    reader = JsonReader(fixed=FixedFields(), key_encoding=encoding, value_encoding=encoding)
    if key is None and value is None:
        with pytest.raises(InputError):
            reader.read(line)
    else:
        assert reader.read(line) == InputRecord(key, value, headers, 3, 1_000)


def test_json_of_a_record() -> None:
    write = json_writer(key_encoding=Encoding.TEXT, value_encoding=Encoding.HEX)
    assert json.loads(write(Consumed(b"k", b"\x00\xff", [("h", None)]))) == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_000,
        "key": "k",
        "value": "00ff",
        "headers": [{"key": "h", "value": None}],
    }


def test_text_of_a_record() -> None:
    plain = text_writer(
        key_separator=None,
        delimiter=b"\n",
        key_encoding=Encoding.TEXT,
        value_encoding=Encoding.TEXT,
        null=b"",
        is_terminal=False,
    )
    assert plain(Consumed(value=b"\xff\x1b[31m")) == b"\xff\x1b[31m\n"
    assert plain(Consumed(value=None)) == b"\n"
    keyed = text_writer(
        key_separator=b" = ",
        delimiter=b"\0",
        key_encoding=Encoding.HEX,
        value_encoding=Encoding.BASE64,
        null=b"NULL",
        is_terminal=True,
    )
    assert keyed(Consumed(b"\x01", b"\x00\x01")) == b"01 = AAE=\0"
    assert keyed(Consumed(None, None)) == b"NULL = NULL\0"
    assert raw_writer(Consumed(value=b"\x00\n")) == b"\x00\n"
    assert raw_writer(Consumed(value=None)) == b""


def test_nothing_acts_on_a_terminal() -> None:
    assert for_terminal("a\tb\nä".encode()) == "a\tb\nä".encode()
    assert for_terminal(b"\x1b[2J\x07\xff\r") == b"\\x1b[2J\\x07\\xff\\r"
    assert for_terminal("\u202eabc".encode()) == b"\\u202eabc"


def test_fields_of_a_record() -> None:
    write = fields_writer(has_topic=False, key_encoding=Encoding.TEXT, value_encoding=Encoding.TEXT)
    assert write(Consumed(b"a\tb", b"\xff", [("h", b"1"), ("i", None)])) == (
        b"3\t7\t1970-01-01T00:00:01.000Z\ta\\tb\tbase64:/w==\th=1,i=null\n"
    )
    topics = fields_writer(has_topic=True, key_encoding=Encoding.TEXT, value_encoding=Encoding.TEXT)
    assert topics(Consumed()).startswith(b"orders\t3\t7\t")
