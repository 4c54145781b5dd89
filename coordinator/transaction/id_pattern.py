"""Regular expressions for transactional ids, matched in linear time.  Pure.

Python's ``re`` goes back and forth: a short expression can take hours for a short id, and stops the process meanwhile.
Here ``re`` only parses.  The match follows all ways through the expression at once, as RE2 does: its time is the length
of the id times the size of the expression.  References, looking around and possessive repetition need going back, and
are refused; so are flags.  The rest of Java's syntax, as Kafka has it, is the same but for rare classes of characters.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bmq.core.errors import FormatError
from bmq.core.wire.messages import ListTransactionsRequest

# The parser of `re` has had a public form for long; only its module's name is private since 3.11.
from re import _constants, _parser  # type: ignore[attr-defined]  # isort: skip

STATES_MAX = 200
"""Most states of an expression: ``a{100}`` has a hundred."""
_STEPS_MAX = 10 * STATES_MAX
_MATCH = -1

Test = Callable[[str], bool]
PATTERN_SINCE = 2
"""First version of ListTransactions with a pattern."""


def pattern_of(request: ListTransactionsRequest) -> IdPattern | None:
    """Return the pattern of a request; None for a request without a pattern.  Raises FormatError as ``IdPattern``."""
    text = request.transactional_id_pattern if request.API_VERSION >= PATTERN_SINCE else None
    return IdPattern(text) if text else None


class IdPattern:
    """An expression that a whole id must match, as Java's ``Matcher.matches``."""

    def __init__(self, text: str) -> None:
        """Compile ``text``.  Raises FormatError if it is no regular expression, too large, or needs going back."""
        self._tests: list[Test | None] = []  # of each state; None for a state that is left without a character
        self._next: list[list[int]] = []
        self._anchors: dict[int, Any] = {}  # states that may be left at one end of the id alone
        self._steps = 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                parsed = _parser.parse(text)
            if parsed.state.flags & ~re.UNICODE:
                raise FormatError("flags are not supported in an expression for transactional ids")
            self._start = self._sequence(parsed, _MATCH)
        except (re.error, OverflowError, RecursionError) as error:
            raise FormatError(f"not a regular expression: {error}") from None

    def matches(self, text: str) -> bool:
        """Return True if the expression matches the whole text."""
        present = self._closure([self._start], is_first=True, is_last=not text)
        last = len(text) - 1
        for at, character in enumerate(text):
            found: list[int] = []
            for state in present:
                test = self._tests[state] if state != _MATCH else None
                if test is not None and test(character):
                    found += self._next[state]
            if not found:
                return False
            present = self._closure(found, is_first=False, is_last=at == last)
        return _MATCH in present

    def _closure(self, states: Iterable[int], *, is_first: bool, is_last: bool) -> set[int]:
        """Return these states, and the states that they lead to without a character."""
        seen: set[int] = set()
        left = list(states)
        while left:
            state = left.pop()
            if state in seen:
                continue
            seen.add(state)
            anchor = self._anchors.get(state)
            if anchor is not None and not (is_first if anchor in _FIRST else is_last):
                continue
            if state != _MATCH and self._tests[state] is None:
                left += self._next[state]
        return seen

    def _state(self, test: Test | None, *following: int) -> int:
        if len(self._tests) >= STATES_MAX:
            raise FormatError(f"an expression of more than {STATES_MAX} states")
        self._tests.append(test)
        self._next.append(list(following))
        return len(self._tests) - 1

    def _sequence(self, items: Iterable[tuple[Any, Any]], after: int) -> int:
        """Return the first state of these items, one after the other, with ``after`` behind the last."""
        self._steps += 1  # repeated nothing has no states
        if self._steps > _STEPS_MAX:
            raise FormatError("an expression with too many repetitions")
        for operation, argument in reversed(list(items)):
            after = self._item(operation, argument, after)
        return after

    def _item(self, operation: Any, argument: Any, after: int) -> int:
        c = _constants
        if operation is c.BRANCH:
            return self._state(None, *(self._sequence(each, after) for each in argument[1]))
        if operation is c.SUBPATTERN:
            if argument[1] or argument[2]:
                raise FormatError("flags within an expression are not supported")
            return self._sequence(argument[3], after)
        if operation in (c.MAX_REPEAT, c.MIN_REPEAT):
            least, most, repeated = argument
            return self._repeated(least, most, repeated, after)
        if operation is c.AT and argument in (*_FIRST, *_LAST):
            state = self._state(None, after)
            self._anchors[state] = argument
            return state
        return self._state(self._test(operation, argument), after)

    def _repeated(self, least: int, most: int, items: Sequence[tuple[Any, Any]], after: int) -> int:
        if most is _constants.MAXREPEAT:
            loop = self._state(None, after)
            self._next[loop].append(self._sequence(items, loop))
            after = loop
        else:
            if most > STATES_MAX:
                raise FormatError(f"an expression of more than {STATES_MAX} states")
            for _ in range(most - least):
                after = self._state(None, after, self._sequence(items, after))
        for _ in range(least):  # ends by `_STEPS_MAX`
            after = self._sequence(items, after)
        return after

    def _test(self, operation: Any, argument: Any) -> Test:
        """Return the test of one character.  Raises FormatError if the operation is not one of a character."""
        c = _constants
        if operation is c.ANY:
            return lambda character: character != "\n"
        if operation is c.LITERAL:
            return _between(argument, argument)
        if operation is c.NOT_LITERAL:
            unwanted = _between(argument, argument)
            return lambda character: not unwanted(character)
        if operation is c.IN:
            return self._set(argument)
        raise FormatError(f"{str(operation).lower()} is not supported in an expression for transactional ids")

    def _set(self, members: Sequence[tuple[Any, Any]]) -> Test:
        c = _constants
        tests: list[Test] = []
        is_negated = False
        for operation, argument in members:
            if operation is c.NEGATE:
                is_negated = True
            elif operation is c.LITERAL:
                tests.append(_between(argument, argument))
            elif operation is c.RANGE:
                tests.append(_between(*argument))
            elif operation is c.CATEGORY:
                tests.append(_CATEGORIES[argument])
            else:
                raise FormatError(f"{str(operation).lower()} is not supported in a set of characters")
        return lambda character: any(test(character) for test in tests) != is_negated


def _between(least: int, most: int) -> Test:
    return lambda character: least <= ord(character) <= most


def _digit(character: str) -> bool:
    return character.isascii() and character.isdigit()


def _word(character: str) -> bool:
    return character == "_" or (character.isascii() and character.isalnum())


def _space(character: str) -> bool:
    return character in " \t\n\r\f\v"


_FIRST = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)
_LAST = (_constants.AT_END, _constants.AT_END_STRING)
_CATEGORIES: dict[Any, Test] = {
    _constants.CATEGORY_DIGIT: _digit,
    _constants.CATEGORY_NOT_DIGIT: lambda character: not _digit(character),
    _constants.CATEGORY_WORD: _word,
    _constants.CATEGORY_NOT_WORD: lambda character: not _word(character),
    _constants.CATEGORY_SPACE: _space,
    _constants.CATEGORY_NOT_SPACE: lambda character: not _space(character),
}
