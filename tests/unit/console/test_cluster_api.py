"""Operators' acts over a real socket: each is passed on, refused before, or refused with advice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from bmq.console.http import HttpServer
from bmq.console.operations import NotPossible
from bmq.core.errors import ErrorCode, RequestError
from tests.unit.console.posting import BODIES, JSON, post
from tests.unit.console.states import PROCESS, REPAIRED, FakeOperations, state
from tests.unit.console.test_http import OPENAPI, faults

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({}, 200),
    ],
)
async def test_a_page_of_another_site_cannot_set_a_log_level(headers: Mapping[str, str], status: int) -> None:
    operations = FakeOperations()
    path = "/api/v1/members/broker/log-level"

    sent = json.dumps({"logger": "bmq", "level": "debug"}).encode()
    server = HttpServer(state(operations=operations), "127.0.0.1", 0)
    await server.start()
    try:
        async with (
            aiohttp.ClientSession(server.url) as session,
            session.put(path, data=sent, headers={**JSON, **headers}) as response,
        ):
            assert response.status == status
    finally:
        await server.stop()
    assert operations.asked == ([("set_log_level", "broker", "bmq", "debug")] if status == 200 else [])
    assert str(status) in OPENAPI["paths"]["/api/v1/members/{member}/log-level"]["put"]["responses"]


@pytest.mark.parametrize(
    ("act", "asked", "response"),
    [
        ("drain", ("drain", "broker"), {"member": PROCESS["incarnation"], "partitions": 7, "shards": 3}),
        ("balance", ("balance",), {"moves": 4}),
        (
            "move",
            ("move", "orders", 1, "broker"),
            {"topic": "orders", "partition": 1, "member": PROCESS["incarnation"]},
        ),
        ("repair", ("repair", False, "orders", 1, "skip", False, True, False, False), REPAIRED),
    ],
)
async def test_an_act_is_passed_on_and_its_response_is_as_openapi_says(
    act: str, asked: tuple[object, ...], response: dict[str, Any]
) -> None:
    operations = FakeOperations()
    reply = await post(operations, act, BODIES[act])
    assert operations.asked == [asked]
    assert reply.json == response
    described = OPENAPI["paths"][f"/api/v1/cluster/{act}"]["post"]
    responses = described["responses"]
    assert faults(reply.json, responses[str(reply.status)]["content"]["application/json"]["schema"]) == []
    assert faults(BODIES[act], described["requestBody"]["content"]["application/json"]["schema"]) == []


async def test_balance_needs_no_body() -> None:
    assert (await post(FakeOperations(), "balance", data=b"")).json == {"moves": 4}


@pytest.mark.parametrize("act", sorted(BODIES))
@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({"Content-Type": "text/plain"}, 415, "unsupported_media_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "unsupported_media_type"),
        ({"Origin": "http://elsewhere.example"}, 403, "from_another_site"),
        ({"Origin": "null"}, 403, "from_another_site"),
    ],
)
async def test_a_request_that_a_web_page_could_send_is_refused(
    act: str, headers: dict[str, str], status: int, error: str
) -> None:
    operations = FakeOperations()
    reply = await post(operations, act, BODIES[act], headers=headers)
    assert (reply.status, reply.json["error"], operations.asked) == (status, error, [])
    assert str(status) in OPENAPI["paths"][f"/api/v1/cluster/{act}"]["post"]["responses"]


@pytest.mark.parametrize(
    ("fails", "status", "error", "message"),
    [
        (NotPossible(409, "ambiguous_member", "two are"), 409, "ambiguous_member", "two are"),
        (
            RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "There is no partition orders-9."),
            404,
            "unknown_topic_or_partition",
            "There is no partition orders-9; `bmq topic list` shows",
        ),
        (
            RequestError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "b is not a broker that stays."),
            409,
            "invalid_replica_assignment",
            "b is not a broker that stays; name a member",
        ),
        (RequestError(ErrorCode.REQUEST_TIMED_OUT, "no controller"), 503, "request_timed_out", "then try again"),
        (RequestError(ErrorCode.NOT_CONTROLLER, ""), 503, "not_controller", "the leader is changing"),
        (RequestError(ErrorCode.UNKNOWN_SERVER_ERROR, "odd"), 500, "unknown_server_error", "odd; the log"),
    ],
)
@pytest.mark.parametrize("act", sorted(BODIES))
async def test_a_refusal_says_what_to_do(act: str, fails: Exception, status: int, error: str, message: str) -> None:
    reply = await post(FakeOperations(fails), act, BODIES[act])
    assert (reply.status, reply.json["error"]) == (status, error)
    assert message in reply.json["message"]
    assert faults(reply.json, {"$ref": "#/components/schemas/Error"}) == []
