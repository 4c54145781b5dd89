"""Names and forms inside bodies: what counts as a departure, and a bound that only falls."""

from __future__ import annotations

import tomllib
from collections import Counter

import pytest

from tests.voice_names import BOUNDS, KINDS, Departure, count, exceeded, lowered, of_source


@pytest.mark.parametrize(
    ("room", "source", "kinds"),
    [
        ("core", "_log = logging.getLogger(__name__)", []),
        ("core", "_log = logging.getLogger('bmq.audit')", []),
        ("core", "_SILENT = logging.getLogger(f'{__name__}.access')", []),
        ("core", "log = logging.getLogger(__name__)", ["logger"]),
        ("core", "_log = logging.getLogger('bmq.core.net')", ["logger"]),
        ("tests", "logger = logging.getLogger('x')", []),
        ("core", '"""Return ``x``."""', []),
        ("core", 'def f():\n    """Return `x`, not `y`."""', ["quoting", "quoting"]),
        ("core", "text = '`x`'", []),
        ("proxy", "answer = ask()", ["names"]),
        ("proxy", "async def _answer(response, *, answer): ...", ["names", "names"]),
        ("proxy", "for answer, (_, told) in x: ...", ["names"]),
        ("tests", "with open(x) as told: ...", ["names"]),
        ("proxy", "found = answer.told", []),
        ("broker", "def f(self, shared: BrokerContext): self._shared = shared", ["names", "names"]),
        ("broker", "shared, partition = self.shared, driver.machine", ["names", "names"]),
        ("broker", "partition = key.partition", []),
        ("storage", "shared = self._reads.get(key)", []),
        ("broker", "def f(handed: ReleaseNote): ...", ["names"]),
        ("proxy", "async def _answer_all(late_answers): ...", ["parts", "parts"]),
        ("proxy", "class AnswerQueue: ...", ["parts"]),
        ("proxy", "class HTTPAnswer: ...", ["parts"]),
        ("tests", "def retold(has_told): ...", ["parts"]),
        ("proxy", "unanswered, answered_at, handed_over = x", []),
    ],
)
def test_departures(room: str, source: str, kinds: list[str]) -> None:
    assert [kind for _, kind, _ in of_source(room, source)] == kinds


def test_a_bound_falls_and_never_rises() -> None:
    one = Departure("a/b", "a/b/c.py:1", "names", "told")
    numbers = count([one, one])
    assert numbers == {"a/b": Counter(names=2)}
    assert list(exceeded(numbers, {"a/b": {"names": 2}})) == []
    assert list(exceeded(numbers, {"a/b": {"names": 1}, "a": {"names": 9}})) == [("a/b", "names")]
    bounds = {"a/b": {"names": 3, "quoting": 1}, "a/gone": {"names": 1}, "c": {"names": 4}}
    assert lowered(numbers, bounds, ["a"]) == {"a/b": {"names": 2}, "c": {"names": 4}}


def test_no_bound_is_written_for_nothing() -> None:
    bounds = tomllib.loads(BOUNDS.read_text())
    assert all(kinds and set(kinds) <= set(KINDS) and all(kinds.values()) for kinds in bounds.values())
