"""A leader's probes: when a member that does not respond counts as dead, and when the leader presumes to be cut off."""

from __future__ import annotations

import pytest

from bmq.controller.probing import WITNESSES, Isolated, Prober
from bmq.core.clock import LoopClock
from bmq.meta.cluster.member import Address, Member
from tests.harness.loop import run
from tests.unit.controller.world import FakeMembers

OWN = "leader"


class Leader:
    """A prober among the members with these names; a name's part before ``-`` is its host."""

    def __init__(self, *names: str, is_last_resort: bool = False) -> None:
        self.members = FakeMembers()
        self.registered = {
            name: Member(incarnation=name, roles=frozenset(), internal=Address(host=name.partition("-")[0], port=1))
            for name in (OWN, *names)
        }
        self.prober = Prober(OWN, self.members, LoopClock(), lambda: self.registered, is_last_resort=is_last_resort)

    async def is_alive(self, name: str) -> bool:
        return await self.prober.is_alive(self.registered[name])


def test_a_member_that_responds_needs_no_witness() -> None:
    async def main() -> None:
        one = Leader("a", "b")
        assert await one.is_alive("a")
        assert one.members.probes == ["a"]

    run(main())


def test_the_leader_itself_is_not_probed() -> None:
    async def main() -> None:
        one = Leader("a")
        assert await one.is_alive(OWN)
        assert one.members.probes == []

    run(main())


def test_one_of_two_others_that_responds_is_witness_that_the_first_is_dead() -> None:
    async def main() -> None:
        one = Leader("a", "b")
        one.members.silent.add("a")
        assert not await one.is_alive("a")
        assert one.members.probes == ["a", "b"]

    run(main())


def test_a_leader_that_none_responds_to_is_isolated() -> None:
    async def main() -> None:
        one = Leader("a", "b", "c")
        one.members.silent.update("abc")
        with pytest.raises(Isolated):
            await one.is_alive("a")

    run(main())


def test_the_probe_of_the_only_other_member_counts() -> None:
    async def main() -> None:
        one = Leader("a")
        one.members.silent.add("a")
        assert not await one.is_alive("a")

    run(main())


def test_witnesses_are_few_and_of_different_hosts() -> None:
    async def main() -> None:
        names = [f"{host}-{number}" for host in "abcdefgh" for number in range(3)]
        one = Leader(*names)
        one.members.silent.update(names)
        with pytest.raises(Isolated):
            await one.is_alive("h-2")
        witnesses = one.members.probes[1:]
        assert len({name[0] for name in witnesses}) == len(witnesses) == WITNESSES

    run(main())
