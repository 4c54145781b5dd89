"""Tests of Kafka's principals."""

from __future__ import annotations

import pytest

from bmq.core.security.principal import ANONYMOUS, Principal, parse_principal, user


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
