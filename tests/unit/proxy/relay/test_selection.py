"""The choice of a relay to a member that this process does not reach itself."""

from __future__ import annotations

from collections import Counter

import pytest

from bmq.meta.cluster.member import Address, Member
from bmq.proxy.relay.selection import MEMBER_PAUSE_S, PAUSE_S, REMEMBERED_S, RelayChoice


def proxy(name: str, zone: str = "", *, role: str = "proxy", port: int = 1, is_draining: bool = False) -> Member:
    where = Address(host=name, port=port)
    return Member(incarnation=name, roles=frozenset({role}), internal=where, zone=zone, is_draining=is_draining)


def picked(choice: RelayChoice, *members: Member, to: str = "b1", now: float = 0.0) -> str | None:
    found = choice.pick(to, members, {}, now)
    return found.incarnation if found is not None else None


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (proxy("own"), "this process"),
        (proxy("b1"), "the one that is not reached"),
        (proxy("c", role="coordinator"), "no proxy"),
        (proxy("p", port=0), "it does not listen yet"),
        (proxy("p", is_draining=True), "it is about to leave"),
    ],
)
def test_a_member_that_cannot_relay_is_not_chosen(member: Member, why: str) -> None:
    assert picked(RelayChoice("own", ""), member) is None, why


def test_a_proxy_that_does_not_reach_the_member_is_not_chosen() -> None:
    choice = RelayChoice("own", "")
    members = [proxy("p1"), proxy("p2")]
    found = choice.pick("b1", members, {"p1": {"b1", "b2"}, "p2": {"b2"}}, 0.0)
    assert found is not None
    assert found.incarnation == "p2"
    assert choice.pick("b2", members, {"p1": {"b1", "b2"}, "p2": {"b2"}}, 0.0) is None


def test_the_own_zone_comes_first_whatever_the_order() -> None:
    members = [proxy(f"p{number}", "far") for number in range(20)] + [proxy("near", "here")]
    assert {picked(RelayChoice(f"own{number}", "here"), *members) for number in range(50)} == {"near"}
    assert picked(RelayChoice("own", "here"), *members[:20]) is not None


def test_many_proxies_spread_over_relays_and_each_keeps_its_choice() -> None:
    members = [proxy(f"p{number}") for number in range(4)]
    chosen = {name: picked(RelayChoice(name, ""), *members) for name in (f"own{number}" for number in range(400))}
    assert set(chosen.values()) == {"p0", "p1", "p2", "p3"}
    assert min(Counter(chosen.values()).values()) > 60
    moved = [name for name, via in chosen.items() if via != picked(RelayChoice(name, ""), *members[1:])]
    assert {chosen[name] for name in moved} == {"p0"}, "only those that it served go elsewhere"


def test_a_relay_that_failed_is_chosen_less_and_less_often() -> None:
    choice, members, now = RelayChoice("own", ""), [proxy("p1"), proxy("p2")], 0.0
    first = picked(choice, *members)
    assert first is not None
    choice.failed("b1", first, now)
    second = picked(choice, *members)
    assert second is not None
    assert second != first
    assert picked(choice, *members, to="b2") is not None, "of another it says nothing"
    choice.failed("b1", second, now)
    assert picked(choice, *members) is None
    pauses = []
    for _ in range(8):
        began = now
        while picked(choice, proxy(first), now=now) is None:
            now += PAUSE_S.least / 2
        pauses.append(now - began)
        choice.failed("b1", first, now)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_member_that_several_do_not_reach_is_left_alone_by_all() -> None:
    """Try many proxies for a dead member: the attempts are limited; a proxy that may help ends the pause."""
    choice, members, now = RelayChoice("own", ""), [proxy(f"p{number}") for number in range(50)], 0.0
    asked = []
    while now < 20:
        via = picked(choice, *members, now=now)
        if via is not None:
            asked.append(now)
            for _ in range(3):  # a link to produce, one to read, and a question
                choice.failed("b1", via, now)
        now += 0.125
    assert asked == [0.0, 0.125, 1.125, 3.125, 7.125, 12.125, 17.125]
    assert picked(choice, *members, to="b2", now=now) is not None
    choice.helped("b1")
    assert picked(choice, *members, now=now) is not None


def test_failures_are_forgotten() -> None:
    choice = RelayChoice("own", "")
    for number in range(100):
        choice.failed("b1", f"p{number}", 0.0)
    assert len(choice) == 100
    later = MEMBER_PAUSE_S.most + REMEMBERED_S
    choice.failed("b1", "p", later)
    assert len(choice) == 1
    assert picked(choice, proxy("p2"), now=later) == "p2", "it is the first failure again"
    choice.failed("b2", "p", later)
    choice.forget("b1")
    assert len(choice) == 1
    choice.forget("p")
    assert len(choice) == 0


def test_relays_that_never_help_are_paused_for_as_long_as_the_member_lives() -> None:
    choice, now = RelayChoice("own", ""), 0.0
    for _ in range(1_200):  # ten hours
        choice.failed("b1", "p1", now)
        now += 30
        assert picked(choice, proxy("p1"), now=now) == "p1"
