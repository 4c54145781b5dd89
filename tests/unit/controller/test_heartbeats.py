"""The leader's heartbeats: when a member is suspected, and what is learned from one that responds late."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from bmq.controller.heartbeats import BEAT_S, BEATS_PER_S, SUSPECT_S, Heartbeats
from bmq.controller.member_client import MemberClient
from bmq.controller.patience import FACTOR, LEAST_S, Patience
from bmq.core.aio.tasks import cancel_and_wait
from bmq.core.clock import LoopClock
from bmq.meta.cluster.member import Member
from tests.harness.waiting import until

OWN = "leader"
NEVER = float("inf")


class Beaten:
    """Members that respond to each ping after ``delay_s``, and what the leader makes of it."""

    heartbeats: Heartbeats

    def __init__(self, *names: str) -> None:
        self.members = {name: Member(incarnation=name, roles=frozenset()) for name in (OWN, *names)}
        self.delay_s = dict.fromkeys(names, 0.001)
        self.lost_after_s = float("inf")
        """Time after which a connection without a response is given up."""
        self.pinged: list[tuple[str, float]] = []
        self.suspected: list[tuple[str, float]] = []
        self.patience = Patience()
        self.now = asyncio.get_running_loop().time

    async def ping(self, member: Member, timeout_s: float) -> bool:
        name = member.incarnation
        self.pinged.append((name, self.now()))
        delay_s = self.delay_s[name]
        timeout_s = min(timeout_s, self.lost_after_s)
        await asyncio.sleep(min(delay_s, timeout_s))
        return delay_s <= timeout_s

    def in_turns(self, seconds: float, *, since: int) -> list[list[str]]:
        """Return the names that were pinged in each period of so many seconds, without the first pings."""
        periods: dict[int, list[str]] = {}
        for name, at in self.pinged[since:]:
            periods.setdefault(int(at / seconds), []).append(name)
        return list(periods.values())

    def suspect(self, name: str) -> None:
        self.suspected.append((name, self.now()))


@asynccontextmanager
async def beaten(*names: str) -> AsyncIterator[Beaten]:
    one = Beaten(*names)
    heartbeats = one.heartbeats = Heartbeats(
        OWN, cast(MemberClient, one), LoopClock(), one.patience, names=lambda: one.members.keys(),
        find=one.members.get, suspect=one.suspect,
    )  # fmt: skip
    running = asyncio.create_task(heartbeats.run())
    yield one
    await cancel_and_wait(running)
    assert not running.cancelled() or not heartbeats._beating


async def test_members_that_respond_are_pinged_several_times_a_second_and_not_suspected() -> None:
    async with beaten("a", "b") as one:
        await asyncio.sleep(10)
        for name in "ab":
            assert 9 / BEAT_S <= sum(pinged == name for pinged, _ in one.pinged) <= 10 / BEAT_S + 1
        assert not one.suspected
        assert OWN not in dict(one.pinged)


async def test_a_member_that_falls_silent_is_suspected_within_one_beat_and_the_time_for_a_response() -> None:
    async with beaten("a", "b") as one:
        await asyncio.sleep(10)
        one.delay_s["b"] = float("inf")
        silent = one.now()
        await asyncio.sleep(BEAT_S + SUSPECT_S)
        assert {name for name, _ in one.suspected} == {"b"}
        assert one.suspected[0][1] - silent <= BEAT_S + SUSPECT_S
        before = len(one.suspected)
        await asyncio.sleep(60)
        assert len(one.suspected) >= before + 30, "again and again: the first probe may have found it alive"


async def test_a_member_that_responds_late_is_suspected_and_has_more_patience_from_then_on() -> None:
    async with beaten("a") as one:
        one.delay_s["a"] = 1.0
        await asyncio.sleep(2)
        assert one.suspected
        assert one.patience.seconds(one.now()) == pytest.approx(FACTOR * 1.0)


async def test_a_silence_that_outlasts_a_connection_is_learned_from_as_a_whole() -> None:
    """Lose the connection in the middle of a silence: the response comes on the next one."""
    async with beaten("a") as one:
        await asyncio.sleep(5)
        one.delay_s["a"], one.lost_after_s = NEVER, 0.6
        await asyncio.sleep(1)
        one.delay_s["a"] = 0.2
        await asyncio.sleep(1)
        assert one.patience.seconds(one.now()) > FACTOR * (0.6 + BEAT_S), "more than each connection had shown"


async def test_connections_that_cannot_be_made_are_no_silence() -> None:
    """Refuse connections for a while, as the host of a member does of which the key has gone for a moment."""
    async with beaten("a") as one:
        one.delay_s["a"], one.lost_after_s = NEVER, 0.0
        await asyncio.sleep(2)
        one.delay_s["a"] = 0.001
        one.lost_after_s = NEVER
        await asyncio.sleep(1)
        assert one.patience.seconds(one.now()) == LEAST_S


async def test_one_that_is_a_member_no_more_is_not_pinged() -> None:
    async with beaten("a", "b") as one:
        await asyncio.sleep(1)
        del one.members["b"]
        await asyncio.sleep(1)
        before = len(one.pinged)
        await asyncio.sleep(1)
        assert {name for name, _ in one.pinged[before:]} == {"a"}
        one.members["b"] = Member(incarnation="b", roles=frozenset())
        await asyncio.sleep(1)
        assert one.pinged[-1][0] == "b" or one.pinged[-2][0] == "b"


@pytest.mark.slow
async def test_many_members_get_their_heartbeats_less_often() -> None:
    async with beaten(*(f"m{number}" for number in range(1000))) as one:
        await asyncio.sleep(5)
        before = len(one.pinged)
        await asyncio.sleep(20)
        assert len(one.pinged) - before <= 20 * BEATS_PER_S + 1
        longest = max(map(len, one.in_turns(0.05, since=before)))
        assert longest <= 0.05 * BEATS_PER_S + 1, "evenly spread: a thousand at once hold up the loop"
        counts = Counter(name for name, _ in one.pinged[before:])
        assert set(counts.values()) <= {7, 8, 9}, "each as often as the others"


async def test_a_members_response_counts_from_when_it_came() -> None:
    async with beaten("a") as one:
        one.delay_s["a"] = 0.3
        await asyncio.sleep(1.2)
        last = one.pinged[-2][1] + 0.3
        assert one.heartbeats.has_responded("a", last - 0.01)
        assert not one.heartbeats.has_responded("a", last + 0.01)
        assert not one.heartbeats.has_responded("b", 0)
        del one.members["a"]
        await asyncio.sleep(1)
        assert not one.heartbeats.has_responded("a", 0), "nothing is kept of a former member"


@pytest.mark.slow
@pytest.mark.loops("asyncio")
async def test_a_stop_of_our_own_is_no_silence_of_a_member() -> None:
    async with beaten("a") as one:
        await until(lambda: bool(one.pinged))
        time.sleep(2 * SUSPECT_S)  # noqa: ASYNC251 - that is the stop
        await asyncio.sleep(0.1)
        assert not one.suspected
        assert one.patience.seconds(one.now()) == LEAST_S
