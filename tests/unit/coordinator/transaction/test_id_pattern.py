"""Patterns of ListTransactions: the same answers as ``re`` where both know the syntax, in linear time."""

from __future__ import annotations

import random
import re
import time

import pytest
import re2

from bmq.coordinator.transaction.id_pattern import LENGTH_MAX, IdPattern
from bmq.core.errors import FormatError
from tests.harness.seeds import seeds

ID_MAX = 32_000
"""Characters of the longest ids."""
TEXTS = ["", "a", "b", "ab", "aab", "abab", "app-1", "app-12", "app-x", "aaaa", "\n", "a\n", "ä_9 "]


@pytest.mark.parametrize(
    "pattern",
    [
        "a", "a*", "a+", "a?b", "ab|app-.*", "(ab)*", "(a|b)+", "a{2}b", "a{1,3}", "a{2,}", "[a-b]+", "[^a]*",
        "app-\\d+", "\\w*", "\\W", "\\s*", ".*", "^a.*", "^ab$", "(^a|b)b$", "(?:a|ab)(?:b|)", "(a*)*b", "a*?b", "",
        "()*", "[\\d_ä]+.", "a|", "\\Aab$",
    ],
)  # fmt: skip
def test_patterns_match_as_python_does(pattern: str) -> None:
    compiled, reference = IdPattern(pattern), re.compile(pattern, re.ASCII)
    for text in TEXTS:
        assert compiled.matches(text) == bool(reference.fullmatch(text)), (pattern, text)


@pytest.mark.parametrize("seed", seeds(25, 1_000))
def test_random_patterns_match_as_python_does(seed: int) -> None:
    chance = random.Random(seed)

    def made(depth: int) -> str:
        kind = chance.randrange(6 if depth else 2)
        if kind < 2:
            return chance.choice(("a", "b", ".", "[ab]", "[^b]"))
        if kind == 2:
            return made(depth - 1) + made(depth - 1)
        if kind == 3:
            return f"({made(depth - 1)}|{made(depth - 1)})"
        return f"({made(depth - 1)})" + chance.choice(("*", "+", "?", "{0,2}", "{2}"))

    pattern = made(3)
    compiled = IdPattern(pattern)
    for _ in range(30):
        text = "".join(chance.choice("ab") for _ in range(chance.randrange(7)))
        assert compiled.matches(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        "(", "a**", "[", "(a)\\1", "(?=a)b", "(?<=a)b", "a{1001}", "(a{40}){25}", ".{150}",
        "((((){100}){100}){100}){100}", "a" * 1_001, "a" * (LENGTH_MAX + 1), "a++",
    ],
)  # fmt: skip
def test_patterns_that_are_wrong_too_large_or_go_back_are_refused(pattern: str) -> None:
    with pytest.raises(FormatError):
        IdPattern(pattern)


def test_a_refusal_says_what_is_wrong() -> None:
    with pytest.raises(FormatError, match="missing \\): \\(a"):
        IdPattern("(a")


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|aa)+c", "(.*a){0,20}c", ".*a.{90}c"])
@pytest.mark.parametrize(
    "text", ["a" * ID_MAX, "ab" * (ID_MAX // 2), "".join(random.Random(1).choices("ab", k=ID_MAX))]
)
def test_a_match_takes_no_more_time_than_its_elements_in_a_turn(pattern: str, text: str) -> None:
    """The processor time of the longest id, by the count of ``core.aio.turns``: 10 us an element.

    Python's ``re`` would take hours for the first two.
    """
    compiled = IdPattern(pattern)
    began = time.thread_time()
    assert not compiled.matches(text)
    assert time.thread_time() - began < 0.1 + 10 * 1e-5 * compiled.elements_of(text)


def test_compiled_patterns_are_not_kept() -> None:
    for each in range(300):
        IdPattern(f"a{each}")
    assert re2._Regexp._make.cache_info().currsize <= 1
