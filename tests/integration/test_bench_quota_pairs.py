"""The measurement of a client beside one at its quota runs: one short pair, a real ``bmq serve``, a real throttling."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.quota_pairs import ALONE, BESIDE, main


def test_a_short_pair_has_a_verdict_for_each_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    main(["--pairs", "2", "--seconds", "1", "--folder", str(folder)])
    printed = capsys.readouterr().out
    for case in (ALONE, BESIDE):
        assert printed.count(f"{case}: {{'p50_us': ") == 2
    for name in ("p50_us", "p99_us"):
        assert f"\n{name}: " in printed
    assert list(folder.iterdir()) == []
