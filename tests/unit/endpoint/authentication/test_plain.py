"""Tests of PLAIN: who gets in, and what the others get to know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.core.clock import SystemClock
from bmq.core.config import ConfigError
from bmq.core.security.authentication import (
    Authenticated,
    AuthenticationContext,
    AuthenticationFailure,
    AuthenticationResult,
)
from bmq.core.security.principal import user
from bmq.endpoint.authentication.mechanism import MechanismContext
from bmq.endpoint.authentication.plain import LOGIN_MODULE, PlainSaslMechanism, make_plain

USERS = {"alice": "secret", "bob": "pässwort", "a,b=c": "x"}
WRONG = "Authentication failed: Invalid username or password"


def evaluate(token: bytes) -> AuthenticationResult:
    return PlainSaslMechanism(USERS).create_server(AuthenticationContext("10.0.0.1", "SASL_SSL")).evaluate(token)


@pytest.mark.parametrize("name", USERS)
@pytest.mark.parametrize("acts_as", [True, False])
def test_the_right_password_gives_the_principal(name: str, acts_as: bool) -> None:
    token = f"{name if acts_as else ''}\0{name}\0{USERS[name]}".encode()
    assert evaluate(token) == Authenticated(user(name))


@pytest.mark.parametrize(
    ("token", "reason", "text"),
    [
        (b"\0alice\0Secret", "wrong password of user 'alice'", WRONG),
        (b"\0carol\0secret", "unknown user", WRONG),
        (b"\0alice\0", "no password", "Authentication failed: password not specified"),
        (b"\0\0secret", "no user name", "Authentication failed: username not specified"),
        (b"bob\0alice\0Secret", "wrong password of user 'alice'", WRONG),
        (b"", "expected 3 tokens, got 1", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"\0alice", "expected 3 tokens, got 2", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "got 4", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0" * 100_000, "got 4", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0alice\0\xff", "not UTF-8", "Authentication failed: the SASL/PLAIN message is not UTF-8"),
    ],
)
def test_all_else_fails(token: bytes, reason: str, text: str) -> None:
    result = evaluate(token)
    assert isinstance(result, AuthenticationFailure)
    assert reason in result.reason
    assert result.text == text


def test_another_identity_is_refused_after_the_right_password() -> None:
    result = evaluate(b"bob\0alice\0secret")
    assert isinstance(result, AuthenticationFailure)
    assert "different from username" in result.text


@given(st.binary(max_size=64))
def test_any_bytes_have_a_result(token: bytes) -> None:
    assert isinstance(evaluate(token), AuthenticationFailure)


def context(jaas: str) -> MechanismContext:
    return MechanismContext(
        mechanism="PLAIN", listener="OUTSIDE", protocol="SASL_SSL", settings={"sasl.jaas.config": jaas},
        clock=SystemClock(),
    )  # fmt: skip


def test_users_are_those_of_the_jaas_text() -> None:
    made = make_plain(context(f'{LOGIN_MODULE} required username="admin" password="x" user_alice="secret";'))
    assert made.evaluate(b"\0alice\0secret") == Authenticated(user("alice"))
    assert isinstance(made.evaluate(b"\0admin\0x"), AuthenticationFailure)
    assert "secret" not in repr(made)


@pytest.mark.parametrize(
    ("jaas", "why"),
    [
        ("", r"listener.name.outside.plain.sasl.jaas.config="),
        ("x required;", r"listener OUTSIDE: plain.sasl.jaas.config: the login module is 'x'"),
        (f'{LOGIN_MODULE} required user_="hunter2";', "empty name"),
        (f'{LOGIN_MODULE} required user_alice="";', "empty password"),
        (f'{LOGIN_MODULE} required "user_alice\xa0"="hunter2";', "white space at an end"),
        (f'{LOGIN_MODULE} required user_alice="hunter2"', "semicolon"),
    ],
)
def test_a_wrong_text_is_refused_without_showing_it(jaas: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        make_plain(context(jaas))
    assert "hunter2" not in str(caught.value)
