"""Pages of lists: rows sorted by a column, and cut.

A page begins after a name (``after``: no row is seen twice or missed while names come and go) or after a number of rows
(``skip``: for any order, and any page).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

SKIP_MAX = 1_000_000
T = TypeVar("T")
Columns = Mapping[str, Callable[[T], Any]]
"""Functions that return a row's value in each column.  The first column is the name, which is unique; in the others
None means that the value is not known."""


class Order(NamedTuple):
    """Order by a column.  In a URL, ``-bytes`` is the order by ``bytes`` with the greatest first."""

    by: str
    is_down: bool = False

    @classmethod
    def parse(cls, text: str) -> Order:
        """Return the order that a URL's parameter gives."""
        return cls(text.removeprefix("-"), text.startswith("-"))


class Page(NamedTuple):
    """Part of a sorted list: at most ``limit`` elements, after the name ``after`` and after the first ``skip``."""

    after: str
    limit: int
    skip: int = 0

    def cut(self, names: Sequence[str]) -> tuple[Sequence[str], str | None]:
        """Return this page of sorted ``names``, and the ``after`` of the next page, None for the last."""
        rest = [name for name in names if name > self.after] if self.after else names
        rest = rest[self.skip :]
        return rest[: self.limit], rest[self.limit - 1] if len(rest) > self.limit else None


def cut(rows: Iterable[T], columns: Columns[T], order: Order, page: Page) -> tuple[Sequence[T], str | None]:
    """Return a page of ``rows``, and the ``after`` of the next page: None for the last one, and if not ordered by name.

    Rows with equal values are ordered by name: downwards only for a descending order by texts.  Rows whose value is not
    known come last in both directions.
    """
    name, value = next(iter(columns.values())), columns[order.by]
    known, unknown = list[T](), list[T]()
    for row in rows:
        if not page.after or name(row) > page.after:
            (unknown if value(row) is None else known).append(row)
    last = page.skip + page.limit + 1  # one more, to see whether there is another page
    first = _first(known, last, order, name, value)
    if len(first) < last:
        first += heapq.nsmallest(last - len(first), unknown, key=name)
    shown = first[page.skip :][: page.limit]
    has_more = len(first) > page.skip + page.limit
    return shown, name(shown[-1]) if has_more and order == Order(next(iter(columns))) else None


def _first(rows: Sequence[T], count: int, order: Order, name: Callable[[T], Any], value: Callable[[T], Any]) -> list[T]:
    if not order.is_down:
        return heapq.nsmallest(count, rows, key=lambda row: (value(row), name(row)))
    if rows and isinstance(value(rows[0]), str):
        return heapq.nlargest(count, rows, key=lambda row: (value(row), name(row)))
    return heapq.nsmallest(count, rows, key=lambda row: (-value(row), name(row)))
