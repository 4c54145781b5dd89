"""OffsetForLeaderEpoch: the end of an epoch from the partition's owner, and the check of the client's epoch."""

from __future__ import annotations

from typing import Any

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.wire.messages import OffsetForLeaderEpochRequest
from bmq.proxy.handlers import offset_for_leader_epoch
from tests.unit.proxy.handlers.owned_topic import ENDS, FakeOwner, scopes_of

Topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic


async def ask(owner: FakeOwner, partition: int = 0, *, current: int = -1) -> tuple[ErrorCode, int, int]:
    """Return error, epoch and end offset of one partition, for the end of epoch 5."""
    wanted = Topic.OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=5)
    message: Any = OffsetForLeaderEpochRequest(replica_id=-1, topics=[Topic(topic="t", partitions=[wanted])])
    unused: Any = None
    response = await offset_for_leader_epoch.handle(scopes_of({0: owner}), unused, message)
    (found,) = response.topics[0].partitions
    assert (response.topics[0].topic, found.partition) == ("t", partition)
    return ErrorCode(found.error_code), found.leader_epoch, found.end_offset


@pytest.mark.parametrize("current", [-1, 0, ENDS.epoch])
async def test_the_end_of_an_epoch_is_the_owners(current: int) -> None:
    owner = FakeOwner(end_of_epoch=(4, 33))
    assert await ask(owner, current=current) == (ErrorCode.NONE, 4, 33)
    assert owner.calls[-1] == ("end_of_epoch", 5)


@pytest.mark.parametrize(
    ("current", "code"),
    [(ENDS.epoch - 1, ErrorCode.FENCED_LEADER_EPOCH), (ENDS.epoch + 1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_a_client_with_another_epoch_than_the_owners_gets_no_offset(current: int, code: ErrorCode) -> None:
    owner = FakeOwner(end_of_epoch=(4, 33))
    assert await ask(owner, current=current) == (code, -1, -1)
    assert ("end_of_epoch", 5) not in owner.calls


@pytest.mark.parametrize(
    ("partition", "code"), [(1, ErrorCode.NOT_LEADER_OR_FOLLOWER), (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
)
async def test_a_partition_without_an_owner_has_an_error(partition: int, code: ErrorCode) -> None:
    assert await ask(FakeOwner(end_of_epoch=(4, 33)), partition) == (code, -1, -1)


async def test_an_error_of_the_owner_is_the_partitions() -> None:
    owner = FakeOwner(end_of_epoch=RequestError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged"))
    assert await ask(owner) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)
