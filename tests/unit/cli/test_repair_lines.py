"""`bmq segment repair` as text, of a partition that is whole."""

from __future__ import annotations

import pytest

from bmq.cli.repair import lines


@pytest.mark.parametrize(
    ("start", "end", "holds"),
    [
        (5, 9, "offsets 5 to 8"),
        (0, 0, "it is empty, its next offset is 0"),
        (7, 7, "it is empty, its next offset is 7"),
    ],
)
def test_a_whole_partition(start: int, end: int, holds: str) -> None:
    told = {"topic": "orders", "partition": 3, "log_start": start, "end_offset": end}
    told |= {"offline_reason": "", "segments": [], "notes": []}
    assert lines(told) == [f"orders-3: nothing is damaged; {holds}"]
