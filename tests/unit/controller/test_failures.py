"""Failure detection: every state of a member with every event, then the histories that the rules are for."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from bmq.controller.failures import (
    EVENTS,
    PROBE_GAP_S,
    TABLE,
    ConnectionBroken,
    DeclareDead,
    Effect,
    Event,
    FailureDetector,
    MemberGone,
    MemberSeen,
    MemberState,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    Reported,
    StoreAway,
    StoreBack,
    Tick,
)

TTL_S = 10.0
LATER = 100.0  # no probe, no outage was lately
PROBE: list[Effect] = [Probe("m")]
DEAD: list[Effect] = [DeclareDead("m")]

SEEN, GONE, REPORTED, BROKEN = MemberSeen("m"), MemberGone("m"), Reported("p", "m"), ConnectionBroken("m")
ANSWERED, FAILED, AWAY, BACK, TICK = ProbeAnswered("m"), ProbeFailed("m"), StoreAway(), StoreBack(), Tick()

WAYS: dict[MemberState, list[tuple[Event, float]]] = {
    MemberState.ALIVE: [(SEEN, 0)],
    MemberState.DOUBTED: [(SEEN, 0), (REPORTED, 0), (ANSWERED, 0), (REPORTED, 0)],
    MemberState.PROBED: [(SEEN, 0), (REPORTED, 0)],
    MemberState.PROBED_AND_DOUBTED: [(SEEN, 0), (REPORTED, 0), (REPORTED, 0)],
    MemberState.FAILED: [(SEEN, 0), (AWAY, 0), (REPORTED, 0), (FAILED, 0)],
    MemberState.GONE_PROBED: [(SEEN, 0), (AWAY, 0), (GONE, 0)],
    MemberState.GONE_ANSWERED: [(SEEN, 0), (AWAY, 0), (GONE, 0), (ANSWERED, 0)],
    MemberState.GONE_FAILED: [(SEEN, 0), (AWAY, 0), (GONE, 0), (FAILED, 0)],
    MemberState.DEAD: [(SEEN, 0), (REPORTED, 0), (FAILED, 0)],
}
"""How each state comes about.  FAILED and those GONE leave the store away."""

A, D, P, PD, F, GP, GA, GF, X = MemberState
OUTCOMES: dict[type[Event], dict[MemberState, tuple[MemberState | None, list[Effect]]]] = {
    MemberSeen: {A: (A, []), D: (D, []), P: (P, []), PD: (PD, []), F: (F, []),
                 GP: (A, []), GA: (A, []), GF: (A, []), X: (X, [])},
    MemberGone: {A: (None, DEAD), D: (None, DEAD), P: (None, DEAD), PD: (None, DEAD), F: (GP, PROBE),
                 GP: (GP, []), GA: (GA, []), GF: (GF, []), X: (None, [])},
    Reported: {A: (P, PROBE), D: (P, PROBE), P: (PD, []), PD: (PD, []), F: (F, []),
               GP: (GP, []), GA: (GP, PROBE), GF: (GF, []), X: (X, [])},
    ConnectionBroken: {A: (P, PROBE), D: (P, PROBE), P: (P, []), PD: (PD, []), F: (F, []),
                       GP: (GP, []), GA: (GP, PROBE), GF: (GF, []), X: (X, [])},
    ProbeAnswered: {A: (A, []), D: (D, []), P: (A, []), PD: (P, PROBE), F: (A, []),
                    GP: (GA, []), GA: (GA, []), GF: (GA, []), X: (X, [])},
    ProbeFailed: {A: (A, []), D: (D, []), P: (X, DEAD), PD: (X, DEAD), F: (F, []),
                  GP: (GF, []), GA: (GA, []), GF: (GF, []), X: (X, [])},
    StoreAway: {state: (state, []) for state in MemberState},
    StoreBack: {A: (A, []), D: (D, []), P: (P, []), PD: (PD, []), F: (P, PROBE),
                GP: (GP, []), GA: (GA, []), GF: (GP, PROBE), X: (X, [])},
    Tick: {A: (A, []), D: (P, PROBE), P: (P, []), PD: (PD, []), F: (F, []),
           GP: (GP, []), GA: (GA, []), GF: (GF, []), X: (X, [])},
}  # fmt: skip
"""Long after what led to the state; the store is still away in those that say so."""


def brought_to(state: MemberState) -> FailureDetector:
    failures = FailureDetector(TTL_S)
    for event, at in WAYS[state]:
        failures.handle(event, at)
    assert failures.state("m") is state
    return failures


def of_type(kind: type[Event]) -> Event:
    return next(e for e in (SEEN, GONE, REPORTED, BROKEN, ANSWERED, FAILED, AWAY, BACK, TICK) if type(e) is kind)


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(MemberState, EVENTS)))
def test_every_state_with_every_event(state: MemberState, kind: type[Event]) -> None:
    failures = brought_to(state)
    after, effects = OUTCOMES[kind][state]
    before = failures.declared_dead.copy()
    assert failures.handle(of_type(kind), LATER) == effects
    assert failures.state("m") is after
    cause = "no_answer" if kind is ProbeFailed else "lease_ended"
    assert failures.declared_dead - before == (Counter({cause: 1}) if effects == DEAD else Counter())


def test_every_state_has_an_entry_for_every_event() -> None:
    assert TABLE.keys() == set(itertools.product(MemberState, EVENTS))


@pytest.mark.parametrize(
    "state", [MemberState.ALIVE, MemberState.DOUBTED, MemberState.PROBED, MemberState.PROBED_AND_DOUBTED]
)
@pytest.mark.parametrize("is_away", [True, False])
def test_rule_7_a_lease_that_ends_around_an_outage_is_not_believed_for_one_ttl(
    state: MemberState, is_away: bool
) -> None:
    failures = brought_to(state)
    failures.handle(AWAY, 50)
    if not is_away:
        failures.handle(BACK, 60)
    effects = failures.handle(GONE, 69.9)
    assert effects == ([] if state in (MemberState.PROBED, MemberState.PROBED_AND_DOUBTED) else PROBE)
    assert failures.state("m") is MemberState.GONE_PROBED
    assert failures.is_living("m")


def test_rule_7_a_lease_that_ends_one_ttl_after_an_outage_is_believed() -> None:
    failures = brought_to(MemberState.ALIVE)
    failures.handle(AWAY, 50)
    failures.handle(BACK, 60)
    assert failures.handle(GONE, 70) == DEAD


@pytest.mark.parametrize("state", [MemberState.GONE_PROBED, MemberState.GONE_ANSWERED, MemberState.GONE_FAILED])
def test_a_member_that_does_not_join_again_within_its_time_is_dead(state: MemberState) -> None:
    failures = brought_to(state)
    failures.handle(BACK, 60)
    assert failures.wakes_at() == 70
    assert failures.handle(TICK, 69.9) == []
    assert failures.handle(TICK, 70) == DEAD
    assert failures.state("m") is None


def test_a_member_without_key_and_answer_is_dead_at_once_while_the_store_is_there() -> None:
    failures = brought_to(MemberState.GONE_PROBED)
    failures.handle(BACK, 60)
    assert failures.handle(FAILED, 61) == DEAD
    assert failures.state("m") is None


def test_a_probe_that_fails_during_an_outage_kills_nobody_until_it_fails_again() -> None:
    failures = brought_to(MemberState.PROBED)
    failures.handle(AWAY, 1)
    assert failures.handle(FAILED, 2) == []
    assert failures.is_living("m")
    assert failures.handle(BACK, 20) == PROBE
    assert failures.handle(FAILED, 21) == DEAD
    assert not failures.is_living("m")


def test_a_proxy_that_reports_all_the_time_costs_two_probes_a_second() -> None:
    failures = brought_to(MemberState.ALIVE)
    probes = 0
    for step in range(100):
        now = step / 10
        for event in (TICK, REPORTED):
            for effect in failures.handle(event, now):
                assert effect == Probe("m")
                probes += 1
                failures.handle(ANSWERED, now)
    assert 15 <= probes <= 10 / PROBE_GAP_S + 1


def test_a_report_during_a_probe_is_followed_by_another_probe() -> None:
    failures = brought_to(MemberState.PROBED_AND_DOUBTED)
    assert failures.handle(ANSWERED, 0.1) == []
    assert failures.state("m") is MemberState.DOUBTED
    assert failures.wakes_at() == PROBE_GAP_S
    assert failures.handle(TICK, PROBE_GAP_S) == PROBE


def test_a_dead_member_may_join_again() -> None:
    failures = brought_to(MemberState.DEAD)
    assert failures.handle(GONE, 1) == []
    assert not failures.is_living("m")
    failures.handle(SEEN, 2)
    assert failures.is_living("m")


def test_a_store_that_was_never_away_gives_no_grace() -> None:
    failures = brought_to(MemberState.ALIVE)
    failures.handle(BACK, 1)
    assert failures.handle(GONE, 2) == DEAD


def test_events_of_an_unknown_member_have_no_effect() -> None:
    failures = FailureDetector(TTL_S)
    for kind in EVENTS:
        if kind is not MemberSeen:
            assert failures.handle(of_type(kind), 1) == []
            assert failures.state("m") is None
