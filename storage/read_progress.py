"""How a process's reads from storage go: which one waits, how many found data and how many found storage away.

Counters only, for a look now and then.  A read that finds no such file, or no sound replica, counts as neither: storage
has answered, and only this file is to blame.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bmq.storage.filesystem import CorruptData, NoSuchFile, StorageError


class ReadProgress:
    """One process's.  Bounded by the reads in flight."""

    __slots__ = ("_begun", "_waiting", "done", "error", "failed")

    def __init__(self) -> None:
        self._begun = 0
        self._waiting: dict[int, None] = {}  # in the order in which they began
        self.done = 0
        """Reads that returned data, ever."""
        self.failed = 0
        """Calls that storage did not answer, ever."""
        self.error = ""
        """The reason of the last of these; empty once a read has returned data again."""

    def __repr__(self) -> str:
        return f"<ReadProgress waiting={len(self._waiting)} done={self.done} failed={self.failed}>"

    @property
    def oldest(self) -> int:
        """Return the number of the call that has waited for longest; 0 while none waits."""
        return next(iter(self._waiting), 0)

    def succeeded(self) -> None:
        """Count a read that has returned data."""
        self.done += 1
        self.error = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the call of storage in the block as one that waits, and as failed if storage does not answer it."""
        self._begun += 1
        number = self._begun
        self._waiting[number] = None
        try:
            yield
        except (NoSuchFile, CorruptData):
            raise
        except StorageError as error:
            self.failed += 1
            self.error = str(error)
            raise
        finally:
            del self._waiting[number]
