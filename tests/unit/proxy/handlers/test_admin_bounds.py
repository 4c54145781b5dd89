"""Bounds on what one admin request may create: at the bounds, and one above them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.net.request import CloseConnection
from bmq.proxy.handlers import create_partitions, create_topics
from bmq.proxy.handlers._parallel import (
    ASSIGNED_MAX,
    PARTITIONS_A_REQUEST,
    TOPICS_MAX,
    broker_ids_of,
    check_count,
    check_partitions,
)


def test_topics_of_a_request_are_bounded() -> None:
    check_count([None] * TOPICS_MAX)
    with pytest.raises(CloseConnection, match="more than"):
        check_count([None] * (TOPICS_MAX + 1))


def test_manual_assignments_of_a_topic_are_bounded() -> None:
    one = SimpleNamespace(broker_ids=(1, 2))
    assert asyncio.run(broker_ids_of([one] * ASSIGNED_MAX)) == [[1, 2]] * ASSIGNED_MAX
    with pytest.raises(RequestError) as refused:
        asyncio.run(broker_ids_of([one] * (ASSIGNED_MAX + 1)))
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partitions_of_a_request_are_bounded_together() -> None:
    check_partitions([PARTITIONS_A_REQUEST - 1, 1])
    with pytest.raises(RequestError) as refused:
        check_partitions([PARTITIONS_A_REQUEST, 1])
    assert refused.value.code is ErrorCode.POLICY_VIOLATION


class Admin:
    """The controller's work, counted."""

    def __init__(self) -> None:
        self.asked = 0

    async def create_topic(self, *arguments: Any, **options: Any) -> None:
        self.asked += 1
        raise RequestError(ErrorCode.TOPIC_ALREADY_EXISTS, "")

    add_partitions = create_topic


def topics(count: int, partitions: int) -> list[Any]:
    values = {"num_partitions": partitions, "count": partitions, "replication_factor": -1, "configs": []}
    return [SimpleNamespace(name=f"t{number}", assignments=[], **values) for number in range(count)]


@pytest.mark.parametrize("module", [create_topics, create_partitions])
def test_too_many_partitions_in_all_create_nothing(module: Any) -> None:
    def ask(count: int) -> tuple[set[int], int]:
        admin = Admin()
        message = SimpleNamespace(topics=topics(count, 100_000), validate_only=True, timeout_ms=10_000)
        response = asyncio.run(module.handle(SimpleNamespace(admin=admin), cast(Any, None), message))
        found = response.topics if module is create_topics else response.results
        return {each.error_code for each in found}, admin.asked

    assert ask(10) == ({ErrorCode.TOPIC_ALREADY_EXISTS}, 10)
    assert ask(11) == ({ErrorCode.POLICY_VIOLATION}, 0)
