"""Rules that all adapters of the store share: the limits of a commit, compares, and ranges of keys."""

from __future__ import annotations

import pytest

from bmq.meta.kv import (
    COMMIT_BYTES_MAX,
    COMMIT_OPERATIONS_MAX,
    Compare,
    Delete,
    Entry,
    Put,
    Write,
    check_commit,
    holds,
    prefix_range,
)


def puts(count: int) -> list[Write]:
    return [Put(f"k{number}", b"") for number in range(count)]


def compares(count: int) -> list[Compare]:
    return [Compare(f"k{number}", 0) for number in range(count)]


@pytest.mark.parametrize(
    ("compared", "writes"),
    [
        ([], []),
        (compares(COMMIT_OPERATIONS_MAX), puts(COMMIT_OPERATIONS_MAX)),
        ([Compare("a", 1)], [Put("ab", bytes(COMMIT_BYTES_MAX - 3))]),
        ([Compare("a", 1), Compare("a", 2)], [Delete("a")]),
    ],
    ids=["nothing", "as many as may be", "as large as may be", "a key compared twice"],
)
def test_a_commit_within_the_limits_is_accepted(compared: list[Compare], writes: list[Write]) -> None:
    check_commit(compared, writes)


@pytest.mark.parametrize(
    ("compared", "writes", "reason"),
    [
        ([], puts(COMMIT_OPERATIONS_MAX + 1), "at most"),
        (compares(COMMIT_OPERATIONS_MAX + 1), [], "at most"),
        ([], [Put("a", b""), Delete("a")], "each key at most once"),
        ([], [Put("", b"")], "a key is not empty"),
        ([Compare("", 0)], [], "a key is not empty"),
        ([Compare("a", -1)], [], "0 .* or more"),
        ([Compare("a", 1)], [Put("ab", bytes(COMMIT_BYTES_MAX - 2))], f"not {COMMIT_BYTES_MAX + 1}"),
    ],
)
def test_a_commit_past_a_limit_is_refused(compared: list[Compare], writes: list[Write], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_commit(compared, writes)


def test_a_compare_holds_if_the_last_write_has_its_revision() -> None:
    entry = Entry("a", b"", 3)
    assert holds(Compare("a", 3), entry)
    assert not holds(Compare("a", 2), entry)
    assert not holds(Compare("a", 0), entry)
    assert holds(Compare("a", 0), None)
    assert not holds(Compare("a", 3), None)


@pytest.mark.parametrize(
    ("prefix", "inside", "outside"),
    [
        ("", ["a", "\U0010ffff"], []),
        ("a/", ["a/", "a/b", "a/\U0010ffff"], ["a", "a0", "b/"]),
        ("é", ["é", "éz"], ["è", "ê"]),
        ("\U0010ffff", ["\U0010ffff", "\U0010ffffz"], ["\ufffd"]),
    ],
)
def test_a_range_holds_the_keys_that_begin_with_the_prefix(prefix: str, inside: list[str], outside: list[str]) -> None:
    low, end = prefix_range(prefix)
    assert [low <= key.encode() < end for key in inside] == [True] * len(inside)
    assert [low <= key.encode() < end for key in outside] == [False] * len(outside)
