"""The console's log-in over a real socket: its cookie, its guard against forged requests, its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bmq.core.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from tests.unit.console.access.users import Acls, Users, serving
from tests.unit.console.states import NOW_MS, FakeOperations, state
from tests.unit.console.test_http import faults

pytestmark = pytest.mark.loops("asyncio")
ME = {"$ref": "#/components/schemas/Me"}


async def test_a_cookie_lets_the_page_in_until_it_logs_out() -> None:
    async with serving(Users().config()) as browser:
        assert (await browser("GET", "/api/v1/login")).json == {"schemes": ["basic", "bearer"]}
        page, reply = await browser.log_in()
        assert faults(reply.json, ME) == []
        assert (reply.json["principal"], reply.json["has_to_log_in"]) == ("User:alice", True)
        assert 0 <= NOW_MS + 8 * 3600_000 - reply.json["expires_ms"] < 60_000
        me = (await browser("GET", "/api/v1/me", headers=page)).json
        assert (me["principal"], me["csrf"]) == ("User:alice", page["X-CSRF-Token"])
        assert (await browser("POST", "/api/v1/cluster/balance", {}, headers=page)).status == 200
        out = await browser("DELETE", "/api/v1/login", headers=page)
        assert (out.status, out.headers["Set-Cookie"].split(";")[0]) == (200, f'bmq-{browser.server.port}=""')
        assert (await browser("GET", "/api/v1/me", headers=page)).status == 401


async def test_the_cookie_is_for_this_port_and_no_script() -> None:
    async with serving(Users().config()) as browser:
        _, reply = await browser.log_in()
        name, *parts = reply.headers["Set-Cookie"].split("; ")
        assert name.startswith(f"bmq-{browser.server.port}=")
        assert sorted(parts) == ["HttpOnly", "Path=/", "SameSite=Strict"]


@pytest.mark.slow
async def test_a_token_logs_in_too() -> None:
    users = Users()
    async with serving(users.config()) as browser:
        reply = await browser("POST", "/api/v1/login", {"token": "a-good-token"})
        assert (reply.status, reply.json["mechanism"]) == (200, "OAUTHBEARER")
        assert (await browser("POST", "/api/v1/login", {"token": "another"})).status == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"user": "alice"},
        {"password": "x"},
        {"user": "a", "password": "x", "token": "t"},
        {"token": ""},
        {"user": 1},
    ],
)
async def test_a_login_has_a_password_or_a_token(body: object) -> None:
    async with serving(Users().config()) as browser:
        assert (await browser("POST", "/api/v1/login", body)).status == 400


@pytest.mark.slow
async def test_a_wrong_password_sets_no_cookie() -> None:
    users = Users()
    async with serving(users.config()) as browser:
        for name, password in (("alice", "guess"), ("nobody", "x"), ("alice:wonder", "land")):
            reply = await browser("POST", "/api/v1/login", {"user": name, "password": password})
            assert (reply.status, reply.json["error"]) == (401, "not_authenticated")
            assert "Set-Cookie" not in reply.headers


async def test_a_page_without_the_sessions_text_changes_nothing() -> None:
    operations = FakeOperations()
    async with serving(Users().config(), state(operations=operations)) as browser:
        page, _ = await browser.log_in()
        other, _ = await browser.log_in()
        for text in (None, "", "guess", other["X-CSRF-Token"]):
            headers = {"Cookie": page["Cookie"]} | ({} if text is None else {"X-CSRF-Token": text})
            reply = await browser("POST", "/api/v1/cluster/balance", {}, headers=headers)
            assert (reply.status, reply.json["error"]) == (403, "forged_request")
            assert (await browser("DELETE", "/api/v1/topics/orders", headers=headers)).status == 403
            assert (await browser("GET", "/api/v1/me", headers=headers)).status == 200, "reading needs no text"
        assert operations.asked == []
        elsewhere = await browser(
            "POST", "/api/v1/cluster/balance", {}, headers={**page, "Origin": "http://evil.example"}
        )
        assert (elsewhere.status, elsewhere.json["error"]) == (403, "from_another_site")
        assert operations.asked == []


async def test_the_page_is_not_asked_by_a_scheme_that_opens_a_dialog() -> None:
    async with serving(Users().config()) as browser:
        reply = await browser("GET", "/api/v1/me", headers={"X-CSRF-Token": ""})
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, 'Session realm="BMQ"')


async def test_an_unknown_cookie_is_none() -> None:
    async with serving(Users().config()) as browser:
        cookie = {"Cookie": f"bmq-{browser.server.port}=guess"}
        assert (await browser("GET", "/api/v1/me", headers=cookie)).status == 401
        assert (await browser("DELETE", "/api/v1/login", headers=cookie)).status == 200


@pytest.mark.slow
async def test_a_session_ends_with_its_time_and_its_password() -> None:
    users = Users()
    async with serving(users.config(session_s=0.2)) as browser:
        page, _ = await browser.log_in()
        await asyncio.sleep(0.25)
        assert (await browser("GET", "/api/v1/me", headers=page)).status == 401
    async with serving(users.config()) as browser:
        page, _ = await browser.log_in()
        users.passwords["alice"] = "changed"
        assert (await browser("GET", "/api/v1/me", headers=page)).status == 401


@pytest.mark.slow
async def test_logging_in_again_ends_the_session_before() -> None:
    async with serving(Users().config()) as browser:
        before, _ = await browser.log_in()
        body = {"user": "bob", "password": "builder"}
        after = await browser("POST", "/api/v1/login", body, headers={"Cookie": before["Cookie"]})
        assert after.json["principal"] == "User:bob"
        assert (await browser("GET", "/api/v1/me", headers=before)).status == 401


async def test_me_says_what_the_user_may_do() -> None:
    acls = Acls(
        [
            ("alice", AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME),
            ("alice", AclOperation.READ, ResourceType.TOPIC, "orders"),
            ("alice", AclOperation.DELETE, ResourceType.GROUP, "billing"),
        ]
    )
    async with serving(Users().config(), replace(state(), authorizer=acls)) as browser:
        page, _ = await browser.log_in()
        me = (await browser("GET", "/api/v1/me?topic=orders&group=billing", headers=page)).json
        assert faults(me, ME) == []
        assert (me["cluster"], me["topic"], me["group"]) == (["DESCRIBE"], ["READ"], ["DELETE"])
        assert me["may_create_topics"] is False
        assert (await browser("GET", "/api/v1/me?topic=other", headers=page)).json["topic"] == []
        assert (await browser("GET", "/api/v1/me", headers=page)).json["topic"] is None
        acls.grants.add(("alice", AclOperation.CREATE, ResourceType.TOPIC, "mine-"))
        assert (await browser("GET", "/api/v1/me", headers=page)).json["may_create_topics"] is True
