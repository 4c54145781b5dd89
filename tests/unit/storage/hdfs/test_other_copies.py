"""Copies that a pipeline cannot use: the fewest copies that the pipeline must keep beside them."""

from __future__ import annotations

import pytest

from bmq.storage.hdfs.other_copies import OtherCopies


@pytest.mark.parametrize(
    ("of_block", "elsewhere", "kept", "expected"),
    [
        (3, [], 1, ""),  # nothing better is known
        (3, ["c", "b"], 1, "1 of 3 replicas, and b, c live"),
        (3, ["c"], 2, ""),
        (2, ["b"], 1, "1 of 2 replicas, and b live"),
        (1, ["a"], 0, "0 of 1 replicas, and a live"),
        (1, ["a"], 1, ""),
    ],
)
def test_a_pipeline_keeps_two_copies_where_others_live(
    of_block: int, elsewhere: list[str], kept: int, expected: str
) -> None:
    copies = OtherCopies(of_block)
    copies.elsewhere.update(elsewhere)
    assert copies.refusal(kept) == expected
