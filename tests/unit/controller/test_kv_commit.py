"""A refused commit of a leader: whether another process leads."""

from __future__ import annotations

import pytest

from bmq.controller.kv_commit import is_deposed
from bmq.meta.kv import Commit, Compare, Entry

DONE = Commit(True, 7, {})


@pytest.mark.parametrize(
    ("commit", "deposed"),
    [
        (DONE, False),
        (Commit(False, 9, {"leader": Entry("leader", b"c1", 3), "k": None}), False),  # another key has changed
        (Commit(False, 9, {"leader": Entry("leader", b"c2", 9), "k": None}), True),
        (Commit(False, 9, {"leader": None, "k": None}), True),
    ],
)
def test_only_a_changed_election_key_says_that_another_leads(commit: Commit, deposed: bool) -> None:
    assert is_deposed([Compare("leader", 3)], commit) is deposed
