"""Links of README and of the documentation lead somewhere: to a file of the repository, and to a heading in it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_WEB = ("http://", "https://", "mailto:")


def pages() -> list[Path]:
    """Every page that a reader is led to."""
    return sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("deploy/**/*.md")])


@cache
def prose(page: Path) -> str:
    """Return the page without its blocks of code."""
    return _FENCE.sub("", page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """Return the page's anchors: its own, and those of headings as GitHub makes them."""
    found: dict[str, int] = {}
    slugs = set()
    for match in _HEADING.finditer(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match[1])
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = found.get(slug, 0)
        found[slug] = number + 1
        slugs.add(f"{slug}-{number}" if number else slug)
    return frozenset(slugs | set(re.findall(r'<a id="([^"]+)">', prose(page))))


def broken(page: Path) -> list[str]:
    """Return the page's links that lead nowhere, each with the reason."""
    found = []
    for target in _LINK.findall(_CODE.sub("", prose(page))):
        if target.startswith(_WEB):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            found.append(f"{target}: no such file")
        elif anchor and (other.suffix != ".md" or anchor not in anchors(other)):
            found.append(f"{target}: no such heading")
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "# One `thing`, and 2\n\n# One\n\n# One\n\n[a](a.md#one-thing-and-2) [b](#one-1) [c](https://nowhere.invalid/)\n"
        "[d](b.md) [e](#two) ![f](c.png)\n\n```\n[g](d.md)\n```\n`[h](e.md)`\n"
    )
    assert broken(page) == ["b.md: no such file", "#two: no such heading", "c.png: no such file"]


def test_every_page_of_the_docs_is_led_to() -> None:
    """Look for pages that no page links to: readers would not find them."""
    led_to = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in pages()
        for target in _LINK.findall(_CODE.sub("", prose(page)))
        if not target.startswith((*_WEB, "#"))
    }
    assert [page for page in sorted(REPOSITORY.glob("docs/**/*.md")) if page.resolve() not in led_to] == []
