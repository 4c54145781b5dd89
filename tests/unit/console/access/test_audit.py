"""The audit log of the HTTP port: log-ins, denials and administrative requests, over a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bmq.console.access.audit import BY_KAFKA, BY_ROUTE, NOT_ADMINISTRATIVE
from bmq.console.access.rights import RIGHTS
from bmq.core.security.acls import CLUSTER_NAME, AclOperation, ResourceType
from tests.harness.audit import HeldAudit
from tests.unit.console.access.users import PASSWORDS, TOKEN, Acls, Browser, Users, serving
from tests.unit.console.posting import MOVE
from tests.unit.console.states import state

pytestmark = pytest.mark.loops("asyncio")
ALICE = f"alice:{PASSWORDS['alice']}"
ALTER = ("alice", AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
DESCRIBE = ("alice", AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)


@asynccontextmanager
async def audited(*grants: Any) -> AsyncIterator[tuple[Browser, HeldAudit]]:
    audit = HeldAudit()
    console = replace(state(), authorizer=Acls(grants), audit=audit)
    async with serving(Users().config(failed_login_delay_s=0.0), console) as browser:
        yield browser, audit


def taken(audit: HeldAudit) -> list[tuple[str, str, str, str]]:
    """Return kind, act, outcome and principal, and forget them."""
    found, audit.events = audit.events, []
    return [(each.kind.value, each.act, each.outcome.value, str(each.session.principal)) for each in found]


def test_every_route_that_may_change_something_is_decided() -> None:
    changing = {route for route in RIGHTS if route[0] != "GET"}
    assert changing == BY_ROUTE | BY_KAFKA | NOT_ADMINISTRATIVE
    assert len(BY_ROUTE) + len(BY_KAFKA) + len(NOT_ADMINISTRATIVE) == len(changing)


async def test_a_login_is_told_once_while_it_is_kept() -> None:
    async with audited(DESCRIBE) as (browser, audit):
        for _ in range(3):
            assert (await browser("GET", "/api/v1/cluster", basic=ALICE)).status == 200
        assert taken(audit) == [("login", "LOGIN", "allowed", "User:alice")]
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert (await browser("GET", "/api/v1/cluster", headers=bearer)).status == 200
        assert taken(audit) == [("login", "LOGIN", "allowed", "User:alice")]


async def test_a_wrong_login_and_a_missing_one_are_denied() -> None:
    async with audited() as (browser, audit):
        assert (await browser("GET", "/api/v1/cluster", basic="alice:guess")).status == 401
        (event,) = audit.events
        assert event.reason == "wrong credentials (basic)"
        assert "guess" not in str(event)
        assert taken(audit) == [("login", "LOGIN", "denied", "User:ANONYMOUS")]
        assert (await browser("GET", "/api/v1/cluster")).status == 401
        assert taken(audit) == [("login", "GET /api/v1/cluster", "denied", "User:ANONYMOUS")]


async def test_sessions_of_the_console_begin_and_end() -> None:
    async with audited() as (browser, audit):
        cookie, _ = await browser.log_in()
        assert taken(audit) == [
            ("login", "LOGIN", "allowed", "User:alice"), ("login", "POST /api/v1/login", "allowed", "User:alice"),
        ]  # fmt: skip
        cookie["X-CSRF-Token"] = "forged"
        assert (await browser("POST", "/api/v1/cluster/move", MOVE, headers=cookie)).status == 403
        assert taken(audit) == [("denial", "POST /api/v1/cluster/move", "denied", "User:alice")]
        assert (await browser("DELETE", "/api/v1/login", headers=cookie)).status == 200
        assert taken(audit) == [("login", "LOGOUT", "allowed", "User:alice")]
        await browser("DELETE", "/api/v1/login", headers=cookie)
        assert taken(audit) == [], "it had ended already"


async def test_a_denial_has_the_right_that_was_needed() -> None:
    async with audited() as (browser, audit):
        assert (await browser("POST", "/api/v1/cluster/move", MOVE, basic=ALICE)).status == 403
        login, denial = audit.events
        assert login.act == "LOGIN"
        assert (denial.kind.value, denial.act, denial.operation, denial.resource_type, denial.resource) == (
            "denial", "POST /api/v1/cluster/move", "ALTER", "CLUSTER", CLUSTER_NAME,
        )  # fmt: skip
        assert denial.address == "127.0.0.1"


async def test_an_administrative_request_is_an_act_with_what_it_named() -> None:
    async with audited(ALTER) as (browser, audit):
        await browser("POST", "/api/v1/cluster/move", MOVE, basic=ALICE)
        _, act = audit.events
        assert (act.kind.value, act.act, act.outcome.value) == ("act", "POST /api/v1/cluster/move", "allowed")
        assert act.changed == MOVE
        taken(audit)
        assert (await browser("POST", "/api/v1/cluster/move", {"topic": "t"}, basic=ALICE)).status == 400
        (event,) = audit.events
        assert (event.outcome.value, event.error) == ("failed", "wrong_fields")


async def test_a_jobs_request_is_an_act_on_its_topic_without_the_groups() -> None:
    body = {"job": "j-1", "end": 9, "swap_until_ms": 1, "groups": []}
    path = "/api/v1/topics/{name}/partitions/{partition}/cleaning"
    async with audited(("alice", AclOperation.ALTER, ResourceType.TOPIC, "orders")) as (browser, audit):
        filled = path.format(name="orders", partition=1)
        assert (await browser("PUT", filled, body, basic=ALICE)).status == 200
        _, act = audit.events
        assert (act.kind.value, act.act, act.outcome.value) == ("act", f"PUT {path}", "allowed")
        assert (act.operation, act.resource_type, act.resource) == ("ALTER", "TOPIC", "orders")
        assert act.changed == {"partition": "1", "job": "j-1", "end": 9}


async def test_reading_writes_nothing() -> None:
    async with audited(DESCRIBE) as (browser, audit):
        await browser("GET", "/api/v1/cluster", basic=ALICE)
        taken(audit)
        for path in ("/api/v1/cluster", "/api/v1/topics", "/", "/healthz", "/api/v1/login", "/metrics"):
            assert (await browser("GET", path, basic=ALICE)).status == 200
        assert taken(audit) == []
