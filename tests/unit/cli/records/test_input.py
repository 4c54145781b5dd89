"""Records as `bmq produce` reads them: split, as text and as JSON."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.cli.records.input import FixedFields, InputError, InputRecord, JsonReader, TextReader, join, split
from bmq.cli.records.text import Encoding
from tests.unit.cli.records.consumed import BYTES

pytestmark = pytest.mark.slow


@given(
    st.lists(BYTES, max_size=6), st.binary(min_size=1, max_size=3), st.integers(min_value=1, max_value=9), st.booleans()
)
def test_records_do_not_depend_on_chunks(records: list[bytes], delimiter: bytes, size: int, is_ended: bool) -> None:
    """Records are the parts between the delimiters of the whole input, in whatever chunks it comes."""
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


def test_text_is_split_and_decoded() -> None:
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
def test_malformed_text_is_refused(line: bytes, why: str) -> None:
    reader = TextReader(
        fixed=FixedFields(), key_separator=b"\t", key_encoding=Encoding.HEX, value_encoding=Encoding.BASE64, null=b"-"
    )
    with pytest.raises(InputError, match=why):
        reader.read(line)


def read(line: str, **options: object) -> InputRecord | None:
    return JsonReader(fixed=FixedFields(), **options).read(line.encode())  # type: ignore[arg-type]


def test_json_fields_are_read() -> None:
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


def test_fields_of_the_command_line_win_over_json() -> None:
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
def test_malformed_json_is_refused(line: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read(line)
