"""Pages of lists in the order of a column."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmq.console.listing import Order, Page, cut

pytestmark = pytest.mark.slow


class Row(NamedTuple):
    name: str
    size: int | None = None
    state: str = ""


COLUMNS: dict[str, Any] = {name: attrgetter(name) for name in Row._fields}
WHOLE = Page("", 10)
ROWS = [Row("c", 2, "x"), Row("a", 1, "y"), Row("d", None, "x"), Row("b", 2, "y"), Row("e", None, "y")]


def names(sort: str, page: Page = WHOLE) -> tuple[str, str | None]:
    shown, following = cut(ROWS, COLUMNS, Order.parse(sort), page)
    return "".join(row.name for row in shown), following


@pytest.mark.parametrize(
    ("sort", "shown"),
    [
        ("name", "abcde"),
        ("-name", "edcba"),
        ("size", "abcde"),
        ("-size", "bcade"),
        ("state", "cdabe"),
        ("-state", "ebadc"),
    ],
)
def test_equal_rows_are_ordered_by_name_and_unknown_values_come_last(sort: str, shown: str) -> None:
    assert names(sort) == (shown, None)


def test_a_page_behind_a_name_and_a_page_by_its_number() -> None:
    assert names("name", Page("", 2)) == ("ab", "b")
    assert names("name", Page("b", 2)) == ("cd", "d")
    assert names("name", Page("d", 2)) == ("e", None)
    assert names("name", Page("", 2, 2)) == ("cd", "d")
    assert names("-size", Page("", 2, 2)) == ("ad", None), "a name says nothing in another order"
    assert names("-size", Page("", 2, 4)) == ("e", None)
    assert names("-size", Page("", 2, 9)) == ("", None)


rows = st.lists(
    st.builds(Row, st.text(max_size=2), st.none() | st.integers(0, 3), st.sampled_from("xy")),
    unique_by=lambda r: r.name,
)


@given(rows, st.sampled_from([f"{sign}{name}" for name in Row._fields for sign in ("", "-")]), st.integers(1, 4))
def test_the_pages_of_a_list_are_the_list(found: list[Row], sort: str, limit: int) -> None:
    whole, _ = cut(found, COLUMNS, Order.parse(sort), Page("", 1_000))
    assert sorted(whole) == sorted(found) if all(row.size is not None for row in found) else len(whole) == len(found)
    pages = [cut(found, COLUMNS, Order.parse(sort), Page("", limit, skip))[0] for skip in range(0, len(found), limit)]
    assert [row for page in pages for row in page] == list(whole)
