"""Patterns of ListTransactions: the same answers as ``re`` where both know the syntax, in linear time."""

from __future__ import annotations

import random
import re

import pytest

from bmq.coordinator.transaction.id_pattern import IdPattern
from bmq.core.errors import FormatError
from tests.harness.seeds import seeds

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
        "(", "a**", "[", "(a)\\1", "(?=a)b", "(?<=a)b", "a{1000}", "(a{20}){20}",
        "(){4000000000}", "((((){100}){100}){100}){100}", "a" * 201, "a++",
    ],
)  # fmt: skip
def test_patterns_that_are_wrong_too_large_or_go_back_are_refused(pattern: str) -> None:
    with pytest.raises(FormatError):
        IdPattern(pattern)


def test_a_pattern_that_takes_python_for_ever_takes_no_time() -> None:
    assert not IdPattern("(a*)*b").matches("a" * 2_000)
    assert not IdPattern("(a|aa)+c").matches("a" * 2_000)
