"""The choice of a member, the number of attempts, and the error after the last one.

Pure: time and chance are arguments.
"""

from __future__ import annotations

from enum import Enum, auto
from random import Random

from bmq.core.aio.backoff import Backoff
from bmq.meta.etcd.errors import FailureVerdict
from bmq.meta.kv import KvError, KvUnavailable, KvUnknown


class Repeatability(Enum):
    """The effect of sending a call twice."""

    READ = auto()
    """None; and an unanswered one has changed nothing."""

    REPEATABLE = auto()
    """The same as sending it once; unanswered, it may have been done."""

    ONCE = auto()
    """It might be done twice: it is only sent again if it was certainly not done."""


class Attempts:
    """One call's attempts: whether there is another one, and the error if there is not."""

    def __init__(
        self, kind: Repeatability, *, members: int, backoff_s: Backoff[float], dice: Random, until: float
    ) -> None:
        self._until = until
        self._kind = kind
        self._members = members
        self._backoff_s = backoff_s
        self._dice = dice
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
        rounds, is_within = divmod(self._failed, self._members)
        pause_s = 0.0 if is_within else self._backoff_s.half_random(rounds, self._dice.random)
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
