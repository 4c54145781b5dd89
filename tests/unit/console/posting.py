"""Operators' requests to a console over a real socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from bmq.console.http import HttpServer
from tests.unit.console.states import FakeOperations, state
from tests.unit.console.test_http import Reply

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


async def post(
    operations: FakeOperations,
    act: str,
    body: object = None,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    sent = data if data is not None else json.dumps(body).encode()
    named = {**JSON, **(headers or {})}
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
