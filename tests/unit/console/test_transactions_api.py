"""Handlers of transactions: filters, pages, hidden names, and the waits of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bmq.console.access.access import ACCESS, RequestAccess
from bmq.console.listing import Order, Page
from bmq.console.state import (
    OPEN_STATES,
    TRANSACTION_STATES,
    ConsoleState,
    TransactionFilter,
    TransactionsFacts,
)
from bmq.console.transactions_api import TransactionsApi
from bmq.coordinator.transaction.states import KAFKA_NAMES
from bmq.core.security.acls import AclOperation, ResourceType
from bmq.core.security.authentication import AuthenticationContext
from bmq.core.security.session import Session
from tests.unit.console.access.users import Acls
from tests.unit.console.asked import Called, get, refused
from tests.unit.console.states import NOW_MS, TRANSACTION, FakeRequests, state

pytestmark = pytest.mark.loops("asyncio")
DESCRIBE = AclOperation.DESCRIBE


class Listings:
    """Remembers what is asked for, and lists nothing."""

    def __init__(self) -> None:
        self.asked: list[tuple[TransactionFilter, Order, Page]] = []

    async def __call__(
        self, wanted: TransactionFilter, order: Order, page: Page, is_visible: Callable[[str], bool] | None = None
    ) -> TransactionsFacts:
        self.asked.append((wanted, order, page))
        return TransactionsFacts(transactions=[], total=0, next=None, shards_not_loaded=[])


def called(of: ConsoleState | None = None) -> Any:
    return Called(TransactionsApi(of or state()), FakeRequests())


async def by_user(handler: str, request: Any, *grants: tuple[ResourceType, str]) -> Any:
    """Return the handler's result for a user who may describe these resources only."""
    acls = Acls([("ANONYMOUS", DESCRIBE, kind, name) for kind, name in grants])
    context = AuthenticationContext("127.0.0.1", "SASL_PLAINTEXT")
    request[ACCESS] = RequestAccess(acls, FakeRequests(), context, Session())
    return await getattr(TransactionsApi(state()), handler)(request)


def test_the_states_are_those_of_kafkas_listing() -> None:
    assert set(TRANSACTION_STATES) == KAFKA_NAMES


async def test_the_filters_of_a_list() -> None:
    listings = Listings()
    of = replace(state(), transactions=listings)
    path = "/?search=Ord&pattern=o.*&state=Ongoing,Empty&producer_id=7&older_than_ms=5&sort=-state&skip=2&limit=3"
    await called(of).list_transactions(get(path))
    wanted = TransactionFilter("Ord", "o.*", ("Ongoing", "Empty"), (7,), 5)
    assert listings.asked == [(wanted, Order("state", is_down=True), Page("", 3, 2))]
    await called(of).list_transactions(get("/?older_than_ms=5"))
    assert listings.asked[1][0] == TransactionFilter(states=OPEN_STATES, older_than_ms=5)
    await called(of).list_transactions(get("/"))
    assert listings.asked[2] == (TransactionFilter(), Order("transactional_id"), Page("", 100))


@pytest.mark.parametrize(
    "query", ["state=ongoing", "producer_id=-1", "older_than_ms=1.5", "limit=1001", "sort=age_ms", "lag=true"]
)
async def test_a_wrong_filter_is_refused(query: str) -> None:
    assert await refused(called().list_transactions(get(f"/?{query}"))) == (400, "wrong_parameter")


async def test_a_list_has_the_age_of_open_transactions() -> None:
    found = await called().list_transactions(get("/"))
    assert found["transactions"] == [{**TRANSACTION, "age_ms": 90_000}]


async def test_only_ids_that_the_user_may_describe_are_listed() -> None:
    assert (await by_user("list_transactions", get("/")))["transactions"] == []
    on_cluster = await by_user("list_transactions", get("/"), (ResourceType.CLUSTER, "kafka-cluster"))
    assert on_cluster["transactions"] == [], "as by Kafka's ListTransactions"
    own = await by_user("list_transactions", get("/"), (ResourceType.TRANSACTIONAL_ID, "billing"))
    assert len(own["transactions"]) == 1


async def test_a_decided_transaction_waits_for_markers() -> None:
    found = await called().describe(get("/?limit=2", id="billing"))
    assert (found["waits_for"], found["shard"], found["coordinator"]) == ("markers", 4, "coordinator-1")
    assert [(each["topic"], each["partition"], each["process"]) for each in found["partitions"]] == [
        ("__consumer_offsets", 3, "broker-1"),
        ("orders", 0, "broker-1"),
    ]
    assert [each["error"] for each in found["partitions"]] == ["", "NOT_LEADER_OR_FOLLOWER"], "of the last try"
    assert (found["total"], found["next"]) == (3, "orders/0")
    found = await called().describe(get("/?after=orders/0", id="billing"))
    assert ([each["partition"] for each in found["partitions"]], found["next"]) == ([1], None)
    assert await refused(called().describe(get("/?after=x", id="billing"))) == (400, "wrong_parameter")


@pytest.mark.parametrize(
    ("name", "waits_for"), [("Ongoing", "producer"), ("PrepareAbort", "markers"), ("CompleteCommit", "nothing")]
)
async def test_what_a_transaction_waits_for(name: str, waits_for: str) -> None:
    async def transaction(transactional_id: str) -> Any:
        facts = {**TRANSACTION, "state": name}
        return {
            "transaction": facts,
            "shard": 4,
            "coordinator": "c",
            "partitions": [("orders", 0)],
            "marker_errors": {},
        }

    found = await called(replace(state(), transaction=transaction)).describe(get("/", id="billing"))
    assert found["waits_for"] == waits_for
    process = "broker-1" if waits_for == "markers" else ""
    assert found["partitions"] == [{"topic": "orders", "partition": 0, "process": process, "why": "", "error": ""}]


async def test_partitions_of_topics_that_the_user_may_not_describe_are_left_out() -> None:
    found = await by_user("describe", get("/", id="billing"), (ResourceType.TOPIC, "orders"))
    assert ({each["topic"] for each in found["partitions"]}, found["total"]) == ({"orders"}, 2)


async def test_the_open_transactions_of_a_partition_have_their_ids_and_ages() -> None:
    found = await called().of_partition(get("/", name="orders", partition="0"))
    assert (found["log_start"], found["last_stable_offset"], found["high_watermark"]) == (5, 7, 9)
    known, hanging = found["transactions"]
    assert (known["producer_id"], known["transactional_id"], known["state"], known["age_ms"]) == (
        7,
        "billing",
        "PrepareCommit",
        90_000,
    )
    assert (hanging["producer_id"], hanging["transactional_id"], hanging["state"], hanging["age_ms"]) == (
        8,
        None,
        None,
        None,
    )
    assert (hanging["last_timestamp_ms"], found["total"]) == (NOW_MS, 2)
    assert [each["shard"] for each in found["shards_not_loaded"]] == [3], "its id may be there"
    bounded = await called().of_partition(get("/?limit=1", name="orders", partition="0"))
    assert (len(bounded["transactions"]), bounded["total"]) == (1, 2)
    assert await refused(called().of_partition(get("/", name="orders", partition="2"))) == (404, "unknown_partition")


async def test_an_id_of_an_open_transaction_that_the_user_may_not_describe_is_hidden() -> None:
    found = await by_user("of_partition", get("/", name="orders", partition="0"))
    assert [each["transactional_id"] for each in found["transactions"]] == [None, None]
