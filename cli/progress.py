"""Progress of long work, on standard error.

On a terminal one line is rewritten, a few times a second.  Elsewhere, as in a log, a line is written every half minute:
work that is shorter writes none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

TERMINAL_S = 0.2
LOG_S = 30.0
RATE_S = 1.0
"""Seconds before which no rate is shown: it would be a guess."""
_CLEAR = "\r\x1b[K"


def count_text(number: int) -> str:
    """Return a number with separators of thousands."""
    return f"{number:,}"


class Progress:
    """The progress of some work; ``show`` may be called at any rate."""

    def __init__(
        self,
        what: str,
        *,
        total: int | None = None,
        text: Callable[[int], str] = count_text,
        unit: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin now.  ``text`` formats a count, ``unit`` follows it; ``total`` is None if unknown."""
        self._text = text
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._every_s = TERMINAL_S if self._is_terminal else LOG_S
        self._due = clock() + self._every_s
        self._is_shown = False
        self.begin(what, total=total, unit=unit)

    def begin(self, what: str, *, total: int | None = None, unit: str = "") -> None:
        """Begin the next part of the work, which is counted from 0."""
        self._what = what
        self._total = total
        self._unit = f" {unit}" if unit else ""
        self._began = self._clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()

    def show(self, done: int, note: str = "") -> None:
        """Write the line, with ``note`` at its end, if it is due."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + self._every_s
        line = f"bmq: {self._what}: {self._line(done, now - self._began)}{f', {note}' if note else ''}"
        if self._is_terminal:
            self._stream.write(f"{_CLEAR}{line}")
            self._is_shown = True
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Remove the line from the terminal, before something else is written there."""
        if self._is_shown:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._is_shown = False

    def _line(self, done: int, took_s: float) -> str:
        line = f"{self._text(done)}{self._unit}"
        if self._total:
            line = (
                f"{self._text(done)} of {self._text(self._total)}{self._unit} ({min(done * 100 // self._total, 100)} %)"
            )
        if took_s >= RATE_S:
            line += f", {self._text(int(done / took_s))}/s"
        return line
