"""A leader's watch of the members: registrations and silences around the failure detector's table."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bmq.controller.failures import DeclareDead, Probe, ProbeAnswered, ProbeFailed, Reported
from bmq.controller.member_watch import Arrived, Effect, LivenessEvent, Loss, MemberWatch
from bmq.controller.patience import FACTOR, LEAST_S, MOST_S, Patience
from bmq.controller.stalled_brokers import REST_S
from bmq.meta.cluster.member import BROKER, Member

TTL_S = 10.0
ARRIVED: Sequence[Effect] = [Arrived("m")]
PROBE: Sequence[Effect] = [Probe("m")]
DEAD: Sequence[Effect] = [DeclareDead("m")]


def member(*, is_draining: bool = False) -> Member:
    made = Member(incarnation="m", roles=frozenset({BROKER}))
    return made.draining() if is_draining else made


def watch(patience: Patience | None = None) -> MemberWatch:
    """Return the watch of a leader to which member m has come, under a key of revision 5."""
    made = MemberWatch("leader", TTL_S, patience or Patience())
    assert made.seen(member(), 5, 100.0) == ARRIVED
    return made


def silent(patience: Patience | None = None) -> MemberWatch:
    """Return such a watch once m was declared dead at 101, silent since 100.5, its key not deleted yet."""
    made = watch(patience)
    assert made.handle(Reported("p", "m"), 100.5) == PROBE
    made.stayed_silent("m", 100.5)
    assert made.handle(ProbeFailed("m"), 101.0) == DEAD
    assert made.lost("m", 5, is_registered=True) is Loss.SILENT
    return made


def test_a_member_arrives_once() -> None:
    w = watch()
    assert w.seen(member(is_draining=True), 6, 101.0) == []
    assert w.living() == {"m": member(is_draining=True)}
    assert w.living_member("m") == w.registration("m") == member(is_draining=True)


@pytest.mark.parametrize(("is_draining", "loss"), [(False, Loss.GONE), (True, Loss.LEFT)])
def test_a_member_whose_key_is_gone_is_forgotten_once_the_loss_is_known(is_draining: bool, loss: Loss) -> None:
    w = watch()
    w.seen(member(is_draining=is_draining), 6, 101.0)
    assert w.gone("m", 102.0) == DEAD
    assert not w.is_living("m")
    assert w.lost("m", 0, is_registered=False) is loss
    assert w.registration("m") is None


def test_an_owner_that_this_term_never_saw_is_lost() -> None:
    w = MemberWatch("leader", TTL_S, Patience())
    assert w.gone_before("m", 100.0) == DEAD
    assert w.lost("m", 0, is_registered=False) is Loss.UNKNOWN
    assert w.living() == {}


def test_a_dead_member_stays_known_until_its_key_is_deleted() -> None:
    w = silent()
    assert w.is_dead("m")
    assert (w.living(), w.living_member("m")) == ({}, None)
    assert w.seen(member(), 5, 102.0) == [], "the same key: nothing has come back"
    assert w.registration("m") is not None
    assert w.gone("m", 103.0) == []
    assert not w.is_dead("m")
    assert w.registration("m") is None


def test_a_dead_member_whose_key_has_another_revision_has_returned_and_is_probed() -> None:
    w = silent()
    assert w.seen(member(), 6, 103.5) == [*ARRIVED, *PROBE]
    assert w.is_living("m")
    assert w.unproven == {"m"}


def test_a_member_that_returns_after_a_silence_is_unproven_and_teaches_patience() -> None:
    patience = Patience()
    w = silent(patience)
    w.gone("m", 102.0)
    assert w.seen(member(), 7, 102.5) == [*ARRIVED, *PROBE]
    assert (w.unproven, patience.seconds(103.0)) == ({"m"}, LEAST_S)
    assert w.responded("m", 103.0)
    assert patience.seconds(103.0) == MOST_S < FACTOR * 2.0, "the silence was of 2 seconds"
    assert not w.unproven
    assert not w.responded("m", 104.0)


@pytest.mark.parametrize("event", [ProbeFailed("m"), Reported("p", "m"), ProbeAnswered("m")])
def test_events_of_a_member_that_is_not_watched_have_no_effect(event: LivenessEvent) -> None:
    w = MemberWatch("leader", TTL_S, Patience())
    assert w.handle(event, 100.0) == []


def test_a_stalled_broker_rests_and_its_stall_is_forgotten_with_it() -> None:
    w = watch()
    assert w.served("m", False, 101.0)
    assert w.stalled == {"m"}
    assert w.served("m", True, 102.0)
    assert not w.stalled
    assert w.resting(103.0) == {"m"}
    assert not w.resting(102.0 + REST_S)
    assert w.gone("m", 104.0) == DEAD
    w.lost("m", 0, is_registered=False)
    assert w.resting(104.0) == set()
