"""The HTTP API of a whole process on storage and a store in memory; each response is checked against openapi.json."""

from __future__ import annotations

from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp

from bmq.console.http import HttpServer
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.state import ConsoleState
from bmq.core.config import NodeConfig
from bmq.core.metrics.traffic import TrafficMeter
from bmq.meta.cluster.member import Address
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.console_view import console_state
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.single_node import single_node
from tests.unit.console.test_http import OPENAPI, faults

CONFIG = NodeConfig(auto_create_topics_enable=False, offsets_topic_num_partitions=2)


class Api:
    """One client of the API; each answer is checked against openapi.json."""

    def __init__(self, session: aiohttp.ClientSession, traffic: TrafficMeter, state: ConsoleState) -> None:
        self._session = session
        self.traffic = traffic
        self._state = state

    def use_registry(self, registry: SchemaRegistry) -> None:
        self.registry = self._state.registry = registry

    async def __call__(self, method: str, path: str, body: Any = None, **query: object) -> tuple[int, Any]:
        """Return the status and the JSON.  `path` is a template of openapi.json with its values behind ``?``."""
        template, _, values = path.partition("?")
        filled, described = template, OPENAPI["paths"][template][method.lower()]
        for pair in filter(None, values.split("&")):
            name, _, value = pair.partition("=")
            filled = filled.replace(f"{{{name}}}", value)
        params = {name: str(value) for name, value in query.items()}
        assert set(params) <= {each["name"] for each in described["parameters"]} if params else True
        kind = {} if method in ("GET", "DELETE") else {"json": body}
        async with self._session.request(method, filled, params=params, **kind) as response:
            reply = await response.json()
            schema = described["responses"][str(response.status)]["content"]["application/json"]["schema"]
            assert faults(reply, schema) == [], (path, reply)
            return response.status, reply


@asynccontextmanager
async def serving() -> Any:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(CONFIG, fs, kv) as node:
        await node.start()
        node.is_in_service = True
        assert node.traffic is not None
        state = console_state(node)
        server = HttpServer(state, "127.0.0.1", 0)
        await server.start()
        node.joined.is_at(http=Address(host="127.0.0.1", port=server.port))
        try:
            async with aiohttp.ClientSession(server.url) as session:
                yield Api(session, node.traffic, state)
        finally:
            await server.stop()


ORDERS = "?name=orders"
NO_SCHEMA = {"is_cut": False, "schema_id": None, "error": ""}
TOPIC = "/api/v1/topics/{name}"


async def create(api: Api, name: str = "orders", partitions: int = 2) -> None:
    body = {"name": name, "partitions": partitions, "replication_factor": 1, "configs": {"retention.ms": "1000000"}}
    assert (await api("POST", "/api/v1/topics", body))[0] == 201
