"""A leader's watch of the members: registrations and silences around the failure detector's table."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from bmq.controller.event_queue import EventQueue, MemberNews, Urgent
from bmq.controller.failures import (
    PROBE_GAP_S,
    ConnectionBroken,
    DeclareDead,
    MemberState,
    Probe,
    ProbeAnswered,
    ProbeFailed,
    Reported,
    StoreAway,
    StoreBack,
    Tick,
)
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


def unproven(*, in_grace: bool = False) -> MemberWatch:
    """Return a watch in which m has joined again at 102.5 after a silence, and is being probed."""
    w = silent()
    w.gone("m", 102.0)
    if in_grace:
        w.handle(StoreAway(), 102.1)
        w.handle(StoreBack(), 102.2)
    assert w.seen(member(), 7, 102.5) == [*ARRIVED, *PROBE]
    return w


def test_an_unproven_member_whose_key_goes_and_comes_back_is_probed_again() -> None:
    """The probe of before does not count: else the member would rest until the end of the term."""
    w = unproven(in_grace=True)
    assert w.gone("m", 103.5) == []
    assert w.seen(member(), 8, 104.0) == PROBE
    assert w.responded("m", 104.5)
    assert w.handle(ProbeAnswered("m"), 104.5) == []
    assert not w.unproven


def test_an_unproven_member_that_goes_before_the_end_of_its_probe_is_unproven_when_it_joins_again() -> None:
    w = silent()
    w.gone("m", 102.0)
    assert w.seen(member(), 7, 103.0) == [*ARRIVED, *PROBE]
    assert w.gone("m", 104.0) == DEAD
    w.lost("m", 0, is_registered=False)
    assert w.seen(member(), 9, 105.0) == [*ARRIVED, *PROBE]
    assert w.unproven == {"m"}


def test_an_unproven_member_that_a_probe_says_nothing_about_is_probed_again() -> None:
    """A leader without descriptors cannot ask: its member has neither responded nor kept silent."""
    w = unproven()
    assert w.handle(ProbeAnswered("m"), 102.6) == []
    assert w.unproven == {"m"}
    assert w.wakes_at() == 102.5 + PROBE_GAP_S
    assert w.handle(Tick(), 102.5 + PROBE_GAP_S) == PROBE
    assert w.handle(ProbeAnswered("m"), 104.0) == PROBE
    w.responded("m", 105.0)
    assert w.handle(ProbeAnswered("m"), 105.0) == []


class Histories:
    """Members that come, go and are probed at random moments, as a term handles them."""

    def __init__(self, seed: int) -> None:
        self.random, self.now, self.revision = Random(seed), 0.0, 1
        self.watch, self.queue = MemberWatch("leader", TTL_S, Patience()), EventQueue()
        self.store: dict[str, int] = {}  # the revision of each key
        self.view: dict[str, int] = {}
        self.lag: list[tuple[str, int | None]] = []  # changes that the view does not show yet
        self.probes: set[str] = set()
        self.is_away = False

    def write(self, name: str) -> None:
        self.revision += 1
        self.store[name] = self.revision
        self.lag.append((name, self.revision))

    def delete(self, name: str) -> None:
        if self.store.pop(name, None) is not None:
            self.lag.append((name, None))

    def show(self) -> None:
        if not self.lag:
            return
        name, revision = self.lag.pop(0)
        if revision is None:
            self.view.pop(name, None)
        else:
            self.view[name] = revision
        self.queue.put(MemberNews(name))

    def bury(self) -> None:
        for name in [each for each in self.view if self.watch.is_dead(each)]:
            if self.store.get(name) == self.view[name]:
                self.delete(name)

    def end_probe(self, name: str, verdict: int) -> None:
        if name not in self.probes:
            return
        self.probes.remove(name)
        if verdict == 0:
            self.watch.stayed_silent(name, self.now - 0.5)
            self.queue.put(ProbeFailed(name))
            return
        self.queue.put(ProbeAnswered(name))
        if verdict == 1:
            self.watch.responded(name, self.now)

    def flap(self) -> None:
        self.is_away = not self.is_away
        self.queue.put(StoreAway() if self.is_away else StoreBack())

    def handle_all(self) -> None:
        while (event := self.queue.take()) is not None:
            if isinstance(event, MemberNews):
                revision = self.view.get(event.incarnation)
                made = Member(incarnation=event.incarnation, roles=frozenset({BROKER}))
                self.do(
                    self.watch.gone(event.incarnation, self.now)
                    if revision is None
                    else self.watch.seen(made, revision, self.now)
                )
            else:
                assert isinstance(event, LivenessEvent)
                self.do(self.watch.handle(event, self.now))
        self.do(self.watch.handle(Tick(), self.now))
        for name in self.watch.unproven:
            assert self.watch._failures.state(name) is not MemberState.ALIVE, "nobody would probe it"

    def do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            name = effect.incarnation
            if isinstance(effect, Probe):
                outdated: Sequence[Urgent] = (ProbeAnswered(name), ProbeFailed(name))
                for event in outdated:
                    self.queue.withdraw(event)
                if self.watch.registration(name) is not None:
                    self.probes.add(name)
            elif isinstance(effect, DeclareDead):
                self.watch.lost(name, self.view.get(name, 0), is_registered=name in self.view)

    def step(self) -> None:
        name = self.random.choice("abc")
        self.now += self.random.random() * 0.7
        reports: Sequence[Urgent] = (Reported("p", name), ConnectionBroken(name))
        self.random.choice(
            (
                lambda: self.write(name), lambda: self.delete(name), self.show, self.show, self.handle_all,
                self.handle_all, self.bury, self.flap, lambda: self.queue.put(self.random.choice(reports)),
                lambda: self.end_probe(name, self.random.randrange(3)),
            )
        )()  # fmt: skip


@pytest.mark.parametrize("seed", range(100))
def test_once_all_is_quiet_each_registered_member_is_alive_and_proven(seed: int) -> None:
    one = Histories(seed)
    for _ in range(300):
        one.step()
    if one.is_away:
        one.flap()
    for _ in range(60):
        one.now += 1.0
        while one.lag:
            one.show()
        one.handle_all()
        for name in "abc":
            one.end_probe(name, 1)
        one.handle_all()
        one.bury()
    assert set(one.watch.living()) == set(one.store)
    assert not one.watch.unproven
    assert not one.probes
