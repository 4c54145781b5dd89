"""Records as `bmq consume` writes them: JSON, text, raw and fields, and on a terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.cli.records.input import FixedFields, InputError, InputRecord, JsonReader
from bmq.cli.records.output import fields_writer, for_terminal, json_writer, raw_writer, text_writer
from bmq.cli.records.text import Encoding
from tests.unit.cli.records.consumed import BYTES, NAMES, Consumed

pytestmark = pytest.mark.slow


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


def test_a_record_is_one_json_object() -> None:
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


def test_a_record_is_text_with_separators() -> None:
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


def test_control_characters_are_escaped_for_a_terminal() -> None:
    assert for_terminal("a\tb\nä".encode()) == "a\tb\nä".encode()
    assert for_terminal(b"\x1b[2J\x07\xff\r") == b"\\x1b[2J\\x07\\xff\\r"
    assert for_terminal("\u202eabc".encode()) == b"\\u202eabc"


def test_a_record_is_fields_with_tabs() -> None:
    write = fields_writer(has_topic=False, key_encoding=Encoding.TEXT, value_encoding=Encoding.TEXT)
    assert write(Consumed(b"a\tb", b"\xff", [("h", b"1"), ("i", None)])) == (
        b"3\t7\t1970-01-01T00:00:01.000Z\ta\\tb\tbase64:/w==\th=1,i=null\n"
    )
    topics = fields_writer(has_topic=True, key_encoding=Encoding.TEXT, value_encoding=Encoding.TEXT)
    assert topics(Consumed()).startswith(b"orders\t3\t7\t")
