"""A broker's responses to other processes: questions, segments, traffic, and the fence of coordinators' logs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest

from bmq.broker.files.stalls import StallDetector
from bmq.broker.partition_queries import ANSWERED_A_TURN
from bmq.broker.shard_log_fence import ShardFence
from bmq.broker.traffic import CALLERS_MAX, PARTITIONS_MAX, TrafficCounters
from bmq.core.aio.steps import finish_steps
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.core.records.batch import Record, build_batch
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
    ShardAppendResponse,
    ShardOpenRequest,
)
from bmq.core.rpc.messages.member import PingRequest
from bmq.storage import checkpoint
from bmq.storage.checkpoint import ProducerState, decode_producers, from_big_endian
from tests.harness.loop_stops import STOP_MAX_S, TurnCounter, loop_stops
from tests.harness.waiting import until
from tests.unit.broker.cluster import Caller, Cluster, cluster
from tests.unit.broker.world import batch, idempotent

pytestmark = pytest.mark.slow


async def owned(c: Cluster, owner: str = "a") -> PartitionKey:
    c.topic()
    (key,) = c.keys()
    c.give(owner, key)
    await c[owner].assigned.wait(key, 5.0)
    return key


async def ask(caller: Caller, key: PartitionKey, question: Question, argument: int = 0) -> AskResponse:
    request = AskRequest(key.topic_id, key.partition, question, argument)
    return await caller.ask(request)


# ----------------------------------------------------------------------------------------------------------- questions


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
        assert not owner.has_seen_end, "the store is asked first"
        await asyncio.sleep(0.1)
        assert [owner.has_seen_end, owner.has_seen_end] == [True, False], "its word serves one reader"
        await asyncio.sleep(0.1)
        c["b"].view.assign("b", key)
        await asyncio.sleep(10)
        assert (await ask(caller, key, Question.ENDS)).values == (1, 0, 1, 1)
        assert owner.has_seen_end is False
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
            answer = await caller.ask(request)
            assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
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


async def test_questions_about_many_partitions() -> None:
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
    """Within the time that was given, and the others with it; nothing is left behind that waits for it."""

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
        answer = await Caller(c["a"]).ask(AskPartitionsRequest(100, questions))
        assert answer.error is ErrorCode.INVALID_REQUEST


async def test_many_questions_are_answered_in_turns() -> None:
    async with cluster() as c:
        key = await owned(c)
        questions = QUESTIONS_MAX * [PartitionQuestion(key.topic_id, 0, Question.ENDS, ENDS_FLUSHED)]
        with loop_stops() as stops:
            found = await ask_together(Caller(c["a"]), *questions)
        assert found == QUESTIONS_MAX * [(0, (1, 0, 0, 0))]
        assert stops.turns >= QUESTIONS_MAX / ANSWERED_A_TURN
        assert stops.longest_s < STOP_MAX_S


async def test_producers() -> None:
    async with cluster() as c:
        key = await owned(c)
        for sequence in range(3):
            await c.write("a", key, idempotent(sequence))
        request = ProducersRequest(key.topic_id, key.partition)
        answer = await Caller(c["a"]).ask(request)
        owner = await c["a"].assigned.wait(key, 1.0)
        assert finish_steps(decode_producers(memoryview(answer.states))) == list(await owner.producers())


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
        answer = await Caller(c["a"]).ask(request)
        assert turns.take() == [2, 2, 2, 1]
        assert [state.producer_id for state in finish_steps(decode_producers(memoryview(answer.states)))] == [
            *range(1, 8)
        ]


async def test_the_active_segments_index_comes_piece_by_piece() -> None:
    """Entries that the caller has of the same segment are not sent again; of another segment it gets all of them."""

    async with cluster() as c:
        key = await owned(c)
        caller = Caller(c["a"])

        async def active(*known: int) -> ActiveSegmentResponse:
            request = ActiveSegmentRequest(key.topic_id, key.partition, *known)
            answer = await caller.ask(request)
            assert isinstance(answer, ActiveSegmentResponse)
            return answer

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


async def test_ping_says_whether_the_broker_serves() -> None:
    async with cluster() as c:
        caller = Caller(c["a"])
        assert (await caller.ask(PingRequest())).is_serving
        c["a"].membership.is_member = False
        assert not (await caller.ask(PingRequest())).is_serving


# ---------------------------------------------------------------------------------------------------------------- load


async def test_load_since_the_callers_last_question() -> None:
    async with cluster() as c:
        c.topic(100)
        keys = c.keys()
        c.give("a", *keys)

        async def loads(name: str) -> Sequence[Any]:
            caller = c["a"].caller(name)
            return (await caller.ask(LoadRequest())).partitions

        await c.write("a", keys[3], batch())
        assert await loads("first") == (), "nobody knows since when"
        data = batch(b"x" * 100)
        for _ in range(2):
            await c.write("a", keys[3], bytearray(data))
        c["a"].broker.shared.load.read(keys[5], 1000)
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


async def test_open_files_are_reported_and_the_share_is_taken() -> None:
    async with cluster() as c:
        c.topic(3)
        keys = c.keys()
        c.give("a", *keys)
        for key in keys[:2]:
            await c.write("a", key, batch())
        places = c["a"].broker.shared.open_files
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


def test_load_costs_what_had_traffic_and_keeps_few_accounts() -> None:
    load = TrafficCounters()
    keys = [PartitionKey(_uuid(1), number) for number in range(3)]
    for number in range(CALLERS_MAX + 3):
        assert load.take(f"c{number}") == {}
    load.wrote(keys[0], 10)
    told = [load.take(f"c{number}") for number in range(3, CALLERS_MAX + 3)]
    assert [list(each) for each in told] == [[keys[0]]] * CALLERS_MAX
    assert not load.knows("c0")
    assert load.take("c0") == {}, "forgotten, so it begins anew"
    load.read(keys[1], 5)
    (traffic,) = load.take("c0").values()
    assert (traffic.bytes_in, traffic.bytes_out, traffic.requests) == (0, 5, 1)


def test_load_that_nobody_asks_for_is_not_kept() -> None:
    """Nothing is counted before the first question, nor for ever after the last one; a caller that asks again later
    begins from nothing."""
    load = TrafficCounters()
    keys = [PartitionKey(_uuid(1), number) for number in range(PARTITIONS_MAX + 1)]
    for key in keys:
        load.wrote(key, 10)
    assert repr(load) == "<TrafficCounters partitions=0 callers=0>"
    assert load.take("gone") == {}
    for key in keys:
        load.wrote(key, 10)
    assert repr(load) == "<TrafficCounters partitions=0 callers=0>"
    assert not load.knows("gone")
    assert load.take("gone") == {}
    for first in (0, PARTITIONS_MAX // 2 + 1):
        for key in keys[first:][: PARTITIONS_MAX // 2 + 1]:
            load.read(key, 5)
        assert len(load.take("asks")) == (0 if first == 0 else PARTITIONS_MAX // 2)
    assert not load.knows("gone"), "what it has not been told grew past the bound"
    load.wrote(keys[0], 1)
    assert list(load.take("asks")) == [keys[0]]


def test_stalls() -> None:
    stalls = StallDetector(5_000)
    seen = []
    for now_ms, has_work, progress in [
        (0, False, 0), (60_000, False, 0),  # idle
        (61_000, True, 0), (65_000, True, 0), (66_000, True, 0),  # stalled
        (67_000, True, 1),  # one flush
        (71_000, True, 1), (72_000, True, 1),  # stalled again
        (73_000, False, 1), (80_000, True, 1), (84_000, True, 1),  # given up, then new work
    ]:  # fmt: skip
        stalls.update(now_ms, has_work=has_work, progress=progress)
        seen.append(stalls.is_stalled)
    assert seen == [False, False, False, False, True, False, False, True, False, False, False]


# --------------------------------------------------------------------------------------------------------------- shards


def records(value: bytes = b"v") -> bytearray:
    return build_batch([Record(value=value)])


class Coordinator:
    """Opens and appends over one connection, as one that believes to have ``ownership``."""

    def __init__(self, c: Cluster, broker: str, key: PartitionKey, ownership: int) -> None:
        self._caller = Caller(c[broker])
        self._key = key
        self._ownership = ownership
        self.epoch = -1

    async def open(self) -> ErrorCode:
        request = ShardOpenRequest(self._key.topic_id, self._key.partition, self._ownership)
        answer = await self._caller.ask(request)
        if answer.error is ErrorCode.NONE:
            self.epoch = answer.epoch
        return answer.error

    def send(self, value: bytes = b"v") -> asyncio.Future[ShardAppendResponse]:
        """Send an append; its place in the log is decided when this returns."""
        key = self._key
        request = ShardAppendRequest(key.topic_id, key.partition, self.epoch, self._ownership, records(value))
        return asyncio.ensure_future(self._caller.ask(request))

    async def append(self, value: bytes = b"v") -> ErrorCode | int:
        answer = await self.send(value)
        return answer.base_offset if answer.error is ErrorCode.NONE else answer.error


async def test_a_shard_is_opened_and_written() -> None:
    async with cluster() as c:
        key = await owned(c)
        coordinator = Coordinator(c, "a", key, 5)
        assert await coordinator.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER, "it is not open yet"
        assert await coordinator.open() is ErrorCode.NONE
        assert [await coordinator.append() for _ in range(3)] == [0, 1, 2]
        answers = await asyncio.gather(*(coordinator.send() for _ in range(10)))
        assert [answer.base_offset for answer in answers] == list(range(3, 13))
        assert answers[-1].high_watermark == 13


async def test_kafscale_121_two_coordinators_for_one_group() -> None:
    """The stale one is refused once the newer one has opened the log, and cannot open it again."""

    async with cluster() as c:
        key = await owned(c)
        stale, newer = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 6)
        await stale.open()
        assert await stale.append() == 0
        assert await newer.open() is ErrorCode.NONE
        assert await stale.append() is ErrorCode.NOT_COORDINATOR
        assert await newer.append() == 1
        assert await stale.open() is ErrorCode.NOT_COORDINATOR
        assert await stale.append() is ErrorCode.NOT_COORDINATOR
        assert await newer.append() == 2


async def test_what_a_stale_coordinator_got_in_lies_before_the_barrier() -> None:
    """The batch was sent before the newer coordinator opened: it is flushed and acknowledged late, and in the log
    before what comes after."""

    async with cluster() as c:
        key = await owned(c)
        stale, newer = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 6)
        await stale.open()
        late = stale.send()
        await asyncio.sleep(0)
        await newer.open()
        assert await newer.append() == 1
        assert (await late).base_offset == 0


async def test_fencing_holds_across_a_change_of_the_partitions_owner() -> None:
    """The new owner knows no number.  The stale coordinator's appends name the old epoch, so they are refused; if it
    opens the log there first, the newer one opens it later and sees all that it has written."""

    async with cluster() as c:
        key = await owned(c)
        stale, newer = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 6)
        await stale.open()
        await newer.open()
        assert await newer.append() == 0
        c.give("b", key)
        await c["b"].assigned.wait(key, 5.0)
        assert await newer.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await stale.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        stale_again, newer_again = Coordinator(c, "b", key, 5), Coordinator(c, "b", key, 6)
        stale_again.epoch = stale.epoch
        assert await stale_again.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await stale_again.open() is ErrorCode.NONE
        assert stale_again.epoch == 2
        assert await stale_again.append() == 1
        assert await newer_again.open() is ErrorCode.NONE
        assert await stale_again.append() is ErrorCode.NOT_COORDINATOR
        assert await newer_again.append() == 2


async def test_a_broken_connections_bytes_do_not_follow_the_next_barrier() -> None:
    """One coordinator lost its connection and opened the log again: what still comes over the old one is refused."""

    async with cluster() as c:
        key = await owned(c)
        before, after = Coordinator(c, "a", key, 5), Coordinator(c, "a", key, 5)
        await before.open()
        await before.append()
        await after.open()
        assert await after.append() == 1
        assert await before.append() is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await after.append() == 2


async def test_none_may_follow_an_append_that_failed() -> None:
    async with cluster() as c:
        key = await owned(c)
        coordinator = Coordinator(c, "a", key, 5)
        await coordinator.open()
        owner = await c["a"].assigned.wait(key, 1.0)
        append = type(owner).append_internal
        calls: list[int] = []

        def refuse_the_second(self: Any, data: memoryview) -> asyncio.Future[int]:
            calls.append(len(data))
            if len(calls) == 2:
                raise RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "no")
            return append(self, data)

        patch = pytest.MonkeyPatch()
        patch.setattr(type(owner), "append_internal", refuse_the_second)
        try:
            answers = await asyncio.gather(*(coordinator.send() for _ in range(4)))
        finally:
            patch.undo()
        assert [answer.error for answer in answers] == [
            ErrorCode.NONE,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ]
        assert await coordinator.open() is ErrorCode.NONE
        assert await coordinator.append() == 1


@pytest.mark.parametrize(
    ("epoch", "ownership", "is_same", "has_failed"), list(product((1, 2, 3), (4, 5, 6), (True, False), (True, False)))
)
def test_the_fence_by_every_case(epoch: int, ownership: int, is_same: bool, has_failed: bool) -> None:
    """Open a shard under epoch 2 with ownership 5, and check for each other epoch and ownership which may append, and
    which may open."""
    fence, key, holder, ended = ShardFence(), PartitionKey(_uuid(1), 0), object(), []
    fence.open(key, 2, 5, holder, lambda: ended.append(1))
    if has_failed:
        fence.failed(key, holder)
    outcome = _outcome(lambda: fence.check(key, epoch, ownership, holder if is_same else object()))
    if epoch != 2:
        assert outcome is ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif ownership < 5:
        assert outcome is ErrorCode.NOT_COORDINATOR
    elif ownership == 5 and is_same and not has_failed:
        assert outcome is ErrorCode.NONE
    else:
        assert outcome is ErrorCode.NOT_LEADER_OR_FOLLOWER
    opened = _outcome(lambda: fence.open(key, epoch, ownership, object()))
    is_stale = epoch == 2 and ownership < 5
    assert opened is (ErrorCode.NOT_COORDINATOR if is_stale else ErrorCode.NONE)
    assert ended == ([] if is_stale else [1])


def test_the_fence_keeps_nothing_of_closed_partitions() -> None:
    fence, key, ended = ShardFence(), PartitionKey(_uuid(1), 0), []
    fence.open(key, 2, 5, object(), lambda: ended.append(1))
    fence.closed(key)
    fence.closed(key)
    assert (len(fence), ended) == (0, [1])


def _outcome(act: Callable[[], None]) -> ErrorCode:
    try:
        act()
    except RequestError as error:
        return error.code
    return ErrorCode.NONE


def _uuid(number: int) -> uuid.UUID:
    return uuid.UUID(int=number)
