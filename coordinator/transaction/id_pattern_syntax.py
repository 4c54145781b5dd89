"""The syntax of regular expressions for transactional ids: RE2's, as Kafka has it (RE2/J). Pure.

| refused, though RE2 knows it          | reason                                                                   |
| ------------------------------------- | ------------------------------------------------------------------------ |
| ``\\p{Greek}``, ``\\pN``                | needs the tables of one version of Unicode                               |
| ``(?i)`` with letters outside ASCII   | needs the same tables                                                    |
| ``\\C``                                | RE2/J does not know it either                                            |
| a repetition behind ``(?i)``          | RE2/J repeats the item before the flags                                  |
| ``DEPTH_MAX``, ``LENGTH_MAX``         | the expression is read in the process's event loop                       |

All other syntax has RE2/J's meaning, and is refused where RE2/J refuses it. An id is matched as a whole. So greedy and
lazy repetitions are the same, and groups have no names or numbers.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from bmq.core.errors import FormatError

DEPTH_MAX = 50
"""Most groups within each other."""
LENGTH_MAX = 4_096
"""Most characters of an expression."""
COUNT_MAX = 1_000
"""Highest count of a repetition in RE2."""
_RUNE_MAX = 0x10FFFF
_HEX = frozenset(string.hexdigits)
_OCTAL = frozenset("01234567")

Ranges = tuple[tuple[int, int], ...]
"""Code points: first and last of each range, in order, without overlaps."""
Assertion = Callable[[str | None, str | None], bool]
"""``holds(before, after)``: whether the place between two characters fits; None beyond an end of the id."""


class Characters(NamedTuple):
    """One character of these code points."""

    ranges: Ranges


class Place(NamedTuple):
    """A place between two characters, such as the begin of the id."""

    holds: Assertion


class Series(NamedTuple):
    """Parts, one behind the other."""

    parts: tuple[Node, ...]


class Choice(NamedTuple):
    """One of some expressions."""

    ways: tuple[Node, ...]


class Repeat(NamedTuple):
    """An expression, ``least`` to ``most`` times; ``most`` is None without an upper bound."""

    part: Node
    least: int
    most: int | None


Node = Characters | Place | Series | Choice | Repeat


def parse(text: str) -> Node:
    """Return the expression ``text``. Raises FormatError if RE2/J refuses it, or by the module's table."""
    if len(text) > LENGTH_MAX:
        raise FormatError(f"an expression of more than {LENGTH_MAX} characters")
    return _Parser(text).parse()


class _Flags(NamedTuple):
    is_folded: bool = False
    is_multiline: bool = False
    is_dot_all: bool = False


class _Parser:
    """One reading of an expression, from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._names: set[str] = set()

    def parse(self) -> Node:
        node = self._choice(_Flags(), 0)
        if self._at < len(self._text):
            raise _wrong("unexpected )")
        return node

    def _peek(self, length: int = 1) -> str:
        return self._text[self._at : self._at + length]

    def _take(self) -> str:
        if self._at == len(self._text):
            raise _wrong("its end is missing")
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, wanted: str) -> bool:
        if not self._text.startswith(wanted, self._at):
            return False
        self._at += len(wanted)
        return True

    def _choice(self, flags: _Flags, depth: int) -> Node:
        """Read up to the end of the group. Flags within it hold up to this end."""
        if depth > DEPTH_MAX:
            raise _wrong(f"more than {DEPTH_MAX} groups within each other")
        ways: list[Node] = []
        parts: list[Node] = []
        may_repeat = False
        while (character := self._peek()) not in ("", ")"):
            if self._takes("|"):
                ways.append(Series(tuple(parts)))
                parts, may_repeat = [], False
            elif (counts := self._counts()) is not None:
                if not may_repeat:
                    raise _wrong(f"nothing to repeat, or repeated twice, at {self._at}")
                self._takes("?")
                parts.append(Repeat(parts.pop(), *counts))
                may_repeat = False
            elif self._takes(r"\Q"):
                quoted, _, _ = self._text[self._at :].partition(r"\E")
                self._at = min(len(self._text), self._at + len(quoted) + len(r"\E"))
                parts += [_literal(each, flags) for each in quoted]
                may_repeat = may_repeat or bool(quoted)
            elif character == "(":
                inner, node = self._group(flags, depth)
                flags, may_repeat = inner or flags, node is not None
                parts += [node] if node is not None else []
            else:
                parts.append(self._single(flags))
                may_repeat = character != "{"  # RE2/J takes it for a repetition
        return Choice((*ways, Series(tuple(parts)))) if ways else Series(tuple(parts))

    def _counts(self) -> tuple[int, int | None] | None:
        """Read a repetition; return its counts, None if there is none. A brace without counts is a literal."""
        for operator, counts in _REPETITIONS.items():
            if self._takes(operator):
                return counts
        if self._peek() != "{":
            return None
        inside, closed, _ = self._text[self._at + 1 :].partition("}")
        least, comma, most = inside.partition(",")
        if not closed or not _is_count(least) or not (most == "" or _is_count(most)):
            return None
        self._at += len(inside) + 2
        first = int(least)
        last = first if not comma else int(most) if most else None
        if max(first, last or 0) > COUNT_MAX or (last is not None and last < first):
            raise _wrong(f"repetition {{{inside}}}")
        return first, last

    def _group(self, flags: _Flags, depth: int) -> tuple[_Flags | None, Node | None]:
        """Read a group, or flags for the rest of the present group: return flags and None then."""
        self._take()
        inner = flags
        if self._takes("?P<") or self._takes("?<"):
            name, closed, _ = self._text[self._at :].partition(">")
            if not closed or not name or name in self._names or not all(_is_word(each) for each in name):
                raise _wrong(f"group name {name!r}")
            self._names.add(name)
            self._at += len(name) + 1
        elif self._takes("?"):
            inner, is_group = self._flags(flags)
            if not is_group:
                return inner, None
        node = self._choice(inner, depth + 1)
        if not self._takes(")"):
            raise _wrong("missing )")
        return None, node

    def _flags(self, flags: _Flags) -> tuple[_Flags, bool]:
        """Read flags up to their end; return them, and whether a group begins there."""
        is_on, has_flag, is_negated = True, False, False
        while True:
            character = self._take()
            if character in _FLAGS:
                flags = flags._replace(**dict.fromkeys(_FLAGS[character], is_on))
                has_flag = True
            elif character == "-" and not is_negated:
                is_on, has_flag, is_negated = False, False, True
            elif character in ":)" and (has_flag or not is_negated):
                return flags, character == ":"
            else:
                raise _wrong(f"group or flag {character!r}")

    def _single(self, flags: _Flags) -> Node:
        """Read one character, set of characters, or place."""
        character = self._take()
        if character == ".":
            return Characters(_EVERY if flags.is_dot_all else _negated(((10, 10),)))
        if character == "^":
            return Place(_is_line_begin if flags.is_multiline else _is_begin)
        if character == "$":
            return Place(_is_line_end if flags.is_multiline else _is_end)
        if character == "[":
            return Characters(self._set(flags))
        if character != "\\":
            return _literal(character, flags)
        following = self._take()
        if following in _PLACES:
            return Place(_PLACES[following])
        if following in _PERL:
            return Characters(_group_ranges(_PERL[following], flags, is_negated=following.isupper()))
        return _literal(chr(self._escaped(following)), flags)

    def _set(self, flags: _Flags) -> Ranges:
        """Read a set of characters behind its bracket."""
        is_negated = self._takes("^")
        found: list[tuple[int, int]] = []
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            named = self._named(flags)
            if named is not None:
                found += named
                continue
            least = most = self._member()
            if self._peek() == "-" and self._peek(2) not in ("-", "-]"):
                self._take()
                most = self._member()
            if most < least:
                raise _wrong(f"range {chr(least)}-{chr(most)}")
            found += _folded(((least, most),), flags)
        self._take()
        ranges = _merged(found)
        return _negated(ranges) if is_negated else ranges

    def _named(self, flags: _Flags) -> Ranges | None:
        """Read a named class of a set; return None if none is here."""
        if self._peek() == "\\" and self._peek(2)[1:] in _PERL:
            name = self._peek(2)[1:]
            if name:
                self._at += 2
                return _group_ranges(_PERL[name], flags, is_negated=name.isupper())
        if self._peek(2) != "[:":
            return None
        inside, closed, _ = self._text[self._at + 2 :].partition(":]")
        if not closed:
            return None
        name = inside.removeprefix("^")
        if name not in _POSIX:
            raise _wrong(f"class [:{inside}:]")
        self._at += len(inside) + 4
        return _group_ranges(_POSIX[name], flags, is_negated=inside.startswith("^"))

    def _member(self) -> int:
        character = self._take()
        return self._escaped(self._take()) if character == "\\" else ord(character)

    def _escaped(self, character: str) -> int:
        """Return the code point of an escape, behind its backslash and first character."""
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == "0" or (character in _OCTAL and self._peek() in _OCTAL and self._peek()):
            digits = character
            while len(digits) < 3 and self._peek() and self._peek() in _OCTAL:
                digits += self._take()
            return int(digits, 8)
        if character == "x":
            return self._hexadecimal()
        if character.isascii() and character.isalnum():
            raise _wrong(f"escape \\{character}")
        return ord(character)

    def _hexadecimal(self) -> int:
        if self._takes("{"):
            digits, closed, _ = self._text[self._at :].partition("}")
            self._at += len(digits) + 1
        else:
            digits, closed = self._peek(2), self._peek(2)[1:]
            self._at += 2
        if not closed or not digits or not set(digits) <= _HEX or int(digits, 16) > _RUNE_MAX:
            raise _wrong(f"escape \\x with {digits!r}")
        return int(digits, 16)


def _wrong(what: str) -> FormatError:
    return FormatError(f"not a regular expression that is known here: {what}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and (text == "0" or not text.startswith("0"))


def _literal(character: str, flags: _Flags) -> Node:
    return Characters(_folded(((ord(character), ord(character)),), flags))


def _folded(ranges: Ranges, flags: _Flags) -> Ranges:
    """Add what differs from these characters by its case only, if the flags say so."""
    if not flags.is_folded:
        return ranges
    if any(last > 127 for _, last in ranges):
        raise _wrong("(?i) with characters outside ASCII")
    letters = [chr(code) for first, last in ranges for code in range(first, last + 1) if chr(code).isalpha()]
    others = [
        other for letter in letters for other in (ord(letter.swapcase()), _FOLDED_TO.get(letter.lower())) if other
    ]
    return _merged([*ranges, *((other, other) for other in others)])


def _group_ranges(ranges: Ranges, flags: _Flags, *, is_negated: bool) -> Ranges:
    folded = _folded(ranges, flags)
    return _negated(folded) if is_negated else folded


def _merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def _negated(ranges: Ranges) -> Ranges:
    return tuple(_gaps(ranges))


def _gaps(ranges: Ranges) -> Iterator[tuple[int, int]]:
    begin = 0
    for first, last in ranges:
        if begin < first:
            yield begin, first - 1
        begin = last + 1
    if begin <= _RUNE_MAX:
        yield begin, _RUNE_MAX


def _is_word(character: str | None) -> bool:
    return character is not None and character.isascii() and (character.isalnum() or character == "_")


def _is_begin(before: str | None, after: str | None) -> bool:
    return before is None


def _is_end(before: str | None, after: str | None) -> bool:
    return after is None


def _is_line_begin(before: str | None, after: str | None) -> bool:
    return before in (None, "\n")


def _is_line_end(before: str | None, after: str | None) -> bool:
    return after in (None, "\n")


def _is_boundary(before: str | None, after: str | None) -> bool:
    return _is_word(before) != _is_word(after)


def _is_within(before: str | None, after: str | None) -> bool:
    return _is_word(before) == _is_word(after)


def _ranges(text: str) -> Ranges:
    """Return the ranges of a text of pairs: first and last character of each."""
    return _merged((ord(first), ord(last)) for first, last in zip(text[::2], text[1::2], strict=True))


_EVERY: Ranges = ((0, _RUNE_MAX),)
_REPETITIONS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_FLAGS: dict[str, tuple[str, ...]] = {"i": ("is_folded",), "m": ("is_multiline",), "s": ("is_dot_all",), "U": ()}
_PLACES: dict[str, Assertion] = {"A": _is_begin, "z": _is_end, "b": _is_boundary, "B": _is_within}
_ESCAPES = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_FOLDED_TO = {"k": 0x212A, "s": 0x17F}  # the Kelvin sign and the long s fold to ASCII
_DIGIT, _WORD = _ranges("09"), _ranges("09AZ__az")
_SPACE = _ranges("\t\n\f\r  ")
_PERL = {"d": _DIGIT, "D": _DIGIT, "w": _WORD, "W": _WORD, "s": _SPACE, "S": _SPACE}
_POSIX = {
    "alnum": _ranges("09AZaz"),
    "alpha": _ranges("AZaz"),
    "ascii": _ranges("\0\x7f"),
    "blank": _ranges("\t\t  "),
    "cntrl": _ranges("\0\x1f\x7f\x7f"),
    "digit": _DIGIT,
    "graph": _ranges("!~"),
    "lower": _ranges("az"),
    "print": _ranges(" ~"),
    "punct": _ranges("!/:@[`{~"),
    "space": _ranges("\t\r  "),
    "upper": _ranges("AZ"),
    "word": _WORD,
    "xdigit": _ranges("09AFaf"),
}
