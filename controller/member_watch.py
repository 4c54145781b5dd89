"""A leader's knowledge of the members: who counts as alive, who is silent, who does not serve, who was declared dead.

Pure; time and the facts of the store come with each call.  The failure detector decides which members to probe and to
declare dead.  Around it this module keeps their registrations, and what they must show before they are given anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto

from bmq.controller.failures import (
    ConnectionBroken,
    DeclareDead,
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
from bmq.controller.patience import Patience
from bmq.controller.silent_members import SilentMembers
from bmq.controller.stalled_brokers import StalledBrokers
from bmq.meta.cluster.member import Member

LivenessEvent = Reported | ConnectionBroken | ProbeAnswered | ProbeFailed | StoreAway | StoreBack | Tick


@dataclass(frozen=True, slots=True)
class Arrived:
    """The member was not watched before: it is new, or had been forgotten."""

    incarnation: str


Effect = Probe | DeclareDead | Arrived


class Loss(Enum):
    """The way in which a member was lost."""

    SILENT = auto()
    """It does not answer."""
    LEFT = auto()
    """It drained, and its lease has ended."""
    UNKNOWN = auto()
    """It was lost before this term: its registration was never seen."""
    GONE = auto()
    """Its lease has ended."""


class MemberWatch:
    """The members as one term watches them.  The caller carries out the effects in their order."""

    def __init__(self, own: str, ttl_s: float, patience: Patience) -> None:
        """``own``: the leader's incarnation.  ``ttl_s``: time to live of a member's lease."""
        self._own = own
        self._failures = FailureDetector(ttl_s)
        self._silent = SilentMembers()
        self._stalled = StalledBrokers()
        self._patience = patience
        self._members: dict[str, Member] = {}  # also those that are gone and still count as alive
        self._dead: dict[str, int] = {}  # declared dead, with the revision of the key that is to be deleted

    def __repr__(self) -> str:
        return f"<MemberWatch {self._failures!r} {self._stalled!r}>"

    # -------------------------------------------------------------------------------------------------------- events

    def seen(self, member: Member, revision: int, now: float) -> list[Effect]:
        """Handle that the member is registered, under a key of this revision.

        For a dead member whose key was deleted and written again, this may be the only event.  A key of another
        revision means that it has joined again; a probe shows whether it is alive.  A member that was silent may still
        be silent, to this leader alone.  It is given nothing, and teaches no patience, before it has answered.
        """
        name = member.incarnation
        has_returned = name in self._dead and self._dead[name] != revision
        effects: list[Effect] = []
        if has_returned:
            del self._dead[name]
            effects += self._failures.handle(MemberGone(name), now)
        if self._failures.state(name) is None:
            effects.append(Arrived(name))
            self._silent.joined(name, now)
        self._members[name] = member
        effects += self._failures.handle(MemberSeen(name), now)
        if has_returned:
            effects += self._failures.handle(Reported(self._own, name), now)
        return [*effects, *self._prove(name, now)]

    def _prove(self, incarnation: str, now: float) -> Sequence[Effect]:
        """Probe a member that has to answer a probe, if none is due or under way.

        The result of the last probe is of no use if the key was gone and is back, or if the probe has shown nothing.
        """
        if incarnation not in self._silent.unproven or self._failures.state(incarnation) is not MemberState.ALIVE:
            return ()
        return self._failures.handle(Reported(self._own, incarnation), now)

    def gone(self, incarnation: str, now: float) -> list[Effect]:
        """Handle that the store has no key of the member."""
        self._dead.pop(incarnation, None)
        effects: list[Effect] = [*self._failures.handle(MemberGone(incarnation), now)]
        if not self.is_living(incarnation) and DeclareDead(incarnation) not in effects:  # else ``lost`` forgets it
            self._forget(incarnation)
        return effects

    def gone_before(self, incarnation: str, now: float) -> list[Effect]:
        """Handle that an owner was lost before this term: it may join again where any member may."""
        return [*self._failures.handle(MemberSeen(incarnation), now), *self.gone(incarnation, now)]

    def handle(self, event: LivenessEvent, now: float) -> list[Effect]:
        """Handle any other event about the liveness of members."""
        effects: list[Effect] = [*self._failures.handle(event, now)]
        if isinstance(event, ProbeAnswered):
            effects += self._prove(event.incarnation, now)
        return effects

    def lost(self, incarnation: str, revision: int, *, is_registered: bool) -> Loss:
        """Forget a member of a DeclareDead, and return the way in which it was lost.

        ``revision``: of its key in the store, 0 without a key.  ``is_registered``: the view has its registration,
        which is kept until the key is deleted: another event.
        """
        member = self._members.get(incarnation)
        if self.is_dead(incarnation):
            self._dead[incarnation] = revision
            loss = Loss.SILENT
        elif member is None:
            loss = Loss.UNKNOWN
        else:
            loss = Loss.LEFT if member.is_draining else Loss.GONE
        self._stalled.forget(incarnation)
        if is_registered:
            self._silent.gone(incarnation)
        else:
            self._forget(incarnation)
        return loss

    def _forget(self, incarnation: str) -> None:
        self._members.pop(incarnation, None)
        self._silent.gone(incarnation)

    def responded(self, incarnation: str, now: float) -> bool:
        """Note that the member has answered a probe.  Returns whether it was unproven until now."""
        silent_s = self._silent.responded(incarnation)
        if silent_s is None:
            return False
        self._patience.responded(silent_s, now)
        return True

    def stayed_silent(self, incarnation: str, since: float) -> None:
        """Note that the member has not answered a probe; the probe began at ``since``."""
        self._silent.note(incarnation, since)

    def served(self, incarnation: str, is_serving: bool, now: float) -> bool:
        """Note the broker's report whether it serves.  Returns whether this has changed."""
        return self._stalled.update(incarnation, is_serving, now)

    # --------------------------------------------------------------------------------------------------- what it knows

    @property
    def declared_dead(self) -> Counter[str]:
        """Number of members declared dead, by cause."""
        return self._failures.declared_dead

    @property
    def stalled(self) -> frozenset[str]:
        """The brokers whose last report says that they do not serve."""
        return self._stalled.stalled

    @property
    def unproven(self) -> Set[str]:
        """The members that joined again after a silence, and have not yet answered a probe."""
        return self._silent.unproven

    def resting(self, now: float) -> frozenset[str]:
        """Return the brokers that serve again after a stall, and whose rest is not over."""
        return self._stalled.resting(now)

    def wakes_at(self) -> float | None:
        """Return the time of the next Tick that may change a state; None if there is none until another event."""
        return self._failures.wakes_at()

    def is_living(self, incarnation: str) -> bool:
        """Return whether the member counts as alive: from its registration until it is declared dead."""
        return self._failures.is_living(incarnation)

    def is_dead(self, incarnation: str) -> bool:
        """Return whether the member was declared dead, and its key is not deleted yet."""
        return self._failures.state(incarnation) is MemberState.DEAD

    def registration(self, incarnation: str) -> Member | None:
        """Return the member's last registration, if any: its lease may have ended since."""
        return self._members.get(incarnation)

    def living(self) -> Mapping[str, Member]:
        """Return the members that count as alive, by incarnation."""
        return {name: member for name, member in self._members.items() if self.is_living(name)}

    def living_member(self, incarnation: str) -> Member | None:
        """Return the member if it counts as alive."""
        return self._members.get(incarnation) if self.is_living(incarnation) else None
