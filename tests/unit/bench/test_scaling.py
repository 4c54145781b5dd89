"""A run of bench.scaling: the shapes that a machine is for, its arguments, and what is measured of a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import scaling
from bench.provenance import Commit
from bench.results import Results
from bench.scaling import FULL, shapes
from bench.scaling_control import step_metrics
from bench.scaling_load import busy_shares
from bench.scaling_sites import Shape
from tests.scale.world import Step


@pytest.mark.parametrize(("cores", "most"), [(1, 4), (2, 4), (6, 4), (8, 8), (64, 8)])
def test_shapes_have_a_core_for_each_process_or_are_few(cores: int, most: int) -> None:
    assert max(shape.count for shape in shapes(FULL, cores)) == most


def test_a_shape_says_how_it_is_started() -> None:
    cases = [Shape(1).name, Shape(2).name, Shape(4, is_workers=True).name]
    assert cases == ["1 process", "2 processes", "--workers 4"]


def test_the_busiest_process_is_told_from_all_together() -> None:
    assert busy_shares([1.0, 5.0], [2.0, 9.5], 5.0) == {"busiest_share": 0.9, "all_share": 1.1}


def test_a_step_is_of_the_controller_that_leads() -> None:
    step = Step(took_s=3.0, cpu_s=[0.1, 2.5], stop_ms=[0.0, 24.0], rss_mb=[90, 400])
    assert step_metrics("lost", step) == {
        "lost_seconds": 3.0, "lost_cpu_s": 2.5, "lost_stop_ms": 24.0, "lost_rss_mb": 400.0,
    }  # fmt: skip


def test_a_mistyped_part_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        scaling.main(["--only", "speed"])
    assert "unknown part speed; there are processes, planning, control" in capsys.readouterr().err


def test_results_of_other_amounts_are_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.provenance.current_commit", lambda: Commit("0123", is_dirty=False))
    earlier = Results(command="", machine={}, plan={"rounds": 1}, started="", commit="0123")
    earlier.save(tmp_path / "benchmarks" / "scaling.json")
    with pytest.raises(SystemExit, match="the earlier run had another"):
        scaling.main(["--add", "--only", "planning", "--out", str(tmp_path)])


def test_a_part_that_cannot_begin_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no room")

    begun: list[object] = []
    parts = {"processes": fail, "planning": lambda *given: begun.append(given)}
    monkeypatch.setattr(scaling, "PARTS", parts)
    assert scaling.main(["--quick", "--out", str(tmp_path)]) == 1
    assert len(begun) == 1
    results = Results.load_from(tmp_path / "benchmarks" / "scaling.json")
    assert results.failures == ["processes on what it starts: OSError('no room')"]
