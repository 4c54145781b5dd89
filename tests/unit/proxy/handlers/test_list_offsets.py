"""ListOffsets: which offset each special timestamp gets, from which version on, and the errors of a partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire.messages import ListOffsetsRequest
from bmq.proxy.handlers import list_offsets
from bmq.proxy.handlers.list_offsets import KNOWN_SINCE, TIMEOUT_S
from tests.harness.waiting import now
from tests.unit.proxy.handlers.owned_topic import ENDS, FakeOwner, scopes_of

Topic = ListOffsetsRequest.ListOffsetsTopic
API = list_offsets.APIS[0]
ALL = range(API.min_version, API.max_version + 1)


async def ask(
    owner: FakeOwner, timestamp: int, version: int = 11, *, epoch: int = -1, committed: bool = False, times: int = 1,
    partition: int = 0, timeout_ms: int = 0,
) -> tuple[ErrorCode, int, int, int]:  # fmt: skip
    """Return error, offset, timestamp and epoch of one partition."""
    wanted = Topic.ListOffsetsPartition(partition_index=partition, current_leader_epoch=epoch, timestamp=timestamp)
    message = ListOffsetsRequest(
        replica_id=-1, isolation_level=int(committed), topics=[Topic(name="t", partitions=[wanted] * times)],
        timeout_ms=timeout_ms,
    )  # fmt: skip
    decoded: Any = ListOffsetsRequest.decode(message.encode(version=version), version=version)
    unused: Any = None
    response = await list_offsets.handle(scopes_of({0: owner}), unused, decoded)
    (found, *others) = response.topics[0].partitions
    assert all(each.error_code == found.error_code for each in others)
    return ErrorCode(found.error_code), found.offset, found.timestamp, found.leader_epoch


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("timestamp", KNOWN_SINCE)
async def test_a_special_timestamp_is_known_from_its_version_on(timestamp: int, version: int) -> None:
    code, *_ = await ask(FakeOwner(offset_of_max_timestamp=(12, 5_000)), timestamp, version)
    assert code is (ErrorCode.NONE if version >= KNOWN_SINCE[timestamp] else ErrorCode.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("version", ALL)
async def test_an_unknown_special_timestamp_is_refused(version: int) -> None:
    assert (await ask(FakeOwner(), -7, version))[0] is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("timestamp", "committed", "found"),
    [
        (-1, False, (50, -1, 7)),
        (-1, True, (40, -1, 7)),
        (-2, False, (10, -1, -1)),
        (-4, True, (10, -1, -1)),
        (-3, False, (12, 5_000, -1)),
        (-5, False, (-1, -1, -1)),
        (-6, False, (-1, -1, -1)),
    ],
)
async def test_each_special_timestamp_has_its_offset(
    timestamp: int, committed: bool, found: tuple[int, int, int]
) -> None:
    owner = FakeOwner(offset_of_max_timestamp=(12, 5_000))
    assert await ask(owner, timestamp, committed=committed) == (ErrorCode.NONE, *found)


@pytest.mark.parametrize(("offset", "committed"), [(39, True), (40, False), (40, True)])
async def test_the_largest_timestamp_is_below_the_last_stable_offset_for_read_committed(
    offset: int, committed: bool
) -> None:
    owner = FakeOwner(offset_of_max_timestamp=(offset, 5_000))
    found = (-1, -1, -1) if committed and offset == 40 else (offset, 5_000, -1)
    assert await ask(owner, -3, committed=committed) == (ErrorCode.NONE, *found)


async def test_the_earliest_offset_of_an_empty_log_has_the_owners_epoch() -> None:
    empty = ENDS._replace(log_start=50)
    assert await ask(FakeOwner(ends=empty), -2) == (ErrorCode.NONE, 50, -1, 7)


@pytest.mark.parametrize(("timestamp", "first_call"), [(-1, "flushed_ends"), (-2, "ends"), (1_000, "flushed_ends")])
async def test_only_the_earliest_offset_does_not_wait_for_the_flush(timestamp: int, first_call: str) -> None:
    """A producer with acks=1 that asks for the end finds its record below it."""
    owner = FakeOwner(offset_for_timestamp=(12, 1_000))
    await ask(owner, timestamp)
    assert owner.calls[0] == (first_call,)


@pytest.mark.parametrize(
    ("result", "committed", "found"),
    [
        ((12, 1_005), False, (12, 1_005, -1)),
        (None, False, (-1, -1, -1)),
        ((39, 1_005), True, (39, 1_005, -1)),
        ((40, 1_005), True, (-1, -1, -1)),
        ((40, 1_005), False, (40, 1_005, -1)),
    ],
)
async def test_a_record_by_time_is_below_the_last_stable_offset_for_read_committed(
    result: tuple[int, int] | None, committed: bool, found: tuple[int, int, int]
) -> None:
    owner = FakeOwner(offset_for_timestamp=result)
    assert await ask(owner, 1_000, committed=committed) == (ErrorCode.NONE, *found)
    assert owner.calls[-1] == ("offset_for_timestamp", 1_000)


@pytest.mark.parametrize(
    ("version", "epoch", "code"),
    [
        (11, 7, ErrorCode.NONE), (11, 6, ErrorCode.FENCED_LEADER_EPOCH), (11, 8, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (4, 6, ErrorCode.FENCED_LEADER_EPOCH),
    ],
)  # fmt: skip
async def test_a_clients_leader_epoch_is_compared_with_the_owners(version: int, epoch: int, code: ErrorCode) -> None:
    assert (await ask(FakeOwner(), -1, version, epoch=epoch))[0] is code


async def test_a_partition_that_is_named_twice_is_refused_each_time() -> None:
    owner = FakeOwner()
    assert (await ask(owner, -1, times=2))[0] is ErrorCode.INVALID_REQUEST
    assert owner.calls == []


@pytest.mark.parametrize(
    ("partition", "code"), [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
)
async def test_a_partition_without_an_owner_has_an_error_and_no_offset(partition: int, code: ErrorCode) -> None:
    assert await ask(FakeOwner(), -1, partition=partition) == (code, -1, -1, -1)


async def test_an_error_of_the_owner_is_the_partitions() -> None:
    owner = FakeOwner(offset_for_timestamp=RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged"))
    assert await ask(owner, 1_000) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1)


@pytest.mark.parametrize(
    ("version", "timeout_ms", "waited_s"), [(11, 1_500, 1.5), (10, 1_500, 1.5), (11, 0, TIMEOUT_S), (9, 0, TIMEOUT_S)]
)
async def test_a_search_ends_at_the_clients_time_out_or_at_the_default(
    version: int, timeout_ms: int, waited_s: float
) -> None:
    owner = FakeOwner(offset_for_timestamp=asyncio.Event().wait)
    assert (await ask(owner, 1_000, version, timeout_ms=timeout_ms))[0] is ErrorCode.REQUEST_TIMED_OUT
    assert now() == waited_s
