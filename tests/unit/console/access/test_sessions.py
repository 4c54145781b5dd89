"""The console's sessions: they end, and there are not too many."""

from __future__ import annotations

import asyncio

import pytest

from bmq.console.access import sessions as module
from bmq.console.access.schemes import AuthenticatedClient
from bmq.console.access.sessions import ConsoleSessions
from bmq.core.security.principal import user
from bmq.core.security.session import Session


def login(name: str = "alice", expires_at: float | None = None) -> AuthenticatedClient:
    return AuthenticatedClient(Session(principal=user(name), expires_at=expires_at))


async def test_a_session_is_found_by_its_cookie_until_its_end() -> None:
    sessions = ConsoleSessions(60.0)
    cookie, begun = sessions.begin(login())
    assert sessions.find(cookie) is begun
    assert sessions.find(cookie + "x") is None
    assert sessions.find("") is None
    await asyncio.sleep(59.9)
    assert sessions.find(cookie) is begun
    await asyncio.sleep(0.1)
    assert sessions.find(cookie) is None
    assert len(sessions) == 0


async def test_a_session_ends_with_the_token_that_began_it() -> None:
    sessions = ConsoleSessions(60.0)
    cookie, _ = sessions.begin(login(expires_at=asyncio.get_running_loop().time() + 5))
    await asyncio.sleep(5)
    assert sessions.find(cookie) is None


async def test_a_session_ends_when_its_password_is_changed() -> None:
    sessions, is_current = ConsoleSessions(60.0), True
    cookie, _ = sessions.begin(AuthenticatedClient(Session(principal=user("alice")), lambda: is_current))
    assert sessions.find(cookie) is not None
    is_current = False
    assert sessions.find(cookie) is None


async def test_logging_out_ends_one_session() -> None:
    sessions = ConsoleSessions(60.0)
    (one, _), (other, _) = sessions.begin(login()), sessions.begin(login())
    sessions.end(one)
    sessions.end(one)
    assert sessions.find(one) is None
    assert sessions.find(other) is not None


async def test_a_user_has_no_more_than_some_sessions() -> None:
    sessions = ConsoleSessions(60.0)
    other, _ = sessions.begin(login("bob"))
    cookies = [sessions.begin(login())[0] for _ in range(module.OF_USER_MAX + 1)]
    assert sessions.find(cookies[0]) is None
    assert all(sessions.find(each) is not None for each in cookies[1:])
    assert sessions.find(other) is not None


async def test_there_are_no_more_than_some_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_MAX", 3)
    sessions = ConsoleSessions(60.0)
    cookies = [sessions.begin(login(f"user{number}"))[0] for number in range(4)]
    assert [sessions.find(each) is not None for each in cookies] == [False, True, True, True]


async def test_the_text_against_forged_requests_is_the_sessions_own() -> None:
    sessions = ConsoleSessions(60.0)
    (_, one), (_, other) = sessions.begin(login()), sessions.begin(login())
    assert one.is_csrf(one.csrf)
    assert not one.is_csrf(other.csrf)
    assert not one.is_csrf("")
    assert not one.is_csrf("\udc80")
