"""A leader's probes: when a member that does not respond counts as dead, and when the leader presumes to be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

import pytest

from bmq.controller.member_client import MemberClient
from bmq.controller.patience import Patience
from bmq.controller.probing import LAST_RESORT_S, WITNESSES, Isolated, Prober, Verdict
from bmq.core.clock import LoopClock
from bmq.core.rpc.peers import Evidence
from bmq.meta.cluster.member import Address, Member

OWN = "leader"
LIFE, SILENCE, REFUSED, REPLACED, NONE = (
    Evidence.LIFE, Evidence.SILENCE, Evidence.REFUSED, Evidence.REPLACED, Evidence.NONE,
)  # fmt: skip


class Leader:
    """A prober among members of which each gives this evidence; a name's part before ``-`` is its host."""

    def __init__(self, found: Mapping[str, Evidence], *, is_last_resort: bool = False) -> None:
        self.found = dict(found)
        self.probed: list[str] = []
        self.under_way = 0
        self.beating: set[str] = set()
        """Members that respond to heartbeats all the time."""
        self.registered = {
            name: Member(incarnation=name, roles=frozenset(), internal=Address(host=name.partition("-")[0], port=1))
            for name in (OWN, *found)
        }
        client = cast(MemberClient, self)
        self.prober = Prober(
            OWN, client, LoopClock(), lambda: self.registered, Patience(),
            has_responded=lambda name, since: name in self.beating, is_last_resort=is_last_resort,
        )  # fmt: skip

    async def probe(self, member: Member, patience_s: float) -> Evidence:
        self.probed.append(member.incarnation)
        self.under_way += 1
        try:
            await asyncio.sleep(2.0 if self.found[member.incarnation] is SILENCE else 0.01)
        finally:
            self.under_way -= 1
        return self.found[member.incarnation]

    async def is_alive(self, name: str) -> bool:
        return await self.prober.judge(self.registered[name]) is not Verdict.DEAD


@pytest.mark.parametrize("evidence", [LIFE, NONE])
async def test_a_member_that_no_evidence_is_against_counts_as_alive_without_witnesses(evidence: Evidence) -> None:
    one = Leader({"a": evidence, "b": LIFE})
    assert await one.is_alive("a")
    assert one.probed == ["a"]


@pytest.mark.parametrize(
    ("evidence", "is_last_resort", "verdict"),
    [
        (LIFE, False, Verdict.RESPONDED),
        (NONE, False, Verdict.UNKNOWN),
        (SILENCE, True, Verdict.UNKNOWN),
        (REFUSED, True, Verdict.DEAD),
    ],
)
async def test_only_a_response_is_one(evidence: Evidence, is_last_resort: bool, verdict: Verdict) -> None:
    one = Leader({"a": evidence, "b": SILENCE, "c": SILENCE}, is_last_resort=is_last_resort)
    assert await one.prober.judge(one.registered["a"]) is verdict
    assert await one.prober.judge(one.registered[OWN]) is Verdict.RESPONDED


async def test_a_member_that_responds_to_heartbeats_while_a_probe_has_no_response_is_alive() -> None:
    """Slow turns of its loop: a heartbeat takes it one of them, a new connection several."""
    one = Leader({"a": SILENCE, "b": REFUSED, "c": LIFE, "d": LIFE})
    one.beating = {"a", "b"}
    assert await one.is_alive("a")
    assert one.probed == ["a"], "no other need be asked"
    assert not await one.is_alive("b"), "its host is certain"


async def test_a_witness_that_responds_to_heartbeats_is_reached() -> None:
    one = Leader({"a": SILENCE, "b": SILENCE, "c": SILENCE})
    one.beating = {"b", "c"}
    assert not await one.is_alive("a")


async def test_the_leader_itself_is_not_probed() -> None:
    one = Leader({"a": LIFE})
    assert await one.is_alive(OWN)
    assert one.probed == []


@pytest.mark.parametrize(
    ("suspect", "others", "is_isolated"),
    [
        (SILENCE, [], False),
        (SILENCE, [LIFE], False),
        (SILENCE, [SILENCE], True),
        (SILENCE, [REFUSED], True),
        (SILENCE, [REPLACED], False),
        (SILENCE, [LIFE, SILENCE], True),
        (SILENCE, [LIFE, REFUSED], False),
        (SILENCE, [LIFE, LIFE, SILENCE], False),
        (SILENCE, [LIFE, SILENCE, SILENCE], True),
        (SILENCE, [LIFE, NONE, NONE], False),
        (SILENCE, [NONE, NONE], True),
        (REFUSED, [REFUSED, REFUSED], True),
        (REFUSED, [REFUSED, REFUSED, LIFE], False),
        (REFUSED, [SILENCE, LIFE], False),
        (REPLACED, [SILENCE, REFUSED], False),
        (REPLACED, [SILENCE, SILENCE], True),
    ],
)
async def test_a_leader_that_does_not_reach_most_members_is_isolated(
    suspect: Evidence, others: list[Evidence], is_isolated: bool
) -> None:
    one = Leader({"a": suspect, **{f"b{number}": found for number, found in enumerate(others)}})
    if is_isolated:
        with pytest.raises(Isolated):
            await one.is_alive("a")
    else:
        assert not await one.is_alive("a")
    assert one.under_way == 0


async def test_as_soon_as_enough_respond_the_others_are_not_waited_for() -> None:
    one = Leader({"a": REFUSED, "b": LIFE, "c": LIFE, "d": SILENCE})
    began = asyncio.get_running_loop().time()
    assert not await one.is_alive("a")
    assert asyncio.get_running_loop().time() - began < 1.0
    assert one.under_way == 0


async def test_the_last_resort_believes_a_host_that_refuses_and_no_silence_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Leader({"a": SILENCE, "b": REFUSED, "c": SILENCE}, is_last_resort=True)
    assert await one.is_alive("a")
    assert not await one.is_alive("b")
    await asyncio.sleep(LAST_RESORT_S)
    with pytest.raises(Isolated):
        await one.is_alive("a")
    assert len(caplog.records) == 1, "once a term"


async def test_a_last_resort_that_is_not_cut_off_any_more_is_a_leader_like_any_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = Leader({"a": SILENCE, "b": LIFE, "c": LIFE}, is_last_resort=True)
    assert not await one.is_alive("a")
    assert not caplog.records


async def test_of_many_suspects_one_asks_the_witnesses() -> None:
    suspects = [f"s{number}" for number in range(50)]
    one = Leader({**dict.fromkeys(suspects, REFUSED), **dict.fromkeys("abc", LIFE)})
    assert not any(await asyncio.gather(*map(one.is_alive, suspects)))
    assert len(one.probed) <= len(suspects) + WITNESSES


async def test_a_poll_from_before_the_probe_does_not_count() -> None:
    one = Leader({"a": REFUSED, "b": LIFE, "c": LIFE})
    assert not await one.is_alive("a")
    await asyncio.sleep(0.001)
    one.found.update(dict.fromkeys("bc", SILENCE))
    with pytest.raises(Isolated):
        await one.is_alive("b")


async def test_a_leader_that_ends_leaves_no_probe_behind() -> None:
    one = Leader({"a": REFUSED, "b": SILENCE, "c": SILENCE})
    probe = asyncio.create_task(one.is_alive("a"))
    await asyncio.sleep(1.0)
    assert one.under_way == 2
    probe.cancel()
    await asyncio.wait([probe])
    assert one.under_way == 0


async def test_witnesses_are_few_and_of_different_hosts() -> None:
    one = Leader(dict.fromkeys((f"{host}-{number}" for host in "abcdefghijklm" for number in range(3)), SILENCE))
    with pytest.raises(Isolated):
        await one.is_alive("m-2")
    witnesses = one.probed[1:]
    assert len({name[0] for name in witnesses}) == len(witnesses) == WITNESSES
