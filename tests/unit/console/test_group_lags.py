"""The lags of a page of groups: added up, bounded, and why they are not known."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import pytest

from bmq.console import group_lags
from bmq.console.group_lags import Lag, lags_of
from bmq.console.state import CommittedFacts
from bmq.core.errors import ErrorCode, RequestError
from bmq.core.security.session import Session
from bmq.core.wire.api_keys import ApiKey
from bmq.core.wire.fetch import FetchedPartition
from tests.harness.loop import run
from tests.unit.console.states import list_offsets_response


class Owners:
    """Every partition ends at 10, but for those with an error; `fails` is raised instead."""

    def __init__(self, errors: Mapping[tuple[str, int], ErrorCode] | None = None) -> None:
        self.errors = errors or {}
        self.fails: RequestError | None = None
        self.waits_s = 0.0
        self.asked: list[int] = []

    def of(self, session: Session, host: str) -> Owners:
        raise AssertionError("nobody else asks")

    async def send(self, key: ApiKey, version: int, message: Any) -> Any:
        assert key is ApiKey.LIST_OFFSETS
        self.asked.append(sum(len(topic.partitions) for topic in message.topics))
        await asyncio.sleep(self.waits_s)
        if self.fails is not None:
            raise self.fails
        return list_offsets_response(
            message, lambda name, part: (self.errors.get((name, part.partition_index), ErrorCode.NONE), 10)
        )

    async def fetch(
        self, topic_id: UUID, partition: int, offset: int, max_bytes: int, isolation_level: int
    ) -> FetchedPartition:
        raise AssertionError("nothing is fetched")

    async def produce(self, topic_id: UUID, partition: int, batch: memoryview) -> int:
        raise AssertionError("nothing is produced")


GROUPS = {"audit": {("orders", 0): 4, ("orders", 1): 10}, "billing": {("orders", 0): 0, ("events", 0): 12}, "new": {}}


def lags(owners: Owners, groups: Mapping[str, Mapping[tuple[str, int], int]] = GROUPS) -> Mapping[str, Lag]:
    async def committed(group_id: str) -> Sequence[CommittedFacts]:
        if group_id == "hangs":
            await asyncio.Event().wait()
        if group_id == "lost":
            raise RequestError(ErrorCode.NOT_COORDINATOR, "the shard moves")
        return [
            CommittedFacts(topic=topic, partition=number, offset=offset, metadata="")
            for (topic, number), offset in groups[group_id].items()
        ]

    return run(lags_of(committed, owners, list(groups)))


def test_each_partition_is_asked_for_once() -> None:
    owners = Owners()
    assert lags(owners) == {"audit": Lag(6), "billing": Lag(10), "new": Lag(0)}
    assert owners.asked == [3]


def test_an_unknown_end_is_no_lag_of_zero_and_a_deleted_topic_has_none() -> None:
    owners = Owners(
        {("orders", 1): ErrorCode.NOT_LEADER_OR_FOLLOWER, ("events", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    )
    found = lags(owners)
    assert found["audit"] == Lag(None, "orders partition 1: NOT_LEADER_OR_FOLLOWER")
    assert found["billing"] == Lag(10)


def test_a_coordinator_or_owner_that_cannot_tell_is_named() -> None:
    owners = Owners()
    assert lags(owners, {"lost": {}, **GROUPS})["lost"] == Lag(None, "the shard moves")
    owners.fails = RequestError(ErrorCode.REQUEST_TIMED_OUT, "")
    found = lags(owners)
    assert found["billing"] == Lag(None, "orders partition 0: REQUEST_TIMED_OUT, and 1 more")
    assert found["new"] == Lag(0)


def test_owners_are_waited_for_within_bounds() -> None:
    owners = Owners()
    owners.waits_s = 60
    assert lags(owners)["audit"] == Lag(None, "orders partition 0: no answer within 5 s, and 1 more")


def test_a_coordinator_that_hangs_takes_no_lag_from_the_groups_of_others() -> None:
    found = lags(Owners(), {"hangs": {}, **GROUPS})
    assert found["hangs"] == Lag(None, "no answer within 5 s")
    assert (found["audit"], found["billing"], found["new"]) == (Lag(6), Lag(10), Lag(0))


def test_groups_behind_many_offsets_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "OFFSETS_MAX", 3)
    monkeypatch.setattr(group_lags, "PARALLEL", 1)
    found = lags(Owners(), {"wide": {("wide", number): 9 for number in range(4)}, **GROUPS})
    assert found["wide"] == Lag(4)
    assert found["audit"] == Lag(None, "more than 3 partitions in front of it: open the group")


def test_partitions_are_bounded_and_asked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lags, "PARTITIONS_MAX", 5)
    monkeypatch.setattr(group_lags, "ASKED_AT_ONCE", 2)
    wide = {("wide", number): 9 for number in range(4)}
    owners = Owners()
    found = lags(owners, {"wide": wide, "audit": GROUPS["audit"], "again": wide})
    assert found["wide"] == found["again"] == Lag(4)
    assert found["audit"] == Lag(None, "2 partitions: open the group, which shows them by pages")
    assert owners.asked == [2, 2]
