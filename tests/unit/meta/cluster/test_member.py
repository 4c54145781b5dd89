"""A member's record: what is written is read again, and one that no response could hold is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bmq.core.errors import FormatError
from bmq.core.features import LevelRange
from bmq.meta.cluster.member import Address, Member, decode_member, encode_member


def proxy(number: int) -> Member:
    return Member(
        incarnation=f"p{number}",
        roles=frozenset({"proxy"}),
        node_id=number,
        kafka=Address(host=f"h{number}", port=9092),
        zone=f"z{number % 2}",
    )


def listening(number: int, **ports: int) -> Member:
    """Return a proxy with listeners of these names."""
    named = tuple((name, Address(host=f"{name.lower()}{number}", port=port)) for name, port in ports.items())
    return replace(proxy(number), kafka=named[0][1], listeners=named)


def test_members_of_both_versions_read_each_other() -> None:
    """The version before listeners reads the first address, and writes no more than that."""
    member = listening(1, INSIDE=1, OUTSIDE=2)
    assert decode_member(encode_member(member)) == member
    written = json.loads(encode_member(member))
    assert written["kafka"] == ["inside1", 1]
    del written["listeners"]
    old = decode_member(json.dumps(written).encode())
    assert old.listeners == ()
    assert old.kafka_at("OUTSIDE") == Address(host="inside1", port=1)


def test_a_member_of_a_version_before_users_has_none() -> None:
    written = json.loads(encode_member(proxy(1)))
    del written["hdfs_user"]
    assert decode_member(json.dumps(written).encode()).hdfs_user == ""
    with pytest.raises(FormatError):
        decode_member(json.dumps({**written, "hdfs_user": 7}).encode())


@pytest.mark.parametrize("wrong", [[], {"A": 5}, {"A": ["h"]}, {"A": ["h", 65536]}, {"A": ["h", True]}, 7])
def test_listeners_without_valid_addresses_are_refused(wrong: object) -> None:
    written = {**json.loads(encode_member(proxy(1))), "listeners": wrong}
    with pytest.raises(FormatError):
        decode_member(json.dumps(written).encode())


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"format":2}', b'{"format":1}', b'{"format":1,"names":["a"],"owners":[1]}']
)
def test_bytes_that_are_not_a_member_are_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_member(data)


def test_a_member_starts_until_it_has_an_address() -> None:
    member = Member(incarnation="m", roles=frozenset({"broker"}))
    assert member.is_starting
    at = Address(host="h", port=1)
    for listening_one in (replace(member, internal=at), replace(member, http=at), replace(member, kafka=at)):
        assert not listening_one.is_starting


def test_a_listener_that_the_member_does_not_have_has_no_address() -> None:
    member = listening(1, INSIDE=1, OUTSIDE=2)
    assert member.kafka_at("OUTSIDE") == Address(host="outside1", port=2)
    assert member.kafka_at("OTHER").port == 0


def test_a_member_is_read_as_it_was_written() -> None:
    member = Member(
        incarnation="m",
        roles=frozenset({"proxy", "broker"}),
        node_id=3,
        kafka=Address(host="::1", port=9092),
        zone="z",
        protocols=(1, 2),
        is_draining=True,
        hdfs_user="bmq",
    )
    assert decode_member(encode_member(member)) == member
    assert str(member.kafka) == "[::1]:9092"


def changed(**fields: object) -> bytes:
    """Return a member's record with wrong values in these fields."""
    raw = json.loads(encode_member(Member(incarnation="bad", roles=frozenset({"broker"}))))
    return json.dumps(raw | fields).encode()


@pytest.mark.parametrize(
    "wrong",
    [
        {"node_id": 1 << 31},
        {"node_id": -2},
        {"zone": "z" * 32_768},
        {"zone": "\ud800"},
        {"kafka": ["h" * 32_768, 1]},
        {"kafka": ["\ud800", 1]},
        {"listeners": {"\ud800": ["h", 1]}},
    ],
)
def test_a_member_that_no_response_could_name_is_refused(wrong: dict[str, object]) -> None:
    """One such key would fail Metadata and DescribeCluster of every proxy."""
    assert decode_member(changed(node_id=(1 << 31) - 1, zone="z" * 32_767)).node_id == (1 << 31) - 1
    with pytest.raises(FormatError):
        decode_member(changed(**wrong))


@pytest.mark.parametrize(
    "fields",
    [
        {"incarnation": 1}, {"roles": "broker"}, {"roles": [1]}, {"node_id": True}, {"node_id": 1.5}, {"kafka": ["h"]},
        {"kafka": ["h", "1"]}, {"internal": [None, 1]}, {"http": ["h", 65_536]}, {"http": ["h", -1]}, {"zone": None},
        {"version": 1}, {"protocols": [1]}, {"protocols": ["0", "1"]}, {"formats": "1"}, {"is_draining": 0},
    ],
)  # fmt: skip
def test_a_member_with_a_field_of_another_type_is_refused(fields: dict[str, object]) -> None:
    assert decode_member(changed()).incarnation == "bad"
    with pytest.raises(FormatError):
        decode_member(changed(**fields))


def test_a_member_keeps_the_features_of_later_versions_and_lacks_those_of_earlier_ones() -> None:
    member = replace(proxy(1), features=(("f", LevelRange(0, 2)), ("later", LevelRange(1, 7))))
    assert decode_member(encode_member(member)) == member
    assert member.ranges == {"f": LevelRange(0, 2), "later": LevelRange(1, 7)}
    written = json.loads(encode_member(member))
    assert written["features"] == {"f": [0, 2], "later": [1, 7]}
    del written["features"]
    assert decode_member(json.dumps(written).encode()).ranges == {}


@pytest.mark.parametrize("wrong", [[], 7, {"f": 1}, {"f": [1]}, {"f": [2, 1]}, {"f": [-1, 1]}, {"f": [0, 1 << 15]}])
def test_features_without_ranges_of_levels_are_refused(wrong: object) -> None:
    written = {**json.loads(encode_member(proxy(1))), "features": wrong}
    with pytest.raises(FormatError):
        decode_member(json.dumps(written).encode())
