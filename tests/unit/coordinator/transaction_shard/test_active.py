"""A shard of transactions: durable decisions, markers, failover, time."""

from __future__ import annotations

import asyncio
from unittest.mock import AsyncMock

import pytest

from bmq.coordinator.transaction.records import StoredTransaction, TopicPartitions, TransactionRecord, encode
from bmq.coordinator.transaction.states import TransactionState
from bmq.core.aio.steps import finish_steps
from bmq.core.errors import ErrorCode as E
from bmq.core.errors import RequestError
from bmq.core.logging.fields import fields_of
from bmq.core.records.batch import Record, build_batch
from bmq.core.records.control import Marker, TransactionMarker, marker_batch
from bmq.core.wire import messages as m
from bmq.core.wire.codec_client import encode_response_body
from bmq.core.wire.describe_transactions_message import errors_of
from bmq.meta.kv import KvUnavailable
from tests.harness.waiting import until
from tests.unit.coordinator.transaction_shard.world import ORDERS, Process, World, key, running


async def reaches(process: Process, state: str) -> None:
    """Wait until the id ``tx`` is in this state; fail after five minutes of virtual time."""
    for _ in range(3_000):
        if await process.state() == state:
            return
        await asyncio.sleep(0.1)
    pytest.fail(f"{await process.state()}, not {state}")


async def completed(world: World, state: str) -> None:
    await reaches(world.a, state)


async def serves(process: Process) -> None:
    """Wait until the process serves the shard, though another one holds it; fail after five minutes."""
    for _ in range(3_000):
        if not (await process.init("other")).error_code:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the shard is not served")


@pytest.mark.parametrize(("version", "epoch"), [(3, 0), (5, 1)])
async def test_a_transaction_from_its_begin_to_its_end(version: int, epoch: int) -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1, 2, version=version)
        assert await world.a.state() == "Ongoing"
        ended = await world.a.end(producer, commit=True, version=version)
        assert (ended.error_code, ended.producer_epoch) == (0, epoch)
        await completed(world, "CompleteCommit")
        marker = TransactionMarker(producer[0], epoch, 1, Marker.COMMIT, 2 if version == 5 else 0)
        assert sorted(world.partitions.taken, key=lambda each: each[1].partition) == [
            (marker, key(1)),
            (marker, key(2)),
        ]


async def test_rule_11_no_marker_before_prepare_is_durable() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        world.log.hang = True
        ending = asyncio.ensure_future(world.a.end(producer, commit=True))
        await asyncio.sleep(4)
        assert world.partitions.calls == 0
        assert not ending.done()
        assert (await ending).error_code == E.COORDINATOR_NOT_AVAILABLE
        world.log.hang = False
        world.show("a", 2)
        assert await world.a.state() == "Ongoing", "the decision was never durable"
        assert world.partitions.calls == 0


async def test_rule_11_no_marker_of_a_decision_whose_write_failed() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        serving = await world.a.serving()
        serving._markers.close = lambda: None  # type: ignore[method-assign]  # the sender itself must not be asked
        world.log.fail_next = 1
        assert (await world.a.end(producer, commit=True)).error_code == E.NOT_COORDINATOR
        await asyncio.sleep(1)
        assert world.partitions.calls == 0
        assert await world.a.state() == "Ongoing"


async def test_rule_11_the_next_coordinator_sends_the_same_markers() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1, 2, version=5)
        world.partitions.open.clear()
        assert (await world.a.end(producer, commit=True, version=5)).error_code == 0
        await until(lambda: world.partitions.calls == 1)
        world.show("b", 2)
        await until(lambda: world.partitions.calls == 2)
        assert await world.b.state() == "PrepareCommit"
        world.partitions.taken.clear()
        world.partitions.open.set()
        await reaches(world.b, "CompleteCommit")
        markers = {marker for marker, _ in world.partitions.taken}
        same = {marker._replace(coordinator_epoch=0) for marker in markers}
        assert same == {TransactionMarker(producer[0], 1, 0, Marker.COMMIT, 2)}
        assert {2} <= {marker.coordinator_epoch for marker in markers}


async def test_a_flushed_prepare_that_nobody_heard_of_is_ended_by_the_next_coordinator() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        world.log.lose_answers = 1
        assert (await world.a.end(producer, commit=False)).error_code == E.NOT_COORDINATOR
        await completed(world, "CompleteAbort")
        assert [each.marker for each, _ in world.partitions.taken] == [Marker.ABORT]


async def test_markers_are_repeated_until_each_partition_has_its_own() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1, 2, 3)
        world.partitions.codes = {
            key(2): [E.NOT_LEADER_OR_FOLLOWER, E.KAFKA_STORAGE_ERROR, E.NOT_ENOUGH_REPLICAS],
            key(3): [E.UNKNOWN_TOPIC_ID],
        }
        await world.a.end(producer, commit=True)
        await until(lambda: world.partitions.calls == 2)
        described = await world.a.describe()
        assert described.transaction_state == "PrepareCommit"
        assert [(each.topic, each.partitions) for each in described.topics] == [("orders", [2])]
        (ending,) = world.a.shards.endings()
        assert list(ending.missing) == [key(2)]
        await completed(world, "CompleteCommit")
        assert [each.partition for _, each in world.partitions.taken] == [1, 2]
        assert world.a.shards.endings() == []


async def test_markers_that_are_missing_for_long_are_named(caplog: pytest.LogCaptureFixture) -> None:
    async with running(World()) as world:
        producer = await world.a.begin(7)
        world.partitions.codes = {key(7): [E.NOT_LEADER_OR_FOLLOWER] * 12}
        await world.a.end(producer, commit=True)
        await completed(world, "CompleteCommit")
        (line,) = [each for each in caplog.records if "markers are missing" in each.message]
        named = fields_of(line)
        assert named["key"] == "tx"
        assert named["error"] == (f"NOT_LEADER_OR_FOLLOWER; producer id {producer[0]}, epoch 0; missing: orders-7")


async def test_a_description_has_the_reason_of_each_partition_that_refused_its_marker() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1, 2, 3)
        refused = [E.TRANSACTION_COORDINATOR_FENCED, E.INVALID_PRODUCER_EPOCH]
        world.partitions.codes = {key(number): [code] * 1_000 for number, code in zip((2, 3), refused, strict=True)}
        world.partitions.open.clear()
        await world.a.end(producer, commit=True)
        state = await world.a.describe()
        (topic,) = state.topics
        assert (topic.partitions, topic.marker_error_of, state.marker_errors) == ([1, 2, 3], [], []), (
            "no try has failed yet"
        )
        world.partitions.open.set()
        await until(lambda: len(world.partitions.codes[key(3)]) < 1_000)
        state = await world.a.describe()
        (topic,) = state.topics
        assert dict(zip(topic.partitions, errors_of(state, topic), strict=True)) == {
            2: "TRANSACTION_COORDINATOR_FENCED: the partition has a marker of a later coordinator",
            3: "INVALID_PRODUCER_EPOCH: the partition has a later epoch of the producer",
        }
        world.partitions.codes = {key(3): [E.KAFKA_STORAGE_ERROR] * 1_000}
        await until(lambda: len(world.partitions.codes[key(3)]) < 1_000)
        state = await world.a.describe()
        (topic,) = state.topics
        assert (topic.partitions, errors_of(state, topic)) == ([3], ["KAFKA_STORAGE_ERROR"])
        world.partitions.codes.clear()
        await completed(world, "CompleteCommit")


async def test_reasons_are_kept_for_so_many_partitions_and_the_others_have_the_last_reason_of_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bmq.coordinator.transaction_shard.markers.REASONS_MAX", 2)
    async with running(World()) as world:
        producer = await world.a.begin(1, 2, 3)
        codes = {1: E.NOT_LEADER_OR_FOLLOWER, 2: E.KAFKA_STORAGE_ERROR, 3: E.NOT_ENOUGH_REPLICAS}
        world.partitions.codes = {key(number): [code] * 1_000 for number, code in codes.items()}
        await world.a.end(producer, commit=True)
        await until(lambda: len(world.partitions.codes[key(3)]) < 1_000)
        (ending,) = world.a.shards.endings()
        assert len(ending.reasons) == 2
        state = await world.a.describe()
        (topic,) = state.topics
        assert errors_of(state, topic) == ["NOT_LEADER_OR_FOLLOWER", "KAFKA_STORAGE_ERROR", "NOT_ENOUGH_REPLICAS"]
        world.partitions.codes = {key(3): [E.NOT_ENOUGH_REPLICAS]}
        await completed(world, "CompleteCommit")
        assert ending.reasons == {}


async def test_a_call_without_results_is_the_reason_of_all_its_partitions() -> None:
    async with running(World(marker_timeout_s=1.0)) as world:
        producer = await world.a.begin(1, 2)
        world.partitions.open.clear()
        await world.a.end(producer, commit=True)
        await asyncio.sleep(1.5)
        state = await world.a.describe()
        (topic,) = state.topics
        assert errors_of(state, topic) == ["no response in 1.0 s"] * 2
        world.partitions.open.set()
        await completed(world, "CompleteCommit")


async def test_a_reason_that_partitions_share_is_in_a_description_once() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(*range(10))
        shared = {key(number): [E.INVALID_PRODUCER_EPOCH] * 1_000 for number in range(1, 10)}
        world.partitions.codes = {**shared, key(5): [E.KAFKA_STORAGE_ERROR] * 1_000}
        await world.a.end(producer, commit=True)
        await until(lambda: len(world.partitions.codes[key(9)]) < 1_000)
        state = await world.a.describe()
        (topic,) = state.topics
        reason = "INVALID_PRODUCER_EPOCH: the partition has a later epoch of the producer"
        assert errors_of(state, topic) == [reason] * 4 + ["KAFKA_STORAGE_ERROR"] + [reason] * 4
        described = m.DescribeTransactionsResponse(throttle_time_ms=0, transaction_states=[state])
        assert bytes(encode_response_body(described, 0)).count(b"INVALID_PRODUCER_EPOCH") == 1
        world.partitions.codes.clear()
        await completed(world, "CompleteCommit")


async def test_a_time_out_is_not_called_a_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Name the refusal in its log line, though the call to another broker has failed after it."""
    monkeypatch.setattr("bmq.coordinator.transaction_shard.markers.PARTITIONS_A_CALL", 1)
    async with running(World(marker_timeout_s=1.0)) as world:
        producer = await world.a.begin(1, 2, 3)
        world.partitions.codes = {
            key(1): [E.INVALID_PRODUCER_EPOCH] * 1_000,
            key(3): [E.REQUEST_TIMED_OUT] * 1_000,
        }
        world.partitions.silent = {key(2)}
        await world.a.end(producer, commit=True)
        await until(lambda: any("refuses a transaction's markers" in each.message for each in caplog.records))
        state = await world.a.describe()
        assert errors_of(state, state.topics[0]) == [
            "INVALID_PRODUCER_EPOCH: the partition has a later epoch of the producer",
            "no response in 1.0 s",
            "REQUEST_TIMED_OUT: not confirmed in time, the partition may have the marker",
        ]
        (line,) = [each for each in caplog.records if "refuses a transaction's markers" in each.message]
        assert str(fields_of(line)["error"]) == (
            "INVALID_PRODUCER_EPOCH: the partition has a later epoch of the producer;"
            f" producer id {producer[0]}, epoch 0; missing: orders-1, orders-2 (no response in 1.0 s),"
            " orders-3 (REQUEST_TIMED_OUT: not confirmed in time, the partition may have the marker)"
        )
        world.partitions.heals.set()
        world.partitions.codes.clear()
        await completed(world, "CompleteCommit")


async def test_every_reason_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bmq.coordinator.transaction_shard.markers.REASON_CHARACTERS", 10)
    world = World()
    stored = StoredTransaction(7, 3, 60_000, TransactionState.PREPARE_ABORT, (TopicPartitions("old", None, (0,)),))
    record_key, value = encode(TransactionRecord("tx", stored))
    world.log.store(build_batch([Record(key=record_key, value=value)], base_timestamp=0))
    world.a.catalog.refresh_error = KvUnavailable("a long story")
    async with running(world):
        await serves(world.a)
        (ending,) = world.a.shards.endings()
        await until(lambda: ending.error != "")
        assert ending.error == "cannot loo"
        world.a.catalog.refresh_error = None
        await completed(world, "CompleteAbort")
        producer = await world.a.begin(1)
        world.partitions.codes = {key(1): [E.TRANSACTION_COORDINATOR_FENCED] * 1_000}
        confirm = AsyncMock(side_effect=RequestError(E.COORDINATOR_NOT_AVAILABLE, "a long story"))
        monkeypatch.setattr((await world.a.serving())._markers, "_confirm", confirm)
        await world.a.end(producer, commit=True)
        (ending,) = world.a.shards.endings()
        await until(lambda: confirm.await_count > 0)
        assert ending.error == "COORDINATO"
        world.partitions.codes.clear()
        await completed(world, "CompleteCommit")


async def test_markers_refused_by_fenced_go_on_only_while_this_process_is_the_owner() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        world.partitions.codes = {key(1): [E.TRANSACTION_COORDINATOR_FENCED] * 2}
        confirmed = world.log.confirmations
        await world.a.end(producer, commit=True)
        await completed(world, "CompleteCommit")
        assert world.log.confirmations > confirmed, "it has asked its log"
        producer = await world.a.begin(2)
        world.partitions.codes = {key(2): [E.TRANSACTION_COORDINATOR_FENCED] * 1_000}
        await world.a.end(producer, commit=True)
        await until(lambda: len(world.partitions.codes[key(2)]) < 1_000)
        world.isolate(world.a)
        world.b.show("b", 2)
        await serves(world.b)
        world.partitions.codes.clear()
        await reaches(world.b, "CompleteCommit")
        last, _ = world.partitions.taken[-1]
        assert last.coordinator_epoch == 2


async def test_open_transactions_and_markers_that_a_partition_does_not_take_are_counted() -> None:
    async with running(World()) as world:
        shards = world.a.shards
        assert (finish_steps(shards.oldest_open_s()), shards.unwritten_markers()) == (0.0, (0, 0.0))
        producer = await world.a.begin(1)
        await until(lambda: finish_steps(shards.oldest_open_s()) > 0)
        world.partitions.codes = {key(1): [E.NOT_LEADER_OR_FOLLOWER] * 1_000}
        await world.a.end(producer, commit=True)
        await until(lambda: shards.unwritten_markers().markers == 1)
        await until(lambda: shards.unwritten_markers().oldest_s > 0)
        assert finish_steps(shards.oldest_open_s()) == 0.0
        world.partitions.codes.clear()
        await completed(world, "CompleteCommit")
        assert shards.unwritten_markers() == (0, 0.0)


async def test_a_call_without_a_response_is_made_again() -> None:
    async with running(World(marker_timeout_s=1.0)) as world:
        producer = await world.a.begin(1)
        world.partitions.open.clear()
        await world.a.end(producer, commit=True)
        await until(lambda: world.partitions.calls == 3)
        world.partitions.open.set()
        await completed(world, "CompleteCommit")


@pytest.mark.parametrize("partitions", [1, 5])
async def test_a_bug_in_a_call_is_logged_once_and_the_markers_are_sent_again(
    partitions: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bmq.coordinator.transaction_shard.markers.PARTITIONS_A_CALL", 2)
    async with running(World()) as world:
        producer = await world.a.begin(*range(partitions))
        world.partitions.bugs = [ValueError("a wrong frame"), ValueError("again")]
        await world.a.end(producer, commit=True)
        await completed(world, "CompleteCommit")
        assert sorted(each.partition for _, each in world.partitions.taken) == list(range(partitions))
        (line,) = [each for each in caplog.records if "unexpected error" in each.message]
        assert fields_of(line)["key"] == "tx"
        assert line.exc_info is not None
        assert isinstance(line.exc_info[1], ValueError)


async def test_a_bug_in_the_proof_of_the_ownership_keeps_no_transaction_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        markers = (await world.a.serving())._markers

        async def confirm() -> None:
            raise ValueError("a wrong frame")

        monkeypatch.setattr(markers, "_confirm", confirm)
        world.partitions.codes = {key(1): [E.TRANSACTION_COORDINATOR_FENCED]}
        await world.a.end(producer, commit=True)
        await completed(world, "CompleteCommit")
        assert [each.message for each in caplog.records if each.exc_info] != []


async def test_topics_of_kafkas_records_are_found_by_name() -> None:
    world = World()
    from_kafka = StoredTransaction(5, 0, 1, TransactionState.PREPARE_COMMIT, (), updated_ms=1, started_ms=1)
    _, value = encode(TransactionRecord("tx", from_kafka))
    assert value is not None
    head, tail = value[:17], value[18:]
    topics = b"\3" + b"\7orders\2" + bytes(3) + b"\1\0" + b"\5gone\2" + bytes(4) + b"\0"
    stored = Record(key=encode(TransactionRecord("tx", None))[0], value=head + topics + tail)
    world.log.store(build_batch([stored], base_timestamp=1))
    async with running(world):
        await completed(world, "CompleteCommit")
        assert [each for _, each in world.partitions.taken] == [key(1)], "the other topic is gone"


async def test_an_add_waits_for_the_end_of_the_transaction_before() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1, version=5)
        world.partitions.open.clear()
        ended = await world.a.end(producer, commit=True, version=5)
        loop = asyncio.get_running_loop()
        began = loop.time()
        following = (ended.producer_id, ended.producer_epoch)
        assert await world.a.add(following, 2, version=5) == [E.CONCURRENT_TRANSACTIONS]
        assert 0.1 <= loop.time() - began < 0.2
        adding = asyncio.ensure_future(world.a.add(following, 2, version=5))
        await asyncio.sleep(0.05)
        world.partitions.open.set()
        assert await adding == [E.NONE]
        assert await world.a.state() == "Ongoing"


# --------------------------------------------------------------------------------------------------------- time


@pytest.mark.parametrize(("version", "fenced"), [(3, True), (5, False)])
async def test_an_open_transaction_is_aborted_after_its_time_out(version: int, fenced: bool) -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1, version=version, timeout_ms=30_000)
        await asyncio.sleep(29)
        assert await world.a.state() == "Ongoing"
        await asyncio.sleep(3)
        assert await world.a.state() == "CompleteAbort"
        ((marker, _),) = world.partitions.taken
        assert (marker.producer_epoch, marker.marker) == (1, Marker.ABORT)
        commit = await world.a.end(producer, commit=True, version=version)
        assert commit.error_code == E.PRODUCER_FENCED
        assert (await world.a.init(producer_id=producer[0], epoch=0)).error_code == (E.PRODUCER_FENCED if fenced else 0)


async def test_the_time_out_counts_from_the_stored_start_after_a_failover() -> None:
    async with running(World()) as world:
        await world.a.begin(1, timeout_ms=30_000)
        await asyncio.sleep(25)
        world.show("b", 2)
        await world.b.state()
        await asyncio.sleep(8)
        assert await world.b.state() == "CompleteAbort"


async def test_a_time_out_against_an_end_has_one_winner() -> None:
    """The time-out is due while the commit is on its way to the log, at every moment around it."""
    for early_ms in range(-3, 4):
        async with running(World()) as world:
            producer = await world.a.begin(1, timeout_ms=5_000)
            serving = await world.a.serving()
            await asyncio.sleep(5 + early_ms / 1000)
            ending = asyncio.ensure_future(world.a.end(producer, commit=True))
            await asyncio.sleep(0)
            await serving._abort_overdue()
            code = (await ending).error_code
            await until(lambda world=world: bool(world.partitions.taken))  # type: ignore[misc]
            await asyncio.sleep(1)
            ((marker, _),) = world.partitions.taken
            assert (code == 0) == (marker.marker is Marker.COMMIT)
            assert await world.a.state() == ("CompleteCommit" if code == 0 else "CompleteAbort")


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("how", ["commits", "aborts", "is overdue", "is left by its producer"])
async def test_a_transaction_ends_without_a_new_producer_id_while_epochs_are_left(how: str, version: int) -> None:
    """The metadata store may be away for long: no end waits for it."""
    async with running(World()) as world:
        producer = await world.a.begin(1, version=version)
        world.a.no_ids = True
        if how == "is overdue":
            await asyncio.sleep(70)
        elif how == "is left by its producer":
            assert (await world.a.init()).error_code == E.CONCURRENT_TRANSACTIONS
        else:
            assert (await world.a.end(producer, commit=how == "commits", version=version)).error_code == E.NONE
        await completed(world, "CompleteCommit" if how == "commits" else "CompleteAbort")
        assert len(world.a.ids) == 1


async def test_a_time_out_that_needs_a_producer_id_waits_for_one() -> None:
    world = World()
    value = StoredTransaction(
        5, 32_766, 1_000, TransactionState.ONGOING, (), updated_ms=1, started_ms=1, client_version=2
    )
    key_, stored = encode(TransactionRecord("tx", value))
    world.log.store(build_batch([Record(key=key_, value=stored)], base_timestamp=1))
    world.a.no_ids = True
    async with running(world):
        await asyncio.sleep(5)
        assert await world.a.state() == "Ongoing"
        world.a.no_ids = False
        await completed(world, "CompleteAbort")
        described = await world.a.describe()
        assert (described.producer_id, described.producer_epoch) == (1_000, 0)


async def test_an_unused_id_is_forgotten() -> None:
    async with running(World(transactional_id_retention_ms=10_000, transactional_id_expiry_interval_s=1.0)) as world:
        await world.a.init()
        await world.a.begin(1, tid="open", timeout_ms=900_000)
        await asyncio.sleep(9)
        assert await world.a.state() == "Empty"
        await asyncio.sleep(5)
        assert (await world.a.describe()).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert await world.a.state("open") == "Ongoing"
        world.show("b", 2)
        assert (await world.b.describe()).error_code == E.TRANSACTIONAL_ID_NOT_FOUND
        assert (await world.b.init()).producer_epoch == 0


# --------------------------------------------------------------------------------------------------- life cycle


async def test_a_repeated_init_producer_id_is_known_after_a_failover() -> None:
    async with running(World()) as world:
        first = await world.a.init()
        again = await world.a.init(producer_id=first.producer_id, epoch=0)
        assert again.producer_epoch == 1
        world.show("b", 2)
        repeated = await world.b.init(producer_id=first.producer_id, epoch=0)
        assert (repeated.error_code, repeated.producer_epoch) == (0, 1)


async def test_a_coordinator_that_is_cut_off_answers_nothing_from_memory() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        world.isolate(world.a)
        world.log.open_log = None  # another process has opened the log; nobody has notified this one
        assert await world.a.add(producer, 1, version=4, verify=True) == [E.NONE], "its proof is fresh"
        await asyncio.sleep(4)
        assert await world.a.add(producer, 1, version=4, verify=True) == [E.NOT_COORDINATOR]


@pytest.mark.parametrize("commit", [True, False])
async def test_rule_1_a_former_coordinator_counts_no_later_end_as_a_repetition(*, commit: bool) -> None:
    """Decide a transaction at C and move the shard to D; a request for the next transaction's end then goes to C."""
    async with running(World()) as world:
        c, d = world.a, world.b
        producer = await c.begin(1)
        assert (await c.end(producer, commit=commit)).error_code == 0
        await completed(world, "CompleteCommit" if commit else "CompleteAbort")
        world.isolate(c)
        d.show("b", 2)  # C does not see that D has the shard
        world.log.open_log, c_log = None, world.log.open_log
        assert await d.add(producer, 2) == [E.NONE]
        assert c_log.is_open, "nobody has notified C"
        assert (await c.end(producer, commit=commit)).error_code == E.NOT_COORDINATOR
        assert await d.state() == "Ongoing"
        assert (await d.end(producer, commit=commit)).error_code == 0


@pytest.mark.parametrize("adds", [1, 2])
async def test_rule_1_a_former_coordinator_denies_no_partition_of_a_later_transaction(adds: int) -> None:
    async with running(World()) as world:
        c, d = world.a, world.b
        producer = await c.begin(1)
        assert (await c.end(producer, commit=True)).error_code == 0
        await completed(world, "CompleteCommit")
        if adds == 2:
            assert await c.add(producer, 3) == [E.NONE]
        world.isolate(c)
        d.show("b", 2)
        world.log.open_log = None
        assert await d.add(producer, 2) == [E.NONE]
        assert await c.add(producer, 2, version=4, verify=True) == [E.NOT_COORDINATOR]
        assert await d.add(producer, 2, version=4, verify=True) == [E.NONE]


@pytest.mark.parametrize("request_of", ["end", "add", "init"])
async def test_rule_1_a_former_coordinator_refuses_no_later_producer(request_of: str) -> None:
    async with running(World()) as world:
        c, d = world.a, world.b
        made = await c.init()
        world.isolate(c)
        d.show("b", 2)
        world.log.open_log = None
        producer = (made.producer_id, (await d.init()).producer_epoch)
        assert producer[1] == made.producer_epoch + 1
        if request_of == "end":
            assert (await c.end(producer, commit=True)).error_code == E.NOT_COORDINATOR
        elif request_of == "add":
            assert await c.add(producer, 1) == [E.NOT_COORDINATOR]
        else:
            again = await c.init(producer_id=producer[0], epoch=producer[1])
            assert again.error_code == E.NOT_COORDINATOR


async def test_a_repeated_end_asks_the_log_and_a_question_does_not() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        await world.a.end(producer, commit=True)
        await completed(world, "CompleteCommit")
        for count in range(1, 4):
            assert (await world.a.end(producer, commit=True)).error_code == 0
            assert world.log.confirmations == count, "the proof of before counts for no later request"
        confirmed = world.log.confirmations
        assert await world.a.add(producer, 1) == [E.NONE]
        assert await world.a.add(producer, 1, version=4, verify=True) == [E.NONE]
        assert world.log.confirmations == confirmed


async def test_a_marker_in_the_shards_own_log_keeps_no_coordinator_from_loading() -> None:
    """A version that let a transaction have the shard's own log has written markers there."""
    async with running(World()) as world:
        await world.a.begin(1)
        marker = TransactionMarker(7, 0, 1, Marker.COMMIT, 0)
        world.log.store(marker_batch(marker, 0))
        before = (await world.a.serving()).state.facts()
        for number, process in ((2, world.b), (3, world.a)):
            world.show(process.view.own, number)
            assert (await process.serving()).state.facts() == before
            assert await process.state() == "Ongoing"


async def test_a_snapshot_keeps_open_and_prepared_transactions() -> None:
    async with running(World(snapshot_bytes=2_000, snapshot_chunk_bytes=200)) as world:
        world.partitions.codes = {key(9): [E.NOT_LEADER_OR_FOLLOWER] * 10_000}
        prepared = await world.a.begin(9, tid="prepared")
        await world.a.end(prepared, commit=True, tid="prepared")
        await world.a.begin(1, 2, tid="open", timeout_ms=900_000)
        for _ in range(200):
            assert (await world.a.init("busy")).error_code == 0
        await until(lambda: world.log.snapshots > 1)
        await asyncio.sleep(1)
        assert world.log.log_start > 0
        before = (await world.a.serving()).state.facts()
        world.show("b", 2)
        assert (await world.b.serving()).state.facts() == before
        assert await world.b.state("prepared") == "PrepareCommit"
        assert await world.b.state("open") == "Ongoing"


async def test_a_transaction_that_no_record_can_hold_is_refused_and_stays_as_it_was() -> None:
    world = World()
    async with running(world):
        producer = await world.a.begin(0)
        serving = await world.a.serving()
        before = serving.state.facts()
        world.log.max_batch_bytes = 250
        assert await world.a.add(producer, *range(1, 10)) == [E.UNKNOWN_SERVER_ERROR] * 9
        assert serving.state.facts() == before
        assert (await world.a.end(producer, commit=True)).error_code == 0
        assert (await world.a.init("x" * 40_000)).error_code == E.INVALID_REQUEST


async def test_a_request_before_the_shard_is_loaded_is_refused() -> None:
    world = World()
    world.log.next_offset, world.log.fail_reads = 1, "storage is away"
    async with running(world):
        assert (await world.a.init()).error_code == E.COORDINATOR_LOAD_IN_PROGRESS
        assert (await world.b.init()).error_code == E.NOT_COORDINATOR
        with pytest.raises(RequestError) as refused:
            await world.a.apis.ready("tx")
        assert refused.value.code is E.COORDINATOR_LOAD_IN_PROGRESS


async def test_a_deleted_topic_counts_as_done() -> None:
    async with running(World()) as world:
        producer = await world.a.begin(1)
        world.a.catalog.delete("orders")
        world.partitions.codes = {key(1): [E.UNKNOWN_TOPIC_ID]}
        await world.a.end(producer, commit=True)
        await completed(world, "CompleteCommit")
        assert world.partitions.taken == []
        assert ORDERS.name not in world.a.catalog.topics
