"""A member that other members find unregistered: when it believes them, and whom it asks."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from bmq.core.rpc.messages.member import Unregistered
from bmq.core.rpc.peer import PeerLost
from bmq.meta.cluster.member import BROKER, CONTROLLER, COORDINATOR, PROXY, Address, Member
from bmq.meta.cluster.unregistered import ASK_S, FindingVerdict, RegistrationCheck, judge, others_to_ask

TTL_S = 10.0
ROLES = (BROKER, COORDINATOR, PROXY, CONTROLLER)
SETS = [frozenset(role for role, has in zip(ROLES, each, strict=True) if has) for each in product((0, 1), repeat=4)]


@pytest.mark.parametrize("own", SETS)
def test_every_combination(own: frozenset[str]) -> None:
    """A finding counts if it is not older than the key, and if another has the first role of ours."""
    first = next((role for role in ROLES if role in own), None)
    for revision, found, age_s, others in product((0, 7), (6, 7, 9), (0.0, 9.9, 10.0, 60.0), SETS):
        verdict = judge(Unregistered(found, others), revision=revision, lease_age_s=age_s, ttl_s=TTL_S, roles=own)
        if revision == 0 or found < revision or first not in others:
            assert verdict is FindingVerdict.NOTHING
        else:
            assert verdict is (FindingVerdict.LOST if age_s >= TTL_S else FindingVerdict.ASK_STORE)


def member(name: str, port: int = 1) -> Member:
    return Member(incarnation=name, roles=frozenset({BROKER}), internal=Address(host=name, port=port))


class View:
    own = "own"

    def __init__(self, *names: str, leader: str = "") -> None:
        self.members = {name: member(name) for name in ("own", *names)}
        self.members["starting"] = member("starting", 0)
        self.controller = self.members.get(leader)


def test_nobody_asks_itself_nor_one_that_does_not_listen_yet() -> None:
    view: Any = View("a", "b", "c")
    assert sorted(each.incarnation for each in others_to_ask(view)) == ["a", "b", "c"]


@pytest.mark.parametrize("leader", ["", "b", "own"])
async def test_it_asks_the_leader_and_everybody_in_turn_while_its_lease_is_overdue(leader: str) -> None:
    now = asyncio.get_running_loop().time
    asked: list[tuple[float, str]] = []
    lease_until = now() + 5.0

    async def greet(to: Member, timeout_s: float) -> None:
        asked.append((now(), to.incarnation))
        if to.incarnation == "a":
            raise PeerLost("it refuses", was_sent=False)
        if to.incarnation == "c":
            await asyncio.sleep(timeout_s)
            raise PeerLost("it does not answer", was_sent=False)

    view: Any = View("a", "b", "c", "d", leader=leader)
    check = RegistrationCheck(view, lambda: now() - lease_until, greet)
    check.start()
    await asyncio.sleep(4.9)
    assert asked == []
    await asyncio.sleep(0.1 + 8 * ASK_S)
    names = [name for _, name in asked]
    rounds = {at for at, _ in asked}
    assert len(rounds) in (8, 9)
    assert len(asked) == len(rounds) * (2 if leader == "b" else 1)
    assert {name: names.count(name) >= 2 for name in "abcd"} == dict.fromkeys("abcd", True)
    if leader == "b":
        assert names.count("b") == len(rounds)
    lease_until = now() + 30.0  # the store has renewed it
    await asyncio.sleep(ASK_S + 0.1)
    count = len(asked)
    await asyncio.sleep(28.0)
    assert len(asked) == count
    await check.close()
    await check.close()
