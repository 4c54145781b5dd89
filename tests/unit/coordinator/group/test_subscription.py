"""Subscriptions and assignments of consumers, as clients wrote them."""

from __future__ import annotations

import struct

import pytest

from bmq.coordinator.group.subscription import parse_assignment, parse_topics, subscribed_topics
from bmq.core.errors import FormatError

GOOD = struct.pack(">hih1siii", 0, 1, 1, b"t", 2, 4, 7)


def test_partitions_by_topic() -> None:
    assert parse_assignment(GOOD + struct.pack(">i", -1)) == {"t": [4, 7]}
    assert parse_assignment(struct.pack(">hi", 3, 0)) == {}


@pytest.mark.parametrize("data", [GOOD[:at] for at in range(len(GOOD))])
def test_an_assignment_that_is_cut_short_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_assignment(data)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, -1),
        struct.pack(">hih", 0, 1, -1),
        struct.pack(">hih1si", 0, 1, 1, b"t", -1),
        struct.pack(">hih1si", 0, 1, 1, b"t", 1 << 30),
        struct.pack(">hih1si", 0, 1, 1, b"\xff", 0),
    ],
)
def test_an_assignment_with_wrong_numbers_or_names_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_assignment(data)


SUBSCRIBED = b"\x00\x01\x00\x00\x00\x02\x00\x01a\x00\x02bc" + b"\xff\xff\xff\xff"


def test_topics_of_all_members_are_subscribed() -> None:
    topics, end = parse_topics(SUBSCRIBED)
    assert (topics, SUBSCRIBED[:end][-2:]) == (["a", "bc"], b"bc")
    assert subscribed_topics("consumer", [SUBSCRIBED[:end] + bytes([i]) for i in range(9)]) == frozenset({"a", "bc"})
    assert subscribed_topics("consumer", [SUBSCRIBED, SUBSCRIBED[:2] + b"\0\0\0\1\0\1z"]) == frozenset({"a", "bc", "z"})
    assert subscribed_topics("connect", [SUBSCRIBED]) is None
    assert subscribed_topics("consumer", [SUBSCRIBED, b"own format"]) is None
    assert subscribed_topics("consumer", []) == frozenset()


@pytest.mark.parametrize("data", [b"", b"\0\1", SUBSCRIBED[:-6], b"\0\1\x7f\xff\xff\xff", b"\xff\xff\0\0\0\0"])
def test_a_broken_subscription_is_a_format_error(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_topics(data)
