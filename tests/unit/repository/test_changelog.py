"""CHANGELOG.md: the section of a version that is not released yet says what a user gets, and stays short."""

from __future__ import annotations

import re
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[3] / "CHANGELOG.md"
LINES_MAX = 60
"""Lines of an unreleased section, its heading and blank lines included."""
_HEADING = re.compile(r"^(?=## )", re.MULTILINE)


def unreleased(text: str) -> list[str]:
    """Return the sections of ``text`` whose versions are not released yet."""
    return [section for section in _HEADING.split(text) if section.startswith("## ") and is_unreleased(section)]


def is_unreleased(section: str) -> bool:
    heading = section.partition("\n")[0].lower()
    return "not released" in heading or "unreleased" in heading


def test_an_unreleased_section_is_short() -> None:
    sections = unreleased(CHANGELOG.read_text())
    assert sections
    assert {section.partition("\n")[0]: len(section.splitlines()) <= LINES_MAX for section in sections} == {
        section.partition("\n")[0]: True for section in sections
    }


def test_the_first_version_fixes_nothing() -> None:
    """Keep "Fixed" and "Changed" out of a first version: they speak of states that no user ever ran."""
    text = CHANGELOG.read_text()
    if len(_HEADING.split(text)) == 2:  # the preamble, and one version
        assert re.findall(r"^### (?:Fixed|Changed)$", text, re.MULTILINE) == []


def test_sections_are_told_apart_by_their_headings() -> None:
    text = "# Changelog\n\n## [0.2.0] - not released yet\n\n- a\n\n## [0.1.0] - 2026-12-01\n\n- b\n"
    assert unreleased(text) == ["## [0.2.0] - not released yet\n\n- a\n\n"]
    assert unreleased("## [Unreleased]\n- c\n## [0.1.0] - 2026-12-01\n") == ["## [Unreleased]\n- c\n"]
