"""Output for people and for programs: single lines, tables printed row by row, errors."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from bmq.core.urls import without_passwords

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_MS_MAX = 253_402_300_799_999  # the year 9999, where datetime ends
_SIZE_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """Return ``text`` with control characters, line ends and changes of the text's direction escaped.

    Anybody may choose names of groups, clients and members: an escape sequence in one must not reach the terminal.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def print_json(fields: Mapping[str, object]) -> None:
    """Print ``fields`` as one JSON object on a line."""
    print(json.dumps(fields, separators=(",", ":")))


class Table:
    """A table printed row by row: columns have fixed widths, and a wider cell moves the rest of its row."""

    def __init__(self, columns: Sequence[tuple[str, int]]) -> None:
        """Take title and width of each column; a negative width aligns to the left."""
        self._columns = columns
        self._has_titles = False

    def row(self, *cells: object) -> None:
        """Print one row, after the titles if it is the first."""
        if not self._has_titles:
            self._has_titles = True
            print(self._line([title for title, _ in self._columns]))
        print(self._line([printable(str(cell)) for cell in cells]))

    def _line(self, cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(-width) if width < 0 else cell.rjust(width)
            for cell, (_, width) in zip(cells, self._columns, strict=True)
        )
        return "  ".join(padded).rstrip()


def format_time(timestamp_ms: int) -> str:
    """Return ISO 8601 in UTC; "-" for -1, and the bare number for any other time outside the years 1970 to 9999."""
    if not 0 <= timestamp_ms <= _TIMESTAMP_MS_MAX:
        return "-" if timestamp_ms == -1 else str(timestamp_ms)
    return (_EPOCH + timedelta(milliseconds=timestamp_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_bytes(data: bytes | None) -> object:
    """Return UTF-8 as a string, other bytes as ``{"base64": ...}``, None as None (JSON's null)."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def text_bytes(data: bytes | None) -> str:
    """Return one line without tabs: UTF-8 with control characters escaped, other bytes as ``base64:...``, None as
    "null"."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(data).decode()}"
    if text.isprintable():
        return text.replace("\\", "\\\\")
    return "".join(c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode() for c in text)


def fail(message: str, *, status: int = 1) -> int:
    """Print on standard error what is wrong and what to do, without passwords of URLs; return the exit status."""
    lines = without_passwords(message).split("\n")
    print("bmq: " + "\n".join(map(printable, lines)), file=sys.stderr)
    return status


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]], *, if_none: str = "") -> None:
    """Print ``titles`` over ``rows``, each column as wide as its widest cell; numbers to the right, None as ``-``.

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
