"""The members of a group: their order and leader, static members, the protocol that all support, and totals."""

from __future__ import annotations

import pytest

from bmq.coordinator.group.members import GroupMember, GroupMembers, Protocols
from bmq.coordinator.group.timers import Timer, TimerKind
from bmq.core.errors import ErrorCode, RequestError

BOTH: Protocols = (("range", b"12345"), ("sticky", b"1"))
STICKY_FIRST: Protocols = BOTH[::-1]


def member(member_id: str, protocols: Protocols = BOTH, instance_id: str | None = None) -> GroupMember:
    return GroupMember("g", member_id, instance_id, "client", "host", 1_000, 2_000, protocols)


def members(*some: GroupMember) -> GroupMembers:
    made = GroupMembers()
    for each in some:
        made.add(each)
    return made


def test_the_protocol_that_most_members_prefer_is_selected() -> None:
    group = members(member("a"), member("b", STICKY_FIRST), member("c", STICKY_FIRST))
    assert group.select_protocol() == "sticky"
    group.add(member("d"))
    assert group.select_protocol() == "range", "of equals the one that was voted for first"


def test_a_protocol_that_one_member_lacks_is_not_selected() -> None:
    group = members(member("a"), member("b"), member("c", (("sticky", b""),)))
    assert group.select_protocol() == "sticky"
    assert group.supports(["cooperative", "sticky"])
    assert not group.supports(["range"])
    group.remove(group["c"])
    assert group.supports(["range"])


def test_metadata_counts_as_long_as_its_member_has_it() -> None:
    group = members(member("a"), member("b"))
    assert group.metadata_bytes == 2 * (len("range") + 5 + len("sticky") + 1)
    group.set_protocols(group["a"], (("range", b""),))
    group.remove(group["b"])
    assert group.metadata_bytes == len("range")
    group.remove(group["a"])
    assert (group.metadata_bytes, len(group), group.rebalance_timeout_ms) == (0, 0, 0)


def test_the_leader_is_the_first_member_until_it_leaves_or_does_not_rejoin() -> None:
    group = members(member("a"), member("b"), member("c"))
    assert group.leader == "a"
    group.remove(group["a"])
    assert group.leader == "b"
    assert not group.elect(), "nobody has joined"
    group.park_join(group["c"], object())
    assert group.elect()
    assert group.leader == "c"


def test_a_parked_join_counts_once_and_the_later_token_replaces_the_earlier() -> None:
    group = members(member("a"), member("b"))
    first, second = object(), object()
    group.park_join(group["a"], first)
    group.park_join(group["a"], second)
    assert (group.joining, group.not_rejoined()) == (1, [group["b"]])
    assert group.take_join(group["a"]) is second
    assert group.take_join(group["a"]) is None
    assert group.joining == 0


def test_a_static_member_that_returns_keeps_all_but_its_id_and_is_last() -> None:
    group = members(member("a", instance_id="i"), member("b"))
    group.rename(group["a"], "a2", Timer("g", TimerKind.SESSION, "a2"))
    assert ([each.member_id for each in group], group.leader) == (["b", "a2"], "a2")
    assert group.by_instance("i") == "a2"
    assert "a" not in group
    group.remove(group["a2"])
    assert group.by_instance("i") is None


@pytest.mark.parametrize(
    ("member_id", "instance_id", "code"),
    [
        ("b", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("a", "other", ErrorCode.UNKNOWN_MEMBER_ID),
        ("b", "i", ErrorCode.FENCED_INSTANCE_ID),
        ("", "i", ErrorCode.FENCED_INSTANCE_ID),
    ],
)
def test_a_request_that_names_no_member_or_another_one_is_refused(
    member_id: str, instance_id: str | None, code: ErrorCode
) -> None:
    group = members(member("a", instance_id="i"))
    assert group.validate("a", "i") is group.validate("a", None) is group["a"]
    with pytest.raises(RequestError) as caught:
        group.validate(member_id, instance_id)
    assert caught.value.code is code
