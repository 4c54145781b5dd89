"""The schema registry's client against a small server: what is asked, remembered, and bounded."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from bmq.console import schema_registry
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.schemas import HEADER, Schema, to_json
from bmq.core.schema_registry import SchemaError
from tests.unit.console.test_schemas import FILE, SHARED, proto

pytestmark = pytest.mark.loops("asyncio")


class FakeRegistry:
    """Answers by path; `asked` has every request's path with its query."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.user = ""
        self.redirect = False
        self.url = ""

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path_qs)
        if "Authorization" in request.headers:
            self.user = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        if self.redirect:
            raise web.HTTPFound("http://127.0.0.1:1/")
        stored = self.answers.get(request.path_qs)
        if stored is None:
            return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)
        if isinstance(stored, bytes):
            return web.Response(body=stored)
        return web.json_response(stored)


@asynccontextmanager
async def serving_registry(fake: FakeRegistry) -> AsyncIterator[None]:
    """Serve `fake` on this machine, and set its `url`."""
    runner = web.ServerRunner(web.Server(fake.handle), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def registered(fake: FakeRegistry | None = None) -> AsyncIterator[FakeRegistry]:
    registry = fake or FakeRegistry()
    async with serving_registry(registry):
        yield registry


async def one(registry: SchemaRegistry, number: int) -> Schema | SchemaError:
    return (await registry.find([number]))[number]


async def test_a_schema_is_asked_for_once() -> None:
    async with registered() as fake:
        fake.answers["/base/schemas/ids/7"] = {"schema": '"string"'}
        registry = SchemaRegistry(f"{fake.url.replace('//', '//u:p%40@')}/base/")
        found = await one(registry, 7)
        assert isinstance(found, Schema)
        assert to_json(found, HEADER.pack(0, 7) + b"\x02a") == '"a"'
        assert await one(registry, 7) is found
        assert fake.asked == ["/base/schemas/ids/7"]
        assert fake.user == "u:p@"
        assert "p@" not in repr(registry)
        await registry.close()


async def test_references_are_fetched_before_what_refers_to_them() -> None:
    async with registered() as fake:
        reference = {"name": "air/carrier.proto", "subject": "air/carrier.proto", "version": 2}
        for path, file, references in (
            ("/schemas/ids/1", FILE, [reference]),
            ("/subjects/air%2Fcarrier.proto/versions/2", SHARED, []),
        ):
            stored = {"schemaType": "PROTOBUF", "schema": "text", "references": references}
            fake.answers[path] = stored
            fake.answers[f"{path}?format=serialized"] = {**stored, "schema": proto(file)}
        registry = SchemaRegistry(fake.url)
        found = await one(registry, 1)
        assert isinstance(found, Schema), found
        assert json.loads(to_json(found, HEADER.pack(0, 1) + b"\x00\x12\x03\x0a\x01U")) == {"c": {"name": "U"}}
        await registry.close()


async def test_schemas_that_refer_to_each_other_end() -> None:
    async with registered() as fake:
        loop = [{"name": "a", "subject": "a", "version": 1}]
        fake.answers["/schemas/ids/1"] = {"schema": '"a"', "references": loop}
        fake.answers["/subjects/a/versions/1"] = {"schema": '"a"', "references": loop}
        registry = SchemaRegistry(fake.url)
        assert "refers to itself" in str(await one(registry, 1))
        await registry.close()


async def test_a_failure_is_remembered_for_a_while() -> None:
    async with registered() as fake:
        now = 0.0
        registry = SchemaRegistry(fake.url, lambda: now)
        assert "404: Schema not found" in str(await one(registry, 7))
        fake.answers["/schemas/ids/7"] = {"schema": '"int"'}
        assert isinstance(await one(registry, 7), SchemaError)
        now = schema_registry.FAILED_S + 1
        assert isinstance(await one(registry, 7), Schema)
        assert len(fake.asked) == 2
        await registry.close()


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"no json", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "has no schema"),
        ({"schemaType": "AVRO"}, "has no schema"),
        ({"schema": "{}", "references": [{"name": "x"}]}, "has no schema"),
        ({"schema": "{}"}, "cannot be used"),
        (base64.b64encode(bytes(1 << 20)), "is over 1048576 bytes"),
    ],
)
async def test_responses_that_are_none(response: Any, message: str) -> None:
    async with registered() as fake:
        fake.answers["/schemas/ids/7"] = response
        registry = SchemaRegistry(fake.url)
        assert message in str(await one(registry, 7))
        await registry.close()


async def test_redirects_are_not_followed() -> None:
    async with registered() as fake:
        fake.redirect = True
        registry = SchemaRegistry(fake.url)
        assert "responded 302" in str(await one(registry, 7))
        await registry.close()


@pytest.mark.slow
@pytest.mark.leaves_tasks  # the requests that the server does not answer
async def test_a_registry_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "REQUEST_S", 0.05)

    class Silent(FakeRegistry):
        async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
            await asyncio.Event().wait()
            raise AssertionError

    async with registered(Silent()) as fake:
        registry = SchemaRegistry(fake.url)
        assert "did not answer within" in str(await one(registry, 7))
        await registry.close()
        registry = SchemaRegistry("http://127.0.0.1:1")
        assert "cannot be reached" in str(await one(registry, 7))
        await registry.close()


@pytest.mark.slow
@pytest.mark.leaves_tasks  # the requests that the server does not answer
async def test_a_registry_that_hangs_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time out at the registry: if each id of a page of records waited, the page would never come."""
    timeouts: list[asyncio.Timeout] = []

    def timeout(delay: float) -> asyncio.Timeout:
        """Return one that ends when the test says so, however slow the machine is."""
        timeouts.append(asyncio.timeout(None))
        return timeouts[-1]

    monkeypatch.setattr(schema_registry, "asyncio", SimpleNamespace(**{**vars(asyncio), "timeout": timeout}))

    class Hanging(FakeRegistry):
        hangs = True

        async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
            if self.hangs or request.path == "/schemas/ids/99":
                self.asked.append(request.path_qs)
                await asyncio.Event().wait()
            return await super().handle(request)

    fake = Hanging()

    async def asked(times: int) -> None:
        while len(fake.asked) < times:  # noqa: ASYNC110 - real sockets
            await asyncio.sleep(0.001)

    async with registered(fake):
        now = 0.0
        registry = SchemaRegistry(fake.url, lambda: now)
        finding = asyncio.create_task(registry.find(range(50)))
        await asked(schema_registry.PARALLEL)
        for each in timeouts:
            each.reschedule(0.0)
        found = await finding
        assert {str(each) for each in found.values()} == {"the schema registry did not answer within 5 s"}
        assert len(fake.asked) == len(timeouts) == schema_registry.PARALLEL
        now, fake.hangs = schema_registry.FAILED_S + 1, False
        fake.answers = {f"/schemas/ids/{number}": {"schema": '"int"'} for number in range(50)}
        finding = asyncio.create_task(registry.find([99, *range(50)]))
        await asked(schema_registry.PARALLEL + 51)
        timeouts[schema_registry.PARALLEL].reschedule(0.0)
        found = await finding
        assert [number for number, each in found.items() if isinstance(each, SchemaError)] == [99]
        assert isinstance(await one(registry, 49), Schema), "one that hangs among others that are answered"
        await registry.close()


async def test_schemas_that_nobody_asks_for_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "SCHEMAS_MAX", 2)

    async with registered() as fake:
        for number in range(4):
            fake.answers[f"/schemas/ids/{number}"] = {"schema": '"int"'}
        registry = SchemaRegistry(fake.url)
        for number in (0, 1, 0, 2, 0, 3, 0):
            assert isinstance(await one(registry, number), Schema)
        assert "schemas=2" in repr(registry)
        assert fake.asked.count("/schemas/ids/0") == 1
        await registry.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "registry:8081",
        "ftp://r",
        "http://",
        "http://r/?a=b",
        "http://u:secret@/",
        "http://u:secret@h:99999",
        "http://u:secret@h:x",
        "http://[::1",
        "http://u:secret@a\u2100b:8081",
    ],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ValueError, match="schema_registry_url is not like") as refused:
        SchemaRegistry(url)
    assert "secret" not in str(refused.value)
