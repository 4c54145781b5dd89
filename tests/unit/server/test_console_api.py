"""The HTTP API of a whole process on storage and a store in memory: each answer is as openapi.json describes it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import aiohttp
import pytest

from bmq.console import topics_api
from bmq.console.http import HttpServer
from bmq.console.schema_registry import SchemaRegistry
from bmq.console.state import ConsoleState
from bmq.core.config import NodeConfig
from bmq.core.metrics.traffic import TrafficMeter
from bmq.meta.cluster.member import Address
from bmq.meta.kv_memory import MemoryKeyValue, MemoryStore
from bmq.server.console_facts import console_state
from bmq.storage.memory import MemoryFileSystem, MemoryStorage
from tests.harness.single_node import single_node
from tests.unit.console.test_http import OPENAPI, faults
from tests.unit.console.test_schema_registry import FakeRegistry, serving_registry

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]

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
            told = await response.json()
            schema = described["responses"][str(response.status)]["content"]["application/json"]["schema"]
            assert faults(told, schema) == [], (path, told)
            return response.status, told


@asynccontextmanager
async def serving() -> Any:
    fs, kv = MemoryFileSystem(MemoryStorage(Random(0)), "n"), MemoryKeyValue(MemoryStore())
    async with single_node(CONFIG, fs, kv) as node:
        await node.start()
        node.is_serving = True
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


async def test_topics_are_created_altered_grown_and_deleted() -> None:
    async with serving() as api:
        draft = {"name": "draft", "partitions": 3, "replication_factor": 1, "dry_run": True}
        status, told = await api("POST", "/api/v1/topics", draft)
        assert (status, told["partitions"], told["dry_run"]) == (201, 3, True)
        assert (await api("GET", "/api/v1/topics"))[1]["topics"] == []
        await create(api)
        status, told = await api("POST", "/api/v1/topics", {"name": "orders"})
        assert (status, told["error"]) == (409, "topic_already_exists")
        status, told = await api("POST", "/api/v1/topics", {"name": "a/b"})
        assert (status, told["error"]) == (400, "invalid_topic_exception")
        body = {"set": {"max.message.bytes": "2000"}, "delete": ["retention.ms"]}
        assert (await api("POST", f"{TOPIC}/configs{ORDERS}", body))[0] == 200
        configs = {each["name"]: each for each in (await api("GET", f"{TOPIC}/configs{ORDERS}"))[1]["configs"]}
        assert configs["max.message.bytes"]["source"] == "DYNAMIC_TOPIC_CONFIG"
        assert configs["max.message.bytes"]["value"] == "2000"
        assert configs["retention.ms"]["source"] == "DEFAULT_CONFIG"
        status, told = await api("POST", f"{TOPIC}/configs{ORDERS}", {"set": {"retention.ms": "soon"}})
        assert (status, told["error"]) == (400, "invalid_config")
        assert (await api("POST", f"{TOPIC}/partitions{ORDERS}", {"partitions": 4}))[0] == 200
        status, told = await api("POST", f"{TOPIC}/partitions{ORDERS}", {"partitions": 3})
        assert (status, told["error"]) == (400, "invalid_partitions")
        _, told = await api("GET", f"{TOPIC}{ORDERS}", limit=3)
        assert [each["partition"] for each in told["partitions"]] == [0, 1, 2]
        assert told["next"] == 2
        _, told = await api("GET", f"{TOPIC}{ORDERS}", after=2)
        assert ([each["partition"] for each in told["partitions"]], told["next"]) == ([3], None)
        assert {each["owner"] for each in told["partitions"]} == {"n"}
        assert (await api("DELETE", f"{TOPIC}{ORDERS}"))[0] == 200
        assert (await api("DELETE", f"{TOPIC}{ORDERS}"))[0] == 404
        assert (await api("GET", f"{TOPIC}{ORDERS}"))[0] == 404


async def test_lists_come_in_pages() -> None:
    async with serving() as api:
        for number in range(5):
            await create(api, f"t{number}", 1)
        _, told = await api("GET", "/api/v1/topics", limit=2)
        assert ([each["name"] for each in told["topics"]], told["next"], told["total"]) == (["t0", "t1"], "t1", 5)
        _, told = await api("GET", "/api/v1/topics", limit=2, after="t3")
        assert ([each["name"] for each in told["topics"]], told["next"]) == (["t4"], None)
        _, told = await api("GET", "/api/v1/topics", search="T3")
        assert ([each["name"] for each in told["topics"]], told["total"]) == (["t3"], 1)
        _, told = await api("GET", "/api/v1/topics", limit=2, skip=3, sort="-name")
        assert ([each["name"] for each in told["topics"]], told["total"]) == (["t1", "t0"], 5)
        assert (told["partitions"], told["next"]) == (5, None)
        assert (await api("GET", "/api/v1/topics", sort="size"))[0] == 400
        assert (await api("GET", "/api/v1/topics", sort="-name", after="t1"))[0] == 400
        assert (await api("GET", "/api/v1/topics", limit=0))[0] == 400
        assert (await api("GET", "/api/v1/topics", limit=1001))[0] == 400


async def test_records_are_produced_and_found_by_offset_time_and_key() -> None:
    async with serving() as api:
        await create(api)
        times = []
        for number in range(6):
            body = {
                "partition": 0, "key": f"k{number % 2}", "value": f'{{"n": {number}}}', "value_format": "json",
                "headers": [{"key": "h", "value": None}],
            }  # fmt: skip
            status, told = await api("POST", f"{TOPIC}/records{ORDERS}", body)
            assert (status, told["partition"], told["offset"]) == (201, 0, number)
            times.append(told["timestamp"])
        _, told = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, offset="earliest", limit=2)
        assert [each["offset"] for each in told["records"]] == [0, 1]
        assert told["partitions"] == [{"partition": 0, "log_start": 0, "high_watermark": 6, "next": 2, "error": ""}]
        first = told["records"][0]
        assert first["value"] == {"format": "json", "text": '{"n": 0}', "bytes": 8, **NO_SCHEMA}
        assert first["headers"] == [{"key": "h", "value": {"text": None, "bytes": 0, **NO_SCHEMA, "format": "null"}}]
        _, told = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, limit=2)
        assert [each["offset"] for each in told["records"]] == [4, 5]
        _, told = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, offset=3, limit=1, format="hex", bytes=2)
        assert [each["offset"] for each in told["records"]] == [3]
        assert told["records"][0]["value"] == {**NO_SCHEMA, "format": "hex", "text": "7b22", "bytes": 8, "is_cut": True}
        _, told = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, timestamp=times[5])
        assert told["records"][-1]["offset"] == 5
        assert all(each["timestamp"] >= times[5] for each in told["records"])
        _, told = await api("GET", f"{TOPIC}/records{ORDERS}", partition=0, key="k1", offset="earliest")
        assert [each["offset"] for each in told["records"]] == [1, 3, 5]
        _, told = await api("GET", f"{TOPIC}/records{ORDERS}", limit=10)
        assert [each["partition"] for each in told["partitions"]] == [0, 1]
        _, told = await api("GET", f"{TOPIC}/partitions/{{partition}}/segments{ORDERS}&partition=0")
        assert [each["base_offset"] for each in told["segments"]] == [0]
        assert told["segments"][0]["blocks"][0]["nodes"]
        assert told["segments"][0]["bytes"] > 0


@pytest.mark.parametrize(
    ("query", "status", "error"),
    [
        ({"offset": "-3"}, 400, "wrong_parameter"),
        ({"offset": "soon"}, 400, "wrong_parameter"),
        ({"partition": 9}, 404, "unknown_partition"),
        ({"format": "xml"}, 400, "wrong_parameter"),
        ({"key": "zz", "key_format": "hex"}, 400, "wrong_value"),
    ],
)
async def test_wrong_questions_about_records(query: dict[str, object], status: int, error: str) -> None:
    async with serving() as api:
        await create(api)
        got, told = await api("GET", f"{TOPIC}/records{ORDERS}", **query)
        assert (got, told["error"]) == (status, error)


async def test_values_are_shown_by_their_schema() -> None:
    async with serving() as api:
        await create(api)
        status, told = await api("GET", f"{TOPIC}/records{ORDERS}", format="registry")
        assert (status, told["error"]) == (400, "no_schema_registry")
        registry = FakeRegistry()
        registry.answers["/schemas/ids/7"] = {"schema": '"string"'}
        async with serving_registry(registry):
            api.use_registry(SchemaRegistry(registry.url))
            for number in (7, 8):
                value = f"00000000{number:02x}0261"
                body = {"partition": 0, "value": value, "value_format": "hex", "key": "k"}
                assert (await api("POST", f"{TOPIC}/records{ORDERS}", body))[0] == 201
            for wanted in ("auto", "registry"):
                _, told = await api("GET", f"{TOPIC}/records{ORDERS}", offset="earliest", format=wanted)
                known, unknown = (each["value"] for each in told["records"])
                assert (known["format"], known["text"], known["schema_id"]) == ("avro", '"a"', 7)
                assert (unknown["format"], unknown["schema_id"]) == ("hex", None)
                assert ("404" in unknown["error"]) == (wanted == "registry")
            assert sorted(registry.asked) == ["/schemas/ids/7", "/schemas/ids/8"]
            _, told = await api("GET", f"{TOPIC}/records{ORDERS}", offset="earliest", format="hex")
            assert {each["value"]["format"] for each in told["records"]} == {"hex"}
            await api.registry.close()


async def test_a_key_goes_where_kafkas_clients_put_it() -> None:
    async with serving() as api:
        await create(api, partitions=7)
        _, made = await api("POST", f"{TOPIC}/records{ORDERS}", {"key": "billing", "value": "v"})
        _, found = await api("GET", f"{TOPIC}/records{ORDERS}", key="billing")
        assert [each["partition"] for each in found["partitions"]] == [made["partition"]]
        assert [each["offset"] for each in found["records"]] == [0]


async def test_offsets_of_a_group_are_reset_after_a_preview() -> None:
    async with serving() as api:
        await create(api)
        for number in range(4):
            await api("POST", f"{TOPIC}/records{ORDERS}", {"partition": number % 2, "value": "v"})
        group, reset = "?id=billing", "/api/v1/groups/{id}/reset?id=billing"
        assert (await api("GET", f"/api/v1/groups/{{id}}{group}"))[0] == 404
        orders = [{"topic": "orders", "partitions": None}]
        status, told = await api("POST", reset, {"topics": orders, "to": "earliest"})
        assert (status, told["dry_run"]) == (200, True)
        assert [(each["current"], each["new"]) for each in told["offsets"]] == [(None, 0), (None, 0)]
        assert (await api("GET", f"/api/v1/groups/{{id}}{group}"))[0] == 404, "nothing was changed"
        assert (await api("POST", reset, {"topics": orders, "to": "earliest", "dry_run": False}))[0] == 200
        _, told = await api("GET", f"/api/v1/groups/{{id}}{group}", limit=1)
        assert (told["lag"], told["total"], told["next"]) == (2, 2, "orders/0")
        for wrong in ("orders", "orders/x", "orders/" + "9" * 5_000):
            assert (await api("GET", f"/api/v1/groups/{{id}}{group}", after=wrong))[0] == 400
        _, told = await api("GET", f"/api/v1/groups/{{id}}{group}", after="orders/0")
        assert [(each["partition"], each["lag"]) for each in told["offsets"]] == [(1, 2)]
        _, told = await api("POST", reset, {"to": "shift", "value": 1})
        assert [(each["current"], each["new"]) for each in told["offsets"]] == [(0, 1), (0, 1)]
        _, told = await api("POST", reset, {"to": "offset", "value": 99})
        assert {each["new"] for each in told["offsets"]} == {2}, "moved to the log's end"
        assert (await api("POST", reset, {"to": "shift"}))[0] == 400
        assert (await api("POST", reset, {"to": "latest", "value": 1}))[0] == 400
        assert (await api("POST", reset, {"topics": [{"topic": "no", "partitions": None}], "to": "latest"}))[0] == 404
        _, told = await api("GET", "/api/v1/groups")
        assert [each["group_id"] for each in told["groups"]] == ["billing"]
        assert (await api("DELETE", f"/api/v1/groups/{{id}}{group}"))[0] == 200
        assert (await api("DELETE", f"/api/v1/groups/{{id}}{group}"))[0] == 404


async def test_rates_are_told_of_topics_partitions_and_members() -> None:
    async with serving() as api:
        await create(api)
        status, told = await api("GET", "/api/v1/topics", rates="true")
        assert (status, told["topics"][0]["rates"]) == (200, None), "no window has ended yet"
        for size in (100, 300):
            api.traffic.wrote("orders", 1, 10, size)
        api.traffic.read("orders", 1, 50)
        api.traffic.roll(10.0)
        rates = {"records_in": 2.0, "bytes_in": 40.0, "bytes_out": 5.0}
        none = dict.fromkeys(rates, 0.0)
        _, told = await api("GET", "/api/v1/topics", rates="true")
        assert told["topics"][0]["rates"] == rates
        _, told = await api("GET", "/api/v1/topics")
        assert told["topics"][0]["rates"] is None, "nobody asked"
        await create(api, "idle")
        for sort, names in (("-bytes_in", ["orders", "idle"]), ("bytes_in", ["idle", "orders"])):
            _, told = await api("GET", "/api/v1/topics", sort=sort)
            assert [each["name"] for each in told["topics"]] == names
            assert told["topics"][0]["rates"] is None, "nobody asked"
        _, told = await api("GET", f"{TOPIC}{ORDERS}")
        assert (told["topic"]["rates"], [each["rates"] for each in told["partitions"]]) == (rates, [none, rates])
        _, told = await api("GET", "/api/v1/members")
        assert [each["rates"] for each in told["members"]] == [rates]
        _, told = await api("GET", "/api/v1/cluster/status")
        assert (told["rates"], told["silent"], told["partitions_not_served"]) == (rates, [], [])


async def test_history_is_asked_for_in_parts() -> None:
    async with serving() as api:
        status, told = await api("GET", "/api/v1/history", after=1_700_000_000_000)
        assert (status, told["samples"], told["missing"]) == (200, [], [])
        assert (await api("GET", "/api/v1/history", after="yesterday"))[0] == 400


async def test_the_lag_of_a_group_over_time_is_asked_for_in_parts() -> None:
    async with serving() as api:
        await create(api)
        body = {"topics": [{"topic": "orders", "partitions": None}], "to": "latest", "dry_run": False}
        assert (await api("POST", "/api/v1/groups/{id}/reset?id=billing", body))[0] == 200
        status, told = await api("GET", "/api/v1/groups/{id}/lag?id=billing", after=1_700_000_000_000)
        assert (status, told["group_id"], told["samples"], told["error"]) == (200, "billing", [], "")
        assert (await api("GET", "/api/v1/groups/{id}/lag?id=billing", after="yesterday"))[0] == 400


async def test_storage_is_told() -> None:
    async with serving() as api:
        status, told = await api("GET", "/api/v1/storage")
        assert (status, told["root"], told["error"]) == (200, CONFIG.root, "")


async def test_too_many_topics_are_not_sorted_by_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_api, "RATED_MAX", 1)

    async with serving() as api:
        for name in ("orders", "events"):
            await create(api, name)
        status, told = await api("GET", "/api/v1/topics", sort="bytes_in")
        assert (status, told["error"]) == (400, "too_many_topics")
        assert "2 topics match, and up to 1 are sorted by their rates" in told["message"]
        assert (await api("GET", "/api/v1/topics", sort="bytes_in", search="ord"))[0] == 200


async def test_bytes_by_topic_are_told() -> None:
    async with serving() as api:
        for name, records in (("orders", 3), ("events", 1), ("empty", 0)):
            await create(api, name, 1)
            for _ in range(records):
                await api("POST", f"{TOPIC}/records?name={name}", {"partition": 0, "value": "v" * 100})
        status, told = await api("GET", "/api/v1/storage/topics", internal="false")
        assert (status, told["total"], told["silent"]) == (200, 3, [])
        assert [each["name"] for each in told["topics"][:2]] == ["orders", "events"]
        largest, second = (each["bytes"] for each in told["topics"][:2])
        assert largest == 3 * second > 300
        assert told["bytes"] == largest + second
        _, told = await api("GET", "/api/v1/storage/topics", sort="name", search="E", limit=1)
        assert ([each["name"] for each in told["topics"]], told["next"], told["total"]) == (["empty"], "empty", 3)
        _, told = await api("GET", "/api/v1/storage/topics", sort="-bytes", search="ORDERS")
        assert (told["total"], told["bytes"]) == (1, largest)


async def test_a_page_of_a_thousand_topics_is_bounded() -> None:
    """The longest names, each topic with several configs of its own."""

    async with serving() as api:
        configs = {"retention.ms": "1000000", "cleanup.policy": "delete", "max.message.bytes": "1000000"}
        for number in range(1_000):
            body = {"name": f"{number:0249}", "partitions": 1, "replication_factor": 1, "configs": configs}
            assert (await api("POST", "/api/v1/topics", body))[0] == 201
        for path, query in (
            ("/api/v1/topics", {"rates": "true", "sort": "-bytes_in"}),
            ("/api/v1/topics", {"rates": "true", "skip": 950}),
            ("/api/v1/storage/topics", {"sort": "-bytes"}),
        ):
            status, told = await api("GET", path, limit=50, **query)
            assert (status, told["total"], len(told["topics"])) == (200, 1_000, 50)
            assert len(json.dumps(told)) < 64 << 10


EVERY_ID = [
    ".", "..", "...", "%2e", "%2E%2e", "a/b", "/", "a b", " ", "ü/ö", "日本", "a?b=c&d", "#", "%", "%2F", "a+b",
    ";", "\\", "g" * 249,
]  # fmt: skip


@pytest.mark.parametrize("group_id", EVERY_ID)
async def test_any_group_can_be_named_by_a_parameter(group_id: str) -> None:
    async with serving() as api:
        await create(api)
        body = {"topics": [{"topic": "orders", "partitions": [0]}], "to": "latest", "dry_run": False}
        status, told = await api("POST", "/api/v1/group/reset", body, id=group_id)
        assert (status, told["group_id"]) == (200, group_id)
        status, told = await api("GET", "/api/v1/group", id=group_id)
        assert (status, told["group"]["group_id"], told["total"]) == (200, group_id, 1)
        assert (await api("GET", "/api/v1/group/lag", id=group_id))[1]["group_id"] == group_id
        assert (await api("DELETE", "/api/v1/group", id=group_id))[0] == 200
        assert (await api("GET", "/api/v1/group", id=group_id))[0] == 404


async def test_a_group_must_be_named() -> None:
    async with serving() as api:
        status, told = await api("GET", "/api/v1/group")
        assert (status, told["message"]) == (400, "name the group: ?id=...")


async def test_lags_of_a_page_of_groups_are_told() -> None:
    async with serving() as api:
        await create(api)
        await api("POST", f"{TOPIC}/records{ORDERS}", {"partition": 0, "value": "v"})
        for group_id, to in (("behind", "earliest"), ("done", "latest")):
            body = {"topics": [{"topic": "orders", "partitions": None}], "to": to, "dry_run": False}
            assert (await api("POST", "/api/v1/group/reset", body, id=group_id))[0] == 200
        _, told = await api("GET", "/api/v1/groups", lag="true", sort="-group_id")
        assert [(each["group_id"], each["lag"]) for each in told["groups"]] == [("done", 0), ("behind", 1)]
        _, told = await api("GET", "/api/v1/groups", skip=1)
        assert [(each["group_id"], each["lag"], each["lag_error"]) for each in told["groups"]] == [("done", None, "")]
        assert (await api("GET", "/api/v1/groups", lag="true", limit=101))[0] == 400
        assert (await api("GET", "/api/v1/groups", sort="members"))[0] == 400


async def test_members_are_told() -> None:
    async with serving() as api:
        _, told = await api("GET", "/api/v1/members")
        assert [each["incarnation"] for each in told["members"]] == ["n"]


LOG_LEVEL = "/api/v1/members/{member}/log-level?member=n"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Yield a logger whose level, and its parent's, is reset afterwards."""
    logger = logging.getLogger("bmq.broker.test_of_levels")
    yield logger
    for each in (logger, logging.getLogger("bmq.broker")):
        each.setLevel(logging.NOTSET)


async def test_a_log_level_is_shown_set_and_taken_back(logger: logging.Logger) -> None:
    async with serving() as api:
        status, told = await api("PUT", LOG_LEVEL, {"logger": "bmq.broker", "level": "debug"})
        assert (status, told) == (200, {"member": "n", "logger": "bmq.broker", "level": "DEBUG", "is_set": True})
        assert logger.isEnabledFor(logging.DEBUG)
        _, told = await api("GET", LOG_LEVEL)
        found = {each["logger"]: each for each in told["loggers"]}
        assert told["loggers"][0]["logger"] == "root"
        assert found[logger.name] == {"logger": logger.name, "level": "DEBUG", "is_set": False}
        _, told = await api("PUT", LOG_LEVEL, {"logger": "bmq.broker", "level": "default"})
        assert told["is_set"] is False
        assert not logger.isEnabledFor(logging.DEBUG)


@pytest.mark.parametrize(
    ("path", "body", "status", "error", "message"),
    [
        (LOG_LEVEL, {"logger": "bmq.brokr", "level": "debug"}, 400, "invalid_config", "there is no logger 'bmq.brokr'"),
        (LOG_LEVEL, {"logger": "bmq.broker", "level": "loud"}, 400, "invalid_config", "there is no level 'loud'"),
        (LOG_LEVEL, {"logger": "bmq.broker", "level": ""}, 400, "wrong_value", "level"),
        (LOG_LEVEL, {"logger": "bmq.broker"}, 400, "wrong_fields", '"logger", "level"'),
        (LOG_LEVEL.replace("=n", "=x"), {"logger": "root", "level": "INFO"}, 404, "unknown_member", "no member 'x'"),
    ],
)
async def test_a_log_level_that_cannot_be_set(
    path: str, body: dict[str, str], status: int, error: str, message: str
) -> None:
    async with serving() as api:
        found, told = await api("PUT", path, body)
        assert (found, told["error"]) == (status, error)
        assert message in told["message"]
