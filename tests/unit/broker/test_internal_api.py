"""A broker's responses to other processes: questions, segments, and traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from bmq.broker.partition_queries import ANSWERED_A_TURN
from bmq.core.aio.standstill import GIVEN_UP_S
from bmq.core.aio.steps import finish_steps
from bmq.core.errors import ErrorCode
from bmq.core.model import PartitionKey
from bmq.core.records.control import Marker
from bmq.core.rpc.message import InternalRequest
from bmq.core.rpc.messages.broker import (
    ENDS_FLUSHED,
    QUESTIONS_MAX,
    ActiveSegmentRequest,
    ActiveSegmentResponse,
    AskPartitionsRequest,
    AskRequest,
    AskResponse,
    HighWatermarksRequest,
    HighWatermarksResponse,
    LoadRequest,
    OpenFilesRequest,
    OpenFilesResponse,
    PartitionQuestion,
    ProducersRequest,
    Question,
    ShardAppendRequest,
    ShardOpenRequest,
)
from bmq.core.rpc.messages.member import PingRequest
from bmq.storage import checkpoint
from bmq.storage.aborted import decode_aborted
from bmq.storage.checkpoint import AbortedTransaction, ProducerState, decode_producers, from_big_endian
from tests.harness.loop_stops import TurnCounter, is_short, loop_stops
from tests.harness.waiting import until
from tests.unit.broker.cluster import Caller, cluster, owned
from tests.unit.broker.partition.transactional import PID, data, marker
from tests.unit.broker.world import batch, idempotent

pytestmark = pytest.mark.slow


async def ask(caller: Caller, key: PartitionKey, question: Question, argument: int = 0) -> AskResponse:
    request = AskRequest(key.topic_id, key.partition, question, argument)
    return await caller.ask(request)


async def test_every_question_is_answered_as_the_owner_would() -> None:
    async with cluster() as c:
        key = await owned(c)
        caller = Caller(c["a"])
        empty = {question: (await ask(caller, key, question)).values for question in Question}
        assert empty == {
            Question.ENDS: (1, 0, 0, 0),
            Question.END_OF_EPOCH: (0, 0),
            Question.MAX_TIMESTAMP: (-1, -1),
            Question.TIMESTAMP: (),
            Question.DELETE_BEFORE: (0,),
            Question.LOG_BYTES: (0,),
            Question.CONFIRM_END: (1, 0, 0, 0),
        }
        for number in range(3):
            await c.write("a", key, batch(count=2, base_timestamp=1000 + number * 10))
        assert (await ask(caller, key, Question.ENDS)).values == (1, 0, 6, 6)
        assert (await ask(caller, key, Question.MAX_TIMESTAMP)).values == (5, 1021)
        assert (await ask(caller, key, Question.TIMESTAMP, 1011)).values == (3, 1011)
        assert (await ask(caller, key, Question.END_OF_EPOCH, 1)).values == (1, 6)
        assert (await ask(caller, key, Question.LOG_BYTES)).values[0] > 0
        assert (await ask(caller, key, Question.DELETE_BEFORE, 4)).values == (4,)
        beyond = await ask(caller, key, Question.DELETE_BEFORE, 100)
        assert beyond.error is ErrorCode.OFFSET_OUT_OF_RANGE
        assert "100" in beyond.message


@pytest.mark.parametrize(("question", "argument"), [(Question.CONFIRM_END, 0), (Question.DELETE_BEFORE, 5)])
async def test_rule_2_an_end_is_confirmed_by_the_store(question: Question, argument: int) -> None:
    """Another broker has taken the partition over, and the old owner was not notified: the ends that it returns are
    old, but it confirms nothing, and calls nothing out of range."""

    async with cluster() as c:
        key = await owned(c)
        await c.write("a", key, batch())
        caller = Caller(c["a"])
        owner = c["a"].assigned.get(key)
        assert owner is not None
        assert not owner.ask_end(), "the store is asked first"
        await asyncio.sleep(0.1)
        assert [owner.ask_end(), owner.ask_end()] == [True, False], "its word serves one reader"
        await asyncio.sleep(0.1)
        c["b"].view.assign("b", key)
        await asyncio.sleep(10)
        assert (await ask(caller, key, Question.ENDS)).values == (1, 0, 1, 1)
        assert owner.ask_end() is False
        assert (await ask(caller, key, question, argument)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_question_to_the_wrong_broker_is_refused_at_once() -> None:
    async with cluster() as c:
        key = await owned(c)
        caller = Caller(c["b"])
        began = asyncio.get_running_loop().time()
        assert (await ask(caller, key, Question.ENDS)).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        requests: tuple[InternalRequest[Any], ...] = (
            ProducersRequest(key.topic_id, 0),
            ActiveSegmentRequest(key.topic_id, 0),
            ShardOpenRequest(key.topic_id, 0, 1),
            ShardAppendRequest(key.topic_id, 0, 1, 1, batch()),
        )
        for request in requests:
            response = await caller.ask(request)
            assert response.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert asyncio.get_running_loop().time() == began


async def test_a_question_waits_for_a_partition_that_is_being_opened() -> None:
    async with cluster() as c:
        c.topic()
        (key,) = c.keys()
        c.give("a", key)
        assert (await ask(Caller(c["a"]), key, Question.ENDS)).values == (1, 0, 0, 0)


async def alone(caller: Caller, key: PartitionKey) -> AskResponse:
    return await ask(caller, key, Question.ENDS)


async def ask_together(caller: Caller, *questions: PartitionQuestion, wait_ms: int = 100) -> list[tuple[int, Any]]:
    """Return of each question the error, and the values or None if it was not answered in time."""
    response = await caller.ask(AskPartitionsRequest(wait_ms, questions))
    assert response.error is ErrorCode.NONE
    return [(each.error, each.values if each.is_answered else None) for each in response.answers]


async def test_questions_about_many_partitions_are_answered_together() -> None:
    async with cluster() as c:
        topic = c.topic(partitions=3)
        first, second, elsewhere = c.keys()
        c.give("a", first, second)
        c.give("b", elsewhere)
        caller = Caller(c["a"])
        for key in (first, second):
            await c["a"].assigned.wait(key, 5.0)
        for number in range(3):
            await c.write("a", second, batch(count=2, base_timestamp=1000 + number * 10))
        ask = partial(PartitionQuestion, topic.topic_id)
        assert await ask_together(
            caller,
            ask(1, Question.ENDS, ENDS_FLUSHED),
            ask(0, Question.ENDS, 0),
            ask(2, Question.ENDS, 0),
            ask(9, Question.ENDS, 0),
            ask(1, Question.TIMESTAMP, 1011),
            ask(1, Question.TIMESTAMP, 9999),
            ask(1, Question.MAX_TIMESTAMP, 0),
            ask(1, Question.END_OF_EPOCH, 1),
            ask(1, Question.DELETE_BEFORE, 1),
            ask(1, Question.CONFIRM_END, 0),
            ask(1, 77, 0),
        ) == [
            (0, (1, 0, 6, 6)),
            (0, (1, 0, 0, 0)),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ()),
            (ErrorCode.NOT_LEADER_OR_FOLLOWER, ()),
            (0, (3, 1011)),
            (0, ()),
            (0, (5, 1021)),
            (0, (1, 6)),
            (ErrorCode.INVALID_REQUEST, ()),
            (ErrorCode.INVALID_REQUEST, ()),
            (ErrorCode.INVALID_REQUEST, ()),
        ]
        assert (await alone(caller, second)).values == (1, 0, 6, 6), "nothing is deleted"
        assert await ask_together(caller) == []


async def test_a_partition_that_is_being_opened_is_answered_as_such() -> None:
    """The response comes within the given time, with the other partitions; nothing goes on waiting for it."""

    async with cluster() as c:
        topic = c.topic(partitions=2)
        opening, is_open = c.keys()
        c.give("a", is_open)
        await c["a"].assigned.wait(is_open, 5.0)
        c.give("b", opening)
        await c["b"].assigned.wait(opening, 5.0)
        c["a"].view.assign("a", opening)  # b was not notified, so its release is waited for
        await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        ask = partial(PartitionQuestion, topic.topic_id)
        found = await ask_together(Caller(c["a"]), ask(0, Question.ENDS, 0), ask(1, Question.ENDS, 0))
        assert found == [(ErrorCode.REQUEST_TIMED_OUT, None), (0, (1, 0, 0, 0))]
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.1)
        assert not c["a"].assigned._slots[opening].waiters
        await c["a"].assigned.wait(opening, 60.0)
        again = await ask_together(Caller(c["a"]), ask(0, Question.ENDS, 0))
        assert again == [(0, (2, 0, 0, 0))]


async def test_too_many_questions_are_refused() -> None:
    async with cluster() as c:
        key = await owned(c)
        questions = (QUESTIONS_MAX + 1) * [PartitionQuestion(key.topic_id, 0, Question.ENDS, 0)]
        response = await Caller(c["a"]).ask(AskPartitionsRequest(100, questions))
        assert response.error is ErrorCode.INVALID_REQUEST


async def test_many_questions_are_answered_in_turns() -> None:
    async with cluster() as c:
        key = await owned(c)
        questions = QUESTIONS_MAX * [PartitionQuestion(key.topic_id, 0, Question.ENDS, ENDS_FLUSHED)]
        with loop_stops() as stops:
            found = await ask_together(Caller(c["a"]), *questions)
        assert found == QUESTIONS_MAX * [(0, (1, 0, 0, 0))]
        assert stops.turns >= QUESTIONS_MAX / ANSWERED_A_TURN
        assert is_short(stops.longest_s), stops.longest_s


async def test_an_owners_producers_are_given_as_it_knows_them() -> None:
    async with cluster() as c:
        key = await owned(c)
        for sequence in range(3):
            await c.write("a", key, idempotent(sequence))
        request = ProducersRequest(key.topic_id, key.partition)
        response = await Caller(c["a"]).ask(request)
        owner = await c["a"].assigned.wait(key, 1.0)
        assert finish_steps(decode_producers(memoryview(response.states))) == list(await owner.producers())


async def test_many_producers_are_encoded_in_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as c:
        key = await owned(c)
        for producer_id in range(1, 8):
            await c.write("a", key, idempotent(0, producer_id=producer_id))
        turns, put = TurnCounter(), checkpoint._put_producer

        def counted(out: bytearray, state: ProducerState) -> None:
            turns.count()
            put(out, state)

        monkeypatch.setattr(checkpoint, "PRODUCERS_A_STEP", 2)
        monkeypatch.setattr(checkpoint, "_put_producer", counted)
        request = ProducersRequest(key.topic_id, key.partition)
        response = await Caller(c["a"]).ask(request)
        assert turns.take() == [2, 2, 2, 1]
        assert [state.producer_id for state in finish_steps(decode_producers(memoryview(response.states)))] == [
            *range(1, 8)
        ]


async def test_the_active_segments_index_comes_piece_by_piece() -> None:
    """Entries that the caller has of the same segment are not sent again; of another segment it gets all of them."""

    async with cluster() as c:
        key = await owned(c)
        caller = Caller(c["a"])

        async def active(*known: int) -> ActiveSegmentResponse:
            request = ActiveSegmentRequest(key.topic_id, key.partition, *known)
            response = await caller.ask(request)
            assert isinstance(response, ActiveSegmentResponse)
            return response

        none = await active()
        assert (none.error, none.base, none.epoch) == (ErrorCode.NONE, -1, 1)
        for _ in range(10):
            await c.write("a", key, batch(b"x" * 40_000))
        first = await active()
        owner = await c["a"].assigned.wait(key, 1.0)
        segment = owner.active_segment
        assert segment is not None
        entries = from_big_endian(memoryview(first.entries))
        assert entries == segment.index.entries
        assert len(entries) > 6
        assert (first.position, first.end_offset, first.first_entry) == (segment.position, 10, 0)
        for _ in range(10):
            await c.write("a", key, batch(b"x" * 40_000))
        known = len(entries) // 3
        name = (first.base, first.segment_epoch, first.n)
        more = await active(*name, known)
        assert more.first_entry == known
        assert entries + from_big_endian(memoryview(more.entries)) == segment.index.entries
        assert (await active(*name, 1_000_000)).entries == b""
        assert (await active(first.base, first.segment_epoch, first.n + 1, known)).first_entry == 0


async def test_the_active_segments_answer_has_the_aborted_transactions_that_no_index_has() -> None:
    async with cluster() as c:
        key = await owned(c)
        caller = Caller(c["a"])
        owner = await c["a"].assigned.wait(key, 1.0)

        async def known(start: int) -> tuple[int, list[AbortedTransaction]]:
            response = await caller.ask(ActiveSegmentRequest(key.topic_id, key.partition, aborted_from=start))
            assert isinstance(response, ActiveSegmentResponse)
            return response.aborted_since, decode_aborted(memoryview(response.aborted))

        assert await known(0) == (0, []), "none yet, which is not the same as not known"
        for _ in range(2):
            await owner.append_internal(data(-1).data)
            await owner.append_internal(marker(Marker.ABORT).data)
        first, second = AbortedTransaction(PID, 0, 1, 2), AbortedTransaction(PID, 2, 3, 4)
        assert await known(0) == (0, [first, second])
        assert await known(2) == (0, [second])
        assert await known(4) == (0, [])


def test_a_version_without_the_fields_reads_and_sends_the_same_bytes() -> None:
    assert ActiveSegmentResponse(ErrorCode.NONE, epoch=1).encode()[-1][-1:] == b"\0", "no tags"
    plain = ActiveSegmentResponse.decode(memoryview(b"".join(ActiveSegmentResponse(ErrorCode.NONE).encode())))
    assert (plain.aborted_since, plain.aborted) == (-1, b"")


async def test_ping_says_whether_the_broker_serves() -> None:
    async with cluster() as c:
        caller = Caller(c["a"])
        assert (await caller.ask(PingRequest())).is_serving
        c["a"].membership.is_member = False
        assert not (await caller.ask(PingRequest())).is_serving


async def test_load_is_that_since_the_callers_last_request() -> None:
    async with cluster() as c:
        c.topic(100)
        keys = c.keys()
        c.give("a", *keys)

        async def loads(name: str) -> Sequence[Any]:
            caller = c["a"].caller(name)
            return tuple((await caller.ask(LoadRequest())).partitions)

        await c.write("a", keys[3], batch())
        assert await loads("first") == (), "nobody knows since when"
        data = batch(b"x" * 100)
        for _ in range(2):
            await c.write("a", keys[3], bytearray(data))
        c["a"].broker.context.load.read(keys[5], 1000)
        assert await loads("second") == ()
        expected = [(keys[3].topic_id, 3, 2 * len(data), 0, 2), (keys[5].topic_id, 5, 0, 1000, 1)]
        assert list(await loads("first")) == expected
        assert await loads("first") == ()
        await c.write("a", keys[3], bytearray(data))
        assert list(await loads("second")) == [(keys[3].topic_id, 3, len(data), 0, 1)]


async def test_high_watermarks_of_many_partitions_at_once_and_none_is_opened_for_it() -> None:
    async with cluster() as c:
        c.topic(3)
        keys = c.keys()
        c.give("a", *keys[:2])
        for _ in range(2):
            await c.write("a", keys[1], batch())
        await c["a"].assigned.wait(keys[0], 5.0)
        request = HighWatermarksRequest(tuple((key.topic_id, key.partition) for key in reversed(keys)))
        found = await Caller(c["a"]).ask(request)
        assert found == HighWatermarksResponse(ErrorCode.NONE, (-1, 2, 0))


async def test_a_high_watermark_is_unknown_while_the_ownership_is_in_doubt() -> None:
    async with cluster() as c:
        c.topic(1)
        (key,) = c.keys()
        c.give("a", key)
        await c.write("a", key, batch())
        owner = c["a"].assigned.open_owner(key)
        assert owner is not None
        request = HighWatermarksRequest(((key.topic_id, 0),))
        c["a"].stand_still(GIVEN_UP_S)
        c["a"].kv.crash()
        for _ in range(2):
            assert (await Caller(c["a"]).ask(request)).watermarks == (-1,), "another broker may have taken it over"
            await asyncio.sleep(30)
        assert owner.high_watermark == 1


async def test_open_files_are_reported_and_the_share_is_taken() -> None:
    async with cluster() as c:
        c.topic(3)
        keys = c.keys()
        c.give("a", *keys)
        for key in keys[:2]:
            await c.write("a", key, batch())
        places = c["a"].broker.context.open_files
        caller = c["a"].caller("leader")

        async def ask(*share: int) -> OpenFilesResponse:
            return await caller.ask(OpenFilesRequest(*share))

        assert await ask() == OpenFilesResponse(ErrorCode.NONE, held=2, limit_max=places.limit_max)
        assert places.limit == places.limit_max
        await ask(1, 10_000)
        assert places.limit == 1
        await ask()
        assert places.limit == 1, "no share is no change"
        await c.write("a", keys[2], batch())
        found = await ask(0, 1 << 30)
        assert found.held + found.closing + found.waiting >= 1
        assert places.limit == 1, "at least one file"
        await until(lambda: places.limit == places.limit_max)
