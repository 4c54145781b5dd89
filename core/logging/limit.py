"""Bounds on log lines: an event that repeats is written once an interval, with the number of those left out.

An event is a place in the code: its logger, level and text before arguments are put in.  Its subject is what tells its
lines apart: the partition, the connection.  One subject's line is written once in ``REPEAT_S``; all subjects' lines
are written ``BURST`` at once and then one a second.  What was left out is counted, and said with the event's next line
or, if none comes, with the last one that was left out.

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
        """Return whether one was left."""
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
    """The lines of all events of a process, ``T`` each.  Pure: ``now`` is in seconds, and never goes back.

    Events are as many as places in the code, subjects of one no more than ``BURST`` and one for each second.
    """

    def __init__(self) -> None:
        self._events: dict[Hashable, _Event[T]] = {}

    def __len__(self) -> int:
        return len(self._events)

    def admit(self, key: Hashable, subject: Hashable, now: float) -> int | None:
        """Return how many lines of the event were left out before this one, which is to be written; None: leave it out.

        After None the caller gives the line to ``keep``.
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
        """Hold the line that was left out, instead of the one before it."""
        self._events[key].last = line

    def due(self, now: float) -> list[tuple[T, int]]:
        """Return the last line left out of each event that has waited for ``REPEAT_S``, and how many came before it.

        Events that are quiet are forgotten.
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
        """Written in order, so the oldest come first."""
        while event.subjects:
            subject, at = next(iter(event.subjects.items()))
            if now - at < REPEAT_S:
                return
            del event.subjects[subject]
