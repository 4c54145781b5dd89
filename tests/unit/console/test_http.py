"""The console over a real socket: every route, its errors, and that openapi.json says what is answered."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import Any, NamedTuple

import aiohttp
import pytest

from bmq.console import exposition
from bmq.console.http import HttpBindError, HttpServer, make_app
from bmq.console.state import ConsoleState
from tests.unit.console.states import BROKEN_TOPIC, BUSY_GROUP, state

pytestmark = pytest.mark.slow

OPENAPI: dict[str, Any] = json.loads(files("bmq.console").joinpath("openapi.json").read_bytes())
GETS = {path: operations for path, operations in OPENAPI["paths"].items() if "get" in operations}
EXAMPLES = {"{name}": "orders", "{id}": "billing", "{partition}": "0", "{member}": "broker"}
JSON_TYPES: dict[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        assert self.headers["Content-Type"].startswith("application/json")
        return json.loads(self.body)


def ask(console: ConsoleState, *paths: str, method: str = "GET") -> list[Reply]:
    async def go() -> list[Reply]:
        server = HttpServer(console, "127.0.0.1", 0)
        await server.start()
        try:
            async with aiohttp.ClientSession(server.url) as session:
                return [await fetch(session, method, path) for path in paths]
        finally:
            await server.stop()

    return asyncio.run(go())


async def fetch(session: aiohttp.ClientSession, method: str, path: str) -> Reply:
    async with session.request(method, path) as response:
        return Reply(response.status, dict(response.headers), await response.read())


def path_of(template: str) -> str:
    """Return an address: with examples in its path, and of the parameters that it needs."""
    described = next(iter(OPENAPI["paths"][template].values())).get("parameters", ())
    needed = [each["name"] for each in described if each["required"] and each["in"] == "query"]
    query = "&".join(f"{name}={EXAMPLES[f'{{{name}}}']}" for name in needed)
    for name, value in EXAMPLES.items():
        template = template.replace(name, value)
    return f"{template}?{query}" if query else template


def faults(value: object, schema: dict[str, Any], where: str = "answer") -> list[str]:
    """Return the places where ``value`` breaks the schema, by the part of JSON Schema that openapi.json uses."""
    if "$ref" in schema:
        return faults(value, OPENAPI["components"]["schemas"][schema["$ref"].rpartition("/")[2]], where)
    if "oneOf" in schema:
        fitting = [each for each in schema["oneOf"] if not faults(value, each, where)]
        return [] if len(fitting) == 1 else [f"{where} is {value!r}, which {len(fitting)} alternatives allow"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(JSON_TYPES[kind](value) for kind in kinds):
        return [f"{where} is {value!r}, not {kinds}"]
    found = []
    if isinstance(value, list):
        for position, item in enumerate(value):
            found += faults(item, schema["items"], f"{where}[{position}]")
    if isinstance(value, dict) and "properties" in schema:
        if set(value) != set(schema["required"]):
            found.append(f"{where} has {sorted(value)}, not {sorted(schema['required'])}")
        for name in set(value) & set(schema["properties"]):
            found += faults(value[name], schema["properties"][name], f"{where}.{name}")
    if isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for name, item in value.items():
            found += faults(item, schema["additionalProperties"], f"{where}.{name}")
    return found


def test_openapi_names_exactly_the_routes() -> None:
    app = make_app(state())
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    } - {("get", "/static/{file}")}  # the page's own
    assert routes == {(method, path) for path, operations in OPENAPI["paths"].items() for method in operations}


def test_every_get_answers_what_openapi_says() -> None:
    replies = ask(state(), *map(path_of, GETS))
    for (path, operations), reply in zip(GETS.items(), replies, strict=True):
        assert reply.status == 200, path
        ((content_type, content),) = operations["get"]["responses"]["200"]["content"].items()
        assert reply.headers["Content-Type"].partition(";")[0] == content_type
        if content_type == "application/json":
            assert faults(reply.json, content["schema"]) == [], path


def test_schema_check_finds_faults() -> None:
    """The check above can fail."""
    cluster = {"$ref": "#/components/schemas/Cluster"}
    good = ask(state(), "/api/v1/cluster")[0].json
    assert faults(good, cluster) == []
    assert faults({**good, "extra": 1}, cluster)
    assert faults({**good, "topics": "1"}, cluster)
    assert faults({**good, "partitions_by_state": {"WRITE": None}}, cluster)
    assert faults({**good, "brokers": [{"node_id": 0}]}, cluster)


@pytest.mark.parametrize("path", sorted(GETS))
def test_head_is_answered_without_a_body(path: str) -> None:
    got, head = ask(state(), path_of(path))[0], ask(state(), path_of(path), method="HEAD")[0]
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Type"] == got.headers["Content-Type"]


def test_health_says_why_not() -> None:
    console = replace(
        state(), is_alive=lambda: (False, "the journal's task ended"), is_ready=lambda: (False, "starting")
    )
    alive, ready = ask(console, "/healthz", "/readyz")
    assert (alive.status, alive.json) == (503, {"error": "unavailable", "message": "the journal's task ended"})
    assert (ready.status, ready.json["message"]) == (503, "starting")


def test_a_process_that_serves_a_part_is_ready_and_says_what_does_not_work() -> None:
    console = replace(state(), is_ready=lambda: (True, "groups of shard 3 are not served"))
    (ready,) = ask(console, "/readyz")
    assert (ready.status, ready.json) == (200, {"status": "degraded", "message": "groups of shard 3 are not served"})
    assert ask(state(), "/readyz")[0].json == {"status": "ok", "message": ""}


@pytest.mark.parametrize(
    ("path", "status", "error", "message"),
    [
        ("/api/v1/topics/nothing", 404, "unknown_topic", "'nothing'"),
        ("/api/v1/groups/nobody", 404, "unknown_group", "'nobody'"),
        ("/api/v1/groups/" + BUSY_GROUP, 503, "coordinator_load_in_progress", "is being read"),
        ("/api/v1/transactions/nobody", 404, "unknown_transaction", "`bmq transaction list` shows all"),
        ("/api/v1/transactions/" + BUSY_GROUP, 503, "coordinator_load_in_progress", "is being read"),
        ("/api/v1/transaction", 400, "wrong_parameter", "name the transactional id: ?id=..."),
        ("/api/v1/transactions?state=Open", 400, "wrong_parameter", "choose from Empty, Ongoing"),
        ("/api/v1/transactions?producer_id=x", 400, "wrong_parameter", "is not a number from 0"),
        ("/api/v1/transactions?pattern=" + "a" * 1_001, 400, "wrong_parameter", "1000 at most: shorten it"),
        ("/api/v1/transactions?sort=age_ms", 400, "wrong_parameter", "choose from transactional_id"),
        ("/api/v1/topics/orders/partitions/2/transactions", 404, "unknown_partition", "0 to 1, not 2"),
        ("/elsewhere", 404, "not_found", "/elsewhere"),
    ],
)
def test_errors_are_json(path: str, status: int, error: str, message: str) -> None:
    (reply,) = ask(state(), path)
    assert reply.status == status
    assert reply.json["error"] == error
    assert message in reply.json["message"]
    assert faults(reply.json, {"$ref": "#/components/schemas/Error"}) == []


def test_other_methods_are_refused_as_json() -> None:
    (reply,) = ask(state(), "/api/v1/topics", method="DELETE")
    assert (reply.status, reply.json["error"]) == (405, "method_not_allowed")
    assert reply.headers["Allow"] == "GET,HEAD,POST"


def test_a_fault_of_ours_is_logged_and_told_without_details(caplog: pytest.LogCaptureFixture) -> None:
    broken, well = ask(state(), f"/api/v1/topics/{BROKEN_TOPIC}", "/healthz")
    assert (broken.status, broken.json["error"]) == (500, "internal_error")
    assert b"ZeroDivisionError" not in broken.body
    assert "ZeroDivisionError" in caplog.text
    assert well.status == 200


@pytest.mark.loops("asyncio")
async def test_an_address_in_use_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HttpBindError) as caught:
            await HttpServer(state(), "127.0.0.1", port).start()
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "address already in use" in str(caught.value).lower()
    assert "--http" in str(caught.value)


@pytest.mark.loops("asyncio")
async def test_scrapes_at_once_are_rendered_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrape several times at once: renderings do not overlap, and each scrape gets a whole response."""
    render = exposition.render
    working = threading.Semaphore(1)

    def render_alone(numbers: exposition.Numbers) -> bytes:
        assert working.acquire(blocking=False), "two scrapes are rendered at once"
        try:
            return render(numbers)
        finally:
            working.release()

    async def go() -> list[Reply]:
        server = HttpServer(state(), "127.0.0.1", 0)
        await server.start()
        try:
            async with aiohttp.ClientSession(server.url) as session:
                return await asyncio.gather(*(fetch(session, "GET", "/metrics") for _ in range(20)))
        finally:
            await server.stop()

    monkeypatch.setattr(exposition, "render", render_alone)
    replies = await go()
    assert {reply.status for reply in replies} == {200}
    assert all(b"kafka_server_socketservermetrics_connection_count 0.0" in reply.body for reply in replies)
