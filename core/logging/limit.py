"""Bounds on log lines: a repeated event is written once an interval, with the number of lines left out.

An event is a place in the code: its logger, level and text before arguments are put in.  Its subject distinguishes its
lines: the partition, the connection.  A subject's line is written once in ``REPEAT_S`` seconds.  All subjects together
get ``BURST`` lines at once, and then a line a second.  Lines left out are counted; the count is written with the
event's next line or, if none comes, with the last one that was left out.

    line of an event ──> same subject within REPEAT_S?  ── yes ──> count, keep the last
                         no: a token left?              ── no ───> count, keep the last
                         yes: write it, with the count        ... REPEAT_S later: write the last, with the count
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

BURST = 20
REPEAT_S = 10.0
T = TypeVar("T")


class _Tokens:
    """A token bucket: ``BURST`` at once, then one a second."""

    __slots__ = ("_left", "_since")

    def __init__(self, now: float) -> None:
        self._left = float(BURST)
        self._since = now

    def take(self, now: float) -> bool:
        """Take a token.  Return False if none was left."""
        self._left = min(float(BURST), self._left + now - self._since)
        self._since = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Event(Generic[T]):
    __slots__ = ("last", "left_out", "left_out_since", "subjects", "tokens")

    def __init__(self, now: float) -> None:
        self.tokens = _Tokens(now)
        self.subjects: dict[Hashable, float] = {}  # when each was written last; no more than tokens in REPEAT_S
        self.left_out = 0
        self.left_out_since = 0.0
        self.last: T | None = None


class EventLimits(Generic[T]):
    """The bounds of all events of a process, with lines of type ``T``.  Pure.

    ``now`` is in seconds, and never goes back.  There are as many events as places in the code; an event has at most
    ``BURST`` subjects and one for each second.
    """

    def __init__(self) -> None:
        self._events: dict[Hashable, _Event[T]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def admit(self, key: Hashable, subject: Hashable, now: float) -> int | None:
        """Return how many lines of the event were left out before this one, or None to leave this one out, too.

        After a number the caller writes the line, after None it passes the line to ``keep``.
        """
        event = self._events.get(key)
        if event is None:
            event = self._events[key] = _Event(now)
        last = event.subjects.get(subject)
        if (last is not None and now - last < REPEAT_S) or not event.tokens.take(now):
            if not event.left_out:
                event.left_out_since = now
            event.left_out += 1
            return None
        event.subjects.pop(subject, None)
        event.subjects[subject] = now
        self._forget_subjects(event, now)
        left_out, event.left_out, event.last = event.left_out, 0, None
        return left_out

    def keep(self, key: Hashable, line: T) -> None:
        """Keep the line that was left out, in place of the one before it."""
        self._events[key].last = line

    def due(self, now: float) -> list[tuple[T, int]]:
        """Return the last line left out of each event that has waited for ``REPEAT_S``, and how many came before it.

        Quiet events are forgotten.
        """
        found: list[tuple[T, int]] = []
        for key, event in list(self._events.items()):
            self._forget_subjects(event, now)
            if event.left_out and now - event.left_out_since >= REPEAT_S:
                assert event.last is not None, "a line that is left out is kept"
                found.append((event.last, event.left_out - 1))
                event.left_out, event.last = 0, None
            elif not event.left_out and not event.subjects:
                del self._events[key]
        return found

    def _forget_subjects(self, event: _Event[T], now: float) -> None:
        """Remove subjects that were last written ``REPEAT_S`` ago.  They are in order of writing, the oldest first."""
        while event.subjects:
            subject, at = next(iter(event.subjects.items()))
            if now - at < REPEAT_S:
                return
            del event.subjects[subject]
