r"""Kafka's rules that make a principal's name from a certificate's subject: ``ssl.principal.mapping.rules``.

``RULE:pattern/replacement/`` applies to names that the whole pattern matches.  ``L`` and ``U`` at its end make lower
and upper case.  ``DEFAULT`` is the whole name.  The first rule that applies counts::

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),.*$/$1@example/L,DEFAULT

Patterns are Java's in Kafka, and Python's here.  ``(?<name>...)`` is understood; possessive quantifiers, too.  As in
Java, ``\w``, ``\d``, ``\s`` and ``(?i)`` mean ASCII. Otherwise a letter that only looks like another, as the Kelvin
sign for K, would match a rule against Kafka's behaviour. A backslash takes the meaning from a slash in a pattern, and
from a dollar sign in a replacement.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from bmq.core.security.principal import has_outer_space

DEFAULT = "DEFAULT"
_PREFIX = "RULE:"
_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")
_NAMED = re.compile(r"\{(\w+)\}", re.ASCII)


class BadRule(ValueError):
    """A rule that cannot be read; ``str`` says which, and why."""


class NoRule(ValueError):
    """No rule applies to a name."""


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str] | None
    """None for DEFAULT."""
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(lambda found: _expanded(self.replacement, found), name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


class MappingRules:
    """The rules of one listener."""

    def __init__(self, text: str) -> None:
        """Raise BadRule if one of the rules cannot be read, or there is none."""
        self._rules: Sequence[_Rule] = _parse(text)
        self._text = text

    def __repr__(self) -> str:
        return f"<MappingRules {self._text}>"

    def name_of(self, subject: str) -> str:
        """Return the principal's name.  Raises NoRule if no rule applies, or the name is empty then."""
        for rule in self._rules:
            name = rule.apply(subject)
            if name is not None:
                if not name:
                    raise NoRule(f"ssl.principal.mapping.rules makes an empty name of {subject!r}")
                if has_outer_space(name):
                    raise NoRule(f"ssl.principal.mapping.rules makes {name!r} of {subject!r}: white space at an end")
                return name
        raise NoRule(f"no rule of ssl.principal.mapping.rules applies to {subject!r}")


def _parse(text: str) -> list[_Rule]:
    rules, pos = [], 0
    while pos < len(text):
        if text[pos] in " \t\r\n,":
            pos += 1
            continue
        if text.startswith(DEFAULT, pos):
            rules.append(_Rule(None))
            pos += len(DEFAULT)
        elif text.startswith(_PREFIX, pos):
            begin = pos
            pattern, pos = _until_slash(text, pos + len(_PREFIX), begin)
            replacement, pos = _until_slash(text, pos, begin)
            case = text[pos] if text[pos : pos + 1] in ("L", "U") else ""
            pos += len(case)
            rules.append(_Rule(_compiled(pattern, text[begin:pos]), replacement, case))
        else:
            raise BadRule(f"{text[pos : pos + 100]!r} begins neither with RULE: nor with DEFAULT")
        end = pos + len(text[pos:]) - len(text[pos:].lstrip(" \t\r\n"))
        if end < len(text) and text[end] != ",":
            raise BadRule(f"{text[end : end + 100]!r} follows a rule; put a comma between two rules")
        pos = end
    if not rules:
        raise BadRule("there is no rule; DEFAULT is the whole name of the certificate")
    return rules


def _until_slash(text: str, pos: int, begin: int) -> tuple[str, int]:
    """Return the text up to the next slash without a backslash, and the place behind it."""
    end = pos
    while end < len(text) and text[end] != "/":
        end += 2 if text[end] == "\\" else 1
    if end >= len(text):
        raise BadRule(
            f"{text[begin : begin + 100]!r} is not RULE:pattern/replacement/, with L or U behind it or nothing"
        )
    return text[pos:end], end + 1


def _compiled(pattern: str, rule: str) -> re.Pattern[str]:
    try:
        return re.compile(_NAMED_GROUP.sub("(?P<", pattern), re.ASCII)
    except re.error as error:
        raise BadRule(f"the pattern of {rule[:100]!r} is wrong: {error}") from None


def _is_digit(char: str) -> bool:
    return char.isascii() and char.isdigit()


def _expanded(replacement: str, found: re.Match[str]) -> str:
    """Return a replacement with what its groups matched.

    A number takes as many digits as there are groups for; a group that there is not stays as it is written.
    """
    parts, pos, groups = [], 0, found.re.groups
    while pos < len(replacement):
        char = replacement[pos]
        pos += 1
        if char == "\\":
            parts.append(replacement[pos : pos + 1])
            pos += 1
        elif char == "$" and _is_digit(replacement[pos : pos + 1]):
            end = pos + 1
            while _is_digit(replacement[end : end + 1]) and int(replacement[pos : end + 1]) <= groups:
                end += 1
            number = int(replacement[pos:end])
            parts.append(found[number] or "" if number <= groups else f"${replacement[pos:end]}")
            pos = end
        elif char == "$" and (named := _NAMED.match(replacement, pos)):
            parts.append(found[named[1]] or "" if named[1] in found.re.groupindex else f"${named[0]}")
            pos = named.end()
        else:
            parts.append(char)
    return "".join(parts)
