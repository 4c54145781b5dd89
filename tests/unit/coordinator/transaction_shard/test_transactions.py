"""The requests of the transaction coordinator: every version, every refusal."""

from __future__ import annotations

import asyncio

import pytest

from bmq.core.errors import ErrorCode as E
from bmq.core.wire import messages as m
from bmq.meta.catalog import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from bmq.meta.group_placement import shard_of
from bmq.meta.kv import KvUnavailable
from bmq.meta.shard_kinds import TRANSACTIONS, ShardId
from tests.unit.coordinator.fakes import CLIENT, topic
from tests.unit.coordinator.transaction_shard.world import World, running


@pytest.mark.parametrize("version", range(6))
async def test_a_new_producer_gets_an_id_and_the_next_one_a_higher_epoch(version: int) -> None:
    async with running(World()) as world:
        for epoch in range(3):
            made = await world.a.init(version=version)
            assert (made.error_code, made.producer_id, made.producer_epoch) == (0, 1_000, epoch)
        assert (await world.a.init("other", version=version)).producer_id == 1_001


@pytest.mark.parametrize("tid", ["", None])
async def test_requests_without_a_transactional_id_are_refused(tid: str | None) -> None:
    async with running(World()) as world:
        made = await world.a.init(tid)
        assert (made.error_code, made.producer_id, made.producer_epoch) == (E.INVALID_REQUEST, -1, -1)
    async with running(World()) as world:
        assert await world.a.add((1, 0), 1, tid="") == [E.INVALID_REQUEST]
        assert (await world.a.end((1, 0), commit=True, tid="")).error_code == E.INVALID_REQUEST
        assert (await world.a.describe("")).error_code == E.INVALID_REQUEST


@pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
async def test_a_time_out_out_of_bounds_is_refused(timeout_ms: int) -> None:
    async with running(World()) as world:
        assert (await world.a.init(timeout_ms=timeout_ms)).error_code == E.INVALID_TRANSACTION_TIMEOUT
        assert (await world.a.init(timeout_ms=900_000)).error_code == 0


async def test_a_producer_id_without_epoch_is_refused() -> None:
    async with running(World()) as world:
        assert (await world.a.init(producer_id=5)).error_code == E.INVALID_REQUEST
        assert (await world.a.init(epoch=5)).error_code == E.INVALID_REQUEST


async def test_no_producer_id_is_an_error_that_clients_repeat() -> None:
    async with running(World()) as world:
        world.a.no_ids = True
        assert (await world.a.init()).error_code == E.COORDINATOR_NOT_AVAILABLE


async def test_older_versions_know_another_code_for_fenced() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        old = (producer[0], producer[1] - 1)
        new = (producer[0], producer[1] + 1)
        for fenced in (old, new):
            for version in (0, 1):
                assert await world.a.add(fenced, 2, version=version) == [E.INVALID_PRODUCER_EPOCH]
                assert (await world.a.end(fenced, commit=True, version=version)).error_code == E.INVALID_PRODUCER_EPOCH
            for version in (2, 3, 4, 5):
                assert await world.a.add(fenced, 2, version=version) == [E.PRODUCER_FENCED]
                assert (await world.a.end(fenced, commit=True, version=version)).error_code == E.PRODUCER_FENCED
        assert await world.a.add((7, 0), 2) == [E.INVALID_PRODUCER_ID_MAPPING]
        assert await world.a.add(producer, 2, tid="unknown") == [E.INVALID_PRODUCER_ID_MAPPING]
        assert (await world.a.init("x", version=3)).error_code == 0
        assert (await world.a.init("x", version=3, producer_id=1, epoch=0)).error_code == E.INVALID_PRODUCER_EPOCH
        assert (await world.a.init("x", version=4, producer_id=1, epoch=0)).error_code == E.PRODUCER_FENCED


async def test_a_commit_of_nothing_begun_is_refused() -> None:
    async with running(World()) as world:
        made = await world.a.init()
        producer = (made.producer_id, made.producer_epoch)
        for version in (3, 5):
            assert (await world.a.end(producer, commit=True, version=version)).error_code == E.INVALID_TXN_STATE
        assert (await world.a.end(producer, commit=False, version=3)).error_code == E.INVALID_TXN_STATE
        aborted = await world.a.end(producer, commit=False, version=5)
        assert (aborted.error_code, aborted.producer_epoch) == (0, 1)


async def test_one_unknown_partition_keeps_out_the_others() -> None:
    async with running(World()) as world:
        made = await world.a.init()
        producer = (made.producer_id, made.producer_epoch)
        assert await world.a.add(producer, 1, 99) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert await world.a.add(producer, 1, name="unknown") == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert await world.a.state() == "Empty"


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("verify", [False, True])
async def test_the_log_of_a_shard_of_transactions_is_no_part_of_a_transaction(version: int, *, verify: bool) -> None:
    async with running(World()) as world:
        made = await world.a.init()
        producer = (made.producer_id, made.producer_epoch)
        refused = await world.a.add(producer, 0, name=TRANSACTIONS_TOPIC, version=version, verify=verify)
        assert refused == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert await world.a.state() == "Empty"
        assert await world.a.add(producer, 0, name=OFFSETS_TOPIC, version=version) == [E.NONE]


@pytest.mark.parametrize("version", [4, 5])
async def test_partitions_are_verified(version: int) -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        asked = await world.a.add(producer, 1, 2, version=version, verify=True)
        assert asked == [E.NONE, E.TRANSACTION_ABORTABLE]
        assert await world.a.add((producer[0], 9), 1, version=version, verify=True) == [E.PRODUCER_FENCED]
        assert [list(each.partitions) for each in (await world.a.describe()).topics] == [[1]]


@pytest.mark.slow
async def test_several_transactions_of_one_request_have_results_in_its_order() -> None:
    async with running(World()) as world:
        kinds = m.AddPartitionsToTxnRequest
        ids = [f"tx-{number}" for number in range(250)]
        producers = [await world.a.init(tid) for tid in ids]
        asked = [
            kinds.AddPartitionsToTxnTransaction(
                transactional_id=tid, producer_id=made.producer_id, producer_epoch=0, verify_only=False,
                topics=[kinds.AddPartitionsToTxnTopic(name="orders", partitions=[3])],
            )
            for tid, made in zip(ids, producers, strict=True)
        ]  # fmt: skip
        response = await world.a.apis.add_partitions(kinds(version=5, transactions=asked), CLIENT)
        assert [each.transactional_id for each in response.results_by_transaction] == ids
        assert await world.a.state(ids[-1]) == "Ongoing"


async def test_a_groups_offsets_are_a_partition_of_the_offsets_topic() -> None:
    async with running(World()) as world:
        made = await world.a.init()
        request = m.AddOffsetsToTxnRequest(
            version=3, transactional_id="tx", producer_id=made.producer_id, producer_epoch=0, group_id="group"
        )
        assert (await world.a.apis.add_offsets(request, CLIENT)).error_code == 0
        (topic,) = (await world.a.describe()).topics
        assert (topic.topic, topic.partitions) == (OFFSETS_TOPIC, [shard_of("group", 3)])
        for version, code in ((1, E.INVALID_PRODUCER_EPOCH), (4, E.PRODUCER_FENCED)):
            request = m.AddOffsetsToTxnRequest(
                version=version, transactional_id="tx", producer_id=made.producer_id, producer_epoch=7, group_id="group"
            )
            assert (await world.a.apis.add_offsets(request, CLIENT)).error_code == code


@pytest.mark.parametrize("adds", [4, 5])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_groups_offsets_leave_a_transaction_of_version_2_as_it_is(adds: int, *, is_first: bool) -> None:
    """The producer goes on after the time-out; a client before version 2 would be fenced by the same abort."""
    async with running(World()) as world:
        made = await world.a.init(timeout_ms=1_000)
        producer = (made.producer_id, made.producer_epoch)
        request = m.AddOffsetsToTxnRequest(
            version=4, transactional_id="tx", producer_id=made.producer_id, producer_epoch=0, group_id="group"
        )
        if is_first:
            assert (await world.a.apis.add_offsets(request, CLIENT)).error_code == 0
        assert await world.a.add(producer, 1, version=adds) == [E.NONE]
        if not is_first:
            assert (await world.a.apis.add_offsets(request, CLIENT)).error_code == 0
        assert len((await world.a.describe()).topics) == 2
        await asyncio.sleep(60)
        assert await world.a.state() == "CompleteAbort"
        late = await world.a.end(producer, commit=False, version=5)
        assert (late.error_code, late.producer_epoch) == (0, 1)


async def test_a_transaction_is_described() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(3, 1, timeout_ms=30_000)
        found = await world.a.describe()
        assert (found.error_code, found.transactional_id, found.transaction_state) == (0, "tx", "Ongoing")
        assert (found.producer_id, found.producer_epoch, found.transaction_timeout_ms) == (*producer, 30_000)
        assert found.transaction_start_time_ms > 0
        assert [(each.topic, each.partitions) for each in found.topics] == [("orders", [1, 3])]
        assert (await world.a.describe("unknown")).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert (await world.b.describe()).error_code == E.NOT_COORDINATOR


async def test_transactions_are_listed_by_state_producer_duration_and_pattern() -> None:
    async with running(World()) as world:
        await world.a.begin(1, tid="app-1", timeout_ms=900_000)
        await asyncio.sleep(10)
        second = await world.a.begin(1, tid="app-2", timeout_ms=900_000)
        await world.a.init("idle")

        async def listed(**fields: object) -> list[str]:
            response = await world.a.list(**fields)
            assert response.error_code == 0
            return sorted(each.transactional_id for each in response.transaction_states)

        assert await listed() == ["app-1", "app-2", "idle"]
        assert await listed(state_filters=["Ongoing"]) == ["app-1", "app-2"]
        assert await listed(state_filters=["Wrong"]) == []
        assert await listed(producer_id_filters=[second[0]]) == ["app-2"]
        assert await listed(duration_filter=5_000, state_filters=["Ongoing"]) == ["app-1"]
        assert await listed(transactional_id_pattern="app-.*") == ["app-1", "app-2"]
        assert await listed(transactional_id_pattern="app-") == []
        assert await listed(transactional_id_pattern="") == ["app-1", "app-2", "idle"]
        for version in (0, 1):
            assert await listed(version=version) == ["app-1", "app-2", "idle"]
        unknown = await world.a.list(state_filters=["Wrong", "Ongoing"])
        assert unknown.unknown_state_filters == ["Wrong"]
        assert [each.transaction_state for each in unknown.transaction_states] == ["Ongoing", "Ongoing"]
        wrong = await world.a.list(transactional_id_pattern="(")
        assert wrong.error_code == E.INVALID_REGULAR_EXPRESSION
        of_shard = await world.a.apis.list_transactions_of(
            m.ListTransactionsRequest(version=0, state_filters=[], producer_id_filters=[]), CLIENT, {0}
        )
        assert len(of_shard.transaction_states) == 3
        elsewhere = await world.b.apis.list_transactions_of(
            m.ListTransactionsRequest(version=0, state_filters=[], producer_id_filters=[]), CLIENT, {0}
        )
        assert elsewhere.error_code == E.NOT_COORDINATOR
        counts = world.a.shards.transactions_by_state()
        assert (counts["Ongoing"], counts["Empty"], counts["PrepareAbort"]) == (2, 1, 0)


async def test_the_shard_of_an_id_is_kafkas_also_before_the_topic_exists() -> None:
    world = World(transaction_shards=7)
    assert world.a.apis.shard_of("tx") == ShardId(TRANSACTIONS, 0)
    del world.a.catalog.topics[TRANSACTIONS_TOPIC]
    assert world.a.apis.shard_of("tx") == ShardId(TRANSACTIONS, shard_of("tx", 7))


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("is_unread", [False, True])
async def test_rule_12_a_question_about_a_topic_created_again_is_not_about_the_topic_before(
    *, verify: bool, is_unread: bool
) -> None:
    """The catalog of the coordinator is behind: a marker for the earlier topic would not reach the log."""
    async with running(World()) as world:
        producer = await world.a.begin(1)
        catalog, later = world.a.catalog, topic("orders", incarnation=1)
        catalog.unseen["orders"] = later
        catalog.refresh_error = KvUnavailable("away") if is_unread else None
        client = CLIENT._replace(topic_ids={"orders": later.topic_id})
        added = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="orders", partitions=[1])
        one = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id="tx", producer_id=producer[0], producer_epoch=producer[1], verify_only=verify,
            topics=[added],
        )  # fmt: skip
        response = await world.a.apis.add_partitions(m.AddPartitionsToTxnRequest(version=5, transactions=[one]), client)
        (part,) = response.results_by_transaction[0].topic_results[0].results_by_partition
        known = E.TRANSACTION_ABORTABLE if verify else E.NONE
        assert part.partition_error_code == (E.UNKNOWN_TOPIC_OR_PARTITION if is_unread else known)
        value = (await world.a.serving()).state.get("tx")
        assert value is not None
        is_added = later.topic_id in {each.topic_id for each in value.partitions}
        assert is_added is (not verify and not is_unread)
