"""Hostile parameters and bodies, of every path: a described refusal or an answer, never a fault of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from bmq.console.http import HttpServer
from tests.unit.console.states import state
from tests.unit.console.test_http import OPENAPI, faults, path_of

pytestmark = pytest.mark.slow

VALUES = ("", "-1", "0", "1", "9" * 40, "1e9", "٣", "\ud7ff", "../..", "a" * 3000, "null", "%00", "<script>", "true")
BODIES: tuple[Any, ...] = (
    None, [], {}, 7, "x", {"name": None}, {"name": ""}, {"name": "t", "configs": {"a": 1}}, {"to": "earliest"},
    {"name": "t", "partitions": -1}, {"to": "offset", "value": 1 << 70}, {"to": "shift", "value": True},
    {"partitions": 1.5}, {"set": [], "delete": {}}, {"name": "\ud800"}, {"set": {"\ud800": "x"}},
    {"topics": [{"topic": "orders", "partitions": [-1]}], "to": "latest"},
    {"value": "x", "headers": [{"key": "\ud800", "value": None}]}, {"headers": [{"key": "k", "value": "\udfff"}]},
    {"key": 1}, {"value": "x", "value_format": "hex"}, {"value": "x", "headers": [{"key": "h"}]}, {"partition": 99},
)  # fmt: skip


def questions() -> Iterator[tuple[str, str, str, dict[str, str], Any]]:
    """Yield (method, template, path, parameters, body)."""
    for template, operations in OPENAPI["paths"].items():
        for method, described in operations.items():
            if method == "get":
                for each in described.get("parameters", ()):
                    for value in VALUES:
                        if each["in"] == "query":
                            path = path_of(template).partition("?")[0] if each["required"] else path_of(template)
                            yield method, template, path, {each["name"]: value}, None
            elif method == "post" and "/cluster/" not in template:
                for body in BODIES:
                    yield method, template, path_of(template), {}, body


@pytest.mark.loops("asyncio")
async def test_hostile_questions_are_refused_as_described() -> None:
    server = HttpServer(state(), "127.0.0.1", 0)
    await server.start()
    async with aiohttp.ClientSession(server.url) as session:
        for method, template, path, params, body in questions():
            kind = {} if method == "get" else {"json": body}
            async with session.request(method, path, params=params, **kind) as response:
                facts = json.loads(await response.read())
                asked = (method, path, params, body)
                assert response.status != 500, (asked, facts)
                responses = OPENAPI["paths"][template][method]["responses"]
                assert str(response.status) in responses, (asked, response.status, facts)
                schema = responses[str(response.status)]["content"]["application/json"]["schema"]
                assert faults(facts, schema) == [], (asked, facts)
    await server.stop()
