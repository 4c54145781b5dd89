"""A job's requests over a real socket: passed on whole, refused before, or refused with what to do."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from bmq.console.cleaning_api import BODY_BYTES_MAX
from bmq.console.http import HttpServer
from bmq.core.errors import ErrorCode, RequestError
from bmq.storage.cleaning.job_round import GROUPS_MAX
from tests.unit.console.posting import JSON
from tests.unit.console.served import TOPIC, create, serving
from tests.unit.console.states import CLEANING_ROUND, FakeOperations, state
from tests.unit.console.test_http import OPENAPI, faults

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

TEMPLATE = "/api/v1/topics/{name}/partitions/{partition}/cleaning"
PATH = "/api/v1/topics/orders/partitions/1/cleaning"
GROUP = {"name": "n", "end_offset": 9, "sources": "ab", "draft": "/d", "draft_index": "/i"}
GROUPS = [GROUP, {**GROUP, "end_offset": 12}]
SWAP = {"job": "j-1", "end": 9, "swap_until_ms": 5, "groups": GROUPS}
BODIES: dict[str, Any] = {"POST": {"job": "j-1"}, "PUT": SWAP, "DELETE": {"job": "j-1"}}


async def ask(
    operations: FakeOperations, method: str, body: object, path: str = PATH, length: int = 0
) -> tuple[int, Any]:
    """Return status and JSON of the response, which is as openapi.json says.  ``length``: least bytes of the body."""
    server = HttpServer(state(operations=operations), "127.0.0.1", 0)
    await server.start()
    try:
        async with (
            aiohttp.ClientSession(server.url) as session,
            session.request(method, path, data=json.dumps(body).encode().ljust(length), headers=JSON) as response,
        ):
            found = await response.json()
    finally:
        await server.stop()
    described = OPENAPI["paths"][TEMPLATE][method.lower()]["responses"][str(response.status)]
    assert faults(found, described["content"]["application/json"]["schema"]) == []
    return response.status, found


@pytest.mark.parametrize(
    ("method", "asked", "response"),
    [
        ("POST", ("begin_cleaning", "orders", 1, "j-1"), CLEANING_ROUND),
        (
            "PUT",
            ("swap_cleaned", "orders", 1, "j-1", 9, 5, *GROUPS),
            {"swapped": 2, "expired": 0, "stopped": None},
        ),
        ("DELETE", ("end_cleaning", "orders", 1, "j-1"), {"job": "j-1"}),
    ],
)
async def test_a_request_is_passed_on(method: str, asked: tuple[object, ...], response: Any) -> None:
    operations = FakeOperations()
    assert await ask(operations, method, BODIES[method]) == (200, response)
    assert operations.asked == [asked]


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("POST", {"job": "A"}),
        ("POST", {"job": "../x"}),
        ("POST", {"job": "x" * 65}),
        ("POST", {"job": "x\n"}),
        ("DELETE", {"job": ""}),
        ("PUT", {"end": "9"}),
        ("PUT", {"swap_until_ms": None}),
        ("PUT", {"groups": [GROUP] * (GROUPS_MAX + 1)}),
        ("PUT", {"groups": [{**GROUP, "more": 1}]}),
        ("PUT", {"groups": [{**GROUP, "draft": 1}]}),
        ("PUT", {"groups": [{**GROUP, "draft": "x" * 701}]}),
        ("PUT", {"groups": [{**GROUP, "end_offset": True}]}),
        ("PUT", {"groups": "all"}),
    ],
)
async def test_a_wrong_body_is_refused(method: str, changes: dict[str, Any]) -> None:
    operations = FakeOperations()
    status, found = await ask(operations, method, {**BODIES[method], **changes})
    assert (status, found["error"], operations.asked) == (400, "wrong_value", [])


async def test_the_longest_request_fits_and_a_longer_one_does_not() -> None:
    path = "/topics/" + "t" * 249 + f"/{'0' * 36}/123456789/.compact-{'j' * 64}/" + "f" * 200
    group = {"name": "0" * 60, "end_offset": 1 << 62, "sources": "0" * 64, "draft": path, "draft_index": path}
    operations = FakeOperations()
    assert (await ask(operations, "PUT", {**SWAP, "groups": [group] * GROUPS_MAX}))[0] == 200
    assert (await ask(operations, "PUT", SWAP, length=BODY_BYTES_MAX))[0] == 200
    assert (await ask(operations, "PUT", SWAP, length=BODY_BYTES_MAX + 1))[0] == 413
    assert len(operations.asked) == 2


@pytest.mark.parametrize("method", sorted(BODIES))
async def test_an_unknown_topic_or_partition_is_404(method: str) -> None:
    operations = FakeOperations()
    for path in (PATH.replace("orders", "none"), PATH.replace("/1/", "/2/"), PATH.replace("/1/", "/x/")):
        assert (await ask(operations, method, BODIES[method], path))[0] == 404
    assert operations.asked == []


@pytest.mark.parametrize("method", sorted(BODIES))
@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        (ErrorCode.OPERATION_NOT_ATTEMPTED, 409, "why"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, 503, "why; try again"),
        (ErrorCode.BROKER_NOT_AVAILABLE, 503, "why; try again; if its process hangs, end it with a signal"),
        (ErrorCode.UNSUPPORTED_VERSION, 501, "why; finish the upgrade first"),
    ],
)
async def test_a_refusal_says_what_to_do(method: str, code: ErrorCode, status: int, message: str) -> None:
    found = await ask(FakeOperations(fails=RequestError(code, "why")), method, BODIES[method])
    assert found[0] == status
    assert found[1]["message"] == message


async def test_a_whole_process_refuses_a_partition_that_its_janitor_has_not_noticed() -> None:
    async with serving() as api:
        await create(api)
        place = f"{TOPIC}/partitions/{{partition}}/cleaning?name=orders&partition=0"
        for method in ("POST", "PUT"):
            status, found = await api(method, place, {**SWAP, "groups": []} if method == "PUT" else BODIES[method])
            assert (status, found["error"]) == (503, "not_leader_or_follower")
            assert "opened some seconds ago; try again" in found["message"]
