"""The parts of pages: a cell says its spread and its verdict, and what was not measured has none."""

from bench.comparison import compare
from bench.page import listed, number, ratio_cell, short, table, verdicts
from bench.results import Spread

BETTER = compare("seconds", [(2.0, 1.0), (2.0, 1.5)])


def test_a_table_has_a_line_for_its_head_and_each_row() -> None:
    assert table(("a", "b"), [("1", "2")]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_numbers_have_three_digits_or_are_whole() -> None:
    assert [short(value) for value in (0.12345, 12.345, 1234.5)] == ["0.123", "12.3", "1,234"]


def test_a_number_has_its_spread_if_there_is_one() -> None:
    assert number(Spread(2.0, 1.0, 3.0)) == "2 (1 to 3)"
    assert number(Spread(2.0, 2.0, 2.0)) == "2"
    assert number(None) == "-"


def test_a_comparison_in_one_cell_says_ratio_quartiles_and_verdict() -> None:
    assert ratio_cell(BETTER) == "**0.62** (0.56 to 0.69) better"
    assert ratio_cell(None) == "-"


def test_verdicts_name_what_is_worse_as_plainly_as_what_is_better() -> None:
    worse = compare("seconds", [(1.0, 2.0)])
    assert verdicts({"p50": BETTER, "p99": worse}) == "- better:\n  - p50\n- equal: nothing\n- WORSE:\n  - p99"


def test_settings_are_listed_in_one_line() -> None:
    assert listed({"a": "1", "b": "2"}) == "`a=1` `b=2`"
