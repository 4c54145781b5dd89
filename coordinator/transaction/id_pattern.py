"""Regular expressions for transactional ids, matched in linear time.  Pure.

Python's ``re`` goes back and forth: a short expression can take hours for a short id, and stops the process meanwhile.
Here the match follows all ways through the expression at once, as RE2 does: its time is the length of the id times the
size of the expression.  The syntax is RE2's (``id_pattern_syntax``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from bmq.coordinator.transaction.id_pattern_syntax import (
    Assertion,
    Characters,
    Choice,
    Node,
    Place,
    Ranges,
    Repeat,
    Series,
    parse,
)
from bmq.core.errors import FormatError
from bmq.core.wire.messages import ListTransactionsRequest

STATES_MAX = 200
"""Most states of an expression: ``a{100}`` has a hundred."""
_STEPS_MAX = 10 * STATES_MAX
_MATCH = -1
_ABOVE_ALL = 0x110000

PATTERN_SINCE = 2
"""First version of ListTransactions with a pattern."""


def pattern_of(request: ListTransactionsRequest) -> IdPattern | None:
    """Return the pattern of a request; None for a request without a pattern.  Raises FormatError as ``IdPattern``."""
    text = request.transactional_id_pattern if request.API_VERSION >= PATTERN_SINCE else None
    return IdPattern(text) if text else None


class IdPattern:
    """An expression that a whole id must match, as RE2/J's ``Matcher.matches``."""

    def __init__(self, text: str) -> None:
        """Compile ``text``.  Raises FormatError if it is too large, or as ``parse``."""
        self._ranges: list[Ranges | None] = []  # of each state; None for a state that is left without a character
        self._next: list[list[int]] = []
        self._places: dict[int, Assertion] = {}  # states that may be left at some places of the id alone
        self._steps = 0
        self._start = self._first_of(parse(text), _MATCH)

    def matches(self, text: str) -> bool:
        """Return True if the expression matches the whole text."""
        before: str | None = None
        present = self._closure([self._start], None, text[0] if text else None)
        for at, character in enumerate(text):
            found: list[int] = []
            for state in present:
                ranges = self._ranges[state] if state != _MATCH else None
                if ranges is not None and _has(ranges, ord(character)):
                    found += self._next[state]
            if not found:
                return False
            before, after = character, text[at + 1] if at + 1 < len(text) else None
            present = self._closure(found, before, after)
        return _MATCH in present

    def _closure(self, states: Iterable[int], before: str | None, after: str | None) -> set[int]:
        """Return these states, and the states that they lead to without a character."""
        seen: set[int] = set()
        left = list(states)
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            holds = self._places.get(state)
            if holds is not None and not holds(before, after):
                continue
            if state != _MATCH and self._ranges[state] is None:
                left += self._next[state]
        return seen

    def _state(self, ranges: Ranges | None, *following: int) -> int:
        if len(self._ranges) >= STATES_MAX:
            raise FormatError(f"an expression of more than {STATES_MAX} states")
        self._ranges.append(ranges)
        self._next.append(list(following))
        return len(self._ranges) - 1

    def _first_of(self, node: Node, after: int) -> int:
        """Return the first state of an expression, with ``after`` behind its last."""
        self._steps += 1  # repeated nothing has no states
        if self._steps > _STEPS_MAX:
            raise FormatError("an expression with too many repetitions")
        match node:
            case Characters(ranges):
                return self._state(ranges, after)
            case Place(holds):
                state = self._state(None, after)
                self._places[state] = holds
                return state
            case Series(parts):
                for part in reversed(parts):
                    after = self._first_of(part, after)
                return after
            case Choice(ways):
                return self._state(None, *(self._first_of(way, after) for way in ways))
            case Repeat(part, least, most):
                return self._repeated(part, least, most, after)

    def _repeated(self, part: Node, least: int, most: int | None, after: int) -> int:
        if most is None:
            loop = self._state(None, after)
            self._next[loop].append(self._first_of(part, loop))
            after = loop
        else:
            for _ in range(most - least):  # ends by `_STEPS_MAX`
                after = self._state(None, after, self._first_of(part, after))
        for _ in range(least):
            after = self._first_of(part, after)
        return after


def _has(ranges: Ranges, code: int) -> bool:
    at = bisect_right(ranges, (code, _ABOVE_ALL))
    return at > 0 and code <= ranges[at - 1][1]
