"""The HTTP API of a whole process: traffic, history, storage, members and log levels."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.unit.console.served import CONFIG, ORDERS, TOPIC, create, serving

pytestmark = [pytest.mark.slow, pytest.mark.loops("asyncio")]


async def test_topics_partitions_and_members_have_rates() -> None:
    async with serving() as api:
        await create(api)
        status, body = await api("GET", "/api/v1/topics", rates="true")
        assert (status, body["topics"][0]["rates"]) == (200, None), "no window has ended yet"
        for size in (100, 300):
            api.traffic.wrote("orders", 1, 10, size)
        api.traffic.read("orders", 1, 50)
        api.traffic.roll(10.0)
        rates = {"records_in": 2.0, "bytes_in": 40.0, "bytes_out": 5.0}
        none = dict.fromkeys(rates, 0.0)
        _, body = await api("GET", "/api/v1/topics", rates="true")
        assert body["topics"][0]["rates"] == rates
        _, body = await api("GET", "/api/v1/topics")
        assert body["topics"][0]["rates"] is None, "nobody asked"
        await create(api, "idle")
        for sort, names in (("-bytes_in", ["orders", "idle"]), ("bytes_in", ["idle", "orders"])):
            _, body = await api("GET", "/api/v1/topics", sort=sort)
            assert [each["name"] for each in body["topics"]] == names
            assert body["topics"][0]["rates"] is None, "nobody asked"
        _, body = await api("GET", f"{TOPIC}{ORDERS}")
        assert (body["topic"]["rates"], [each["rates"] for each in body["partitions"]]) == (rates, [none, rates])
        _, body = await api("GET", "/api/v1/members")
        assert [each["rates"] for each in body["members"]] == [rates]
        _, body = await api("GET", "/api/v1/cluster/status")
        assert (body["rates"], body["silent"], body["partitions_not_served"]) == (rates, [], [])


async def test_history_is_returned_from_a_time_on() -> None:
    async with serving() as api:
        status, body = await api("GET", "/api/v1/history", after=1_700_000_000_000)
        assert (status, body["samples"], body["missing"]) == (200, [], [])
        assert (await api("GET", "/api/v1/history", after="yesterday"))[0] == 400


async def test_storage_is_shown() -> None:
    async with serving() as api:
        status, body = await api("GET", "/api/v1/storage")
        assert (status, body["root"], body["error"]) == (200, CONFIG.root, "")


async def test_members_are_listed() -> None:
    async with serving() as api:
        _, body = await api("GET", "/api/v1/members")
        assert [each["incarnation"] for each in body["members"]] == ["n"]


LOG_LEVEL = "/api/v1/members/{member}/log-level?member=n"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Yield a logger whose level, and its parent's, is reset afterwards."""
    logger = logging.getLogger("bmq.broker.test_of_levels")
    yield logger
    for each in (logger, logging.getLogger("bmq.broker")):
        each.setLevel(logging.NOTSET)


async def test_a_log_level_is_shown_set_and_removed(logger: logging.Logger) -> None:
    async with serving() as api:
        status, body = await api("PUT", LOG_LEVEL, {"logger": "bmq.broker", "level": "debug"})
        assert (status, body) == (200, {"member": "n", "logger": "bmq.broker", "level": "DEBUG", "is_set": True})
        assert logger.isEnabledFor(logging.DEBUG)
        _, body = await api("GET", LOG_LEVEL)
        found = {each["logger"]: each for each in body["loggers"]}
        assert body["loggers"][0]["logger"] == "root"
        assert found[logger.name] == {"logger": logger.name, "level": "DEBUG", "is_set": False}
        _, body = await api("PUT", LOG_LEVEL, {"logger": "bmq.broker", "level": "default"})
        assert body["is_set"] is False
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
async def test_a_log_level_that_cannot_be_set_is_refused(
    path: str, body: dict[str, str], status: int, error: str, message: str
) -> None:
    async with serving() as api:
        found, response = await api("PUT", path, body)
        assert (found, response["error"]) == (status, error)
        assert message in response["message"]
