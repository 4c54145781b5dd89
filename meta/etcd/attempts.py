"""The choice of a member, the number of attempts, and the error after the last one.

Pure: time and chance are arguments.
"""

from __future__ import annotations

from enum import Enum, auto
from random import Random

from bmq.meta.etcd.errors import FailureVerdict
from bmq.meta.etcd.settings import EtcdSettings
from bmq.meta.kv import KvError, KvUnavailable, KvUnknown


class Repeatability(Enum):
    """The effect of sending a call twice."""

    READ = auto()
    """None; and an unanswered one has changed nothing."""

    REPEATABLE = auto()
    """The same as sending it once; unanswered, it may have been done."""

    ONCE = auto()
    """It might be done twice: it is only sent again if it was certainly not done."""


class Backoff:
    """Pauses that double, each half random."""

    def __init__(self, settings: EtcdSettings, dice: Random) -> None:
        self._settings = settings
        self._dice = dice
        self._next_s = settings.backoff_min_s

    def reset(self) -> None:
        self._next_s = self._settings.backoff_min_s

    def pause_s(self) -> float:
        """Return the next pause, in seconds."""
        pause_s = self._next_s * self._dice.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self._settings.backoff_max_s)
        return pause_s


class Attempts:
    """One call's attempts: whether there is another one, and the error if there is not."""

    def __init__(self, kind: Repeatability, *, members: int, backoff: Backoff, until: float) -> None:
        self._until = until
        self._kind = kind
        self._members = members
        self._backoff = backoff
        self._failed = 0
        self._is_unknown = False

    def pause_s(self, verdict: FailureVerdict, now: float) -> float | None:
        """Count a failure.  Return the seconds to wait before the next attempt, or None to give up.

        Members are tried in turn without a pause; a pause comes before each further round.
        """
        self._failed += 1
        if verdict is FailureVerdict.UNKNOWN:
            self._is_unknown = True
            if self._kind is Repeatability.ONCE:
                return None
        if verdict in (FailureVerdict.FORBIDDEN, FailureVerdict.LEASE_GONE):
            return None
        pause_s = 0.0 if self._failed % self._members else self._backoff.pause_s()
        return pause_s if now + pause_s < self._until else None

    def error(self, text: str) -> KvError:
        """Return the error for the caller after giving up."""
        if self._is_unknown and self._kind is not Repeatability.READ:
            return KvUnknown(text)
        return KvUnavailable(text)


class Rotation:
    """The members of a cluster: one is used until it fails, then the next.

    A member that failed is avoided for a while.  If all are avoided, the one whose time ends first is used.
    """

    def __init__(self, members: int, avoid_s: float, *, first: int) -> None:
        self._avoid_s = avoid_s
        self._current = first
        self._avoided_until = [0.0] * members

    def choose(self, now: float) -> int:
        """Return the number of the member to use now."""
        members = len(self._avoided_until)
        in_turn = [(self._current + step) % members for step in range(members)]
        self._current = next(
            (member for member in in_turn if self._avoided_until[member] <= now),
            min(in_turn, key=self._avoided_until.__getitem__),
        )
        return self._current

    def failed(self, member: int, now: float) -> None:
        """Avoid a member that failed, for ``avoid_s`` seconds from ``now``."""
        self._avoided_until[member] = now + self._avoid_s

    def answered(self, member: int) -> None:
        """Avoid a member no longer, since it has answered."""
        self._avoided_until[member] = 0.0
