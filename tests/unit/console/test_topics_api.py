"""Topics over HTTP, on a whole process: created, altered, listed in pages, with their sizes and rates."""

from __future__ import annotations

import json

import pytest

from bmq.console import topics_api
from tests.unit.console.served import ORDERS, TOPIC, create, serving

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]
PAGE_BYTES_MAX = 64 << 10
"""The bound of a response with a page of 50 topics."""
TOPICS = 300
"""The topics of a page's test: their names take more than `PAGE_BYTES_MAX`."""


async def test_topics_are_created_altered_grown_and_deleted() -> None:
    async with serving() as api:
        draft = {"name": "draft", "partitions": 3, "replication_factor": 1, "dry_run": True}
        status, response = await api("POST", "/api/v1/topics", draft)
        assert (status, response["partitions"], response["dry_run"]) == (201, 3, True)
        assert (await api("GET", "/api/v1/topics"))[1]["topics"] == []
        await create(api)
        status, response = await api("POST", "/api/v1/topics", {"name": "orders"})
        assert (status, response["error"]) == (409, "topic_already_exists")
        status, response = await api("POST", "/api/v1/topics", {"name": "a/b"})
        assert (status, response["error"]) == (400, "invalid_topic_exception")
        body = {"set": {"max.message.bytes": "2000"}, "delete": ["retention.ms"]}
        assert (await api("POST", f"{TOPIC}/configs{ORDERS}", body))[0] == 200
        configs = {each["name"]: each for each in (await api("GET", f"{TOPIC}/configs{ORDERS}"))[1]["configs"]}
        assert configs["max.message.bytes"]["source"] == "DYNAMIC_TOPIC_CONFIG"
        assert configs["max.message.bytes"]["value"] == "2000"
        assert configs["retention.ms"]["source"] == "DEFAULT_CONFIG"
        status, response = await api("POST", f"{TOPIC}/configs{ORDERS}", {"set": {"retention.ms": "soon"}})
        assert (status, response["error"]) == (400, "invalid_config")
        assert (await api("POST", f"{TOPIC}/partitions{ORDERS}", {"partitions": 4}))[0] == 200
        status, response = await api("POST", f"{TOPIC}/partitions{ORDERS}", {"partitions": 3})
        assert (status, response["error"]) == (400, "invalid_partitions")
        _, response = await api("GET", f"{TOPIC}{ORDERS}", limit=3)
        assert [each["partition"] for each in response["partitions"]] == [0, 1, 2]
        assert response["next"] == 2
        _, response = await api("GET", f"{TOPIC}{ORDERS}", after=2)
        assert ([each["partition"] for each in response["partitions"]], response["next"]) == ([3], None)
        assert {each["owner"] for each in response["partitions"]} == {"n"}
        assert (await api("DELETE", f"{TOPIC}{ORDERS}"))[0] == 200
        assert (await api("DELETE", f"{TOPIC}{ORDERS}"))[0] == 404
        assert (await api("GET", f"{TOPIC}{ORDERS}"))[0] == 404


async def test_topics_are_listed_in_pages() -> None:
    async with serving() as api:
        for number in range(5):
            await create(api, f"t{number}", 1)
        _, body = await api("GET", "/api/v1/topics", limit=2)
        assert ([each["name"] for each in body["topics"]], body["next"], body["total"]) == (["t0", "t1"], "t1", 5)
        _, body = await api("GET", "/api/v1/topics", limit=2, after="t3")
        assert ([each["name"] for each in body["topics"]], body["next"]) == (["t4"], None)
        _, body = await api("GET", "/api/v1/topics", search="T3")
        assert ([each["name"] for each in body["topics"]], body["total"]) == (["t3"], 1)
        _, body = await api("GET", "/api/v1/topics", limit=2, skip=3, sort="-name")
        assert ([each["name"] for each in body["topics"]], body["total"]) == (["t1", "t0"], 5)
        assert (body["partitions"], body["next"]) == (5, None)
        assert (await api("GET", "/api/v1/topics", sort="size"))[0] == 400
        assert (await api("GET", "/api/v1/topics", sort="-name", after="t1"))[0] == 400
        assert (await api("GET", "/api/v1/topics", limit=0))[0] == 400
        assert (await api("GET", "/api/v1/topics", limit=1001))[0] == 400


async def test_too_many_topics_are_not_sorted_by_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics_api, "RATED_MAX", 1)

    async with serving() as api:
        for name in ("orders", "events"):
            await create(api, name)
        status, body = await api("GET", "/api/v1/topics", sort="bytes_in")
        assert (status, body["error"]) == (400, "too_many_topics")
        assert "2 topics match, and up to 1 are sorted by their rates" in body["message"]
        assert (await api("GET", "/api/v1/topics", sort="bytes_in", search="ord"))[0] == 200


async def test_topics_are_listed_by_their_bytes() -> None:
    async with serving() as api:
        for name, records in (("orders", 3), ("events", 1), ("empty", 0)):
            await create(api, name, 1)
            for _ in range(records):
                await api("POST", f"{TOPIC}/records?name={name}", {"partition": 0, "value": "v" * 100})
        status, body = await api("GET", "/api/v1/storage/topics", internal="false")
        assert (status, body["total"], body["silent"]) == (200, 3, [])
        assert [each["name"] for each in body["topics"][:2]] == ["orders", "events"]
        largest, second = (each["bytes"] for each in body["topics"][:2])
        assert largest == 3 * second > 300
        assert body["bytes"] == largest + second
        _, body = await api("GET", "/api/v1/storage/topics", sort="name", search="E", limit=1)
        assert ([each["name"] for each in body["topics"]], body["next"], body["total"]) == (["empty"], "empty", 3)
        _, body = await api("GET", "/api/v1/storage/topics", sort="-bytes", search="ORDERS")
        assert (body["total"], body["bytes"]) == (1, largest)


async def test_a_page_of_many_topics_is_bounded() -> None:
    """The longest names, each topic with several configs of its own: the names alone are longer than a page may be."""

    async with serving() as api:
        configs = {"retention.ms": "1000000", "cleanup.policy": "delete", "max.message.bytes": "1000000"}
        for number in range(TOPICS):
            body = {"name": f"{number:0249}", "partitions": 1, "replication_factor": 1, "configs": configs}
            assert (await api("POST", "/api/v1/topics", body))[0] == 201
        for path, query in (
            ("/api/v1/topics", {"rates": "true", "sort": "-bytes_in"}),
            ("/api/v1/topics", {"rates": "true", "skip": TOPICS - 50}),
            ("/api/v1/storage/topics", {"sort": "-bytes"}),
        ):
            status, response = await api("GET", path, limit=50, **query)
            assert (status, response["total"], len(response["topics"])) == (200, TOPICS, 50)
            assert len(json.dumps(response)) < PAGE_BYTES_MAX


async def test_partitions_of_compacted_topics_have_their_cleaning() -> None:
    async with serving() as api:
        await create(api)
        _, response = await api("GET", f"{TOPIC}{ORDERS}")
        assert [each["cleaning"] for each in response["partitions"]] == [None, None]
        assert (await api("POST", f"{TOPIC}/configs{ORDERS}", {"set": {"cleanup.policy": "compact"}}))[0] == 200
        _, response = await api("GET", f"{TOPIC}{ORDERS}", after=0)
        (cleaning,) = [each["cleaning"] for each in response["partitions"]]
        assert (cleaning["reason"], cleaning["dirty_percent"]) == ("unknown", None), "the janitor has not looked yet"
