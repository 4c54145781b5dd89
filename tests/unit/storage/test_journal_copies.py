"""The copies that a journal asks for, and the times at which a file with fewer is replaced."""

from __future__ import annotations

import pytest

from bmq.storage.filesystem import CreateOptions
from bmq.storage.journal_copies import FULLER_S, PATIENCE_S, JournalCopies

ALL = CreateOptions(replication=3, all_copies=True)
ANY = CreateOptions(replication=3)


def test_all_copies_are_waited_for_from_the_first_refusal_for_a_while() -> None:
    copies = JournalCopies()
    assert copies.waits_for_all(1_000.0)
    copies.no_room(1_000.0)
    copies.no_room(1_000.0 + PATIENCE_S / 2)
    assert copies.waits_for_all(1_000.0 + PATIENCE_S - 0.01)
    assert not copies.waits_for_all(1_000.0 + PATIENCE_S)


def test_a_file_that_was_begun_ends_the_lack_of_room() -> None:
    copies = JournalCopies()
    copies.no_room(0.0)
    copies.begun(1, ANY)
    assert copies.waits_for_all(PATIENCE_S)


@pytest.mark.parametrize(
    ("nodes", "options", "has_all"),
    [
        (3, ALL, True),
        (3, ANY, True),
        (2, ALL, False),  # fewer datanodes live
        (2, ANY, False),
        (0, ALL, True),  # storage has no datanodes
        (0, ANY, False),
    ],
)
def test_a_file_has_all_its_copies_or_is_to_be_replaced(nodes: int, options: CreateOptions, has_all: bool) -> None:
    copies = JournalCopies()
    assert copies.begun(nodes, options) is has_all
    if not has_all:
        copies.plan_fuller(0.0)
    assert copies.has_all is has_all
    assert copies.is_fuller_due(1e9) is not has_all


def test_tries_to_replace_a_file_are_more_and_more_rare_until_one_has_all_copies() -> None:
    copies = JournalCopies()
    pauses = []
    for _ in range(6):
        assert not copies.begun(1, ALL)
        due = copies.plan_fuller(100.0)
        assert not copies.is_fuller_due(due - 0.01)
        assert copies.is_fuller_due(due)
        pauses.append(due - 100.0)
    assert pauses == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    assert copies.begun(3, ALL)
    assert not copies.is_fuller_due(1e9)
    copies.begun(1, ALL)
    assert copies.plan_fuller(100.0) == 100.0 + FULLER_S.least
