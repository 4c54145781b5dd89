"""The responses to BeginCleaning and SwapCleaned: the plan as the job reads it, and errors as codes."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import pytest

from bmq.broker.cleanup.job_hold import HOLD_MS
from bmq.broker.cleanup.job_rounds import SwapResult
from bmq.broker.cleanup.job_swap_checks import DraftGroup
from bmq.broker.job_rounds_api import JobRoundsApi
from bmq.core.errors import ErrorCode, FormatError, RequestError
from bmq.core.model import PartitionKey, SegmentName
from bmq.core.rpc.messages.broker import (
    BeginCleaningRequest,
    BeginCleaningResponse,
    CleanedGroup,
    SwapCleanedRequest,
    SwapCleanedResponse,
)
from bmq.meta.kv import KvError
from bmq.storage.checkpoint import AbortedTransaction
from bmq.storage.cleaning.job_round import RoundPlan, unpack_aborted, unpack_producers
from bmq.storage.cleaning.retention import ProducerEnd
from bmq.storage.filesystem import StorageUnavailable

T = TypeVar("T")
TOPIC = uuid.UUID(int=7)
KEY = PartitionKey(TOPIC, 3)
PLAN = RoundPlan(
    start=1,
    first_dirty=2,
    end=3,
    now_ms=4,
    swap_until_ms=5,
    delete_retention_ms=6,
    segment_bytes=7,
    index_interval_bytes=8,
    clean_bytes=9,
    dirty_bytes=10,
    aborted=(AbortedTransaction(1, 2, 3, 4),),
    producers={11: ProducerEnd(12, 13)},
)
NAME = SegmentName(5, 1, 2, 1)
ROW = CleanedGroup(str(NAME), 9, "ab", "/d", "/i")


class Rounds:
    """Rounds that record requests, and raise ``fails``."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.asked: list[tuple[object, ...]] = []
        self._fails = fails

    def _ask(self, *what: object) -> None:
        self.asked.append(what)
        if self._fails is not None:
            raise self._fails

    async def begin(self, key: PartitionKey, job: str) -> RoundPlan:
        self._ask(key, job)
        return PLAN

    async def swap(
        self, key: PartitionKey, job: str, end: int, swap_until_ms: int, groups: Sequence[DraftGroup]
    ) -> SwapResult:
        self._ask(key, job, end, swap_until_ms, *groups)
        return SwapResult(1, 2, "why")

    async def end(self, key: PartitionKey, job: str) -> None:
        self._ask("end", key, job)


async def inline(call: Callable[[], T]) -> T:
    return call()


def joined(buffers: Sequence[Any]) -> memoryview:
    return memoryview(b"".join(map(bytes, buffers)))


def swapping(*groups: CleanedGroup, ends_hold: bool = False) -> memoryview:
    request = SwapCleanedRequest(TOPIC, 3, "j", 20, 30, groups, ends_hold)
    return joined(request.encode())


BEGIN = joined(BeginCleaningRequest(TOPIC, 3, "j").encode())


def api(rounds: Rounds) -> JobRoundsApi:
    return JobRoundsApi(cast(Any, rounds), cast(Any, inline))


async def test_a_plan_arrives_whole() -> None:
    rounds = Rounds()
    found = BeginCleaningResponse.decode(joined(await api(rounds).begin(BEGIN, cast(Any, None))))
    assert rounds.asked == [(KEY, "j")]
    numbers = (
        found.start, found.first_dirty, found.end, found.now_ms, found.swap_until_ms, found.delete_retention_ms,
        found.segment_bytes, found.index_interval_bytes, found.clean_bytes, found.dirty_bytes,
    )  # fmt: skip
    assert numbers == tuple(range(1, 11))
    assert found.hold_ms == HOLD_MS
    assert unpack_aborted(found.aborted) == PLAN.aborted
    assert unpack_producers(found.producers) == PLAN.producers


async def test_groups_are_passed_on_in_order_and_the_flag_ends_the_hold() -> None:
    rounds = Rounds()
    other = ROW._replace(end_offset=12)
    found = SwapCleanedResponse.decode(joined(await api(rounds).swap(swapping(ROW, other), cast(Any, None))))
    assert (found.swapped, found.expired, found.stopped) == (1, 2, "why")
    group = DraftGroup(NAME, 9, "ab", "/d", "/i")
    assert rounds.asked == [(KEY, "j", 20, 30, group, group._replace(end_offset=12))]
    await api(rounds).swap(swapping(ends_hold=True), cast(Any, None))
    assert rounds.asked[1:] == [("end", KEY, "j")]


@pytest.mark.parametrize("name", ["x", "00000000000000000005-00000001-0002", f"{NAME}.log", f"../{NAME}"])
async def test_a_name_that_is_not_of_a_cleaned_segment_is_refused(name: str) -> None:
    rounds = Rounds()
    with pytest.raises(FormatError):
        await api(rounds).swap(swapping(ROW._replace(name=name)), cast(Any, None))
    assert rounds.asked == []


@pytest.mark.parametrize(
    ("fails", "code"),
    [
        (StorageUnavailable("safe mode"), ErrorCode.KAFKA_STORAGE_ERROR),
        (KvError("no leader"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (RequestError(ErrorCode.OPERATION_NOT_ATTEMPTED, "not now"), ErrorCode.OPERATION_NOT_ATTEMPTED),
    ],
)
async def test_an_error_is_a_code_by_which_a_job_knows_whether_to_try_again(fails: Exception, code: ErrorCode) -> None:
    for call in (
        api(Rounds(fails)).begin(BEGIN, cast(Any, None)),
        api(Rounds(fails)).swap(swapping(), cast(Any, None)),
    ):
        with pytest.raises(RequestError) as caught:
            await call
        assert caught.value.code is code
