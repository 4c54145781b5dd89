"""Assignments of consumers, as the leader of a group wrote them."""

from __future__ import annotations

import struct

import pytest

from bmq.coordinator.group.subscription import parse_assignment
from bmq.core.errors import FormatError

GOOD = struct.pack(">hih1siii", 0, 1, 1, b"t", 2, 4, 7)


def test_partitions_by_topic() -> None:
    assert parse_assignment(GOOD + struct.pack(">i", -1)) == {"t": [4, 7]}
    assert parse_assignment(struct.pack(">hi", 3, 0)) == {}


@pytest.mark.parametrize("data", [GOOD[:at] for at in range(len(GOOD))])
def test_what_is_cut_short_is_none(data: bytes) -> None:
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
def test_what_is_wrong_is_none(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_assignment(data)
