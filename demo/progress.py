"""Progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from tqdm import tqdm

LINE_EVERY_S = 2.0
SIGN_OF_LIFE_S = 10.0


class Progress:
    """The progress of one task of known size."""

    def __init__(self, title: str, total: int, unit: str = "records") -> None:
        self._title = title
        self._unit = unit
        self._total = total
        self._done = 0
        self._shown_at = time.monotonic()
        self._shown = 0
        self._bar = tqdm(desc=title, total=total, unit=f" {unit}", unit_scale=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._shown != self._done or not self._done:
            self._show()

    def at(self, done: int) -> None:
        """Show that ``done`` units are done."""
        if self._bar is not None:
            self._bar.update(done - self._done)
        self._done = done
        wait = LINE_EVERY_S if done != self._shown else SIGN_OF_LIFE_S
        if self._bar is None and time.monotonic() - self._shown_at >= wait:
            self._show()

    def say(self, text: str) -> None:
        """Print a line of its own, above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        self._shown = self._done
        share = 100 * self._done // self._total if self._total else 100
        print(f"{self._title}: {self._done:,} of {self._total:,} {self._unit} ({share} %)", file=sys.stderr, flush=True)
