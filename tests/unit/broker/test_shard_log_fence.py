"""The fence of shards' logs: which coordinator may open one, and which may append."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from itertools import product

import pytest

from bmq.broker.shard_log_fence import ShardFence
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey


@pytest.mark.parametrize(
    ("epoch", "ownership", "is_same", "has_failed"), list(product((1, 2, 3), (4, 5, 6), (True, False), (True, False)))
)
def test_only_the_holder_that_opened_the_log_last_may_append(
    epoch: int, ownership: int, is_same: bool, has_failed: bool
) -> None:
    """Open a shard under epoch 2 with ownership 5, and check for each other epoch and ownership which may append, and
    which may open."""
    fence, key, holder, ended = ShardFence(), PartitionKey(uuid.UUID(int=1), 0), object(), []
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
    fence, key, ended = ShardFence(), PartitionKey(uuid.UUID(int=1), 0), []
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
