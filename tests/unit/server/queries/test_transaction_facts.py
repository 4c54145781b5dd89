"""Transactional ids of the whole cluster for the console: pages, markers that are missing, open transactions."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from bmq.console.listing import Order, Page
from bmq.console.state import TransactionFilter
from bmq.coordinator.api import TransactionListing
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Ends
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from bmq.meta.cluster.view import ShardOwner
from bmq.meta.group_placement import shard_of
from bmq.meta.shard_kinds import GROUPS, TRANSACTIONS, ShardId
from bmq.server.queries import transaction_facts
from bmq.server.queries.partitions_not_served import ClusterNotServed
from bmq.server.queries.transaction_facts import Transactions
from bmq.storage.checkpoint import ProducerBatch, ProducerState
from tests.unit.server.queries.joined import catalog_of, joined, member, topic
from tests.unit.server.queries.roles import Coordinator

pytestmark = pytest.mark.loops("asyncio")  # pages are cut in a thread
SHARDS = 50
ORDERS = UUID(int=1)
WHOLE = Page("", 1_000)
ALL = TransactionFilter()
BEGAN_MS = 1_700_000_000_000
LISTED, DESCRIBED = m.ListTransactionsResponse.TransactionState, m.DescribeTransactionsResponse.TransactionState


class FakeTransactions:
    """Lists ids with their states, and describes them; a description has room for two of them."""

    def __init__(self, states: dict[str, str], missing: dict[int, ErrorCode] | None = None) -> None:
        self.states = states
        self.missing = missing or {}
        self.error = ErrorCode.NONE
        self.codes: dict[str, ErrorCode] = {}
        self.described: list[str] = []
        self.marker_errors: list[str] = []
        self.asked: m.ListTransactionsRequest | None = None

    async def list_all_transactions(self, request: m.ListTransactionsRequest, client: object) -> TransactionListing:
        self.asked = request
        listed = [
            LISTED(transactional_id=each, producer_id=number, transaction_state=state)
            for number, (each, state) in enumerate(self.states.items())
        ]
        return TransactionListing(listed, frozenset(range(SHARDS)), self.missing, [], self.error)

    async def describe_transactions(self, request: m.DescribeTransactionsRequest, client: object) -> Any:
        self.described += request.transactional_ids
        found = []
        for number, name in enumerate(request.transactional_ids):
            code = self.codes.get(name, ErrorCode.NONE) if number < 2 else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            places = [-1, 0] if self.marker_errors else []
            topic = DESCRIBED.TopicData(topic="orders", partitions=[0, 3], marker_error_of=places)
            found.append(
                DESCRIBED(
                    error_code=code, transactional_id=name, transaction_state=self.states.get(name, ""),
                    transaction_timeout_ms=60_000, transaction_start_time_ms=BEGAN_MS, producer_id=7, producer_epoch=2,
                    topics=[topic], marker_errors=self.marker_errors,
                )
            )  # fmt: skip
        return m.DescribeTransactionsResponse(transaction_states=found)


def facts_of(fake: FakeTransactions, *, owners: Any = None, has_topic: bool = True) -> Transactions:
    catalog = catalog_of(topic(OFFSETS_TOPIC, UUID(int=2), SHARDS), topic("orders", ORDERS, 9))
    if has_topic:
        catalog.put(TRANSACTIONS_TOPIC, topic(TRANSACTIONS_TOPIC, UUID(int=3), SHARDS))
    owner_of = {PartitionKey(ORDERS, 0): "b", PartitionKey(ORDERS, 1): "gone", PartitionKey(ORDERS, 3): "b"}
    shards = {ShardId(GROUPS, 4): ShardOwner("b", 1), ShardId(TRANSACTIONS, 4): ShardOwner("d", 1)}
    own = Coordinator({ShardId(TRANSACTIONS, 3): "storage is full", ShardId(GROUPS, 5): "the log is torn"})
    # No other member is asked: "b" is the only one, and this process.
    membership = joined(member("b"), owners=owner_of, shards=shards, own="b")
    return Transactions(membership, catalog, cast(Any, fake), owners, coordinator=own, broker=None)


async def ids_of(facts: Transactions, wanted: TransactionFilter = ALL, **more: Any) -> list[str]:
    found = await facts.page(wanted, Order.parse(more.get("sort", "transactional_id")), more.get("page", WHOLE))
    return [each["transactional_id"] for each in found["transactions"]]


@pytest.fixture(autouse=True)
def one_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no other member report; its broker does not serve partition 3 of `orders`."""

    async def not_served(joined: Any, broker: Any) -> ClusterNotServed:
        named = {"topic": "orders", "partition": 3, "broker": "b", "why": "storage acknowledges nothing"}
        return ClusterNotServed(1, [cast(Any, named)], {}, [])

    monkeypatch.setattr(transaction_facts, "partitions_not_served", not_served)
    monkeypatch.setattr("bmq.server.queries.shards_not_loaded.others_with", lambda joined, role: [])

    async def nobody(*_: Any) -> dict[str, Any]:
        return {}

    monkeypatch.setattr("bmq.server.queries.shards_not_loaded.ask_members", nobody)


# --------------------------------------------------------------------------------------------------------------- pages


async def test_all_ids_are_described_though_a_response_has_no_room_for_all() -> None:
    fake = FakeTransactions(dict.fromkeys(["t1", "t2", "t3", "t4", "t5"], "Ongoing"))
    found = await facts_of(fake).page(TransactionFilter(), Order("transactional_id"), WHOLE)
    assert [each["transactional_id"] for each in found["transactions"]] == ["t1", "t2", "t3", "t4", "t5"]
    assert found["transactions"][0] == {
        "transactional_id": "t1", "state": "Ongoing", "producer_id": 7, "producer_epoch": 2, "timeout_ms": 60_000,
        "started_ms": BEGAN_MS,
    }  # fmt: skip
    assert (found["total"], found["next"], found["shards_not_loaded"]) == (5, None, [])


async def test_only_ids_of_the_page_are_described() -> None:
    fake = FakeTransactions({f"t{number:04}": "Empty" for number in range(5_000)})
    assert await ids_of(facts_of(fake), page=Page("", 2, 40)) == ["t0040", "t0041"]
    assert fake.described == ["t0040", "t0041"]


async def test_ids_are_searched_and_sorted() -> None:
    fake = FakeTransactions({"Orders-1": "Ongoing", "orders-2": "Empty", "other": "Ongoing", "orders-3": "Ongoing"})
    assert await ids_of(facts_of(fake), TransactionFilter(search="ORDERS")) == ["Orders-1", "orders-2", "orders-3"]
    assert await ids_of(facts_of(fake), TransactionFilter(search="orders"), sort="-producer_id") == [
        "orders-3",
        "orders-2",
        "Orders-1",
    ]
    found = await facts_of(fake).page(
        TransactionFilter(), Order("transactional_id"), WHOLE, lambda each: each == "other"
    )
    assert (found["total"], [each["transactional_id"] for each in found["transactions"]]) == (1, ["other"])


async def test_the_coordinators_filter() -> None:
    fake = FakeTransactions({})
    await ids_of(facts_of(fake), TransactionFilter("", "o.*", ("Ongoing",), (7,), 5_000))
    asked = fake.asked
    assert asked is not None
    assert (asked.API_VERSION, asked.transactional_id_pattern, asked.duration_filter) == (2, "o.*", 5_000)
    assert (asked.state_filters, asked.producer_id_filters) == (["Ongoing"], [7])


async def test_an_ended_transaction_has_no_start() -> None:
    found = await facts_of(FakeTransactions({"t": "CompleteCommit"})).page(
        TransactionFilter(), Order("transactional_id"), WHOLE
    )
    assert found["transactions"][0]["started_ms"] is None


async def test_a_wrong_pattern_is_an_error() -> None:
    fake = FakeTransactions({"t": "Empty"})
    fake.error = ErrorCode.INVALID_REGULAR_EXPRESSION
    with pytest.raises(RequestError) as refused:
        await ids_of(facts_of(fake), TransactionFilter(pattern="("))
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_ids_that_are_gone_or_whose_shard_is_lost_are_left_out() -> None:
    fake = FakeTransactions({"here": "Empty", "gone": "Empty"}, {3: ErrorCode.NOT_COORDINATOR})
    fake.codes = {"gone": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
    found = await facts_of(fake).page(TransactionFilter(), Order("transactional_id"), WHOLE)
    assert [each["transactional_id"] for each in found["transactions"]] == ["here"]
    assert found["shards_not_loaded"] == [
        {"kind": "transactions", "shard": 3, "coordinator": "b", "why": "storage is full"}
    ]
    fake.missing, fake.codes = {}, {"gone": ErrorCode.NOT_COORDINATOR}
    found = await facts_of(fake).page(TransactionFilter(), Order("transactional_id"), WHOLE)
    assert [each["shard"] for each in found["shards_not_loaded"]] == [shard_of("gone", SHARDS)]


async def test_it_is_an_error_if_no_shards_ids_can_be_listed() -> None:
    fake = FakeTransactions({}, dict.fromkeys(range(SHARDS), ErrorCode.NOT_COORDINATOR))
    with pytest.raises(RequestError) as refused:
        await ids_of(facts_of(fake))
    assert refused.value.code is ErrorCode.NOT_COORDINATOR


# ------------------------------------------------------------------------------------------------------------- one id


async def test_an_id_with_its_partitions_and_its_coordinator() -> None:
    name = next(each for each in map("t{}".format, range(1_000)) if shard_of(each, SHARDS) == 4)
    found = await facts_of(FakeTransactions({name: "PrepareAbort"})).transaction(name)
    assert found is not None
    assert (found["shard"], found["coordinator"]) == (4, "d")
    assert list(found["partitions"]) == [("orders", 0), ("orders", 3)]


@pytest.mark.parametrize(
    ("errors", "found"), [([], {}), (["KAFKA_STORAGE_ERROR"], {("orders", 3): "KAFKA_STORAGE_ERROR"})]
)
async def test_the_errors_of_markers(errors: list[str], found: dict[tuple[str, int], str]) -> None:
    """A coordinator of an earlier version sends none."""
    fake = FakeTransactions({"t": "PrepareCommit"})
    fake.marker_errors = errors
    details = await facts_of(fake).transaction("t")
    assert details is not None
    assert details["marker_errors"] == found


async def test_an_id_that_does_not_exist() -> None:
    fake = FakeTransactions({})
    fake.codes = {"t": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
    assert await facts_of(fake).transaction("t") is None
    assert await facts_of(fake).transaction("") is None
    fake.described.clear()
    assert await facts_of(fake, has_topic=False).transaction("t") is None
    assert fake.described == [], "a question would create the topic"
    fake.codes = {"t": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    with pytest.raises(RequestError):
        await facts_of(fake).transaction("t")


async def test_who_is_to_write_each_marker_and_why_it_cannot() -> None:
    partitions = [("orders", 0), ("orders", 1), ("orders", 2), ("orders", 3), ("deleted", 0),
                  (OFFSETS_TOPIC, 4), (OFFSETS_TOPIC, 5)]  # fmt: skip
    waits = await facts_of(FakeTransactions({})).marker_waits(partitions)
    assert [(each["topic"], each["partition"]) for each in waits] == partitions
    assert [(each["process"], each["why"]) for each in waits] == [
        ("b", ""),
        ("gone", "gone is no longer a member"),
        ("", "no broker is assigned; start one, or wait for the leader to assign it"),
        ("b", "storage acknowledges nothing"),
        ("", "the topic is deleted: it needs no marker"),
        ("b", ""),
        ("", "the log is torn"),
    ]


# -------------------------------------------------------------------------------------------------- one partition's log


class Owner:
    """A partition with producers: two with open transactions, one without, and a coordinator."""

    async def producers(self) -> list[ProducerState]:
        batch = ProducerBatch(base_sequence=0, last_delta=0, base_offset=20, timestamp=BEGAN_MS)
        return [
            ProducerState(9, 1, 5, BEGAN_MS + 1, 20, (batch,)),
            ProducerState(8, 1, 5, BEGAN_MS, -1, ()),
            ProducerState(7, 3, -1, BEGAN_MS + 2, 12, ()),
            ProducerState(-5, 0, -1, BEGAN_MS, 1, ()),
        ]

    async def ends(self) -> Ends:
        return Ends(epoch=4, log_start=2, last_stable_offset=12, high_watermark=30)


async def test_the_open_transactions_of_a_partition_by_their_start() -> None:
    owners = {PartitionKey(ORDERS, 0): Owner()}
    facts = facts_of(FakeTransactions({}), owners=owners)
    found = await facts.open_in("orders", 0)
    assert (found["log_start"], found["last_stable_offset"], found["high_watermark"]) == (2, 12, 30)
    assert [
        (each["producer_id"], each["start_offset"], each["last_timestamp_ms"]) for each in found["transactions"]
    ] == [
        (7, 12, BEGAN_MS + 2),
        (9, 20, BEGAN_MS),
    ]
    assert found["transactions"][0]["coordinator_epoch"] == -1
    for wrong in (("orders", 9), ("nothing", 0)):
        with pytest.raises(RequestError) as refused:
            await facts.open_in(*wrong)
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
