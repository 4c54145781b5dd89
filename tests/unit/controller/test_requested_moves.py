"""Moves that operators request: when they are planned, and the results that their authors get."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Any, cast

import pytest

from bmq.controller.planning.planner_view import Move, PlannerBroker, PlannerView, Why
from bmq.controller.requested_moves import REQUESTED_MAX, RequestedMoves
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey

TOPIC = uuid.UUID(int=1)
KEY, OTHER = PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1)


def view(owners: Mapping[PartitionKey, str], draining: str = "") -> PlannerView:
    brokers = [PlannerBroker(name, is_draining=name == draining) for name in ("a", "b", "c")]
    return PlannerView(brokers=brokers, owners=cast(Any, owners))


async def refusal(done: asyncio.Future[None]) -> tuple[ErrorCode, str]:
    with pytest.raises(RequestError) as refused:
        await done
    return refused.value.code, str(refused.value)


async def test_a_request_is_planned_until_it_is_written() -> None:
    requested = RequestedMoves()
    done = requested.add(KEY, "b")
    move = Move(KEY, "a", "b", Why.ASKED)
    for _ in range(2):
        assert requested.moves(view({KEY: "a"})) == [move]
        assert not done.done()
    requested.written([Move(KEY, "a", "c", Why.ASKED), Move(OTHER, "a", "b", Why.ASKED)])
    assert KEY in requested, "another move was written"
    requested.written([move])
    await done
    assert KEY not in requested
    assert requested.moves(view({KEY: "a"})) == []


async def test_a_partition_that_is_there_already_is_moved() -> None:
    requested = RequestedMoves()
    done = requested.add(KEY, "b")
    assert requested.moves(view({KEY: "b"})) == []
    await done


@pytest.mark.parametrize(
    ("owners", "draining", "target", "reason"),
    [
        ({}, "", "b", "does not exist any more"),
        ({KEY: "a"}, "b", "b", "b is not a broker that stays"),
        ({KEY: "a"}, "", "gone", "gone is not a broker that stays"),
    ],
    ids=["the topic is deleted", "the target drains", "the target is gone"],
)
async def test_a_requested_move_that_became_impossible_is_refused(
    owners: dict[PartitionKey, str], draining: str, target: str, reason: str
) -> None:
    requested = RequestedMoves()
    done = requested.add(KEY, target)
    assert requested.moves(view(owners, draining)) == []
    code, text = await refusal(done)
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reason in text
    assert KEY not in requested


async def test_a_later_request_replaces_an_earlier_one() -> None:
    requested = RequestedMoves()
    first, second = requested.add(KEY, "b"), requested.add(KEY, "c")
    code, text = await refusal(first)
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "replaced by a later request" in text
    assert requested.moves(view({KEY: "a"})) == [Move(KEY, "a", "c", Why.ASKED)]
    requested.written([Move(KEY, "a", "c", Why.ASKED)])
    await second


async def test_a_requester_that_was_cancelled_changes_nothing_for_the_others() -> None:
    requested = RequestedMoves()
    requested.add(KEY, "b").cancel()
    other = requested.add(OTHER, "b")
    requested.written([Move(KEY, "a", "b", Why.ASKED), Move(OTHER, "a", "b", Why.ASKED)])
    await other


async def test_the_end_of_the_term_refuses_all_requested_moves() -> None:
    requested = RequestedMoves()
    waiting = [requested.add(KEY, "b"), requested.add(OTHER, "c")]
    requested.end()
    assert [(await refusal(done))[0] for done in waiting] == [ErrorCode.NOT_CONTROLLER] * 2
    assert requested.moves(view({KEY: "a", OTHER: "a"})) == []


@pytest.mark.slow
async def test_requests_are_bounded_and_one_for_the_same_partition_finds_room() -> None:
    requested = RequestedMoves()
    keys = [PartitionKey(TOPIC, number) for number in range(REQUESTED_MAX + 1)]
    done = [requested.add(key, "b") for key in keys[:-1]]
    with pytest.raises(RequestError) as refused:
        requested.add(keys[-1], "b")
    assert refused.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    replacement = requested.add(keys[0], "c")
    await refusal(done[0])
    requested.end()
    assert all(one.exception() is not None for one in (*done[1:], replacement))
