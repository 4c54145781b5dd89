"""Names that operators may use for a member."""

from __future__ import annotations

import pytest

from bmq.server.queries.member_names import Ambiguous, NoSuchMember, find_member


def names(*incarnations: str, **addresses: str) -> list[dict[str, str]]:
    empty = {"internal": "", "kafka": "", "http": ""}
    return [{"incarnation": each, **empty, **addresses} for each in incarnations]


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("a-1", "a-1"),  # one whose whole name begins another's
        ("a-12", "a-12"),
        ("b", "b-1"),
        ("h:1", "c-1"),
        ("[::1]:2", "c-1"),
    ],
)
def test_a_member_is_found_by_its_name_a_unique_prefix_or_an_address(named: str, found: str) -> None:
    members = [*names("a-1", "a-12", "b-1"), *names("c-1", kafka="h:1", internal="[::1]:2")]
    assert find_member(named, members) == found


@pytest.mark.parametrize("named", ["a", "h:1"])
def test_a_name_of_several_members_is_ambiguous(named: str) -> None:
    with pytest.raises(Ambiguous):
        find_member(named, [*names("a-1", "a-2"), *names("c-1", "c-2", kafka="h:1")])


def test_an_empty_name_finds_no_member() -> None:
    with pytest.raises(NoSuchMember):
        find_member("", names("a-1"))


def test_the_error_for_an_unknown_name_lists_a_few_members() -> None:
    with pytest.raises(NoSuchMember, match=r"there are a-00, .*, a-07 and 92 more"):
        find_member("x", names(*(f"a-{number:02}" for number in range(100))))
