"""A group of 10,000 members: each of its steps is one turn of the loop, and short enough for that."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from bmq.coordinator.group.group import Group
from bmq.coordinator.group.messages import Join, JoinResponse, Now, Respond, StoreAssignment, Sync
from bmq.coordinator.group.states import GroupRules, GroupState
from bmq.coordinator.group.timers import GroupTimers
from bmq.coordinator.records import GroupRecord, decode, encode
from tests.harness.loop_stops import is_short, without_collector

pytestmark = pytest.mark.slow

MEMBERS = 10_000
NOW, LATER = Now(0, 0), Now(600_000, 600_000)
R = TypeVar("R")


def subscription(number: int) -> bytes:
    """Every second member says something of its own besides, as cooperative assignors do."""
    topics = (b"orders", b"payments")
    names = b"".join(struct.pack(">h", len(topic)) + topic for topic in topics)
    owned = struct.pack(">ii", 0, number) if number % 2 else b""
    return struct.pack(">hi", 1, len(topics)) + names + owned


def join_of(number: int, member_id: str = "") -> Join:
    return Join(
        member_id=member_id,
        new_member_id=f"consumer-{number}-8c1b0b36-2b7e-4b0e-9d5c-3f6d2b9a7e11",
        client_id="consumer",
        client_host="/10.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        protocol_type="consumer",
        protocols=(("range", subscription(number)), ("cooperative-sticky", subscription(number))),
        requires_known_id=False,
    )


class Steps:
    """The processor time of each step of a group, in seconds."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    def run(self, step: Callable[[], R]) -> R:
        began = time.thread_time()
        result = step()
        self.taken_s.append(time.thread_time() - began)
        return result


def test_no_step_of_a_large_group_stops_the_loop() -> None:
    """One of three runs is enough: a delay of one run only is no part of the work."""
    runs = (max(play_rebalances().taken_s) for _ in range(3))
    assert any(is_short(longest_s) for longest_s in runs)


def play_rebalances() -> Steps:
    """Play two rebalances of the group and a failover, and return how long their steps took."""
    steps = Steps()
    group = Group("g", GroupRules(initial_delay_ms=3_000), GroupTimers(), 0)
    with without_collector():
        for number in range(MEMBERS):
            group.join(join_of(number), number, NOW)
        assert not group.has_effects
        while group.state is GroupState.PREPARING:
            steps.run(lambda: group.expired(group._join_timer, LATER))
        answers = [each.response for each in group.take_effects() if isinstance(each, Respond)]
        assert len(answers) == MEMBERS
        assert [len(each.members) for each in answers if isinstance(each, JoinResponse) and each.members] == [MEMBERS]

        ids = [member.member_id for member in group.members]
        ask = Sync(member_id="", instance_id=None, generation=1, assignments={})
        for member_id in ids[1:]:
            group.sync(replace(ask, member_id=member_id), member_id, LATER)
        assignments = {member_id: member_id.encode() for member_id in ids}
        steps.run(lambda: group.sync(replace(ask, member_id=ids[0], assignments=assignments), ids[0], LATER))
        (store,) = group.take_effects()
        assert isinstance(store, StoreAssignment)
        record = GroupRecord("g", store.value)
        stored = steps.run(lambda: encode(record))
        steps.run(lambda: group.stored(store, LATER))
        assert group.state is GroupState.STABLE
        assert len(group.take_effects()) == MEMBERS

        for number, member_id in enumerate(ids[:-1]):
            group.join(join_of(number, member_id), number, LATER)
        steps.run(lambda: group.join(join_of(MEMBERS, ids[-1]), MEMBERS, LATER))
        assert (group.state, group.generation) == (GroupState.COMPLETING, 2)

        assert steps.run(lambda: decode(*stored)) == record
        again = steps.run(lambda: Group.restore("g", store.value, GroupRules(), GroupTimers(), LATER))
        assert len(again.members) == MEMBERS
    return steps
