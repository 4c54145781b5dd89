"""The sentences that stop a reader: what counts as one, and a bound that only falls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.voice_sentences import Finding, cells, count, exceeded, judge, lowered, sentences, texts


@pytest.mark.parametrize(
    ("sentence", "kinds"),
    [
        ("A proof names its side, both nonces and both processes.", ()),
        ("Of those that wait, the one that came first.", ("pro-forms", "subject")),
        ("The file that was deleted is back.", ()),
        ("This is why.", ("subject",)),
        ("So a peer cannot replay a proof.", ()),
        (" ".join(["word"] * 30) + ".", ()),
        (" ".join(["word"] * 31) + ".", ("long",)),
        ("Those of " + " ".join(["each"] * 31), ("pro-forms", "long", "subject")),
    ],
)
def test_the_kinds_of_a_sentence(sentence: str, kinds: tuple[str, ...]) -> None:
    assert judge(sentence, is_first=False)[0] == kinds


def test_a_first_word_is_judged_behind_the_first_sentence_only() -> None:
    assert judge("This is why.", is_first=True) == ((), 0)


def test_sentences_are_prose_without_tables_code_and_headings() -> None:
    text = """Return the file's end: `x. Y` counts as a word.  It is a number.

## A heading

| a table. | of cells. |
column      another column
    code. Of its own.
* an item
* another [item](that/one/which.md)
"""
    assert sentences(text) == [
        "Return the file's end:", "Code counts as a word.", "It is a number.", "an item", "another item",
    ]  # fmt: skip


def test_cells_are_those_of_tables_that_nobody_draws(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "A text.\n\n| a | `x|y` b |\n|---|:--|\n| of c \\| d. Of e. | |\n```\n| code |\n```\n"
        "<!-- drawn from the code -->\n| f |\n<!-- end -->\n| g |\n"
    )
    assert list(cells(page)) == [(3, "a"), (3, "`code` b"), (5, "of c   d. Of e."), (5, ""), (12, "g")]


def test_texts_are_docstrings_log_lines_and_errors(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""Module."""\n_log.info("event of %s", 1)\nraise ValueError(f"no {name} here")\nfind("no text")\nx = "none"\n'
    )
    assert [text for _, text in texts(path)] == ["Module.", "event of %s", "no Value here"]


def test_a_bound_falls_and_never_rises() -> None:
    one = Finding("a.py:1", "Those of those.", ("pro-forms", "subject"), 15)
    numbers = {"a": count([one, one]), "b": count([one])}
    bounds = {"a": {"pro-forms": 1, "long": 5, "subject": 2}}
    assert [line.partition(", at most")[0] for line in exceeded(numbers, bounds)] == [
        "a: 2 sentences of the kind 'pro-forms'",
        "b: 1 sentences of the kind 'pro-forms'",
        "b: 1 sentences of the kind 'subject'",
    ]
    assert lowered(numbers, bounds) == {
        "a": {"pro-forms": 1, "long": 0, "subject": 2},
        "b": {"pro-forms": 1, "long": 0, "subject": 1},
    }
