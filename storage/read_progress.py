"""The progress of a process's reads from storage: which one waits, how many returned data and how many failed.

It consists of counters, which are checked now and then.  A read that finds no such file, or no sound replica, counts as
neither: storage has responded, and only this file is at fault.  Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bmq.storage.filesystem import CorruptData, NoSuchFile, StorageError


class ReadProgress:
    """The counters of one process.  Its size is bounded by the reads in flight."""

    __slots__ = ("_begun", "_waiting", "done", "error", "failed")

    def __init__(self) -> None:
        self._begun = 0
        self._waiting: dict[int, None] = {}  # in the order in which they began
        self.done = 0
        """Reads that returned data, ever."""
        self.failed = 0
        """Calls to which storage did not respond, ever."""
        self.error = ""
        """The reason of the last failed call; empty once a read has returned data again."""

    def __repr__(self) -> str:
        return f"<ReadProgress waiting={len(self._waiting)} done={self.done} failed={self.failed}>"

    @property
    def oldest(self) -> int:
        """The number of the call that has waited longest (calls are numbered from 1); 0 while none waits."""
        return next(iter(self._waiting), 0)

    def succeeded(self) -> None:
        """Count a read that has returned data."""
        self.done += 1
        self.error = ""

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the call of storage in the ``with`` block as waiting, and as failed if storage does not respond."""
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
