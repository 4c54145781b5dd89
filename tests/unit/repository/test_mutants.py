"""The list of mutations, which fits the code, and its runner, which tells a caught mistake from one that survives."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.__main__ import main
from tests.mutants.catalogue import ROOT, Mutation, StaleMutation, read_list
from tests.mutants.runner import Outcome, UnfitCopy, Verdict, judge_all

pytestmark = pytest.mark.slow

MUTATIONS = read_list()
EXAMPLE = Mutation(
    name="sequences-do-not-wrap",
    rule=9,
    file="core/records/batch.py",
    old="return (sequence + by) & MAX_SEQUENCE",
    new="return sequence + by",
    breaks="a producer's sequence does not wrap to 0",
    killed_by="tests/unit/core/records/test_batch.py::test_sequences_wrap_to_0_after_the_largest_int",
)

RULES = set(range(1, 15))
"""Numbers of the sections of docs/design/rules.md."""


@cache
def _functions(path: str) -> frozenset[str]:
    """Return the names of the functions at the top of a file."""
    body = ast.parse((ROOT / path).read_text()).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_fits_the_code_and_its_test_exists(mutation: Mutation) -> None:
    assert mutation.applied((ROOT / mutation.file).read_text())
    assert mutation.rule in RULES
    path, _, name = mutation.killed_by.partition("::")
    assert path.startswith(("tests/unit/", "tests/simulation/")), "fast tests only"
    assert name.partition("[")[0] in _functions(path)


def test_every_rule_has_mutations_and_names_are_unique() -> None:
    assert {mutation.rule for mutation in MUTATIONS} == RULES
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_a_mutation_that_no_longer_fits_is_an_error() -> None:
    with pytest.raises(StaleMutation, match="stands 0 times"):
        EXAMPLE.applied("pass\n")
    with pytest.raises(StaleMutation, match="stands 2 times"):
        replace(EXAMPLE, old="pass", new="return").applied("pass\npass\n")
    with pytest.raises(StaleMutation, match="changes nothing"):
        replace(EXAMPLE, old="pass", new="pass  # as before").applied("pass\n")


def _judge(tmp_path: Path, mutations: Sequence[Mutation], time_limit_s: float = 600.0) -> list[Verdict]:
    notified: list[Outcome] = []
    outcomes = judge_all(mutations, tmp_path, workers=1, time_limit_s=time_limit_s, on_outcome=notified.append)
    assert notified == outcomes
    return [outcome.verdict for outcome in outcomes]


def test_verdicts(tmp_path: Path) -> None:
    """The copy's code is what the copy's tests import: only then does a module that raises keep a test from running."""
    harmless = replace(EXAMPLE, name="harmless", new="return (by + sequence) & MAX_SEQUENCE")
    raising = replace(EXAMPLE, name="raising", old="MAX_SEQUENCE = 0x7FFFFFFF\n", new="raise ImportError\n")
    again = replace(EXAMPLE, name="again")
    verdicts = _judge(tmp_path, [EXAMPLE, harmless, raising, again])
    assert verdicts == [Verdict.KILLED, Verdict.SURVIVED, Verdict.BROKEN, Verdict.KILLED]


def test_tests_that_fail_without_a_mutation_show_nothing(tmp_path: Path) -> None:
    missing = replace(EXAMPLE, killed_by="tests/unit/core/records/test_batch.py::test_that_is_not_there")
    with pytest.raises(UnfitCopy, match="do not pass without a mutation"):
        _judge(tmp_path, [missing])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", MUTATIONS[0].name]) == 0
    assert MUTATIONS[0].killed_by in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--only", "no-such-mutation"])
    with pytest.raises(SystemExit):
        main(["-j", "0"])
