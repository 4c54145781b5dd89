"""__consumer_offsets in Kafka's bytes: golden ones, made by hand from its schemas, and every version read."""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.coordinator import records
from bmq.coordinator.records import (
    GroupRecord,
    Offset,
    OffsetRecord,
    StoredGroup,
    Unknown,
    decode,
    encode,
)
from bmq.coordinator.stored_members import StoredMember
from bmq.core.errors import FormatError

TOPIC_ID = uuid.UUID(bytes=b"\xab" * 16)
OFFSET_KEY = bytes.fromhex("0001 0001 67 0006 6f7264657273 00000003")
GROUP_KEY = bytes.fromhex("0002 0001 67")
MEMBER = StoredMember("m-1", "i", "c", "/h", 300_000, 10_000, b"\x01\x02", b"\x03")
GROUP = StoredGroup("consumer", 7, "range", "m-1", 1_700_000_000_000, (MEMBER,))
GROUP_VALUE_3 = bytes.fromhex(
    "0003 0008 636f6e73756d6572 00000007 0005 72616e6765 0003 6d2d31 0000018bcfe56800 00000001"
    "0003 6d2d31 0001 69 0001 63 0002 2f68 000493e0 00002710 00000002 0102 00000001 03"
)
OWNED_VALUE = bytes.fromhex(
    "0004 09 636f6e73756d6572 00000007 06 72616e6765 04 6d2d31 0000018bcfe56800 02"
    "04 6d2d31 02 69 02 63 03 2f68 000493e0 00002710 03 0102 02 03 00"
    "01 904e 0b 0b 557365723a616c696365"
)


def test_an_offset_is_written_in_kafkas_bytes() -> None:
    """Value version 4 with the topic id, as Kafka 4.3 writes it."""
    value = bytes.fromhex("0004 000000000000002a 00000005 03 6d64 0000018bcfe56800 01 00 10" + "ab" * 16)
    record = OffsetRecord("g", "orders", 3, Offset(42, 5, "md", 1_700_000_000_000, topic_id=TOPIC_ID))
    assert encode(record) == (OFFSET_KEY, value)
    assert decode(OFFSET_KEY, value) == record


def test_an_offset_with_an_expiry_is_written_in_kafkas_bytes() -> None:
    """The topic id, for which Kafka's version 1 has no place, is in a tagged field that Kafka's readers skip."""
    value = bytes.fromhex(
        "0004 000000000000002a ffffffff 03 6d64 0000018bcfe56800 02 00 10" + "ab" * 16 + "904e 08 0000018bcfe56801"
    )
    offset = Offset(42, -1, "md", 1_700_000_000_000, 1_700_000_000_001, TOPIC_ID)
    record = OffsetRecord("g", "orders", 3, offset)
    assert encode(record) == (OFFSET_KEY, value)
    assert decode(OFFSET_KEY, value) == record


def test_offsets_as_they_were_written_before_topic_ids_were_kept() -> None:
    value = bytes.fromhex("0003 000000000000002a 00000005 0002 6d64 0000018bcfe56800")
    assert decode(OFFSET_KEY, value) == OffsetRecord("g", "orders", 3, Offset(42, 5, "md", 1_700_000_000_000))
    value = bytes.fromhex("0001 000000000000002a 0002 6d64 0000018bcfe56800 0000018bcfe56801")
    offset = Offset(42, -1, "md", 1_700_000_000_000, 1_700_000_000_001)
    assert decode(OFFSET_KEY, value) == OffsetRecord("g", "orders", 3, offset)
    assert offset.is_of(TOPIC_ID), "of whichever topic has the name"


def test_a_group_is_written_in_kafkas_bytes() -> None:
    assert encode(GroupRecord("g", GROUP)) == (GROUP_KEY, GROUP_VALUE_3)
    assert decode(GROUP_KEY, GROUP_VALUE_3) == GroupRecord("g", GROUP)


def test_a_group_of_a_principal_is_written_as_kafkas_version_4() -> None:
    """Write the principal in a tagged field, which Kafka's readers and BMQ's earlier ones skip."""
    record = GroupRecord("g", replace(GROUP, principal="User:alice"))
    assert encode(record) == (GROUP_KEY, OWNED_VALUE)
    assert decode(GROUP_KEY, OWNED_VALUE) == record


def test_an_empty_group_is_written_in_kafkas_bytes() -> None:
    value = bytes.fromhex("0003 0008 636f6e73756d6572 00000008 ffff ffff ffffffffffffffff 00000000")
    record = GroupRecord("g", StoredGroup("consumer", 8, None, None))
    assert encode(record) == (GROUP_KEY, value)
    assert decode(GROUP_KEY, value) == record


@pytest.mark.parametrize("record", [OffsetRecord("g", "orders", 3, None), GroupRecord("g", None)])
def test_a_tombstone_has_the_key_alone(record: OffsetRecord | GroupRecord) -> None:
    key, value = encode(record)
    assert value is None
    assert decode(key, value) == record


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000 000000000000002a 0000 0000000000000064", Offset(42, -1, "", 100)),
        ("0002 000000000000002a 0000 0000000000000064", Offset(42, -1, "", 100)),
        ("0004 000000000000002a 00000005 03 6d64 0000000000000064 00", Offset(42, 5, "md", 100)),
        ("0004 000000000000002a 00000005 01 0000000000000064 01 00 10" + "00" * 16, Offset(42, 5, "", 100)),
        ("0004 000000000000002a 00000005 01 0000000000000064 01 07 01 ff", Offset(42, 5, "", 100)),
    ],
    ids=["0", "2", "4", "4 with the zero id", "4 with a field that nobody knows"],
)
def test_other_offset_versions(value: str, expected: Offset) -> None:
    assert decode(OFFSET_KEY, bytes.fromhex(value)) == OffsetRecord("g", "orders", 3, expected)


def test_key_version_0_is_as_1() -> None:
    assert decode(b"\x00\x00" + OFFSET_KEY[2:], None) == OffsetRecord("g", "orders", 3, None)


@pytest.mark.parametrize(
    ("version", "value"),
    [
        (0, "0000 0001 63 00000007 0005 72616e6765 0001 6d 00000001"
            "0001 6d 0001 63 0001 68 0000000a 00000000 00000000"),
        (1, "0001 0001 63 00000007 0005 72616e6765 0001 6d 00000001"
            "0001 6d 0001 63 0001 68 0000000a 0000000a 00000000 00000000"),
        (2, "0002 0001 63 00000007 0005 72616e6765 0001 6d ffffffffffffffff 00000001"
            "0001 6d 0001 63 0001 68 0000000a 0000000a 00000000 00000000"),
        (4, "0004 02 63 00000007 06 72616e6765 02 6d ffffffffffffffff 02"
            "02 6d 00 02 63 02 68 0000000a 0000000a 01 01 00 00"),
    ],
)  # fmt: skip
def test_other_group_versions(version: int, value: str) -> None:
    member = StoredMember("m", None, "c", "h", 10, 10, b"", b"")  # version 0: the session time-out serves for both
    record = decode(GROUP_KEY, bytes.fromhex(value))
    assert record == GroupRecord("g", StoredGroup("c", 7, "range", "m", -1, (member,)))


def test_keys_of_other_protocols_are_kept_as_they_are() -> None:
    key = bytes.fromhex("0003 0001 67")  # ConsumerGroupMetadataKey
    assert decode(key, b"\x00\x00\x00\x00\x00\x01") == Unknown(key, b"\x00\x00\x00\x00\x00\x01")
    assert encode(Unknown(key, b"v")) == (key, b"v")


def test_a_record_that_cannot_be_read_names_its_fault() -> None:
    for key, value in [
        (b"", None),
        (b"\x00", None),
        (OFFSET_KEY[:-1], None),
        (OFFSET_KEY, b"\x00\x05" + bytes(30)),
        (GROUP_KEY, GROUP_VALUE_3[:-1]),
        (GROUP_KEY, GROUP_VALUE_3[:31] + b"\x7f\xff\xff\xff"),
        (OFFSET_KEY, bytes.fromhex("0004 000000000000002a 00000005 01 0000000000000064 01 00 0f" + "ab" * 15)),
        (OFFSET_KEY, bytes.fromhex("0004 000000000000002a 00000005 01 0000000000000064 01 904e 02 abab")),
        (GROUP_KEY, OWNED_VALUE[:-1]),
        (GROUP_KEY, OWNED_VALUE[:-12] + bytes.fromhex("01 904e 01 00")),
        (bytes.fromhex("0002 ffff"), None),
        (bytes.fromhex("0002 0001 ff"), None),
    ]:
        with pytest.raises(FormatError):
            decode(key, value)
    with pytest.raises(FormatError, match="the format takes"):
        encode(GroupRecord("x" * 40_000, None))


_text = st.text(max_size=20)
_long = st.integers(-(2**63), 2**63 - 1)
_int = st.integers(-(2**31), 2**31 - 1)
_members = st.builds(StoredMember, _text, st.none() | _text, _text, _text, st.integers(0, 2**31 - 1), _int,
                     st.binary(max_size=30), st.binary(max_size=30))  # fmt: skip
_records = st.one_of(
    st.builds(OffsetRecord, _text, _text, _int, st.none() | st.builds(
        Offset, _long, _int, _text, _long, st.just(-1) | _long, st.none() | st.uuids().filter(lambda each: each.int))),
    st.builds(
        GroupRecord,
        _text,
        st.none()
        | st.builds(StoredGroup, _text, _int, st.none() | _text, st.none() | _text, _long,
                    st.lists(_members, max_size=4).map(tuple), _text),
    ),
)  # fmt: skip


@pytest.mark.slow
@given(_records)
def test_round_trip(record: OffsetRecord | GroupRecord) -> None:
    assert decode(*encode(record)) == record


@given(st.binary(max_size=80), st.none() | st.binary(max_size=80))
def test_garbage_is_a_format_error_or_an_unknown_record(key: bytes, value: bytes | None) -> None:
    with suppress(FormatError):
        assert decode(key, value)


@pytest.mark.slow
@given(
    st.builds(Offset, _long, _int, st.text(max_size=200), _long, st.just(-1), st.none() | st.uuids()),
    st.binary(max_size=3),
    st.integers(0, 100),
)
def test_the_quick_decoder_of_offsets_reads_what_the_general_one_reads(value: Offset, junk: bytes, at: int) -> None:
    """A key of version 0 is of the same form, and is always read the long way."""
    key, data = encode(OffsetRecord("gruppe-ü", "orders", 3, value))
    assert data is not None
    data = data[:at] + junk + data[at + len(junk) :]
    try:
        expected: object = decode(b"\x00\x00" + key[2:], data)
    except FormatError:
        expected = FormatError
    try:
        assert decode(key, data) == expected
    except FormatError:
        assert expected is FormatError


@pytest.mark.slow
@given(st.lists(_members, max_size=4), st.sampled_from(["", "User:alice"]), st.binary(max_size=3), st.integers(0, 200))
def test_the_quick_decoders_of_members_read_what_the_general_one_reads(
    members: list[StoredMember], principal: str, junk: bytes, at: int
) -> None:
    key, data = encode(GroupRecord("g", StoredGroup("consumer", 7, "range", "m-1", 5, tuple(members), principal)))
    assert data is not None
    data = data[:at] + junk + data[at + len(junk) :]

    def decoded() -> object:
        try:
            return decode(key, data)
        except FormatError as error:
            return str(error)

    with (
        mock.patch.object(records, "decode_members", return_value=None),
        mock.patch.object(records, "decode_compact_members", return_value=None),
    ):
        expected = decoded()
    assert decoded() == expected


@pytest.mark.parametrize("principal", ["", "User:alice"])
def test_ten_thousand_members_need_no_call_for_each_field(principal: str) -> None:
    long = [MEMBER._replace(instance_id=None, assignment=b"x" * size) for size in (0, 126, 127, 16_382, 16_383, 99_999)]
    stored = replace(GROUP, members=(MEMBER, *long), principal=principal)
    key, data = encode(GroupRecord("g", stored))
    with mock.patch.object(records, "_decode_member", side_effect=AssertionError("the long way")):
        assert decode(key, data) == GroupRecord("g", stored)
