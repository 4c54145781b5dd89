"""The command line of measurements: options that all have, names that nobody knows, and the end of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import command
from bench.results import Results


def test_every_measurement_has_the_same_options() -> None:
    options = command.parser("bench.x", "Measure.", only=["a", "b"], what="parts").parse_args([])
    assert (options.quick, options.only, options.out, options.folder, options.render) == (
        False, "a,b", Path("docs"), None, False,
    )  # fmt: skip
    assert not hasattr(options, "add")
    assert command.parser("bench.x", "", only="a", what="parts", can_add=True).parse_args(["--add"]).add


def test_an_unknown_name_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    parser = command.parser("bench.x", "Measure.", only=["a", "b"], what="parts")
    command.require_known(parser, "part", "b,a", ["a", "b"])
    with pytest.raises(SystemExit, match="2"):
        command.require_known(parser, "part", "a,moon", ["a", "b"])
    assert "unknown part moon; there are a, b" in capsys.readouterr().err


@pytest.mark.parametrize(("failures", "status"), [([], 0), (["start of x: late", "y"], 1)])
def test_the_page_is_drawn_whatever_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failures: list[str], status: int
) -> None:
    path = tmp_path / "benchmarks" / "x.json"
    Results(command="", machine={}, plan={}, started="", failures=failures).save(path)
    drawn: list[Results] = []
    assert command.finish(path, drawn.append) == status
    assert [each.failures for each in drawn] == [failures]
    assert capsys.readouterr().err.splitlines() == [f"FAILED {each}" for each in failures]


def run_of(plan: dict[str, object], commit: str = "abc") -> Results:
    return Results(command="", machine={}, plan=plan, started="2026-11-21", commit=commit)


def test_figures_are_added_to_those_of_the_same_code_and_plan(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    now = run_of({"rounds": 3, "bytes": 10})
    with pytest.raises(SystemExit, match=r"x\.json is not there: nothing was measured before"):
        command.earlier(path, now)
    run_of({"rounds": 2, "bytes": 10}).save(path)
    assert command.earlier(path, now).plan["rounds"] == 2
    assert command.earlier(path, now, besides=["rounds"]).plan["rounds"] == 2
    with pytest.raises(SystemExit, match=r"x\.json cannot be added to: the earlier run had another rounds: 2"):
        command.earlier(path, now, besides=())
    with pytest.raises(SystemExit, match=r"x\.json cannot be added to: the earlier figures are not of commit abd"):
        command.earlier(path, run_of({}, commit="abd"))
