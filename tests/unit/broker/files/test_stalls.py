"""Stalls of storage: when a broker is called gray, and when reads are a reason to try storage."""

from __future__ import annotations

import pytest

from bmq.broker.files.stalls import ReadDoubts, StallDetector


def test_a_broker_with_work_and_no_progress_is_stalled_after_its_limit() -> None:
    stalls = StallDetector(5_000)
    seen = []
    for now_ms, has_work, progress in [
        (0, False, 0), (60_000, False, 0),  # idle
        (61_000, True, 0), (65_000, True, 0), (66_000, True, 0),  # stalled
        (67_000, True, 1),  # one flush
        (71_000, True, 1), (72_000, True, 1),  # stalled again
        (73_000, False, 1), (80_000, True, 1), (84_000, True, 1),  # given up, then new work
    ]:  # fmt: skip
        stalls.update(now_ms, has_work=has_work, progress=progress)
        seen.append(stalls.is_stalled)
    assert seen == [False, False, False, False, True, False, False, True, False, False, False]


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ("idle", [(0, 0, 0, 0, False), (60, 0, 0, 0, False)]),
        ("one waits", [(0, 1, 0, 0, False), (1, 1, 0, 0, False), (2, 1, 0, 0, True)]),
        ("others wait, one after the other", [(0, 1, 0, 0, False), (1, 2, 0, 0, False), (2, 3, 0, 0, False)]),
        ("one fails", [(0, 0, 0, 0, False), (1, 0, 1, 0, True)]),
        ("storage flushes while one waits", [(0, 1, 0, 0, False), (1, 1, 0, 1, False), (2, 1, 0, 1, False)]),
        ("it flushes no longer", [(0, 1, 0, 1, False), (1, 1, 0, 2, False), (3, 1, 0, 2, True)]),
        ("one fails beside flushes", [(0, 0, 0, 0, False), (1, 0, 1, 1, False), (2, 0, 1, 1, False)]),
        ("each fails", [(0, 0, 1, 0, True), (1, 0, 2, 0, False), (9, 0, 9, 0, False), (10, 0, 9, 0, True)]),
        ("one failed a while ago", [(0, 0, 1, 0, True), (60, 0, 1, 0, False)]),
        ("one waits on", [(0, 1, 0, 0, False), (2, 1, 0, 0, True), (11, 1, 0, 0, False), (12, 1, 0, 0, True)]),
    ],
)
def test_storage_is_tried_when_a_read_is_late_or_fails_and_nothing_else_progresses(
    looks: str, expected: list[tuple[int, int, int, int, bool]]
) -> None:
    """Rows: seconds, the read that waits for longest, failures, progress, whether to try storage."""
    doubts = ReadDoubts(2_000, 10_000)
    seen = [
        doubts.check(s * 1000, oldest=oldest, failed=failed, progress=done) for s, oldest, failed, done, _ in expected
    ]
    assert seen == [each[-1] for each in expected], looks
