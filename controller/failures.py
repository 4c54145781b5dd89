"""The failure detector: events about members decide which to probe and which to declare dead.

Pure; time comes with each event.

The end of a member's lease is the store's statement, and sufficient.  A broken connection is only another member's
observation, and makes the controller probe the member: a probe that fails is sufficient too.  An outage of etcd is not
a reason (rule 7): nothing can be written then, so a probe that failed meanwhile is repeated afterwards.  After the
outage, for the length of one lease, the end of a lease alone is not sufficient: members that could not renew theirs
must have a chance to join again.

Each member is in one state; ``TABLE`` has a row for every state and event.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

LEASE_ENDED, NO_ANSWER = "lease_ended", "no_answer"
PROBE_GAP_S = 0.5
"""Least time between two probes of a member: a proxy whose own network flaps reports members all the time."""


class MemberState(Enum):
    """The states of a member; the values describe them in ``docs/design``."""

    ALIVE = "alive"
    DOUBTED = "reported again right after a probe that it answered: to be probed when the gap is over"
    PROBED = "being probed"
    PROBED_AND_DOUBTED = "reported while being probed: an answer may be older than the report"
    FAILED = "did not answer while the store is away: probed again when it is back"
    GONE_PROBED = "its lease ended, too soon after the store was away to believe it; being probed"
    GONE_ANSWERED = "its lease ended, but it answers: it may join again; dead when the time for that is over"
    GONE_FAILED = "its lease ended and it does not answer, while the store is away"
    DEAD = "declared dead, still registered"


@dataclass(frozen=True, slots=True)
class MemberSeen:
    """The member is registered, or has changed its registration."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class MemberGone:
    """The member's lease has ended, or its key was deleted."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class Reported:
    """The member ``by`` reports that it has lost its connection to the member."""

    by: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """The leader's own connection to the member is broken."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """The member has answered a probe."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The member has refused the connection, or has not answered two pings."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The store does not answer."""


@dataclass(frozen=True, slots=True)
class StoreBack:
    """The store answers again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


MemberEvent = MemberSeen | MemberGone | Reported | ConnectionBroken | ProbeAnswered | ProbeFailed
Event = MemberEvent | StoreAway | StoreBack | Tick
EVENTS: tuple[type[Event], ...] = (
    MemberSeen, MemberGone, Reported, ConnectionBroken, ProbeAnswered, ProbeFailed, StoreAway, StoreBack, Tick,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Probe:
    """Request to probe the member; the result comes back as an event."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class DeclareDead:
    """Request to delete the member from the store and to reassign its partitions and shards."""

    incarnation: str


Effect = Probe | DeclareDead


@dataclass(slots=True)
class _Watched:
    state: MemberState
    probed_at: float = float("-inf")


class _Now(NamedTuple):
    """The facts that a row may use besides the member."""

    time: float
    is_away: bool
    is_grace: bool


class Step(NamedTuple):
    """The next state and the effects of a row.  State ``None``: the member is not watched any more."""

    state: MemberState | None
    effects: tuple[type[Probe] | type[DeclareDead], ...] = ()


Row = Callable[[_Watched, _Now], Step]


class FailureDetector:
    """The failure detector of one term: ``handle`` each event, and carry out the effects that it returns.

    ``ttl_s``: time to live of a member's lease.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._members: dict[str, _Watched] = {}
        self._is_away = False
        self._grace_until = float("-inf")
        self.declared_dead: Counter[str] = Counter({LEASE_ENDED: 0, NO_ANSWER: 0})
        """Number of members declared dead, by cause."""

    def __repr__(self) -> str:
        states = {name: watched.state.name for name, watched in sorted(self._members.items())}
        return f"<Failures {states}{' store away' if self._is_away else ''}>"

    def state(self, incarnation: str) -> MemberState | None:
        """Return the member's state; None if it is not watched."""
        watched = self._members.get(incarnation)
        return watched.state if watched is not None else None

    def is_living(self, incarnation: str) -> bool:
        """Return whether the member counts as alive: from its registration until it is declared dead."""
        return self.state(incarnation) not in (None, MemberState.DEAD)

    def wakes_at(self) -> float | None:
        """Return the time of the next Tick that may change a state; None if there is none until another event."""
        due = [w.probed_at + PROBE_GAP_S for w in self._members.values() if w.state is MemberState.DOUBTED]
        if any(w.state in _GONE for w in self._members.values()) and not self._is_away:
            due.append(self._grace_until)
        return min(due, default=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply the event and return the effects to carry out.  ``now``: seconds on a monotonic clock."""
        if isinstance(event, StoreAway):
            self._is_away = True
        elif isinstance(event, StoreBack):
            if self._is_away:
                self._grace_until = now + self._ttl_s
            self._is_away = False
        if isinstance(event, StoreAway | StoreBack | Tick):
            return [effect for name in list(self._members) for effect in self._step(name, event, now)]
        if event.incarnation not in self._members:
            if isinstance(event, MemberSeen):
                self._members[event.incarnation] = _Watched(MemberState.ALIVE)
            return []
        return self._step(event.incarnation, event, now)

    def _step(self, incarnation: str, event: Event, now: float) -> list[Effect]:
        watched = self._members[incarnation]
        facts = _Now(now, self._is_away, now < self._grace_until)
        step = TABLE[watched.state, type(event)](watched, facts)
        if step.state is None:
            del self._members[incarnation]
        else:
            watched.state = step.state
        if Probe in step.effects:
            watched.probed_at = now
        if DeclareDead in step.effects:
            self.declared_dead[_CAUSES[type(event)]] += 1
        return [effect(incarnation) for effect in step.effects]


_CAUSES: Mapping[type[Event], str] = {MemberGone: LEASE_ENDED, Tick: LEASE_ENDED, ProbeFailed: NO_ANSWER}
"""The cause of death by the event that declares it: its lease ended, perhaps a while ago; or a probe failed."""
_GONE = frozenset({MemberState.GONE_PROBED, MemberState.GONE_ANSWERED, MemberState.GONE_FAILED})


# ----------------------------------------------------------------------------------------------------------- the rows


def _stay(watched: _Watched, now: _Now) -> Step:
    return Step(watched.state)


def _to(state: MemberState) -> Row:
    return lambda watched, now: Step(state)


def _probe_as(state: MemberState) -> Row:
    return lambda watched, now: Step(state, (Probe,))


def _doubt(watched: _Watched, now: _Now) -> Step:
    """Probe the member, but not sooner than ``PROBE_GAP_S`` after the last probe."""
    if now.time < watched.probed_at + PROBE_GAP_S:  # as ``wakes_at`` computes it: a Tick at that time must find it over
        return Step(MemberState.DOUBTED)
    return Step(MemberState.PROBED, (Probe,))


def _lease_ended(watched: _Watched, now: _Now) -> Step:
    """Declare the member dead at once, except while the store is away and in the time after that."""
    if now.is_away or now.is_grace:
        return Step(MemberState.GONE_PROBED, (Probe,))
    return Step(None, (DeclareDead,))


def _lease_ended_while_probed(watched: _Watched, now: _Now) -> Step:
    if now.is_away or now.is_grace:
        return Step(MemberState.GONE_PROBED)  # the probe under way decides
    return Step(None, (DeclareDead,))


def _no_answer(watched: _Watched, now: _Now) -> Step:
    return Step(MemberState.FAILED) if now.is_away else Step(MemberState.DEAD, (DeclareDead,))


def _gone_and_no_answer(watched: _Watched, now: _Now) -> Step:
    return Step(MemberState.GONE_FAILED) if now.is_away else Step(None, (DeclareDead,))


def _grace_over(watched: _Watched, now: _Now) -> Step:
    """Declare the member dead once its time to join again is over."""
    if now.is_away or now.is_grace:
        return Step(watched.state)
    return Step(None, (DeclareDead,))


def _forgotten(watched: _Watched, now: _Now) -> Step:
    """Stop watching a member that was declared dead and is deleted from the store."""
    return Step(None)


_A, _D, _P, _PD, _F, _GP, _GA, _GF, _X = MemberState

TABLE: Mapping[tuple[MemberState, type[Event]], Row] = {
    (_A, MemberSeen): _stay,
    (_D, MemberSeen): _stay,
    (_P, MemberSeen): _stay,
    (_PD, MemberSeen): _stay,
    (_F, MemberSeen): _stay,
    (_GP, MemberSeen): _to(_A),  # it has joined again, which is more than an answer
    (_GA, MemberSeen): _to(_A),
    (_GF, MemberSeen): _to(_A),
    (_X, MemberSeen): _stay,  # the event is older than the declaration
    (_A, MemberGone): _lease_ended,
    (_D, MemberGone): _lease_ended,
    (_P, MemberGone): _lease_ended_while_probed,
    (_PD, MemberGone): _lease_ended_while_probed,
    (_F, MemberGone): _lease_ended,
    (_GP, MemberGone): _stay,
    (_GA, MemberGone): _stay,
    (_GF, MemberGone): _stay,
    (_X, MemberGone): _forgotten,
    (_A, Reported): _doubt,
    (_D, Reported): _doubt,
    (_P, Reported): _to(_PD),
    (_PD, Reported): _stay,
    (_F, Reported): _stay,
    (_GP, Reported): _stay,
    (_GA, Reported): _probe_as(_GP),
    (_GF, Reported): _stay,
    (_X, Reported): _stay,
    (_A, ConnectionBroken): _doubt,
    (_D, ConnectionBroken): _doubt,
    (_P, ConnectionBroken): _stay,  # the probe uses a connection of its own, and notices its end by itself
    (_PD, ConnectionBroken): _stay,
    (_F, ConnectionBroken): _stay,
    (_GP, ConnectionBroken): _stay,
    (_GA, ConnectionBroken): _probe_as(_GP),
    (_GF, ConnectionBroken): _stay,
    (_X, ConnectionBroken): _stay,
    (_A, ProbeAnswered): _stay,
    (_D, ProbeAnswered): _stay,
    (_P, ProbeAnswered): _to(_A),
    (_PD, ProbeAnswered): _doubt,
    (_F, ProbeAnswered): _to(_A),
    (_GP, ProbeAnswered): _to(_GA),
    (_GA, ProbeAnswered): _stay,
    (_GF, ProbeAnswered): _to(_GA),
    (_X, ProbeAnswered): _stay,  # the declaration stands: a member that is alive joins again
    (_A, ProbeFailed): _stay,
    (_D, ProbeFailed): _stay,
    (_P, ProbeFailed): _no_answer,
    (_PD, ProbeFailed): _no_answer,
    (_F, ProbeFailed): _stay,
    (_GP, ProbeFailed): _gone_and_no_answer,
    (_GA, ProbeFailed): _stay,
    (_GF, ProbeFailed): _stay,
    (_X, ProbeFailed): _stay,
    (_A, StoreAway): _stay,
    (_D, StoreAway): _stay,
    (_P, StoreAway): _stay,
    (_PD, StoreAway): _stay,
    (_F, StoreAway): _stay,
    (_GP, StoreAway): _stay,
    (_GA, StoreAway): _stay,
    (_GF, StoreAway): _stay,
    (_X, StoreAway): _stay,
    (_A, StoreBack): _stay,
    (_D, StoreBack): _stay,
    (_P, StoreBack): _stay,
    (_PD, StoreBack): _stay,
    (_F, StoreBack): _probe_as(_P),  # it may have been the same outage
    (_GP, StoreBack): _stay,
    (_GA, StoreBack): _stay,
    (_GF, StoreBack): _probe_as(_GP),
    (_X, StoreBack): _stay,
    (_A, Tick): _stay,
    (_D, Tick): _doubt,
    (_P, Tick): _stay,
    (_PD, Tick): _stay,
    (_F, Tick): _stay,
    (_GP, Tick): _grace_over,
    (_GA, Tick): _grace_over,
    (_GF, Tick): _grace_over,
    (_X, Tick): _stay,
}
