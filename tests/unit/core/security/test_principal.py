"""Tests of Kafka's principals."""

from __future__ import annotations

import pytest

from bmq.core.security.principal import ANONYMOUS, Principal, has_outer_space, java_trim, parse_principal, user


@pytest.mark.parametrize(
    ("text", "principal"),
    [
        ("User:alice", user("alice")),
        ("User:CN=alice,OU=a:b", user("CN=alice,OU=a:b")),
        ("Group:readers", Principal("Group", "readers")),
        ("User:*", user("*")),
        ("User:ANONYMOUS", ANONYMOUS),
    ],
)
def test_a_principal_is_its_text(text: str, principal: Principal) -> None:
    assert parse_principal(text) == principal
    assert str(principal) == text


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:", ":"])
def test_a_text_without_both_parts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="like User:alice"):
        parse_principal(text)


@pytest.mark.parametrize("space", ["\t", "\x85", "\xa0", "\u2003", "\u3000"])
def test_white_space_of_every_kind_is_seen_at_both_ends(space: str) -> None:
    assert has_outer_space(f"admin{space}")
    assert has_outer_space(f"{space}admin")
    assert not has_outer_space(f"a{space}b")


def test_trimming_removes_what_java_removes_and_nothing_else() -> None:
    assert java_trim("\t a\x00\r\n") == "a"
    assert java_trim("\xa0a\u2003") == "\xa0a\u2003"
