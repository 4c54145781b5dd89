"""Operators' acts over a real socket: what is passed on, what is answered, and what is refused before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import pytest

from bmq.console import queries
from bmq.console.http import HttpServer
from bmq.console.operations import NotPossible
from bmq.console.queries import BODY_BYTES_MAX
from bmq.core.errors import ErrorCode, RequestError
from tests.unit.console.states import PROCESS, REPAIRED, FakeOperations, state
from tests.unit.console.test_http import OPENAPI, Reply, faults

pytestmark = pytest.mark.slow

JSON = {"Content-Type": "application/json"}
MOVE = {"topic": "orders", "partition": 1, "member": "broker"}
REPAIR = {
    "topic": "orders",
    "partition": 1,
    "choice": "skip",
    "records": False,
    "all": True,
    "unreadable_is_lost": False,
    "apply": False,
}
BODIES: dict[str, dict[str, Any]] = {
    "drain": {"member": "broker"},
    "balance": {},
    "move": MOVE,
    "repair": REPAIR,
}


@pytest.mark.loops("asyncio")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({}, 200),
    ],
)
async def test_a_log_level_is_set_by_no_page_of_another_site(headers: Mapping[str, str], status: int) -> None:
    operations = FakeOperations()
    path = "/api/v1/members/broker/log-level"

    async def go() -> int:
        server = HttpServer(state(operations=operations), "127.0.0.1", 0)
        await server.start()
        try:
            async with (
                aiohttp.ClientSession(server.url) as session,
                session.put(
                    path, data=json.dumps({"logger": "bmq", "level": "debug"}).encode(), headers={**JSON, **headers}
                ) as response,
            ):
                return response.status
        finally:
            await server.stop()

    assert await go() == status
    assert operations.asked == ([("set_log_level", "broker", "bmq", "debug")] if status == 200 else [])
    assert str(status) in OPENAPI["paths"]["/api/v1/members/{member}/log-level"]["put"]["responses"]


def post(
    operations: FakeOperations,
    act: str,
    body: object = None,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    sent = data if data is not None else json.dumps(body).encode()
    named = {**JSON, **(headers or {})}

    async def go() -> Reply:
        server = HttpServer(state(operations=operations), "127.0.0.1", 0)
        await server.start()
        try:
            async with (
                aiohttp.ClientSession(server.url) as session,
                session.post(f"/api/v1/cluster/{act}", data=sent, headers=named) as response,
            ):
                return Reply(response.status, dict(response.headers), await response.read())
        finally:
            await server.stop()

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("act", "asked", "answer"),
    [
        ("drain", ("drain", "broker"), {"member": PROCESS["incarnation"], "partitions": 7, "shards": 3}),
        ("balance", ("balance",), {"moves": 4}),
        (
            "move",
            ("move", "orders", 1, "broker"),
            {"topic": "orders", "partition": 1, "member": PROCESS["incarnation"]},
        ),
        ("repair", ("repair", "orders", 1, "skip", False, True, False, False), REPAIRED),
    ],
)
def test_an_act_is_passed_on_and_answered_as_openapi_says(
    act: str, asked: tuple[object, ...], answer: dict[str, Any]
) -> None:
    operations = FakeOperations()
    reply = post(operations, act, BODIES[act])
    assert operations.asked == [asked]
    assert reply.json == answer
    described = OPENAPI["paths"][f"/api/v1/cluster/{act}"]["post"]
    responses = described["responses"]
    assert faults(reply.json, responses[str(reply.status)]["content"]["application/json"]["schema"]) == []
    assert faults(BODIES[act], described["requestBody"]["content"]["application/json"]["schema"]) == []


def test_balance_needs_no_body() -> None:
    assert post(FakeOperations(), "balance", data=b"").json == {"moves": 4}


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
def test_what_a_web_page_could_send_is_refused(act: str, headers: dict[str, str], status: int, error: str) -> None:
    operations = FakeOperations()
    reply = post(operations, act, BODIES[act], headers=headers)
    assert (reply.status, reply.json["error"], operations.asked) == (status, error, [])
    assert str(status) in OPENAPI["paths"][f"/api/v1/cluster/{act}"]["post"]["responses"]


@pytest.mark.parametrize(
    ("act", "data", "error", "told"),
    [
        ("move", b"", "no_json", "not JSON"),
        ("move", b"{", "no_json", "not JSON"),
        ("move", b"\xff", "no_json", "not JSON"),
        ("move", b"[" * BODY_BYTES_MAX, "no_json", "not JSON"),
        ("move", b"[]", "wrong_fields", '"topic", "partition", "member"'),
        ("move", json.dumps({**MOVE, "force": True}).encode(), "wrong_fields", "exactly these fields"),
        ("drain", b"{}", "wrong_fields", '"member"'),
        ("balance", b'{"now": 1}', "wrong_fields", "none"),
        ("drain", b'{"member": 7}', "wrong_value", '"member" is 7, not a text'),
        ("drain", b'{"member": ""}', "wrong_value", "not a text"),
        ("move", json.dumps({**MOVE, "partition": -1}).encode(), "wrong_value", "not a number from 0 to 2147483647"),
        ("move", json.dumps({**MOVE, "partition": 1 << 31}).encode(), "wrong_value", "not a number from 0"),
        ("move", json.dumps({**MOVE, "partition": True}).encode(), "wrong_value", "not a number from 0"),
        ("move", json.dumps({**MOVE, "partition": 1.5}).encode(), "wrong_value", "not a number from 0"),
    ],
)
def test_a_body_that_is_not_what_it_should_be(act: str, data: bytes, error: str, told: str) -> None:
    operations = FakeOperations()
    reply = post(operations, act, data=data)
    assert (reply.status, reply.json["error"], operations.asked) == (400, error, [])
    assert told in reply.json["message"]


def test_a_body_is_bounded() -> None:
    operations = FakeOperations()
    reply = post(operations, "drain", data=b" " * (BODY_BYTES_MAX + 1))
    assert (reply.status, reply.json["error"], operations.asked) == (413, "too_large", [])


@pytest.mark.loops("asyncio")
@pytest.mark.leaves_tasks  # the request whose body does not come
async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> bytes:
        server = HttpServer(state(), "127.0.0.1", 0)
        await server.start()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = "POST /api/v1/cluster/drain HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 9\r\n\r\n{{".encode())
            status = await reader.readline()
            writer.close()
            return status
        finally:
            await server.stop()

    monkeypatch.setattr(queries, "BODY_TIMEOUT_S", 0.05)
    assert b" 408 " in await go()


@pytest.mark.parametrize(
    ("fails", "status", "error", "told"),
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
def test_a_refusal_says_what_to_do(act: str, fails: Exception, status: int, error: str, told: str) -> None:
    reply = post(FakeOperations(fails), act, BODIES[act])
    assert (reply.status, reply.json["error"]) == (status, error)
    assert told in reply.json["message"]
    assert faults(reply.json, {"$ref": "#/components/schemas/Error"}) == []
