"""Queries to partitions' owners: which errors are tried again, for how long, and at which process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from uuid import UUID

import pytest

from bmq.core.errors import ErrorCode, RequestError
from bmq.core.model import PartitionKey
from bmq.proxy.routing.owner_queries import PAUSE_S, OwnerQueries
from bmq.proxy.routing.produce_route import REFUSALS
from tests.harness.waiting import now

KEY = PartitionKey(UUID(int=1), 0)
PATIENCE_S = 2.0
REQUEST: Any = object()


class FakeQueries:
    """Raises `errors` one after another, then responds; `asked` are the members and the seconds left for each."""

    def __init__(self, *errors: ErrorCode, is_endless: bool = False) -> None:
        self.asked: list[tuple[str, float]] = []
        self._errors = list(errors)
        self._is_endless = is_endless

    async def ask(self, member: str, request: object, timeout_s: float) -> str:
        self.asked.append((member, timeout_s))
        if not self._errors:
            return "response"
        code = self._errors[0] if self._is_endless else self._errors.pop(0)
        raise RequestError(code, "refused")


def queries(fake: FakeQueries, member_of: Callable[[PartitionKey], Any] = lambda key: "owner") -> OwnerQueries:
    return OwnerQueries(cast(Any, fake), member_of, PATIENCE_S)


@pytest.mark.parametrize("code", [*sorted(REFUSALS), ErrorCode.REQUEST_TIMED_OUT])
async def test_a_refusal_that_may_pass_is_tried_again_in_the_time_that_is_left(code: ErrorCode) -> None:
    fake = FakeQueries(code, code)
    assert await queries(fake).ask(KEY, REQUEST) == "response"
    assert [left for _, left in fake.asked] == pytest.approx(
        [PATIENCE_S, PATIENCE_S - PAUSE_S, PATIENCE_S - 2 * PAUSE_S]
    )


@pytest.mark.parametrize("code", [ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.KAFKA_STORAGE_ERROR])
async def test_the_owners_own_error_is_raised_at_once(code: ErrorCode) -> None:
    fake = FakeQueries(code)
    with pytest.raises(RequestError) as refused:
        await queries(fake).ask(KEY, REQUEST)
    assert (refused.value.code, len(fake.asked), now()) == (code, 1, 0)


async def test_each_try_goes_to_the_present_owner() -> None:
    owners = iter([None, "first", "second"])
    fake = FakeQueries(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert await queries(fake, lambda key: next(owners)).ask(KEY, REQUEST) == "response"
    assert [member for member, _ in fake.asked] == ["first", "second"]
    assert now() == pytest.approx(2 * PAUSE_S)


@pytest.mark.parametrize("has_owner", [True, False])
async def test_tries_end_with_the_last_error_when_the_time_is_over(has_owner: bool) -> None:
    fake = FakeQueries(ErrorCode.NOT_LEADER_OR_FOLLOWER, is_endless=True)
    with pytest.raises(RequestError) as refused:
        await queries(fake, lambda key: "owner" if has_owner else None).ask(KEY, REQUEST)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert PATIENCE_S - 2 * PAUSE_S <= now() <= PATIENCE_S


async def test_a_process_that_leaves_without_a_broker_being_left_does_not_wait() -> None:
    fake = FakeQueries(ErrorCode.NOT_LEADER_OR_FOLLOWER, is_endless=True)
    of = queries(fake)
    of.is_deserted = True
    with pytest.raises(RequestError):
        await of.ask(KEY, REQUEST)
    assert (len(fake.asked), now()) == (1, 0)
