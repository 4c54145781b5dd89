"""Lists of which a page is asked for: in the order of a column, and cut.

A page is found by the name in front of it (`after`: nothing is seen twice, or missed, while names come and go) or by
the number of rows in front of it (`skip`: any order, and any page).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

SKIP_MAX = 1_000_000
T = TypeVar("T")
Columns = Mapping[str, Callable[[T], Any]]
"""What to order by, of a row.  The first is the name, which no two rows share; None in another is: not known."""


class Order(NamedTuple):
    """The order by a column: `-bytes` in a URL is `bytes`, the greatest first."""

    by: str
    is_down: bool = False

    @classmethod
    def parse(cls, text: str) -> Order:
        return cls(text.removeprefix("-"), text.startswith("-"))


class Page(NamedTuple):
    """A part of a list in its order: at most `limit` elements, behind `after` and behind the first `skip`."""

    after: str
    limit: int
    skip: int = 0

    def cut(self, names: Sequence[str]) -> tuple[Sequence[str], str | None]:
        """Return this page of sorted `names`, and the `after` of the next page, None for the last."""
        rest = [name for name in names if name > self.after] if self.after else names
        rest = rest[self.skip :]
        return rest[: self.limit], rest[self.limit - 1] if len(rest) > self.limit else None


def cut(rows: Iterable[T], columns: Columns[T], order: Order, page: Page) -> tuple[Sequence[T], str | None]:
    """Return the page of `rows`, and the `after` of the next one: None for the last, and in all orders but by name.

    Equal rows are ordered by name, of texts in their direction; rows whose value is not known come last in both.
    """
    name, value = next(iter(columns.values())), columns[order.by]
    known, unknown = list[T](), list[T]()
    for row in rows:
        if not page.after or name(row) > page.after:
            (unknown if value(row) is None else known).append(row)
    last = page.skip + page.limit + 1  # one more says whether there is another page
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
