"""The failure detector: events about members decide which members to probe and to declare dead.

Pure; time comes with each event.

The end of a member's lease is the store's statement, and sufficient.  A broken connection is only another member's
observation, and makes the controller probe the member: a probe that fails is sufficient too.  An outage of etcd is not
a reason (rule 7): nothing can be written then, so a probe that failed meanwhile is repeated afterwards.  After the
outage, for the length of one lease, the end of a lease alone is not sufficient.  Members that could not renew their
leases must have a chance to join again.

Each member is in one state; ``TABLE`` has a function for each (state, event) pair (``core.transitions``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from bmq.core.transitions import Cell

LEASE_ENDED, NO_ANSWER = "lease_ended", "no_answer"
PROBE_GAP_S = 0.5
"""Least time between two probes of a member: a proxy whose own network flaps reports members all the time."""


class MemberState(Enum):
    """The states of a member; the values describe them in ``docs/design``."""

    ALIVE = "registered, not reported"
    DOUBTED = "reported within 0.5 s of its last probe, which it answered: probed when that is over"
    PROBED = "being probed"
    PROBED_AND_DOUBTED = "reported while being probed: an answer may be older than the report"
    FAILED = "did not answer while the store is away: probed again when it is back"
    GONE_PROBED = "its lease ended, too soon after the store was away to believe it; being probed"
    GONE_ANSWERED = "its lease ended, but it answers: it may join again; dead when the time for that is over"
    GONE_FAILED = "its lease ended and it does not answer, while the store is away"
    DEAD = "declared dead, its key not deleted yet"


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
    """The leader's own connection to the member is broken, or the member does not respond on it."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """The member has answered a probe, or the probe has shown nothing against it."""

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


class FailureDetector:
    """The failure detector of one term: call ``handle`` with every event, and carry out the effects that it returns.

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
        cell = TABLE[watched.state, type(event)]
        if isinstance(cell, Cell):
            return []
        step = cell(watched, facts)
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


def _live(watched: _Watched, now: _Now) -> Step:
    """Take the member for alive: it has answered a probe, or, which is more, it has joined again."""
    return Step(MemberState.ALIVE)


def _doubt(watched: _Watched, now: _Now) -> Step:
    """Probe the member, but not sooner than ``PROBE_GAP_S`` after the last probe."""
    if now.time < watched.probed_at + PROBE_GAP_S:  # as ``wakes_at`` computes it: a Tick at that time must find it over
        return Step(MemberState.DOUBTED)
    return Step(MemberState.PROBED, (Probe,))


def _note(watched: _Watched, now: _Now) -> Step:
    """Doubt the answer to the probe under way, which may be older than the report."""
    return Step(MemberState.PROBED_AND_DOUBTED)


def _silent(watched: _Watched, now: _Now) -> Step:
    """Declare the member dead; while the store is away, probe it again later."""
    return Step(MemberState.FAILED) if now.is_away else Step(MemberState.DEAD, (DeclareDead,))


def _repeat(watched: _Watched, now: _Now) -> Step:
    """Probe the member again: what kept it from answering may have been the store's outage too."""
    return Step(MemberState.PROBED, (Probe,))


def _ended(watched: _Watched, now: _Now) -> Step:
    """Declare the member dead at once; while the store is away, and in the time after that, probe it."""
    if now.is_away or now.is_grace:
        return Step(MemberState.GONE_PROBED, (Probe,))
    return Step(None, (DeclareDead,))


def _ended_too(watched: _Watched, now: _Now) -> Step:
    """Declare the member dead at once; while the store is away, and in the time after that, the probe decides."""
    if now.is_away or now.is_grace:
        return Step(MemberState.GONE_PROBED)
    return Step(None, (DeclareDead,))


def _answers(watched: _Watched, now: _Now) -> Step:
    """Give the member, whose lease has ended, time to join again."""
    return Step(MemberState.GONE_ANSWERED)


def _check(watched: _Watched, now: _Now) -> Step:
    """Probe the member, whose lease has ended, again."""
    return Step(MemberState.GONE_PROBED, (Probe,))


def _gone_silent(watched: _Watched, now: _Now) -> Step:
    """Declare the member, whose lease has ended, dead; while the store is away, probe it again later."""
    return Step(MemberState.GONE_FAILED) if now.is_away else Step(None, (DeclareDead,))


def _give_up(watched: _Watched, now: _Now) -> Step:
    """Declare the member dead once its time to join again is over."""
    if now.is_away or now.is_grace:
        return Step(watched.state)
    return Step(None, (DeclareDead,))


def _forget(watched: _Watched, now: _Now) -> Step:
    """Stop watching a member that was declared dead and is deleted from the store."""
    return Step(None)


Row = Callable[[_Watched, _Now], Step]
_Cell = Row | Cell


def _on(
    event: type[Event],
    alive: _Cell,
    doubted: _Cell,
    probed: _Cell,
    probed_and_doubted: _Cell,
    failed: _Cell,
    gone_probed: _Cell,
    gone_answered: _Cell,
    gone_failed: _Cell,
    dead: _Cell,
) -> tuple[type[Event], tuple[_Cell, ...]]:
    """Return an event's row: a cell for each state."""
    return event, (
        alive, doubted, probed, probed_and_doubted, failed, gone_probed, gone_answered, gone_failed, dead
    )  # fmt: skip


LATE = Cell.LATE
# A probe uses a connection of its own, and notices its end by itself: the leader's own broken one is LATE meanwhile.
# DEAD stands, also if the member answers or is seen after all: one that is alive joins again.
# fmt: off
_ROWS = (
    # event               ALIVE   DOUBTED PROBED      _DOUBTED    FAILED   GONE_PROBED   _ANSWERED _FAILED   DEAD
    _on(MemberSeen,       LATE,   LATE,   LATE,       LATE,       LATE,    _live,        _live,    _live,    LATE),
    _on(MemberGone,       _ended, _ended, _ended_too, _ended_too, _ended,  LATE,         LATE,     LATE,     _forget),
    _on(Reported,         _doubt, _doubt, _note,      LATE,       LATE,    LATE,         _check,   LATE,     LATE),
    _on(ConnectionBroken, _doubt, _doubt, LATE,       LATE,       LATE,    LATE,         _check,   LATE,     LATE),
    _on(ProbeAnswered,    LATE,   LATE,   _live,      _doubt,     _live,   _answers,     LATE,     _answers, LATE),
    _on(ProbeFailed,      LATE,   LATE,   _silent,    _silent,    LATE,    _gone_silent, LATE,     LATE,     LATE),
    _on(StoreAway,        LATE,   LATE,   LATE,       LATE,       LATE,    LATE,         LATE,     LATE,     LATE),
    _on(StoreBack,        LATE,   LATE,   LATE,       LATE,       _repeat, LATE,         LATE,     _check,   LATE),
    _on(Tick,             LATE,   _doubt, LATE,       LATE,       LATE,    _give_up,     _give_up, _give_up, LATE),
)
# fmt: on
TABLE: Mapping[tuple[MemberState, type[Event]], _Cell] = {
    (state, event): cell for event, cells in _ROWS for state, cell in zip(MemberState, cells, strict=True)
}
"""The function of each (state, event type), or LATE."""
EVENTS: tuple[type[Event], ...] = tuple(event for event, _ in _ROWS)
"""Every event type, in the table's order."""
