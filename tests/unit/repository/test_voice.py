"""``tests.voice``: what it finds, and what it leaves alone."""

from __future__ import annotations

import ast

import pytest

from tests.voice import docstring_fault, log_fault


@pytest.mark.parametrize("text", ["", "Return it.", "One broker's view.", "Asset.", "Iterate.", "StorageError's text."])
def test_a_verb_or_a_noun_begins_a_docstring(text: str) -> None:
    assert docstring_fault(text) == ""


@pytest.mark.parametrize(
    "text",
    ["What it is.", "It's open.", "Who owns it.", "JobError.", "KvError, StorageUnavailable", "On a local folder."],
)
def test_a_riddle_or_a_bare_exception_is_found(text: str) -> None:
    assert docstring_fault(text)


@pytest.mark.parametrize(
    ("call", "is_fault"),
    [
        ("_log.info('a member left, and takes his files along')", True),
        ("self._log.warning('nobody answers')", True),
        ("logging.log.log(10, 'we go on')", True),
        ("_log.info('a member has left')", False),
        ("print('we go on')", False),
        ("_log.info('closing a connection', extra=fields(error='our fault'))", False),
    ],
)
def test_a_log_line_speaks_of_no_persons(call: str, is_fault: bool) -> None:
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call)
    assert bool(log_fault(expression)) is is_fault
