"""Tables whose rows are all known before the first is printed: columns are as wide as their widest cell."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bmq.cli.output import Table, printable

_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]], *, if_none: str = "") -> None:
    """Print ``titles`` over ``rows``; numbers to the right, None as ``-``.

    Without rows nothing is printed, except ``if_none`` on standard error: it is for people.
    """
    if not rows and if_none:
        print(if_none, file=sys.stderr)
    texts = [[_cell(value) for value in row] for row in rows]
    columns = []
    for position, title in enumerate(titles):
        width = max((len(title), *(len(row[position]) for row in texts)))
        is_number = all(row[position] is None or isinstance(row[position], int) for row in rows)
        columns.append((title, width if is_number else -width))
    table = Table(columns)
    for row in texts:
        table.row(*row)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def format_size(size: int | None) -> str:
    """Return a size in bytes as in ``1.5 MiB``; exact below a KiB, "-" for None."""
    if size is None:
        return "-"
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in _SIZE_UNITS:
        value /= 1024
        if value < 1023.95 or unit == _SIZE_UNITS[-1]:
            break
    return f"{value:.1f} {unit}"
