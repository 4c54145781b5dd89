"""Findings as they are printed, for people and as JSON, and their counts."""

from __future__ import annotations

import json

import pytest

from bmq.cli.segment.findings import Finding, FindingsPrinter

FAULT = Finding(file="/a.log", what="base offset 4", meaning="A batch was lost.", position=7, offset=3)
NOTE = Finding(file="/a.log", what="torn", meaning="Harmless.", is_fault=False)


@pytest.mark.parametrize(
    ("finding", "text"),
    [
        (FAULT, "FAULT /a.log, position 7, offset 3: base offset 4\n      A batch was lost.\n"),
        (NOTE, "NOTE /a.log: torn\n      Harmless.\n"),
        (
            Finding(file="/\x1b[2J.log", what="x", meaning="y", position=0),
            "FAULT /\\x1b[2J.log, position 0: x\n      y\n",
        ),
    ],
    ids=["a fault with its place", "a note about a file", "an escape sequence"],
)
def test_a_finding_is_two_lines_for_people(finding: Finding, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    finding.print(as_json=False)
    assert capsys.readouterr().out == text


def test_a_finding_is_one_object_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    NOTE.print(as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "kind": "note", "file": "/a.log", "position": None, "offset": None, "what": "torn", "meaning": "Harmless.",
    }  # fmt: skip


def test_findings_and_files_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    cleared: list[None] = []
    printer = FindingsPrinter(as_json=False, before_line=lambda: cleared.append(None))
    for finding in (FAULT, NOTE, NOTE):
        printer.add(finding)
    printer.file_done({}, "FAULTY /a.log")
    printer.finish()
    assert len(cleared) == 4, "before each line about a file, not before the counts, which come when progress has ended"
    assert capsys.readouterr().out.splitlines()[-2:] == ["FAULTY /a.log", "1 file, 1 fault, 2 notes"]
