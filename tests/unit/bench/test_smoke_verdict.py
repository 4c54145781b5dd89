"""The guard's verdicts: a ratio is slower only beyond both spreads, and the kept ones are read as they were written."""

from pathlib import Path

import pytest

from bench.reference_loop import VERSION
from bench.smoke import main
from bench.smoke_verdict import Figure, Kept, Ratio, table, verdict

COST, RATE = "produce_cpu_s_gb", "tiny_requests_s"


@pytest.mark.parametrize(
    ("name", "now", "kept", "expected"),
    [
        (COST, Ratio(1.2, 1.1, 1.3), None, "new"),
        (COST, Ratio(1.2, 1.1, 1.3), Ratio(1.0, 0.9, 1.1), "equal"),  # the spreads touch
        (COST, Ratio(1.2, 1.11, 1.3), Ratio(1.0, 0.9, 1.1), "SLOWER"),
        (COST, Ratio(0.8, 0.7, 0.89), Ratio(1.0, 0.9, 1.1), "better"),
        (COST, Ratio(2.0, 0.5, 9.0), Ratio(1.0, 0.9, 1.1), "equal"),  # a spread so wide says nothing
        (RATE, Ratio(1.2, 1.11, 1.3), Ratio(1.0, 0.9, 1.1), "better"),
        (RATE, Ratio(0.8, 0.7, 0.89), Ratio(1.0, 0.9, 1.1), "SLOWER"),
        (RATE, Ratio(0.8, 0.7, 0.9), Ratio(1.0, 0.9, 1.1), "equal"),
    ],
)
def test_a_ratio_is_slower_only_beyond_both_spreads(name: str, now: Ratio, kept: Ratio | None, expected: str) -> None:
    assert verdict(name, now, kept) == expected


def test_the_ratio_is_of_each_round_and_not_of_the_medians() -> None:
    figure = Figure.of(COST, [(10.0, 5.0), (30.0, 10.0), (20.0, 20.0)])
    assert figure == Figure(COST, 20.0, 10.0, Ratio(2.0, 1.0, 3.0))


def test_kept_ratios_are_read_as_they_were_written(tmp_path: Path) -> None:
    kept = Kept(VERSION, "0123", "2026-11-22", "two cores", {COST: Ratio(1.5, 1.25, 2.0)})
    kept.save(tmp_path / "kept.json")
    assert Kept.load(tmp_path / "kept.json") == kept


def test_ratios_to_another_version_of_the_reference_do_not_count(tmp_path: Path) -> None:
    Kept(VERSION + 1, "0123", "2026-11-22", "two cores", {}).save(tmp_path / "kept.json")
    assert Kept.load(tmp_path / "kept.json") is None
    assert Kept.load(tmp_path / "missing.json") is None


def test_the_table_shows_the_ratio_its_spread_and_what_was_kept() -> None:
    figures = [Figure.of(COST, [(3.0, 1.0)] * 5), Figure.of(RATE, [(1.0, 2.0)] * 5)]
    kept = Kept(VERSION, "0123456789abcdef", "2026-11-22", "two cores", {COST: Ratio(2.0, 1.9, 2.1)})
    lines = table(figures, kept).splitlines()
    assert lines[1].split() == [COST, "3", "1", "3.00", "3.00", "to", "3.00", "2.00", "SLOWER"]
    assert lines[2].split() == [RATE, "1", "2", "0.50", "0.50", "to", "0.50", "-", "new"]
    assert lines[3] == "kept at commit 0123456789ab on 2026-11-22, two cores"
    assert "--keep" in table(figures, None).splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rounds", "4"), "--rounds is less than 5"),
        (("--quick", "--rounds", "0"), "--rounds is less than 1"),
        (("--quick", "--keep"), "no baseline"),
    ],
)
def test_mistyped_arguments_say_what_to_do(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert message in capsys.readouterr().err
