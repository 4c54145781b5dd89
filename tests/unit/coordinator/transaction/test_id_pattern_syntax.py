"""The syntax of patterns for transactional ids. The table holds the answers of RE2/J 1.8, the library of Kafka 4.3."""

from __future__ import annotations

import pytest

from bmq.coordinator.transaction.id_pattern import IdPattern
from bmq.core.errors import FormatError

TEXTS = [
    "",
    "a",
    "A",
    "b",
    "ab",
    "Ab",
    "aB",
    "a1",
    "a-",
    "-",
    "_",
    "1",
    "]",
    "[",
    "{",
    "&",
    "a*",
    "aaa",
    "a{,3}",
    "a{01}",
    " ",
    "\v",
    "\n",
    "a\nb",
    "é",
    "😀",
    "K",
    "\N{KELVIN SIGN}",
    "a-K",
    "alp:",
    "1z-",
    "\x081",
]
MATCHES: dict[str, list[str]] = {
    "[[:alpha:]]+": ["a", "A", "b", "ab", "Ab", "aB", "aaa", "K"],
    "[[:^alpha:]]+": ["-", "_", "1", "]", "[", "{", "&", " ", "\v", "\n", "é", "😀", "\N{KELVIN SIGN}", "\x081"],
    "[[:alpha:]-]+": ["a", "A", "b", "ab", "Ab", "aB", "a-", "-", "aaa", "K", "a-K"],
    "[[:word:]]+": ["a", "A", "b", "ab", "Ab", "aB", "a1", "_", "1", "aaa", "K"],
    "[:alpha:]+": ["a", "aaa", "alp:"],
    "a{,3}": ["a{,3}"],
    "a{01}": ["a{01}"],
    "{": ["{"],
    "\\0101": ["\x081"],
    "\\101": ["A"],
    "\\x41": ["A"],
    "\\x{1F600}": ["😀"],
    "a\\z": ["a"],
    "\\Qa*\\E": ["a*"],
    "\\Qa*": ["a*"],
    "\\pN+": ["1"],
    "[\\p{Latin}]+": ["a", "A", "b", "ab", "Ab", "aB", "aaa", "é", "K", "\N{KELVIN SIGN}"],
    "(?i)É": ["é"],
    "a(?i)*": ["", "a", "aaa"],
    "\\Qa\\E*": ["", "a", "aaa"],
    "(?i)a-k": ["a-K"],
    "(?i:a)b": ["ab", "Ab"],
    "(?i)[^k]": ["a", "A", "b", "-", "_", "1", "]", "[", "{", "&", " ", "\v", "\n", "é", "😀"],
    "(?-i)a": ["a"],
    "(?s).": ["a", "A", "b", "-", "_", "1", "]", "[", "{", "&", " ", "\v", "\n", "é", "😀", "K", "\N{KELVIN SIGN}"],
    "(?m)a$\\nb": ["a\nb"],
    "(?U)a+": ["a", "aaa"],
    "(?P<n>a)b": ["ab"],
    "(?<n>a)b": ["ab"],
    "\\ba\\b.*": ["a", "a-", "a*", "a{,3}", "a{01}", "a-K"],
    "a\\Bb": ["ab"],
    "\\s": [" ", "\n"],
    "[\\s]": [" ", "\n"],
    "[a&&b]": ["a", "b", "&"],
    "[[a]": ["a", "["],
    "[]a]": ["a", "]"],
    "[a-]": ["a", "-"],
    "[\\d-z]+": ["-", "1", "1z-"],
    "\\_": ["_"],
    "^*a": ["a"],
}
REFUSED = [
    "a{2,1}",
    "\\1",
    "a\\Z",
    "(?#x)a",
    "(?'n'a)",
    "[\\b]",
    "[a-\\d]",
    "\\y",
    "a**",
    "a*+",
    "a{2}{2}",
    "*a",
    "(?=a)a",
    "(?<=a)b",
    "(a)\\1",
    "a++",
    "(?>a)",
    "\\h",
    "\\R",
    "\\K",
    "a\\",
]
OTHERS = {
    "\\é": None,
    "\\C": ["a", "A", "b", "-", "_", "1", "]", "[", "{", "&", " ", "\v", "\n", "K"],
    "(?<n>a)(?<n>b)": ["ab"],
}
"""Patterns with other answers than RE2/J's: None for a pattern that is refused here. RE2/J takes the first
pattern, and refuses the others."""


@pytest.mark.parametrize("pattern", MATCHES)
def test_a_pattern_means_what_re2_takes_it_for(pattern: str) -> None:
    compiled = IdPattern(pattern)
    assert [text for text in TEXTS if compiled.matches(text)] == MATCHES[pattern]


@pytest.mark.parametrize("pattern", REFUSED)
def test_a_pattern_is_refused_that_re2_does_not_know(pattern: str) -> None:
    with pytest.raises(FormatError):
        IdPattern(pattern)


@pytest.mark.parametrize(("pattern", "matches"), OTHERS.items())
def test_the_patterns_that_the_two_libraries_read_differently(pattern: str, matches: list[str] | None) -> None:
    if matches is None:
        with pytest.raises(FormatError):
            IdPattern(pattern)
        return
    compiled = IdPattern(pattern)
    assert [text for text in TEXTS if compiled.matches(text)] == matches
