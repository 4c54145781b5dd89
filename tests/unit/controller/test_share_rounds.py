"""Rounds in which brokers report their open files and get shares: who is asked, how often, and which reports count."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bmq.controller.election import Leadership
from bmq.controller.file_shares import OpenFileReport
from bmq.controller.share_rounds import BROKERS_PARALLEL, ROOMY_ROUND_S, SHARE_ROUND_S, ShareRounds
from bmq.core.clock import LoopClock
from bmq.meta.cluster.member import BROKER, Address, Member
from tests.unit.controller.world import FakeMembers, file_report


def member(name: str) -> Member:
    return Member(incarnation=name, roles=frozenset({BROKER}), internal=Address(host=name, port=1))


class CountedMembers(FakeMembers):
    """Members that count the requests of each round."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.under_way = self.under_way_max = 0

    async def open_files(self, member: Member, share: int | None) -> OpenFileReport | None:
        self.asked.append(member.incarnation)
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            return await super().open_files(member, share)
        finally:
            self.under_way -= 1


class Rounds:
    def __init__(self, *names: str) -> None:
        self.members = CountedMembers()
        self.leadership = Leadership("/c/controller", 1, 1, float("inf"), LoopClock())
        self.brokers = {name: member(name) for name in names}
        self.dead: set[str] = set()
        self.rounds = ShareRounds(
            self.leadership,
            self.members,
            LoopClock(),
            brokers=self.brokers.values,
            is_living=lambda name: name not in self.dead,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.rounds.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()


async def test_rounds_are_more_frequent_while_storage_lacks_room() -> None:
    rounds = Rounds("a", "b")
    reports = rounds.members.open_file_reports
    reports.update(a=file_report(60), b=file_report(0, 60))
    async with rounds.running():
        await asyncio.sleep(4 * ROOMY_ROUND_S)
        assert 4 <= rounds.members.asked.count("a") <= 5
        assert rounds.members.shares == {"a": None, "b": None}
        reports["b"] = file_report(0, 60, refused=1)
        await asyncio.sleep(ROOMY_ROUND_S + 2 * SHARE_ROUND_S)
        assert None not in rounds.members.shares.values()
        rounds.members.asked.clear()
        await asyncio.sleep(4 * SHARE_ROUND_S)
        assert 3 <= rounds.members.asked.count("a") <= 4


async def test_a_leader_that_may_not_act_asks_nobody() -> None:
    rounds = Rounds("a", "b")
    rounds.leadership.is_over = True
    async with rounds.running():
        await asyncio.sleep(10 * ROOMY_ROUND_S)
        assert not rounds.members.asked


async def test_the_report_of_a_broker_that_died_meanwhile_does_not_count() -> None:
    """Nothing is to be divided with one broker left: its own bound is enough."""
    rounds = Rounds("a", "b")
    rounds.dead.add("b")
    reports = rounds.members.open_file_reports
    reports.update(a=file_report(60), b=file_report(0, 60))
    async with rounds.running():
        await asyncio.sleep(2 * ROOMY_ROUND_S)
        reports.update(a=file_report(60, refused=1), b=file_report(0, 60, refused=1))
        await asyncio.sleep(2 * ROOMY_ROUND_S)
        assert rounds.members.shares == {"a": None, "b": None}


async def test_a_broker_that_is_forgotten_has_no_share() -> None:
    rounds = Rounds("a", "b", "c")
    reports = rounds.members.open_file_reports
    reports.update(a=file_report(60), b=file_report(0, 60), c=file_report(0, 60))
    async with rounds.running():
        await asyncio.sleep(ROOMY_ROUND_S + 1)
        reports["b"] = file_report(0, 60, refused=1)
        await asyncio.sleep(ROOMY_ROUND_S + 2 * SHARE_ROUND_S)
        before = dict(rounds.members.shares)
        assert None not in before.values()
        del rounds.brokers["c"]
        rounds.rounds.forget("c")
        await asyncio.sleep(3 * SHARE_ROUND_S)
        assert rounds.members.shares["a"] > before["a"], "its part goes to the others"  # type: ignore[operator]


async def test_only_so_many_brokers_are_asked_at_once() -> None:
    names = [f"b{number}" for number in range(3 * BROKERS_PARALLEL)]
    rounds = Rounds(*names)
    async with rounds.running():
        await asyncio.sleep(1)
        assert sorted(rounds.members.asked) == sorted(names)
        assert rounds.members.under_way_max == BROKERS_PARALLEL
